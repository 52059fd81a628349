//! git over https with a password that only the gate knows.

use std::{
    io::Write as _,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
};

use crate::{
    gate::house::{House, has, host},
    gate::roots::Roots,
    gate::secrets::{expect_nowhere, expect_nowhere_inside},
    gate::site::{Reply, Seen, Site, reply},
    support::Outcome,
};

const PASSWORD: &str = "git-password-that-stays-outside-42";

/// What git's own server program makes of a request, if who asks is who may.
fn backend(projects: &Path, seen: &Seen) -> Reply {
    let expected = sandbar_api::bytes::encode(format!("x-access-token:{PASSWORD}").as_bytes());
    if seen.header("authorization") != format!("Basic {expected}") {
        let mut reply = reply(401, "who are you?\n");
        let header = hyper::header::HeaderValue::from_static("Basic realm=\"tests\"");
        reply.headers_mut().insert("www-authenticate", header);
        return reply;
    }
    cgi(projects, seen).unwrap_or_else(|error| reply(500, error.to_string()))
}

fn cgi(projects: &Path, seen: &Seen) -> Outcome<Reply> {
    let mut command = Command::new("git");
    command.arg("http-backend").env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command.env("GIT_PROJECT_ROOT", projects).env("GIT_HTTP_EXPORT_ALL", "1").env("REMOTE_USER", "tests");
    command.env("GIT_CONFIG_GLOBAL", "/dev/null");
    command.env("REQUEST_METHOD", seen.method.as_str()).env("PATH_INFO", seen.path());
    command.env("QUERY_STRING", seen.uri.query().unwrap_or_default()).env("CONTENT_TYPE", seen.header("content-type"));
    command.env("CONTENT_LENGTH", seen.body.len().to_string());
    command
        .env("HTTP_CONTENT_ENCODING", seen.header("content-encoding"))
        .env("GIT_PROTOCOL", seen.header("git-protocol"));
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let (mut stdin, body) = (child.stdin.take().ok_or("no stdin")?, seen.body.clone());
    let writer = std::thread::spawn(move || stdin.write_all(&body));
    let output = child.wait_with_output()?.stdout;
    // It reads no more than it needs of what it refuses.
    let _written = writer.join();
    let end = output.windows(4).position(|bytes| bytes == b"\r\n\r\n").ok_or("no head")?;
    let mut answer = reply(200, output[end + 4..].to_vec());
    for line in std::str::from_utf8(&output[..end])?.lines() {
        let (name, value) = line.split_once(": ").ok_or("no header")?;
        match name {
            "Status" => *answer.status_mut() = value.split(' ').next().unwrap_or_default().parse()?,
            _ => drop(answer.headers_mut().insert(hyper::header::HeaderName::try_from(name)?, value.parse()?)),
        }
    }
    Ok(answer)
}

/// A repository with one commit, to be served.
fn project(place: &Path) -> Outcome<PathBuf> {
    let projects = place.join("projects");
    let (bare, work) = (projects.join("tiny.git"), place.join("work"));
    let path = |path: &Path| path.to_string_lossy().into_owned();
    host("git", &["init", "-q", "--bare", "--initial-branch=main", &path(&bare)])?;
    host("git", &["clone", "-q", &path(&bare), &path(&work)])?;
    std::fs::write(work.join("file"), "first\n")?;
    let me = ["-c", "user.name=tests", "-c", "user.email=tests@web.test"];
    host("git", &["-C", &path(&work), "add", "file"])?;
    host("git", &[&["-C", &path(&work)], &me[..], &["commit", "-q", "-m", "first"]].concat())?;
    host("git", &["-C", &path(&work), "push", "-q", "origin", "HEAD:main"])?;
    Ok(projects)
}

/// Clones, commits something larger than git sends at once, pushes and looks whether it arrived.
fn clone_and_push(house: &House, site: &Site, projects: &Path, url: &str) -> Outcome {
    let script = format!(
        "set -e
        export GIT_TERMINAL_PROMPT=0
        git clone -q {url} tiny
        cd tiny && cat file
        head -c 3000000 /dev/urandom > large
        git add large && git -c user.name=a -c user.email=a@b commit -q -m second
        git push -q origin HEAD:main
        git fetch -q && git status -sb | head -n 1"
    );
    let said = house.well("box", &script)?;
    assert!(said.starts_with("first\n## main...origin/main\n"), "{said}");
    let arrived = host("git", &["-C", &projects.join("tiny.git").to_string_lossy(), "log", "--format=%s", "main"])?;
    assert_eq!(arrived, "second\nfirst\n");
    assert!(site.seen().iter().any(|seen| seen.path().ends_with("/git-receive-pack") && seen.body.len() > 3_000_000));
    expect_nowhere_inside(house, "box", "GIT_PASSWORD", PASSWORD)?;
    expect_nowhere(house, PASSWORD)
}

#[test]
fn git_clones_and_pushes_with_a_placeholder_in_the_address() -> Outcome {
    if !has("git_clones_and_pushes_with_a_placeholder_in_the_address", "git") {
        return Ok(());
    }
    let house = House::open()?;
    let projects = project(&house.directory("git")?)?;
    let served = projects.clone();
    let site = Site::start(&house.roots, "git.test", move |seen| backend(&served, seen))?;
    house.secret("GIT_PASSWORD", "git.test", "basic:x-access-token", PASSWORD)?;
    house.create("box", &[&site.place], &["--secret", "GIT_PASSWORD"])?;
    let without =
        house.inside("box", &format!("GIT_TERMINAL_PROMPT=0 git clone -q https://{}/tiny.git x", site.place))?;
    assert!(without.code == Some(128) && !without.err.contains(PASSWORD), "{without:?}");
    let url = format!("https://x-access-token:$GIT_PASSWORD@{}/tiny.git", site.place);
    clone_and_push(&house, &site, &projects, &url)
}

/// At the usual port the environment is all git needs.
#[test]
fn git_finds_its_credentials_by_itself() -> Outcome {
    let test = "git_finds_its_credentials_by_itself";
    if !has(test, "git") {
        return Ok(());
    }
    let place = tempfile::tempdir()?;
    let (roots, projects) = (Roots::new()?, project(place.path())?);
    let served = projects.clone();
    let answer = Arc::new(move |seen: &Seen| backend(&served, seen));
    // An address of its own, because the port is everybody's.
    let [.., a, b] = std::process::id().to_be_bytes();
    let address = SocketAddr::from((Ipv4Addr::new(127, 77, a, b), 443));
    let site = match Site::at(address, "git.test", Some(&roots), answer) {
        Ok(site) => site,
        Err(error) => {
            sandbar_test_harness::not_run(test, &format!("port 443 cannot be had: {error}"));
            return Ok(());
        }
    };
    let house = House::with(roots, &[("git.test", address.ip().to_string())], "")?;
    house.secret("GIT_PASSWORD", "git.test", "basic:x-access-token", PASSWORD)?;
    house.create("box", &["git.test"], &["--secret", "GIT_PASSWORD"])?;
    clone_and_push(&house, &site, &projects, "https://git.test/tiny.git")
}
