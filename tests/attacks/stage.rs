//! Where attacks are tried: one server, a sandbox for each template that is asked for, and the host beside them.

use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
    rc::Rc,
    time::Duration,
};

use futures_util::TryStreamExt as _;
use sandbar_api::{CreateSandbox, CreateToken, ExecRequest, ExecResult, HumanDuration, Role, WorkspaceSource};
use sandbar_client::{Client, SandboxQuery};

use crate::{
    attack::{Attempt, Finding},
    outside::Outside,
    support::{Outcome, Server, done, expect_clean, until},
};

/// What the probe program is called in a shared directory.
const PROGRAM: &str = "attacks";
/// Longer than any attempt takes; one that hangs is a failure, not a wait.
const PATIENCE: Duration = Duration::from_secs(300);

pub(crate) struct Stage {
    pub(crate) server: Server,
    pub(crate) client: Client,
    /// An admin's.
    pub(crate) token: String,
    pub(crate) is_root: bool,
    pub(crate) outside: Outside,
    /// Everything of this run on the host; its path has no links.
    pub(crate) scratch: PathBuf,
    /// Of a browser that is signed in.
    pub(crate) cookie: RefCell<Option<String>>,
    targets: RefCell<HashMap<String, Rc<Target>>>,
    made: Cell<u32>,
    _scratch: tempfile::TempDir,
}

/// A sandbox whose workspace is a directory of the host with the probe program in it.
pub(crate) struct Target {
    pub(crate) id: String,
    /// The workspace, as the host sees it.
    pub(crate) shared: PathBuf,
    pub(crate) profile: &'static str,
    /// The name of its template.
    pub(crate) template: String,
}

/// A template's text: a profile, what differs from it, and the layers that are off.
pub(crate) fn recipe(profile: &str, with: &str, off: &[&str]) -> String {
    let mut text = format!("profile = \"{profile}\"\n{with}\n");
    if !off.is_empty() {
        text.push_str("[layers]\n");
        text.extend(off.iter().map(|layer| format!("{layer} = \"off\"\n")));
    }
    text
}

impl Stage {
    pub(crate) async fn open() -> Outcome<Self> {
        let directory = tempfile::Builder::new().prefix("sandbar-attacks-").tempdir()?;
        let scratch = directory.path().canonicalize()?;
        // Reachable for the sandboxes' uids, as a home directory on the host would be.
        fs::set_permissions(&scratch, fs::Permissions::from_mode(0o755))?;
        fs::copy("/proc/self/exe", scratch.join(PROGRAM))?;
        fs::set_permissions(scratch.join(PROGRAM), fs::Permissions::from_mode(0o755))?;
        fs::write(scratch.join("secret"), SECRET)?;
        fs::set_permissions(scratch.join("secret"), fs::Permissions::from_mode(0o600))?;
        let server = Server::start_in(scratch.join("home"))?;
        let client = server.client()?;
        let outside = Outside::open().await?;
        outside.furnish(server.home.path())?;
        until("the gate knows the outside", async || Ok(!client.gateway().await?.models.is_empty())).await?;
        crate::secrets::keep(&client).await?;
        let token = token(&client, Role::Admin).await?;
        Ok(Self {
            token,
            server,
            client,
            outside,
            is_root: rustix::process::geteuid().is_root(),
            scratch,
            cookie: RefCell::default(),
            targets: RefCell::default(),
            made: Cell::new(0),
            _scratch: directory,
        })
    }

    /// A number that nothing else of this run has.
    pub(crate) fn number(&self) -> u32 {
        self.made.set(self.made.get() + 1);
        self.made.get()
    }

    /// A fresh directory of the host.
    pub(crate) fn directory(&self, name: &str) -> Outcome<PathBuf> {
        let place = self.scratch.join(format!("{name}-{}", self.number()));
        fs::create_dir(&place)?;
        Ok(place)
    }

    /// A file of the host that only this run's user may read.
    pub(crate) fn secret(&self) -> PathBuf {
        self.scratch.join("secret")
    }

    /// Makes a template and returns its name.
    pub(crate) fn template(&self, text: &str) -> Outcome<String> {
        let name = format!("t{}", self.number());
        let place = self.server.home.path().join("templates");
        fs::create_dir_all(&place)?;
        fs::write(place.join(&name).with_extension("toml"), text)?;
        Ok(name)
    }

    /// The sandbox of a template's text, made when it is first asked for.
    pub(crate) async fn target(&self, profile: &'static str, text: &str) -> Outcome<Rc<Target>> {
        let found = self.targets.borrow().get(text).cloned();
        match found {
            Some(target) => Ok(target),
            None => {
                let target = Rc::new(self.fresh(profile, text).await?);
                self.targets.borrow_mut().insert(text.to_owned(), Rc::clone(&target));
                Ok(target)
            }
        }
    }

    /// One that an attack has broken serves no other.
    pub(crate) fn forget(&self, text: &str) {
        self.targets.borrow_mut().remove(text);
    }

    /// A sandbox of its own; whoever asks deletes it.
    pub(crate) async fn fresh(&self, profile: &'static str, text: &str) -> Outcome<Target> {
        Ok(self.try_fresh(profile, text).await??)
    }

    /// The same, for one that may be refused.
    pub(crate) async fn try_fresh(&self, profile: &'static str, text: &str) -> Outcome<sandbar_client::Result<Target>> {
        if self.server.namespace.is_some() {
            return self.try_pod(profile, text).await;
        }
        let shared = self.directory("shared")?;
        fs::hard_link(self.scratch.join(PROGRAM), shared.join(PROGRAM))?;
        let template = self.template(text)?;
        let request = CreateSandbox {
            template: Some(template.clone()),
            workspace: WorkspaceSource::Bind { path: shared.to_string_lossy().into_owned() },
            ..CreateSandbox::default()
        };
        let made = self.client.create(&request, None).await;
        Ok(made.map(|made| Target { id: made.sandbox.id.to_string(), shared, profile, template }))
    }

    /// On a cluster no directory is shared: the program is brought in.
    async fn try_pod(&self, profile: &'static str, text: &str) -> Outcome<sandbar_client::Result<Target>> {
        let template = self.template(&format!("{text}\n[kubernetes]\nstorage = \"ephemeral\"\n"))?;
        let wanted = CreateSandbox { template: Some(template.clone()), ..CreateSandbox::default() };
        let made = match self.client.create(&wanted, None).await {
            Ok(made) => made,
            Err(error) => return Ok(Err(error)),
        };
        let id = made.sandbox.id.to_string();
        let program = self.scratch.join("stripped");
        if !program.exists() {
            done(Command::new("strip").arg("-o").arg(&program).arg(self.scratch.join(PROGRAM)))?;
        }
        let mut copy = self.server.command(&["cp", &program.to_string_lossy(), &format!("{id}:/workspace/{PROGRAM}")]);
        done(&mut copy)?;
        self.client.exec(&id, &request(&["chmod", "755", "/workspace/attacks"])).await?;
        Ok(Ok(Target { id, shared: self.directory("unshared")?, profile, template }))
    }

    pub(crate) async fn delete(&self, target: &Target) -> Outcome {
        Ok(self.client.delete(&target.id).await?)
    }

    /// Deletes every sandbox and ends the server; what is then left on the host is a failure of its own.
    pub(crate) async fn close(mut self) -> Outcome {
        let all: Vec<_> = self.client.sandboxes(SandboxQuery::default()).try_collect().await?;
        for sandbox in all {
            self.client.delete(sandbox.id.as_str()).await?;
        }
        self.server.kill()?;
        expect_clean(&self.scratch)
    }

    pub(crate) async fn exec(&self, target: &Target, argv: &[&str]) -> Outcome<ExecResult> {
        Ok(self.client.exec(&target.id, &request(argv)).await?)
    }

    pub(crate) async fn sh(&self, target: &Target, script: &str) -> Outcome<ExecResult> {
        self.exec(target, &["sh", "-c", script]).await
    }

    /// Runs a probe inside.
    pub(crate) async fn probe(&self, target: &Target, arguments: &[&str]) -> Outcome<Finding> {
        let mut argv = vec!["/workspace/attacks", "--inside"];
        argv.extend(arguments);
        let mut request = request(&argv);
        request.env = self.known();
        let ran = self.client.exec(&target.id, &request).await?;
        judge(&ran.stdout, &ran.stderr, ran.exit.code)
    }

    pub(crate) async fn attempt(&self, target: &Target, attempt: Attempt) -> Outcome<Finding> {
        match attempt {
            Attempt::Probe(name) => self.probe(target, &[name]).await,
            Attempt::Shell(script) => {
                let mut request = request(&["sh", "-c", script]);
                request.env = self.known();
                let ran = self.client.exec(&target.id, &request).await?;
                judge(&ran.stdout, &ran.stderr, ran.exit.code)
            }
            Attempt::Act(act) => act(self, target).await,
        }
    }

    /// The same attempt by a process of the host, after the words of `wrapper`.
    pub(crate) fn on_host(&self, wrapper: &[&str], attempt: Attempt) -> Outcome<Finding> {
        let place = self.directory("control")?;
        let program = self.scratch.join(PROGRAM);
        let program = program.to_string_lossy();
        let mut argv: Vec<&str> = wrapper.to_vec();
        match attempt {
            Attempt::Probe(name) => argv.extend([program.as_ref(), "--inside", name]),
            Attempt::Shell(script) => argv.extend(["sh", "-c", script]),
            Attempt::Act(_) => return Err("an attempt through the API has no control on the host".into()),
        }
        let mut command = Command::new("timeout");
        command.arg("60").args(argv).current_dir(&place).envs(self.known());
        let ran = command.output()?;
        let (stdout, stderr) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
        judge(&stdout, &stderr, ran.status.code().unwrap_or(128))
    }

    /// An HTTP request over TCP exactly as it is written, with the admin's token; returns the whole answer.
    pub(crate) fn raw(&self, method: &str, path: &str) -> Outcome<String> {
        let host = self.address()?;
        let authorization = format!("Authorization: Bearer {}", self.token);
        self.send(&format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\n{authorization}\r\nConnection: close\r\n\r\n"))
    }

    /// Bytes to the server's TCP port, and all that comes back.
    pub(crate) fn send(&self, text: &str) -> Outcome<String> {
        let mut stream = TcpStream::connect(self.address()?)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(text.as_bytes())?;
        let mut answer = vec![];
        stream.read_to_end(&mut answer)?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }

    /// Where the server listens, as `host:port`.
    pub(crate) fn address(&self) -> Outcome<String> {
        Ok(self.server.base()?.trim_start_matches("http://").to_owned())
    }

    /// What an attacker could know of the host.
    fn known(&self) -> std::collections::BTreeMap<String, String> {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        [
            ("SECRET", text(&self.secret())),
            ("SANDBAR_HOME", text(self.server.home.path())),
            ("SCRATCH", text(&self.scratch)),
            ("SERVER_PID", self.server.pid().to_string()),
            ("SERVER", self.address().unwrap_or_default()),
        ]
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
    }
}

pub(crate) async fn token(client: &Client, role: Role) -> Outcome<String> {
    let request = CreateToken { name: format!("{role:?}"), role, session: None, ttl: None };
    Ok(client.create_token(&request).await?.secret)
}

pub(crate) const SECRET: &str = "of the host alone\n";

/// Fresh namespaces whose root we are, with nothing else around us.
pub(crate) const UNSHARED: &[&str] =
    &["unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--mount-proc", "--net", "--ipc", "--uts"];

pub(crate) fn request(argv: &[&str]) -> ExecRequest {
    ExecRequest {
        argv: argv.iter().map(|&word| word.to_owned()).collect(),
        env: Default::default(),
        cwd: None,
        timeout: Some(HumanDuration(PATIENCE)),
        stdin: None,
        max_output: 1 << 20,
    }
}

/// A probe that says nothing was stopped by a signal, which must be the filter's.
fn judge(stdout: &str, stderr: &str, code: i32) -> Outcome<Finding> {
    match Finding::parse(stdout) {
        Some(finding) => Ok(finding),
        None if code == 128 + libc::SIGSYS => Ok(Finding::contained("SIGSYS")),
        None if code == 128 + libc::SIGSEGV => Ok(Finding::contained("SIGSEGV")),
        None => Err(format!("no verdict, exit {code}: {stdout}{stderr}").into()),
    }
}
