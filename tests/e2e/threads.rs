//! A full process table: the server has every thread it needs from its start, so it goes on. What needs a process fails and
//! says why, and afterwards everything works.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, chown},
    path::{Path, PathBuf},
    process::Command,
};

use sandbar_api::{Code, CreateSandbox, ExecRequest};

use crate::support::{Outcome, Server, done, guests, program};

const NOBODY: u32 = 65534;
const BECOME: [&str; 7] = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "--"];

fn exec(script: &str) -> Outcome<ExecRequest> {
    Ok(serde_json::from_value(serde_json::json!({"argv": ["sh", "-c", script]}))?)
}

/// The kernel counts nobody's processes; root's it does not. A program that becomes nobody, and then the server.
fn as_nobody(place: &Path) -> Outcome<PathBuf> {
    let (copy, script) = (place.join("sandbar"), place.join("become"));
    // The tree may be unreadable to others.
    fs::copy(program(), &copy)?;
    fs::write(&script, format!("#!/bin/sh\nexec {} {} \"$@\"\n", BECOME.join(" "), copy.display()))?;
    for path in [place, &copy, &script] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
    }
    Ok(script)
}

/// Asked by whom the process belongs to: root need not be allowed to.
fn limit(process: u32) -> Command {
    let is_root = rustix::process::geteuid().is_root();
    let words: &[&str] = if is_root { &BECOME } else { &["env"] };
    let mut limit = Command::new(words[0]);
    limit.args(&words[1..]).args(["prlimit", "--pid", &process.to_string()]);
    limit
}

/// From here on it gets no process or thread more.
fn deny(process: u32) -> Outcome {
    done(limit(process).arg("--nproc=0:")).map(drop)
}

/// As many as it could have before.
fn allow(process: u32) -> Outcome {
    let most = done(limit(process).args(["--nproc", "--noheadings", "--output", "HARD"]))?;
    done(limit(process).arg(format!("--nproc={}:", most.trim()))).map(drop)
}

/// How many of its threads have a name that begins so.
fn threads(process: u32, name: &str) -> Outcome<usize> {
    let mut found = 0;
    for task in fs::read_dir(format!("/proc/{process}/task"))? {
        // One that ends meanwhile is none.
        let comm = fs::read_to_string(task?.path().join("comm")).unwrap_or_default();
        found += usize::from(comm.starts_with(name));
    }
    Ok(found)
}

fn children(process: u32) -> Outcome<Vec<u32>> {
    let mut found = vec![];
    for task in fs::read_dir(format!("/proc/{process}/task"))? {
        let children = fs::read_to_string(task?.path().join("children"))?;
        found.extend(children.split_whitespace().filter_map(|child| child.parse::<u32>().ok()));
    }
    Ok(found)
}

#[tokio::test]
async fn a_full_process_table_is_said_and_survived() -> Outcome {
    let place = tempfile::tempdir()?;
    let is_root = rustix::process::geteuid().is_root();
    let becoming = if is_root { as_nobody(place.path())? } else { program() };
    let mut server = Server::start_furnished(becoming, |home| {
        if is_root {
            chown(home, Some(NOBODY), Some(NOBODY))?;
        }
        Ok(())
    })?;
    // Kept whatever happens: what a busy moment made goes after some seconds, and is not there when it is needed.
    let kept = (threads(server.pid(), "tokio-rt-worker")?, threads(server.pid(), "sqlx-sqlite-wor")?);
    // Two that work and four for what blocks; one that writes and three that read.
    assert!(kept.0 >= 6 && kept.1 >= 4, "{kept:?} threads of the runtime and of SQLite");
    let client = server.impatient()?;
    let named = |name: &str| CreateSandbox { name: Some(name.into()), ..Default::default() };
    client.create(&named("first"), None).await?;

    // Not one more thread for the server. It serves all the same, many at once.
    deny(server.pid())?;
    let calls = (0..40).map(|number| {
        let client = client.clone();
        async move {
            match number % 4 {
                0 => client
                    .exec("first", &exec("echo $((6 * 7))")?)
                    .await
                    .map(|ended| assert_eq!(ended.stdout, "42\n"))?,
                1 => drop(client.processes("first").await?),
                2 => drop(client.event_page(1, Some(1000), None).await?),
                _ => drop(client.upload("first", &format!("/workspace/{number}"), None, &b"x"[..]).await?),
            }
            Outcome::Ok(())
        }
    });
    for done in futures_util::future::join_all(calls).await {
        done?;
    }
    client.create(&named("second"), None).await?;
    client.delete("second").await?;

    // Nor a process for its sandbox, nor for whoever starts one: told to those who ask for it.
    let rest: Vec<u32> = guests(server.home.path()).into_iter().filter_map(|pid| u32::try_from(pid).ok()).collect();
    let launchers = children(server.pid())?;
    assert!(!rest.is_empty() && !launchers.is_empty());
    for process in rest.iter().chain(&launchers) {
        deny(*process)?;
    }
    let refused = client.exec("first", &exec("true")?).await.err().ok_or("it ran")?;
    assert_eq!(refused.code(), Some(Code::TooMany), "{refused}");
    let refused = client.create(&named("third"), None).await.err().ok_or("it was made")?;
    assert!(refused.to_string().contains("Resource temporarily unavailable"), "{refused}");
    assert!(client.sandbox("first").await.is_ok());

    for process in rest.iter().chain(&launchers).chain([&server.pid()]) {
        // A launcher that could not fork may have been replaced.
        if Path::new(&format!("/proc/{process}")).exists() {
            allow(*process)?;
        }
    }
    assert_eq!(client.exec("first", &exec("echo alive")?).await?.stdout, "alive\n");
    client.create(&named("third"), None).await?;
    for name in ["first", "third"] {
        client.delete(name).await?;
    }
    server.kill()
}
