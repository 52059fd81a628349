//! The clients of both runtimes against servers that are real: a sandbox of the program that `SANDBAR_PROGRAM` names (or of the one
//! that was built beside these tests), reached at forwarded ports and through its router.

use std::time::Duration;

use agent_sandbox::runtime::{
    Command, Connection, Event, Finished, Kind, Legacy, Process, Retry, Router, RuntimeError, Sandboxd, Signal,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::support::served::{Outcome, Served};

fn routed(served: &Served, token: Option<&str>) -> Connection {
    let token = token.map(Into::into);
    Router { url: format!("{}/router", served.base), sandbox: "web".into(), namespace: "default".into(), token }.into()
}

fn quick() -> Retry {
    Retry { times: 2, wait: Duration::from_millis(10) }
}

async fn the_older_api(legacy: &Legacy) -> Outcome {
    legacy.health().await?;
    let said = legacy.execute("sh -c 'echo out; echo err >&2; exit 7'", None).await?;
    assert_eq!(
        (said.stdout.as_str(), said.stderr.as_str(), said.exit_code, said.timed_out),
        ("out\n", "err\n", 7, false)
    );
    let late = legacy.execute("sleep 100", Some(Duration::from_secs(1))).await?;
    assert!(late.timed_out && late.exit_code != 0, "{late:?}");

    let content: Vec<u8> = (0..=255).cycle().take(300_000).collect();
    let path = "deep/a b/50%+\u{e9}.bin";
    assert!(!legacy.exists(path).await?);
    legacy.upload(path, content.clone()).await?;
    assert!(legacy.exists(path).await? && legacy.exists("/deep/./a b").await?);
    assert!(legacy.download(path).await? == content);
    let mut copy = vec![];
    assert_eq!(legacy.download_to(path, &mut copy).await?, 300_000);
    assert!(copy == content);
    let entries = legacy.list("deep/a b").await?;
    let [entry] = &entries[..] else { return Err(format!("{entries:?}").into()) };
    assert_eq!((entry.name.as_str(), entry.size, entry.kind), ("50%+\u{e9}.bin", 300_000, Kind::File));
    assert!((chrono::Utc::now() - entry.modified).num_seconds().abs() < 60, "{entry:?}");
    let root = legacy.list("/").await?;
    assert!(root.iter().any(|entry| entry.name == "deep" && entry.kind == Kind::Directory), "{root:?}");
    assert!(matches!(legacy.download("none").await, Err(RuntimeError::NotFound(_))));
    assert!(matches!(legacy.list("deep/none").await, Err(RuntimeError::NotFound(_))));
    assert!(matches!(legacy.download("a/../../etc/passwd").await, Err(RuntimeError::BadPath { .. })));
    Ok(())
}

async fn the_files_of_sandboxd(sandboxd: &Sandboxd) -> Outcome {
    assert!(sandboxd.health().await? < Duration::from_secs(3600));
    sandboxd.metadata().await?;
    let content: Vec<u8> = (0..=255).cycle().take(300_000).collect();
    let path = "files/a b/50%+\u{e9}.bin";
    assert!(!sandboxd.exists(path).await?);
    assert!(matches!(sandboxd.stat(path).await, Err(RuntimeError::NotFound(named)) if named == path));
    sandboxd.write_with_mode(path, content.clone(), 0o640).await?;
    let stat = sandboxd.stat(path).await?;
    assert_eq!((stat.kind, stat.size), (Kind::File, Some(300_000)));
    assert!(sandboxd.read(path).await? == content);
    assert!(sandboxd.read_range(path, 299_990, 100).await? == content[299_990..]);
    assert!(sandboxd.read_range(path, 300_000, 1).await?.is_empty());
    sandboxd.write_from("files/streamed", std::io::Cursor::new(content.clone()), None).await?;
    let mut copy = vec![];
    assert_eq!(sandboxd.read_to("files/streamed", &mut copy).await?, 300_000);
    assert!(copy == content);
    // What is in a file does not make it a listing.
    sandboxd.write("files/list.json", r#"{"entries":[]}"#).await?;
    assert_eq!(&sandboxd.read("files/list.json").await?[..], br#"{"entries":[]}"#);
    assert!(matches!(sandboxd.list("files/list.json").await, Err(RuntimeError::NotDirectory(_))));
    assert!(matches!(sandboxd.read("files").await, Err(RuntimeError::IsDirectory(_))));
    assert_eq!(sandboxd.stat("files").await?.kind, Kind::Directory);

    let names: Vec<_> = sandboxd.list("files").await?.into_iter().map(|entry| (entry.name, entry.kind)).collect();
    let expected = [("a b", Kind::Directory), ("list.json", Kind::File), ("streamed", Kind::File)];
    assert_eq!(names, expected.map(|(name, kind)| (name.to_owned(), kind)));
    let entries = sandboxd.list("files/a b").await?;
    assert_eq!(entries.first().and_then(|entry| entry.mode), Some(0o640), "{entries:?}");
    assert!(sandboxd.list("/").await?.iter().any(|entry| entry.name == "files"));
    assert!(matches!(sandboxd.delete("files").await, Err(RuntimeError::Conflict(_))));
    sandboxd.delete("files/list.json").await?;
    sandboxd.delete_all("files").await?;
    assert!(matches!(sandboxd.delete("files").await, Err(RuntimeError::NotFound(_))));
    assert!(matches!(sandboxd.read("../etc/passwd").await, Err(RuntimeError::BadPath { .. })));
    Ok(())
}

/// All it writes, and its exit code.
async fn rest(mut process: Process) -> Outcome<(Vec<u8>, Vec<u8>, i32)> {
    let (mut stdout, mut stderr) = (vec![], vec![]);
    loop {
        match process.next().await?.ok_or("no exit")? {
            Event::Stdout(bytes) => stdout.extend_from_slice(&bytes),
            Event::Stderr(bytes) => stderr.extend_from_slice(&bytes),
            Event::Exit(code) => {
                assert!(process.next().await?.is_none());
                return Ok((stdout, stderr, code));
            }
        }
    }
}

async fn the_processes_of_sandboxd(sandboxd: &Sandboxd) -> Outcome {
    let command = Command::shell("echo $GREETING; pwd >&2; exit 7").env("GREETING", "hello").directory("sub");
    sandboxd.write("sub/file", "").await?;
    let Finished { stdout, stderr, code } = sandboxd.execute(command).await?;
    assert_eq!((&stdout[..], code), (&b"hello\n"[..], 7));
    assert!(stderr.ends_with(b"/sub\n"), "{stderr:?}");
    let late = sandboxd.execute(Command::new(["sleep", "100"]).timeout(Duration::from_secs(1))).await;
    assert!(matches!(late, Err(RuntimeError::TimedOut(_))), "{late:?}");
    assert!(matches!(sandboxd.execute(Command::new(["/no/such"])).await, Err(RuntimeError::NotFound(_))));
    assert!(matches!(sandboxd.execute(Command::default()).await, Err(RuntimeError::NoCommand)));
    let outside = sandboxd.execute(Command::new(["true"]).directory("../..")).await;
    assert!(matches!(outside, Err(RuntimeError::Denied(_))), "{outside:?}");
    let large = sandboxd.execute(Command::shell("head -c 8000000 /dev/zero")).await?;
    assert_eq!(large.stdout.len(), 8_000_000);

    let cat = sandboxd.start(Command::new(["cat"])).await?;
    let control = cat.control();
    let input = vec![b'x'; 200_000];
    let (read, written) = tokio::join!(rest(cat), async {
        control.write(input.clone()).await?;
        control.close().await
    });
    written?;
    let (stdout, _, code) = read?;
    assert!(stdout == input && code == 0, "{} bytes, {code}", stdout.len());

    let trapped = "trap 'exit 5' TERM; echo set; while :; do sleep 0.1; done";
    let mut sleeper = sandboxd.start(Command::shell(trapped)).await?;
    let control = sleeper.control();
    assert_eq!(sleeper.next().await?, Some(Event::Stdout("set\n".into())));
    control.signal(Signal::Terminate).await?;
    assert_eq!(rest(sleeper).await?.2, 5);
    assert!(matches!(
        control.signal(Signal::Kill).await,
        Err(RuntimeError::NotFound(_) | RuntimeError::Precondition(_))
    ));

    let sized = r#"until [ "$(stty size)" = "50 120" ]; do sleep 0.05; done; echo resized"#;
    let terminal = sandboxd.start(Command::shell(sized).terminal(80, 24)).await?;
    terminal.control().resize(120, 50).await?;
    let (stdout, stderr, code) = rest(terminal).await?;
    assert_eq!((&stdout[..], &stderr[..], code), (&b"resized\r\n"[..], &b""[..], 0));

    // Dropped, it is cancelled, and the runtime kills it.
    let abandoned = sandboxd.start(Command::shell("while :; do date >beat; sleep 0.05; done")).await?;
    while !sandboxd.exists("beat").await? {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    drop(abandoned);
    let still = async || -> Outcome<bool> {
        let script = "rm -f beat; sleep 0.5; test -e beat";
        Ok(sandboxd.execute(Command::shell(script)).await?.code == 0)
    };
    let deadline = tokio::time::Instant::now() + Duration::from_secs(300);
    while still().await? {
        assert!(tokio::time::Instant::now() < deadline, "it goes on");
    }
    Ok(())
}

/// Answers one request after another with these statuses, and keeps the heads of the requests.
async fn canned(statuses: &'static [&'static str]) -> Outcome<(String, tokio::task::JoinHandle<Outcome<Vec<String>>>)> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address = format!("http://{}/base/", listener.local_addr()?);
    let heads = tokio::spawn(async move {
        let mut heads = vec![];
        for status in statuses {
            let (mut stream, _) = listener.accept().await?;
            let mut head = vec![];
            while !head.windows(4).any(|end| end == b"\r\n\r\n") {
                head.push(stream.read_u8().await?);
            }
            heads.push(String::from_utf8(head)?.to_lowercase());
            let answer = format!(
                "HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\nLocation: http://127.0.0.1:1/\r\n\r\n"
            );
            stream.write_all(answer.as_bytes()).await?;
            // What is unread would make closing reset the connection.
            let _body = tokio::time::timeout(Duration::from_millis(200), stream.read_to_end(&mut vec![])).await;
        }
        Ok(heads)
    });
    Ok((address, heads))
}

#[tokio::test]
async fn only_what_does_no_harm_is_repeated() -> Outcome {
    let (url, heads) = canned(&["503 x", "500 x", "200 x"]).await?;
    let read = Sandboxd::new(Connection::direct(url))?.retry(quick()).read("a").await?;
    assert!(read.is_empty() && heads.await??.iter().all(|head| head.starts_with("get /base/v1/files/a http")));

    let (url, heads) = canned(&["502 x", "204 x"]).await?;
    Sandboxd::new(Connection::direct(url))?.retry(quick()).write("a", "b").await?;
    assert_eq!(heads.await??.len(), 2);

    let (url, heads) = canned(&["503 x"]).await?;
    let refused = Legacy::new(Connection::direct(url))?.retry(quick()).execute("true", None).await;
    assert!(matches!(&refused, Err(RuntimeError::Refused { status, .. }) if status == "503"), "{refused:?}");
    assert_eq!(heads.await??.len(), 1);

    let (url, heads) = canned(&["504 x"]).await?;
    let streamed = Sandboxd::new(Connection::direct(url))?.retry(quick());
    let refused = streamed.write_from("a", std::io::Cursor::new("b"), None).await;
    assert!(matches!(&refused, Err(RuntimeError::Refused { status, .. }) if status == "504"), "{refused:?}");
    assert_eq!(heads.await??.len(), 1);

    let (url, heads) = canned(&["302 x"]).await?;
    let led = Sandboxd::new(Connection::direct(url))?.retry(quick()).read("a").await;
    assert!(matches!(led, Err(RuntimeError::Redirected { status: 302 })), "{led:?}");
    assert_eq!(heads.await??.len(), 1);
    Ok(())
}

#[tokio::test]
async fn a_router_is_told_whom_it_is_for() -> Outcome {
    let (url, heads) = canned(&["200 x"]).await?;
    let router = Router { url, sandbox: "box-1".into(), namespace: "team".into(), token: Some("secret".into()) };
    Legacy::new(router)?.port(9999)?.timeout(Duration::from_secs(7)).health().await?;
    let heads = heads.await??.concat();
    let told = ["x-sandbox-id: box-1", "x-sandbox-namespace: team", "x-sandbox-port: 9999", "x-sandbox-timeout: 7"];
    for header in told.into_iter().chain(["authorization: bearer secret"]) {
        assert!(heads.contains(&format!("\r\n{header}\r\n")), "{header}: {heads}");
    }
    Ok(())
}

#[tokio::test]
async fn the_older_api_at_its_port_and_through_the_router() -> Outcome {
    let Some(served) = Served::start("the_older_api_at_its_port_and_through_the_router", "")? else { return Ok(()) };
    the_older_api(&Legacy::new(Connection::direct(served.forward(8888)?))?.retry(quick())).await?;
    served.run(&["exec", "web", "--", "rm", "-r", "deep"])?;
    let token = served.router_token()?;
    the_older_api(&Legacy::new(routed(&served, Some(&token)))?.retry(quick())).await?;

    let stranger = Legacy::new(routed(&served, None))?.retry(quick());
    assert!(matches!(stranger.health().await, Err(RuntimeError::Unauthenticated(_))));
    let elsewhere = Legacy::new(routed(&served, Some(&token)))?.port(4444)?.retry(quick());
    let refused = elsewhere.execute("true", None).await;
    assert!(matches!(&refused, Err(RuntimeError::Refused { status, .. }) if status == "502"), "{refused:?}");
    Ok(())
}

#[tokio::test]
async fn sandboxd_at_its_ports_and_through_the_router() -> Outcome {
    let Some(served) = Served::start("sandboxd_at_its_ports_and_through_the_router", "")? else { return Ok(()) };
    let direct =
        Sandboxd::new(Connection::direct(served.forward(8080)?))?.retry(quick()).grpc_at(served.forward(9090)?)?;
    the_files_of_sandboxd(&direct).await?;
    the_processes_of_sandboxd(&direct).await?;
    let router = Sandboxd::new(routed(&served, Some(&served.router_token()?)))?.ports(8080, 9090)?.retry(quick());
    the_files_of_sandboxd(&router).await?;
    assert!(matches!(router.execute(Command::new(["true"])).await, Err(RuntimeError::NoGrpc)));
    assert!(matches!(router.token("0123456789abcdef").err(), Some(RuntimeError::TokenNotRouted)));
    Ok(())
}

#[tokio::test]
async fn sandboxd_behind_a_token() -> Outcome {
    let token = "0123456789abcdef";
    let template = format!("token = \"{token}\"\n");
    let Some(served) = Served::start("sandboxd_behind_a_token", &template)? else { return Ok(()) };
    let nobody =
        Sandboxd::new(Connection::direct(served.forward(8080)?))?.retry(quick()).grpc_at(served.forward(9090)?)?;
    nobody.health().await?;
    assert!(matches!(nobody.list("/").await, Err(RuntimeError::Unauthenticated(_))));
    assert!(matches!(nobody.execute(Command::new(["true"])).await, Err(RuntimeError::Unauthenticated(_))));
    let known = nobody.clone().token(token)?;
    known.list("/").await?;
    assert_eq!(known.execute(Command::new(["true"])).await?.code, 0);
    Ok(())
}
