//! A database that was lost or restored from an old backup, and a home that was copied, with the real binary: nothing that
//! the server cannot prove to be its own garbage is destroyed or killed.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use sandbar_api::{CreateSandbox, SandboxState, StartProcess};

use crate::support::{Home, Outcome, Server, done, text};

const DATABASE: [&str; 3] = ["sandbar.db", "sandbar.db-wal", "sandbar.db-shm"];

/// Every file below a directory of a sandbox's data, with its content.
fn files(below: &Path) -> Outcome<Vec<(PathBuf, Vec<u8>)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(below)? {
        let entry = entry?;
        match entry.file_type()? {
            kind if kind.is_dir() => found.extend(files(&entry.path())?),
            kind if kind.is_file() => found.push((entry.path(), fs::read(entry.path())?)),
            _ => {}
        }
    }
    found.sort();
    Ok(found)
}

fn verb(server: &Server, arguments: &[&str]) -> Outcome<String> {
    done(&mut server.command(arguments))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_database_is_refused_and_everything_can_be_had_again() -> Outcome {
    let mut server = Server::start()?;
    verb(&server, &["create", "--name", "agent"])?;
    verb(&server, &["exec", "agent", "sh", "-c", "echo precious >/workspace/work"])?;
    let snapshot = verb(&server, &["snapshot", "agent", "--name", "kept"])?;
    verb(&server, &["create", "--name", "scratch"])?;
    let id = verb(&server, &["ls", "-q"])?.lines().next().ok_or("no sandbox")?.to_owned();
    server.kill()?;
    let home = server.home.path().to_owned();
    let aside = tempfile::tempdir()?;
    for name in DATABASE {
        if home.join(name).exists() {
            fs::rename(home.join(name), aside.path().join(name))?;
        }
    }
    let (local, output) = (files(&home.join("local"))?, files(&home.join("output"))?);
    let told = server.refused(&[])?;
    for word in
        ["the database is empty or missing", "2 sandboxes", "--adopt", "docs/recovery.md", "Nothing was changed"]
    {
        assert!(told.contains(word), "{word}: {told}");
    }
    assert_eq!(
        (files(&home.join("local"))?, files(&home.join("output"))?),
        (local, output),
        "a refused start changed files"
    );
    assert!(!home.join("sandbar.db").exists(), "a refused start made a database");

    server.restart_with(&["--adopt"])?;
    assert_eq!(verb(&server, &["ls", "-q"])?, "");
    let listed = verb(&server, &["quarantine", "ls", "-q"])?;
    assert!(listed.contains(&id) && listed.contains(snapshot.trim()), "{listed}");
    let table = verb(&server, &["quarantine"])?;
    assert!(table.contains("agent") && table.contains("default") && table.contains("another instance"), "{table}");
    assert_eq!(verb(&server, &["quarantine", "adopt", &id])?.trim(), id);
    assert_eq!(verb(&server, &["exec", "agent", "cat", "/workspace/work"])?, "precious\n");
    verb(&server, &["quarantine", "adopt", snapshot.trim(), "--name", "again"])?;
    verb(&server, &["create", "--from", "again", "--name", "copy"])?;
    assert_eq!(verb(&server, &["exec", "copy", "cat", "/workspace/work"])?, "precious\n");
    for rest in verb(&server, &["quarantine", "ls", "-q"])?.lines() {
        verb(&server, &["quarantine", "rm", rest])?;
    }
    assert_eq!(verb(&server, &["quarantine", "ls", "-q"])?, "");
    let unknown = server.command(&["quarantine", "rm", &id]).output()?;
    assert!(
        !unknown.status.success() && text(&unknown.stderr).contains("not in quarantine"),
        "{}",
        text(&unknown.stderr)
    );
    verb(&server, &["quarantine", "rm", "--force", &id])?;
    assert_eq!(verb(&server, &["exec", "agent", "cat", "/workspace/work"])?, "precious\n");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_backup_is_refused_and_costs_nothing() -> Outcome {
    let mut server = Server::start()?;
    verb(&server, &["create", "--name", "old"])?;
    server.kill()?;
    let home = server.home.path().to_owned();
    let backup = tempfile::tempdir()?;
    for name in DATABASE {
        if home.join(name).exists() {
            fs::copy(home.join(name), backup.path().join(name))?;
        }
    }
    server.restart()?;
    verb(&server, &["create", "--name", "new"])?;
    verb(&server, &["exec", "new", "sh", "-c", "echo precious >/workspace/work"])?;
    server.kill()?;
    for name in DATABASE {
        drop(fs::remove_file(home.join(name)));
        if backup.path().join(name).exists() {
            fs::copy(backup.path().join(name), home.join(name))?;
        }
    }
    let told = server.refused(&[])?;
    assert!(told.contains("the database is older than the files"), "{told}");
    server.restart_with(&["--adopt"])?;
    verb(&server, &["exec", "old", "true"])?;
    let id = verb(&server, &["quarantine", "ls", "-q"])?;
    verb(&server, &["quarantine", "adopt", id.trim(), "--name", "again"])?;
    assert_eq!(verb(&server, &["exec", "again", "cat", "/workspace/work"])?, "precious\n");
    server.kill()?;
    server.restart()?;
    verb(&server, &["exec", "again", "true"])?;
    Ok(())
}

/// The copy has the original's `guest.pid`. Its server starts, finds that nothing of it runs, and kills nobody.
#[tokio::test(flavor = "multi_thread")]
async fn the_server_of_a_copied_home_leaves_the_originals_guests_alone() -> Outcome {
    let server = Server::start()?;
    let client = server.client()?;
    let sandbox = client.create(&CreateSandbox { name: Some("original".into()), ..Default::default() }, None).await?;
    let argv = ["sh", "-c", "while :; do sleep 1; done"].map(String::from).into();
    client.start_process("original", &StartProcess { argv, ..Default::default() }).await?;
    let place = tempfile::tempdir()?;
    let home = place.path().join("home");
    // As `cp -a` of a running server's home gives it; sockets are copied as such.
    let copied = Command::new("cp").arg("-a").arg(server.home.path()).arg(&home).output()?;
    assert!(copied.status.success(), "{}", text(&copied.stderr));

    let mut copy = Server::start_again(Home::Theirs(home.clone()))?;
    let there = copy.client()?.sandbox("original").await?;
    assert_eq!((there.id, there.state), (sandbox.sandbox.id.clone(), SandboxState::Failed), "the copy's does not run");
    copy.client()?.delete("original").await?;
    assert_eq!(client.sandbox("original").await?.state, SandboxState::Ready);
    let processes = client.processes("original").await?;
    assert!(processes.iter().all(|process| process.exit.is_none()), "{processes:?}");
    assert_eq!(verb(&server, &["exec", "original", "echo", "lives"])?, "lives\n");

    // The control: with a pid file that does not say which directory it belongs to, the copy takes the guest for its own.
    copy.kill()?;
    fs::remove_dir_all(&home)?;
    let copied = Command::new("cp").arg("-a").arg(server.home.path()).arg(&home).output()?;
    assert!(copied.status.success(), "{}", text(&copied.stderr));
    let file = home.join("local").join(sandbox.sandbox.id.as_str()).join("guest.pid");
    let words = fs::read_to_string(&file)?;
    fs::write(&file, words.split_whitespace().take(2).collect::<Vec<_>>().join(" "))?;
    copy.restart()?;
    drop(copy.client()?.delete("original").await);
    let gone = server.command(&["exec", "original", "true"]).output()?;
    assert!(!gone.status.success(), "the control: the original's guest was meant to die");
    Ok(())
}

/// After an ordinary crash, one directory that the database does not know.
#[tokio::test(flavor = "multi_thread")]
async fn a_single_unknown_directory_is_quarantined_and_removed_by_age_where_configured() -> Outcome {
    let mut server = Server::start()?;
    verb(&server, &["create", "--name", "agent"])?;
    verb(&server, &["stop", "agent"])?;
    let id = verb(&server, &["ls", "-q"])?.trim().to_owned();
    server.kill()?;
    let local = server.home.path().join("local");
    let stranger = local.join("sbx-00000000000000000000000001");
    let copied = Command::new("cp").arg("-a").arg(local.join(&id)).arg(&stranger).output()?;
    assert!(copied.status.success(), "{}", text(&copied.stderr));
    fs::remove_file(stranger.join("kept"))?;
    fs::remove_file(stranger.join("sandbox.json"))?;
    server.restart()?;
    assert_eq!(verb(&server, &["quarantine", "ls", "-q"])?.trim(), "sbx-00000000000000000000000001");
    assert!(server.log_text().contains("sandbar quarantine"), "{}", server.log_text());
    server.kill()?;
    server.restart_with(&["--remove-quarantined-after", "1ms"])?;
    crate::support::until("it is removed", async || Ok(!stranger.exists())).await?;
    assert_eq!(verb(&server, &["quarantine", "ls", "-q"])?, "");
    verb(&server, &["start", "agent"])?;
    Ok(())
}
