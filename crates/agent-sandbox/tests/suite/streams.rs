//! Commands, forwarded ports and logs on a real cluster: the one whose kubeconfig `SANDBAR_CLUSTER` names. Every test has a namespace
//! of its own there.

use std::time::Duration;

use agent_sandbox::{
    Error, Exec, ExecError, Logs,
    exec::{Output, Running},
    runtime::{Connection, Legacy},
};
use futures_util::TryStreamExt as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::support::cluster::{Outcome, Place, until};

/// Numbers from 1, a line each, as `seq` writes them.
const NUMBERS: u32 = 6_700_000;

fn sh(script: &str) -> Exec {
    Exec::new(["sh", "-c", script])
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// How many processes of the pod were started as exactly this, and are no zombies.
async fn alive(place: &Place, command: &str) -> Outcome<usize> {
    let script = r#"n=0; for d in /proc/[0-9]*; do
        case "$(cat $d/stat 2>/dev/null)" in *') Z '*|'') continue;; esac
        [ "$(tr '\0' ' ' <$d/cmdline 2>/dev/null)" = "$1 " ] && n=$((n+1)); done; echo $n"#;
    let counted = place.sandboxes.exec("box", Exec::new(["sh", "-c", script, "count", command])).await?;
    Ok(text(&counted).parse()?)
}

async fn line(running: &mut Running) -> Outcome<String> {
    let stdout = running.stdout.as_mut().ok_or("no stdout")?;
    let mut line = String::new();
    while !line.ends_with('\n') {
        line.push(char::from(stdout.read_u8().await?));
    }
    Ok(line.trim_end().to_owned())
}

#[tokio::test]
async fn exit_codes_and_streams() -> Outcome {
    let Some(place) = Place::with_pod("exit_codes_and_streams").await? else { return Ok(()) };
    let pods = &place.sandboxes;
    let output = pods.exec("box", sh("echo out; echo err >&2")).await?;
    assert_eq!((&output.stdout[..], &output.stderr[..], output.code), (&b"out\n"[..], &b"err\n"[..], 0));
    for (script, code) in [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137)] {
        assert_eq!(pods.exec("box", sh(script)).await?.code, code, "{script}");
        assert_eq!(pods.exec("box", sh(script).kill_on_drop()).await?.code, code, "{script}, killable");
        let mut running = pods.exec_stream("box", sh(script).container("main")).await?;
        assert_eq!(running.wait().await?.code, code, "{script}, streamed");
        assert_eq!(running.wait().await?.code, code, "{script}, asked again");
    }
    let said = pods.exec("box", Exec::new(["printf", "%s|", "a b", "", "$HOME", "*"]).kill_on_drop()).await?;
    assert_eq!(text(&said), "a b||$HOME|*|");
    Ok(())
}

#[tokio::test]
async fn what_cannot_be_run_is_an_error() -> Outcome {
    let Some(place) = Place::with_pod("what_cannot_be_run_is_an_error").await? else { return Ok(()) };
    let pods = &place.sandboxes;
    let missing = pods.exec("box", Exec::new(["/no/such"])).await;
    assert!(matches!(&missing, Err(ExecError::NotRun { .. })), "{missing:?}");
    assert_eq!(pods.exec("box", Exec::new(["/no/such"]).kill_on_drop()).await?.code, 127);
    let container = pods.exec("box", sh("true").container("other")).await;
    assert!(matches!(&container, Err(ExecError::Api { .. })), "{container:?}");
    let pod = pods.exec("nobody", sh("true")).await;
    assert!(
        matches!(&pod, Err(ExecError::Api { source, .. }) if matches!(**source, Error::NotFound { .. })),
        "{pod:?}"
    );
    assert!(matches!(pods.exec("box", Exec::new([""; 0])).await, Err(ExecError::NoCommand)));
    let much = pods.exec("box", sh("yes").kill_on_drop().max_output(1000)).await;
    assert!(matches!(much, Err(ExecError::TooMuchOutput(1000))), "{much:?}");
    assert_eq!(alive(&place, "yes").await?, 0);
    Ok(())
}

#[tokio::test]
async fn input_and_its_end() -> Outcome {
    let Some(place) = Place::with_pod("input_and_its_end").await? else { return Ok(()) };
    let pods = &place.sandboxes;
    let input: bytes::Bytes = (0..5_000_000_u32).map(|n| n.to_le_bytes()[(n % 3) as usize]).collect();
    let copied = pods.exec("box", Exec::new(["cat"]).stdin(input.clone())).await?;
    assert!(copied.stdout == input && copied.code == 0, "{} of {}", copied.stdout.len(), input.len());
    // Nor is it lost to one that reads it after it closed its outputs.
    let late = sh("exec >/tmp/late 2>&1; sleep 1; cat").stdin(input.clone());
    assert_eq!(pods.exec("box", late).await?.code, 0);
    assert_eq!(text(&pods.exec("box", sh("wc -c </tmp/late")).await?), input.len().to_string());
    // A command that does not read its input is not held up by it.
    assert_eq!(pods.exec("box", sh("exit 7").stdin(input.clone())).await?.code, 7);

    // More than fits on its way: the handle, by which the output is read, does not wait until all of it is gone.
    let much: bytes::Bytes = input.repeat(10).into();
    let begun = pods.exec_stream("box", sh("cat; echo end").stdin(much.clone()));
    let mut running = tokio::time::timeout(Duration::from_secs(300), begun).await??;
    let mut first = vec![0; much.len()];
    running.stdout.as_mut().ok_or("no stdout")?.read_exact(&mut first).await?;
    assert!(first == much, "bytes differ");
    running.stdin.take().ok_or("no stdin")?.write_all(b"and more\n").await?;
    assert_eq!((line(&mut running).await?, line(&mut running).await?), ("and more".to_owned(), "end".to_owned()));

    let mut running = pods.exec_stream("box", sh("read a; echo \"got $a\"; cat; echo end")).await?;
    let mut stdin = running.stdin.take().ok_or("no stdin")?;
    stdin.write_all(b"one\n").await?;
    assert_eq!(line(&mut running).await?, "got one");
    stdin.write_all(b"two\n").await?;
    assert_eq!(line(&mut running).await?, "two");
    stdin.shutdown().await?;
    assert_eq!(line(&mut running).await?, "end");
    assert_eq!(running.wait().await?.code, 0);
    Ok(())
}

#[tokio::test]
async fn fifty_megabytes_arrive_whole() -> Outcome {
    let Some(place) = Place::with_pod("fifty_megabytes_arrive_whole").await? else { return Ok(()) };
    let output =
        place.sandboxes.exec("box", Exec::new(["seq".to_owned(), "1".to_owned(), NUMBERS.to_string()])).await?;
    let mut expected = Vec::with_capacity(output.stdout.len());
    for number in 1..=NUMBERS {
        expected.extend_from_slice(number.to_string().as_bytes());
        expected.push(b'\n');
    }
    assert!(expected.len() > 50_000_000, "{}", expected.len());
    assert_eq!((output.stdout.len(), output.code), (expected.len(), 0));
    assert!(output.stdout == expected, "bytes differ");

    // A slow reader loses nothing either, and what nobody reads is no obstacle.
    let mut running = place.sandboxes.exec_stream("box", sh("seq 1 200000; seq 1 200000 >&2; exit 3")).await?;
    running.stderr = None;
    let mut stdout = running.stdout.take().ok_or("no stdout")?;
    let mut first = [0; 10];
    stdout.read_exact(&mut first).await?;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let mut rest = vec![];
    stdout.read_to_end(&mut rest).await?;
    assert!(rest.ends_with(b"\n200000\n") && rest.len() + first.len() == 1_288_895, "{}", rest.len());
    assert_eq!(running.wait().await?.code, 3);
    Ok(())
}

#[tokio::test]
async fn a_terminal_and_its_size() -> Outcome {
    let Some(place) = Place::with_pod("a_terminal_and_its_size").await? else { return Ok(()) };
    let script = r#"test -t 0 && test -t 1 && echo terminal
        until [ "$(stty size 2>/dev/null)" = "40 100" ]; do :; done; echo first
        until [ "$(stty size 2>/dev/null)" = "50 120" ]; do :; done; echo second; echo error >&2; read line; exit 3"#;
    let mut running = place.sandboxes.exec_stream("box", sh(script).terminal(100, 40)).await?;
    assert!(running.stderr.is_none());
    assert_eq!(line(&mut running).await?, "terminal");
    assert_eq!(line(&mut running).await?, "first");
    running.resize(120, 50).await?;
    assert_eq!(line(&mut running).await?, "second");
    assert_eq!(line(&mut running).await?, "error");
    running.stdin.as_mut().ok_or("no stdin")?.write_all(b"go\n").await?;
    assert_eq!(running.wait().await?.code, 3);

    // What a terminal does with Ctrl-C reaches the command, not what started it.
    let trap = "trap 'echo caught; exit 5' INT; echo ready; while :; do sleep 1; done";
    let mut running = place.sandboxes.exec_stream("box", sh(trap).terminal(80, 24)).await?;
    assert_eq!(line(&mut running).await?, "ready");
    running.stdin.as_mut().ok_or("no stdin")?.write_all(b"\x03").await?;
    assert_eq!(line(&mut running).await?.trim_start_matches("^C"), "caught");
    assert_eq!(running.wait().await?.code, 5);
    let plain = place.sandboxes.exec_stream("box", sh("cat")).await?;
    assert!(matches!(plain.resize(1, 1).await, Err(ExecError::NoTerminal)));
    Ok(())
}

#[tokio::test]
async fn a_kill_kills_everything() -> Outcome {
    let Some(place) = Place::with_pod("a_kill_kills_everything").await? else { return Ok(()) };
    let pods = &place.sandboxes;
    let mut bystander = pods.exec_stream("box", Exec::new(["sleep", "4242"])).await?;
    let family = "sleep 5001 & setsid sleep 5001 & env -i sleep 5001 & (setsid sleep 5001 &) ; sh -c 'sleep 5001; :' & echo up; wait";
    let mut running = pods.exec_stream("box", sh(family)).await?;
    assert_eq!(line(&mut running).await?, "up");
    until("all are up", async || Ok(alive(&place, "sleep 5001").await? == 5)).await?;
    running.kill().await?;
    assert_eq!(alive(&place, "sleep 5001").await?, 0);
    assert_eq!(running.wait().await?.code, 137);
    running.kill().await?;

    // At once, before it may have been started.
    let mut early = pods.exec_stream("box", Exec::new(["sleep", "5002"])).await?;
    early.kill().await?;
    assert_eq!(alive(&place, "sleep 5002").await?, 0);
    assert_eq!(early.wait().await?.code, 137);

    let mut terminal = pods.exec_stream("box", sh("sleep 5003 & sleep 5003").terminal(80, 24)).await?;
    until("both are up", async || Ok(alive(&place, "sleep 5003").await? == 2)).await?;
    terminal.kill().await?;
    assert_eq!(alive(&place, "sleep 5003").await?, 0);

    let mut direct = pods.exec_stream("box", Exec::new(["cat"]).direct()).await?;
    assert!(matches!(direct.kill().await, Err(ExecError::NotKillable)));
    assert_eq!(direct.wait().await?.code, 0);
    let refused = pods.exec("box", Exec::new(["cat"]).direct().kill_on_drop()).await;
    assert!(matches!(refused, Err(ExecError::NotKillable)));

    assert_eq!(alive(&place, "sleep 4242").await?, 1, "somebody else was killed");
    bystander.kill().await?;
    Ok(())
}

#[tokio::test]
async fn who_stops_waiting_can_have_it_killed() -> Outcome {
    let Some(place) = Place::with_pod("who_stops_waiting_can_have_it_killed").await? else { return Ok(()) };
    let pods = &place.sandboxes;
    let late = pods.exec("box", sh("sleep 5001 & sleep 5001").timeout(Duration::from_secs(1))).await;
    assert!(matches!(late, Err(ExecError::TimedOut(_))), "{late:?}");
    assert_eq!(alive(&place, "sleep 5001").await?, 0);

    let abandoned = pods.exec("box", Exec::new(["sleep", "5002"]).kill_on_drop());
    assert!(tokio::time::timeout(Duration::from_secs(1), abandoned).await.is_err());
    until("the abandoned command is dead", async || Ok(alive(&place, "sleep 5002").await? == 0)).await?;

    let handle = pods.exec_stream("box", Exec::new(["sleep", "5003"]).kill_on_drop()).await?;
    let unasked = pods.exec_stream("box", Exec::new(["sleep", "5004"])).await?;
    until("they are up", async || {
        Ok(alive(&place, "sleep 5003").await? == 1 && alive(&place, "sleep 5004").await? == 1)
    })
    .await?;
    drop((handle, unasked));
    until("the dropped command is dead", async || Ok(alive(&place, "sleep 5003").await? == 0)).await?;
    assert_eq!(alive(&place, "sleep 5004").await?, 1, "without being asked to, nobody kills it");
    Ok(())
}

#[tokio::test]
async fn a_port_of_the_pod() -> Outcome {
    let Some(place) = Place::with_pod("a_port_of_the_pod").await? else { return Ok(()) };
    let pods = &place.sandboxes;
    let _server = pods.exec_stream("box", Exec::new(["nc", "-ll", "-p", "9000", "-e", "cat"])).await?;
    let _sink = pods.exec_stream("box", sh("nc -l -p 9001 >/tmp/got; touch /tmp/done")).await?;
    let listening = "netstat -ltn | grep -q :9000 && netstat -ltn | grep -q :9001";
    until("the servers listen", async || Ok(pods.exec("box", sh(listening)).await?.success())).await?;

    let echo = async |mut stream: Box<dyn Duplex>, length: usize| -> Outcome {
        let sent: Vec<u8> = (0..length).map(|n| n.to_le_bytes()[n % 2]).collect();
        let mut got = vec![0; length];
        let (mut from, mut to) = tokio::io::split(&mut stream);
        tokio::try_join!(to.write_all(&sent), from.read_exact(&mut got))?;
        assert!(sent == got, "bytes differ");
        Ok(())
    };
    echo(Box::new(pods.port_forward("box", 9000).await?), 1 << 20).await?;

    let local = pods.listen("box", "127.0.0.1:0", 9000).await?;
    let mut clients = vec![];
    for _ in 0..8 {
        let stream = tokio::net::TcpStream::connect(local.local_addr()).await?;
        clients.push(echo(Box::new(stream), 100_000));
    }
    futures_util::future::try_join_all(clients).await?;
    let address = local.local_addr();
    drop(local);
    until("it is closed", async || Ok(tokio::net::TcpStream::connect(address).await.is_err())).await?;

    // What was written before a stream is dropped arrives, and the pod learns that it is gone.
    let mut stream = pods.port_forward("box", 9001).await?;
    stream.write_all(&vec![b'x'; 300_000]).await?;
    drop(stream);
    until("it has arrived", async || {
        Ok(text(&pods.exec("box", sh("ls /tmp/done && wc -c </tmp/got")).await?).ends_with("300000"))
    })
    .await?;

    let mut closed = pods.port_forward("box", 9).await?;
    let refused = tokio::time::timeout(Duration::from_secs(300), closed.read_u8()).await?;
    assert!(refused.as_ref().is_err_and(|error| error.to_string().contains("refused")), "{refused:?}");
    let missing = pods.port_forward("nobody", 9000).await.err();
    assert!(matches!(missing, Some(Error::NotFound { .. })), "{missing:?}");
    Ok(())
}

trait Duplex: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin {}
impl<T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin> Duplex for T {}

#[tokio::test]
async fn a_runtime_without_a_socket_on_this_side() -> Outcome {
    let Some(place) = Place::with_pod("a_runtime_without_a_socket_on_this_side").await? else { return Ok(()) };
    let pods = &place.sandboxes;
    // Answers every connection with what it was asked for.
    let answer = r#"read method path rest; body="[{\"name\":\"$path\",\"size\":1,\"type\":\"file\",\"mod_time\":1.5}]"
        while read -r header && [ "${header%?}" ]; do :; done
        printf 'HTTP/1.1 200 OK\r\nContent-Length: %s\r\n\r\n%s' "${#body}" "$body""#;
    let prepare = sh("cat >/tmp/answer").stdin(answer);
    assert!(pods.exec("box", prepare).await?.success());
    let _server = pods.exec_stream("box", Exec::new(["nc", "-ll", "-p", "8888", "-e", "sh", "/tmp/answer"])).await?;
    let listening = "netstat -ltn | grep -q :8888";
    until("it listens", async || Ok(pods.exec("box", sh(listening)).await?.success())).await?;
    let legacy = Legacy::new(Connection::port_forward(pods, "box"))?;
    let entries = legacy.list("a b/c").await?;
    assert_eq!(entries.iter().map(|entry| entry.name.as_str()).collect::<Vec<_>>(), ["/list/a%20b%2Fc"]);
    Ok(())
}

#[tokio::test]
async fn logs_are_followed() -> Outcome {
    let Some(place) = Place::empty("logs_are_followed").await? else { return Ok(()) };
    let pods = &place.sandboxes;
    let script = "i=0; while [ $i -lt 20 ]; do i=$((i+1)); echo line $i; sleep 1; done; exit 1";
    place.pod("talker", &["sh", "-c", script], "Never").await?;
    let all: Vec<_> = (1..=20).map(|line| format!("line {line}")).collect();
    let followed: Vec<_> = pods.logs("talker", Logs::new().follow()).await?.lines().try_collect().await?;
    assert_eq!(followed, all);
    let tail: Vec<_> = pods.logs("talker", Logs::new().tail(2).container("main")).await?.lines().try_collect().await?;
    assert_eq!(tail, ["line 19", "line 20"]);
    let mut stamped = pods.logs("talker", Logs::new().timestamps().tail(1)).await?;
    let stamped = stamped.next_line().await?.ok_or("no line")?;
    assert!(stamped.contains('T') && stamped.ends_with("Z line 20"), "{stamped}");
    let recent: Vec<bytes::Bytes> =
        pods.logs("talker", Logs::new().since(Duration::from_secs(3600))).await?.try_collect().await?;
    assert_eq!(String::from_utf8(recent.concat())?.lines().count(), 20);

    place.pod("phoenix", &["sh", "-c", "echo a life; sleep 1"], "Always").await?;
    until("it has a former life", async || {
        let Ok(mut log) = pods.logs("phoenix", Logs::new().previous()).await else { return Ok(false) };
        Ok(log.next_line().await?.as_deref() == Some("a life"))
    })
    .await?;
    let missing = pods.logs("nobody", Logs::new()).await.err();
    assert!(matches!(missing, Some(Error::NotFound { .. })), "{missing:?}");
    Ok(())
}
