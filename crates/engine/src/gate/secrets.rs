//! Secrets: set, listed, removed; and handed to the gateway, each time anew, so that rotation and removal are immediate.

use std::{
    collections::BTreeMap,
    sync::{Arc, PoisonError, RwLock},
};

use sandbar_api::{
    Code, Problem, SandboxId, SecretInfo, SetSecret,
    secret::{MAX_HOSTS, MAX_SECRET, check_name},
};
use sandbar_gateway::{Grant, Secret};
use sandbar_policy::{Host, Placement};
use tokio::sync::Mutex;
use zeroize::Zeroizing;

use super::Vault;
use crate::{
    Engine, Inner, clock, problem,
    store::{self, Store, gate::SecretRow},
};

const KNOWN: &str = "`sandbar secret ls` shows those there are.";

/// All secrets, sealed, in memory.
pub(crate) struct Secrets {
    all: RwLock<BTreeMap<String, Arc<Kept>>>,
    /// Held over a change's commit, so that memory takes changes in the order the store does.
    changing: Mutex<()>,
}

struct Kept {
    row: SecretRow,
    hosts: Vec<Host>,
    placement: Placement,
}

impl Kept {
    fn read(row: SecretRow) -> store::Result<Self> {
        let unreadable = |cause: String| store::Error::Unreadable(format!("the secret {}: {cause}", row.info.name));
        let hosts = row.info.hosts.iter().map(|host| Host::parse(host)).collect::<Result<_, _>>();
        let hosts = hosts.map_err(|bad| unreadable(bad.to_string()))?;
        let placement = row.info.placement.parse();
        let placement = placement.map_err(|bad: sandbar_policy::BadPlacement| unreadable(bad.to_string()))?;
        Ok(Self { row, hosts, placement })
    }
}

impl Kept {
    fn context(&self) -> String {
        context(&self.row.info.name, &self.hosts, &self.placement)
    }
}

impl Secrets {
    pub(crate) async fn load(store: &dyn Store) -> store::Result<Self> {
        let named = |row: SecretRow| Ok((row.info.name.clone(), Arc::new(Kept::read(row)?)));
        let all = store.secrets().await?.into_iter().map(named).collect::<store::Result<_>>()?;
        Ok(Self { all: RwLock::new(all), changing: Mutex::default() })
    }

    fn get(&self, name: &str) -> Option<Arc<Kept>> {
        self.all.read().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    fn change(&self, change: impl FnOnce(&mut BTreeMap<String, Arc<Kept>>)) {
        change(&mut self.all.write().unwrap_or_else(PoisonError::into_inner));
    }

    pub(crate) fn exists(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// Of those names, what there is, with the sandbox's placeholders.
    pub(crate) fn grants(&self, vault: &Vault, sandbox: &SandboxId, names: &[String]) -> Vec<Grant> {
        let grant = |name: &String| {
            let kept = self.get(name)?;
            Some(Grant {
                name: name.clone(),
                placeholder: vault.placeholder(sandbox, name),
                hosts: kept.hosts.clone(),
                placement: kept.placement.clone(),
            })
        };
        names.iter().filter_map(grant).collect()
    }

    pub(crate) fn reveal(&self, vault: &Vault, name: &str) -> Option<(Secret, Placement, Vec<Host>)> {
        let kept = self.get(name)?;
        let mut plain = match vault.unseal(&kept.context(), &kept.row.sealed) {
            Ok(plain) => plain,
            Err(problem) => {
                tracing::error!(secret = name, %problem, "a secret cannot be used");
                return None;
            }
        };
        // Moved, not copied: the value is in memory once.
        let value = String::from_utf8(std::mem::take(&mut *plain)).ok()?;
        Some((Secret::new(value), kept.placement.clone(), kept.hosts.clone()))
    }
}

/// What a value is sealed for: whoever can write the database cannot send it to another host.
fn context(name: &str, hosts: &[Host], placement: &Placement) -> String {
    let hosts: Vec<_> = hosts.iter().map(ToString::to_string).collect();
    format!("secret:{name}:{}:{placement}", hosts.join(","))
}

impl Engine {
    pub async fn set_secret(&self, name: &str, request: SetSecret) -> Result<SecretInfo, Problem> {
        let SetSecret { hosts, placement, value } = request;
        let value = value.map(Zeroizing::new);
        check_name(name)?;
        let hosts = read_hosts(&hosts)?;
        let placement = read_placement(&placement)?;
        if let Some(value) = &value {
            check_value(value)?;
        }
        let (inner, name) = (self.inner.clone(), name.to_owned());
        self.inner.finish(async move { set(&inner, name, hosts, placement, value).await }).await
    }

    pub async fn secrets(&self) -> Result<Vec<SecretInfo>, Problem> {
        let all = self.inner.gates.secrets.all.read().unwrap_or_else(PoisonError::into_inner);
        Ok(all.values().map(|kept| kept.row.info.clone()).collect())
    }

    pub async fn remove_secret(&self, name: &str) -> Result<(), Problem> {
        let (inner, name) = (self.inner.clone(), name.to_owned());
        self.inner.finish(async move { remove(&inner, &name).await }).await
    }
}

async fn set(
    inner: &Inner,
    name: String,
    hosts: Vec<Host>,
    placement: Placement,
    value: Option<Zeroizing<String>>,
) -> Result<SecretInfo, Problem> {
    let secrets = &inner.gates.secrets;
    let _alone = secrets.changing.lock().await;
    let (before, now) = (secrets.get(&name), clock::now());
    let created_at = before.as_ref().map_or(now, |kept| kept.row.info.created_at);
    let (vault, sealed_for) = (&inner.gates.vault, context(&name, &hosts, &placement));
    let (sealed, changed_at) = match (value, &before) {
        (Some(value), _) => (vault.seal(&sealed_for, value.as_bytes())?, now),
        (None, Some(kept)) => {
            let plain = vault.unseal(&kept.context(), &kept.row.sealed)?;
            (vault.seal(&sealed_for, &plain)?, kept.row.info.changed_at)
        }
        (None, None) => {
            return Err(Problem::new(
                Code::BadSecret,
                format!("There is no secret {name} yet, and no value was given."),
                "Give its value on standard input or in a file.",
            ));
        }
    };
    let texts = hosts.iter().map(ToString::to_string).collect();
    let info = SecretInfo { name, hosts: texts, placement: placement.to_string(), created_at, changed_at };
    let row = SecretRow { info: info.clone(), sealed };
    inner.store.set_secret(&row).await?;
    secrets.change(|all| drop(all.insert(info.name.clone(), Arc::new(Kept { row, hosts, placement }))));
    Ok(info)
}

async fn remove(inner: &Inner, name: &str) -> Result<(), Problem> {
    let secrets = &inner.gates.secrets;
    let _alone = secrets.changing.lock().await;
    inner.store.remove_secret(name).await.map_err(|error| match error {
        store::Error::Missing(_) => unknown(name),
        error => error.into(),
    })?;
    secrets.change(|all| drop(all.remove(name)));
    Ok(())
}

pub(super) fn unknown(name: &str) -> Problem {
    Problem::new(Code::UnknownSecret, format!("There is no secret `{}`.", name.escape_debug()), KNOWN)
}

fn bad(detail: impl Into<String>, fix: impl Into<String>) -> Problem {
    Problem::new(Code::BadSecret, detail, fix)
}

/// Exact names only: whoever gets a name below a wildcard would get the secret.
fn read_hosts(texts: &[String]) -> Result<Vec<Host>, Problem> {
    if texts.is_empty() {
        return Err(bad("The secret has no host it may go to.", "Name at least one, for example api.github.com."));
    }
    if texts.len() > MAX_HOSTS {
        return Err(bad(format!("{} hosts are too many.", texts.len()), format!("Name at most {MAX_HOSTS}.")));
    }
    let mut hosts = Vec::new();
    for text in texts {
        if text.contains('*') {
            let why = "a secret goes to exact names only, since whoever gets a name that matches would get it";
            return Err(bad(format!("`{}` has a wildcard: {why}.", text.escape_debug()), "Name each host."));
        }
        let host = Host::parse(text)
            .map_err(|error| bad(format!("{error}."), "Give the name alone, for example api.github.com."))?;
        if !hosts.contains(&host) {
            hosts.push(host);
        }
    }
    Ok(hosts)
}

fn read_placement(text: &str) -> Result<Placement, Problem> {
    text.parse().map_err(|error: sandbar_policy::BadPlacement| {
        bad(
            format!("{error}."),
            "Use header:NAME:FORMAT (as in `header:Authorization:Bearer {}`), basic:USER, query:NAME or body.",
        )
    })
}

/// Says what is wrong without a word of it.
fn check_value(value: &str) -> Result<(), Problem> {
    if value.is_empty() {
        return Err(bad("The secret's value is empty.", "Give its value on standard input or in a file."));
    }
    if value.len() > MAX_SECRET {
        let detail = format!("The secret's value has {} bytes.", value.len());
        return Err(bad(detail, format!("Use at most {MAX_SECRET} bytes.")));
    }
    if value.contains(['\n', '\r']) {
        return Err(bad(
            "The secret's value has a line break in it.",
            "Give one line; a key file cannot stand in a request.",
        ));
    }
    if value.chars().any(char::is_control) {
        return Err(bad("The secret's value has a control character in it.", "Give printable characters only."));
    }
    Ok(())
}

impl Inner {
    /// Does it to the end, whether or not the caller waits for that: what was committed has to be in memory too.
    pub(crate) async fn finish<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, Problem>> + Send + 'static,
    ) -> Result<T, Problem> {
        if self.closing.is_cancelled() {
            return Err(problem::shutting_down());
        }
        self.tasks.spawn(work).await.unwrap_or_else(|error| {
            tracing::error!(%error, "a change ended before its time");
            Err(Problem::new(
                Code::Internal,
                "The change was not finished.",
                "Look at the server's log, and try again.",
            ))
        })
    }
}
