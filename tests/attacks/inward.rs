//! A hostile sandbox behind the ways in: servers that answer what no server should, and crowds at the
//! runtimes. Every control shows the same thing where nothing stands in between.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    time::{Duration, Instant},
};

use sandbar_api::{Role, SandboxState, StartProcess, bytes::encode};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::{
    attack::{Attack, Class, Control, Finding, act},
    room::{ONE, RUNTIMES},
    stage::{Stage, Target, recipe, token},
    support::{Outcome, guests, until},
    web::{ask, bearer, host},
    wire::{SILENCE, Step, status},
};

const PORT: u16 = 3000;
/// Of memory, in KiB, for what one sandbox does.
pub(crate) const SHARE: u64 = 48 * 1024;
/// Of what waits for one reader, in KiB: both ends of the way and the window between them.
const WAITING: u64 = 3 * 1024;
pub(crate) const PROMPT: Duration = Duration::from_secs(30);

pub(crate) fn all() -> Vec<Attack> {
    let doing = |name, act, place, control| {
        Attack::act(Class::Surfaces, name, act, Control::Act(place, control)).on(ONE).with(RUNTIMES)
    };
    let bare = "over a forwarded port";
    vec![
        doing("answers_that_act_on_their_visitor", act!(acting), bare, act!(acting_bare)),
        doing("answers_that_are_no_http", act!(broken), bare, act!(broken_bare)),
        doing("heads_without_an_end", act!(endless_head), bare, act!(endless_bare)),
        doing("bodies_that_nobody_reads", act!(unread), "by somebody who reads", act!(read)),
        doing("servers_that_never_answer", act!(silent), "one that does", act!(speaking)),
        doing("crowd_at_a_runtime", act!(crowd), "at a server without a bound", act!(crowd_bare)),
        doing("name_without_an_end_in_an_upload", act!(endless_name), "one with an end", act!(short_name)),
        doing("server_in_the_place_of_a_runtime", act!(taken), "a free one", act!(free)),
    ]
}

/// The server inside that says what its visitor wants to hear.
async fn serve(stage: &Stage, target: &Target) -> Outcome {
    if stage.client.dial(&target.id, PORT).await.is_ok() {
        return Ok(());
    }
    let argv = ["/workspace/attacks", "--inside", "answer", &PORT.to_string()].map(str::to_owned).to_vec();
    stage.client.start_process(&target.id, &StartProcess { argv, ..StartProcess::default() }).await?;
    until("it listens", async || Ok(stage.client.dial(&target.id, PORT).await.is_ok())).await
}

fn path(said: &[u8]) -> String {
    format!("/{}", encode(said).replace('+', "-").replace('/', "_"))
}

/// Both ways in, as a request up to its empty line.
async fn ways(stage: &Stage, target: &Target, said: &[u8], how: &str) -> Outcome<Vec<(&'static str, String)>> {
    serve(stage, target).await?;
    let operator = bearer(&token(&stage.client, Role::Operator).await?);
    let (address, path) = (stage.address()?, path(said));
    let port = address.rsplit(':').next().unwrap_or_default();
    let preview =
        format!("GET {path}{how} HTTP/1.1\r\nHost: {}-{PORT}.localhost:{port}\r\n{operator}\r\n\r\n", target.id);
    let router = format!(
        "GET /router{path}{how} HTTP/1.1\r\nHost: {address}\r\n{operator}\r\nX-Sandbox-ID: {}\r\nX-Sandbox-Port: {PORT}\r\n\
         X-Sandbox-Timeout: 30\r\n\r\n",
        target.id
    );
    Ok(vec![("preview", preview), ("router", router)])
}

pub(crate) fn sent(stage: &Stage, text: &str) -> Outcome<TcpStream> {
    let mut stream = TcpStream::connect(stage.address()?)?;
    stream.set_read_timeout(Some(PROMPT))?;
    stream.write_all(text.as_bytes())?;
    Ok(stream)
}

/// What came within a moment; connections are kept for more requests.
fn heard(stage: &Stage, text: &str) -> Outcome<String> {
    let closing = text.replacen("\r\nHost:", "\r\nConnection: close\r\nHost:", 1);
    let mut answer = vec![];
    let ended = sent(stage, &closing)?.take(1 << 20).read_to_end(&mut answer);
    let text = String::from_utf8_lossy(&answer).into_owned();
    Ok(if ended.is_err() { format!("{text}[not ended]") } else { text })
}

/// The same over a port that is only carried.
async fn bare(stage: &Stage, target: &Target, said: &[u8]) -> Outcome<Vec<u8>> {
    serve(stage, target).await?;
    let mut stream = stage.client.dial(&target.id, PORT).await?;
    stream.write_all(format!("GET {} HTTP/1.1\r\n\r\n", path(said)).as_bytes()).await?;
    let mut answer = vec![];
    stream.read_to_end(&mut answer).await?;
    Ok(answer)
}

const ACTING: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nSet-Cookie: sandbar=evil; Domain=localhost; Path=/\r\n\
Set-Cookie: sandbar-preview=evil\r\nSet-Cookie: seen=1; Domain=localhost\r\nClear-Site-Data: \"*\"\r\nAlt-Svc: h2=\":1\"\r\n\
X-Request-Id: evil\r\n\r\nok";
/// At the API's own origin these would act as well.
const ACTING_THERE: [&str; 6] =
    ["set-cookie", "access-control-", "service-worker-allowed", "strict-transport-security", "refresh: ", "report-to"];

async fn acting(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let more =
        b"Access-Control-Allow-Origin: *\r\nService-Worker-Allowed: /\r\nStrict-Transport-Security: max-age=9\r\n\
Refresh: 0; url=/v1/sandboxes\r\nReport-To: {}\r\nLocation: http://127.0.0.1:1/v1/tokens\r\nContent-Length: 2\r\n";
    let said = String::from_utf8_lossy(ACTING).replacen("Content-Length: 2\r\n", &String::from_utf8_lossy(more), 1);
    for (way, text) in ways(stage, target, said.as_bytes(), "").await? {
        let answer = heard(stage, &text)?.to_ascii_lowercase();
        let mut bad =
            vec!["sandbar=evil", "sandbar-preview=evil", "domain=", "clear-site-data", "alt-svc", "x-request-id: evil"];
        if way == "router" {
            bad.extend(ACTING_THERE);
            bad.push("127.0.0.1:1/");
        }
        if !answer.starts_with("http/1.1 200") || bad.iter().any(|bad| answer.contains(bad)) {
            return Ok(Finding::escaped(format!("{way}: {answer}")));
        }
    }
    Ok(Finding::contained("what is left holds for its own host"))
}

async fn acting_bare(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let answer = bare(stage, target, ACTING).await?;
    let all = answer == ACTING;
    Ok(if all { Finding::escaped("all of it came") } else { Finding::contained(String::from_utf8_lossy(&answer)) })
}

/// Each with what a visitor must not be told: a second answer, or that a part is the whole.
const BROKEN: [(&[u8], &str); 14] = [
    (b"\0\x01\xff\xfe no http at all\r\n\r\n", "200 ok"),
    (b"<html>as in 1991", "200 ok"),
    (b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\nevil", "http/1.1 101"),
    (b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\nevil", "http/1.1 101"),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 5\r\n\r\nhello", "200 ok"),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\nhello", "200 ok"),
    (b"HTTP/1.1 200 OK\r\nX: a\0b\rSet-Cookie: y\r\nContent-Length: 2\r\n\r\nok", "200 ok"),
    (b"HTTP/1.1 200 OK\r\nX: a\r\n Set-Cookie: y\r\nContent-Length: 2\r\n\r\nok", "200 ok"),
    (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\nhello\r\n", "\r\n0\r\n"),
    (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFF\r\nhello\r\n", "\r\n0\r\n"),
    (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", "\r\n0\r\n"),
    (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nSet-Cookie: sandbar=evil\r\n\r\n",
        "sandbar=evil",
    ),
    (
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nSet-Cookie: sandbar=evil\r\n\r\n",
        "sandbar=evil",
    ),
    (
        b"HTTP/1.1 204 No Content\r\nContent-Length: 44\r\n\r\nHTTP/1.1 200 OK\r\nSet-Cookie: sandbar=evil\r\n\r\n",
        "sandbar=evil",
    ),
];

async fn broken(stage: &Stage, target: &Target) -> Outcome<Finding> {
    for (said, bad) in BROKEN {
        for (way, text) in ways(stage, target, said, "").await? {
            let answer = heard(stage, &text)?.to_ascii_lowercase();
            if answer.contains(bad) || answer.contains("[not ended]") {
                return Ok(Finding::escaped(format!("{way} of {}: {answer}", said.escape_ascii())));
            }
        }
    }
    Ok(Finding::contained(format!("{} answers, none passed as a whole one", BROKEN.len())))
}

async fn broken_bare(stage: &Stage, target: &Target) -> Outcome<Finding> {
    for (said, _) in BROKEN {
        if bare(stage, target, said).await? != said {
            return Ok(Finding::contained(said.escape_ascii().to_string()));
        }
    }
    Ok(Finding::escaped("all of it came"))
}

async fn endless_head(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let before = stage.server.resident()?;
    let line = [b"HTTP/1.1 200 OK\r\nX-Long: ".as_slice(), &[b'a'; 1000], b"\r\n"].concat();
    let mut statuses = vec![];
    for said in [line.as_slice(), b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n"] {
        let (_, router) = ways(stage, target, said, "?on").await?.pop().ok_or("no way")?;
        // It never ends, and whoever asks does not wait for that.
        let answer = heard(stage, &router.replacen("Timeout: 30", "Timeout: 3", 1))?;
        statuses.push(answer.split_whitespace().nth(1).unwrap_or("nothing").to_owned());
    }
    let taken = stage.server.resident()?.saturating_sub(before);
    let said = format!("{statuses:?}, {taken} KiB");
    let good = statuses.iter().all(|status| ["502", "504"].contains(&status.as_str())) && taken < SHARE;
    Ok(if good { Finding::contained(said) } else { Finding::escaped(said) })
}

async fn endless_bare(stage: &Stage, target: &Target) -> Outcome<Finding> {
    serve(stage, target).await?;
    let mut stream = stage.client.dial(&target.id, PORT).await?;
    stream.write_all(format!("GET {}?on HTTP/1.1\r\n\r\n", path(b"HTTP/1.1 200 OK\r\nX: y\r\n")).as_bytes()).await?;
    let mut count = 0;
    let mut chunk = vec![0; 1 << 16];
    while count < 4 << 20 {
        count += stream.read(&mut chunk).await?;
    }
    Ok(Finding::escaped(format!("{count} bytes of a head")))
}

const BODY: &[u8] = b"HTTP/1.1 200 OK\r\n\r\n";

/// The first line is not said again, so what follows is a body of empty lines.
async fn unread(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let before = stage.server.resident()?;
    let mut held = vec![];
    for (_, text) in ways(stage, target, BODY, "?on").await? {
        for _ in 0..20 {
            held.push(sent(stage, &text)?);
        }
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    let taken = stage.server.resident()?.saturating_sub(before);
    let begun = Instant::now();
    let alive = stage.sh(target, "echo alive").await?.stdout;
    let took = begun.elapsed();
    let said = format!("{} held, {taken} KiB, exec in {took:.1?}", held.len());
    let good = alive == "alive\n" && took < PROMPT && taken < WAITING * held.len() as u64;
    Ok(if good { Finding::contained(said) } else { Finding::escaped(said) })
}

async fn read(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let (_, text) = ways(stage, target, BODY, "?on").await?.swap_remove(0);
    let (mut stream, mut count, mut chunk) = (sent(stage, &text)?, 0, vec![0; 1 << 16]);
    while count < 64 << 20 {
        match stream.read(&mut chunk)? {
            0 => return Ok(Finding::contained(format!("{count} bytes"))),
            more => count += more,
        }
    }
    Ok(Finding::escaped(format!("{count} bytes")))
}

/// Whether it was answered at once, without taking what was said.
fn is_refused(stream: &TcpStream) -> bool {
    const REFUSED: &[u8] = b"HTTP/1.1 429";
    let mut start = [0; REFUSED.len()];
    let seen = stream.set_nonblocking(true).and_then(|()| stream.peek(&mut start));
    seen.is_ok_and(|count| start[..count] == *REFUSED) && stream.set_nonblocking(false).is_ok()
}

async fn silent(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let before = stage.server.resident()?;
    let neighbour = stage.fresh(target.profile, &recipe(target.profile, RUNTIMES, &[])).await?;
    let (_, text) = ways(stage, target, b"", "?hold").await?.swap_remove(0);
    let mut held = (0..300).map(|_| sent(stage, &text)).collect::<Outcome<Vec<_>>>()?;
    // When one is refused, all places are taken. Those that a busy sandbox did not accept left theirs to others.
    until("one is refused", async || {
        if held.len() < 2000 {
            held.push(sent(stage, &text)?);
        }
        Ok(held.iter().any(is_refused))
    })
    .await?;
    let begun = Instant::now();
    let own = stage.sh(target, "echo alive").await?.stdout;
    let headers = [host(stage)?, bearer(&stage.token), format!("X-Sandbox-ID: {}", neighbour.id)];
    let (other, _) = ask(stage, "GET /router/", &headers, "")?;
    let preview =
        format!("Host: {}-{PORT}.localhost:{}", target.id, stage.address()?.rsplit(':').next().unwrap_or_default());
    let mut more = 0;
    until("another is refused", async || {
        more = ask(stage, "GET /", &[preview.clone(), bearer(&stage.token)], "")?.0;
        Ok(more != 502)
    })
    .await?;
    let taken = stage.server.resident()?.saturating_sub(before);
    let said =
        format!("{} held, {taken} KiB, another {more}, the neighbour {other} in {:.1?}", held.len(), begun.elapsed());
    drop(held);
    stage.delete(&neighbour).await?;
    let good = own == "alive\n" && other == 200 && more == 429 && begun.elapsed() < PROMPT && taken < SHARE;
    Ok(if good { Finding::contained(said) } else { Finding::escaped(said) })
}

async fn speaking(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let (_, text) = ways(stage, target, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", "").await?.swap_remove(0);
    for _ in 0..300 {
        let answer = heard(stage, &text)?;
        if !answer.starts_with("HTTP/1.1 200") {
            return Ok(Finding::contained(answer));
        }
    }
    Ok(Finding::escaped("300 were answered"))
}

/// Of what serves the sandbox, in KiB.
fn guests_memory(stage: &Stage) -> u64 {
    let resident = |pid: i32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        status.lines().find(|line| line.starts_with("VmRSS:"))?.split_whitespace().nth(1)?.parse::<u64>().ok()
    };
    guests(stage.server.home.path()).into_iter().filter_map(resident).sum()
}

async fn at_crowd(
    stage: &Stage,
    target: &Target,
    port: u16,
    number: &str,
    opening: &str,
    within: &str,
) -> Outcome<(Duration, String)> {
    let argv = [
        "/workspace/attacks",
        "--inside",
        "crowd",
        number,
        "4000",
        &encode(opening.as_bytes()),
        &format!("at:127.0.0.1:{port}"),
        &format!("within:{within}"),
    ];
    let request = StartProcess { argv: argv.map(str::to_owned).to_vec(), ..StartProcess::default() };
    let process = stage.client.start_process(&target.id, &request).await?.id.to_string();
    until("all are opened", async || Ok(stage.client.process(&target.id, &process).await?.output.end > 0)).await?;
    let begun = Instant::now();
    stage.sh(target, "echo alive").await?;
    let took = begun.elapsed();
    until("it is over", async || Ok(stage.client.process(&target.id, &process).await?.exit.is_some())).await?;
    Ok((took, crate::terminals::text(stage, target, &process).await?))
}

async fn crowd(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let before = guests_memory(stage);
    let (took, said) = at_crowd(stage, target, 8888, "2000", "GET / HTTP/1.1\r\nX-Slow: {}", "3").await?;
    let taken = guests_memory(stage).saturating_sub(before);
    let headers = [host(stage)?, bearer(&stage.token), format!("X-Sandbox-ID: {}", target.id)];
    let (after, _) = ask(stage, "GET /router/", &headers, "")?;
    let said = format!("exec in {took:.1?}, {taken} KiB, afterwards {after}; {}", said.trim());
    let good = took < PROMPT && taken < SHARE && after == 200 && !said.contains("opened 2000");
    Ok(if good { Finding::contained(said) } else { Finding::escaped(said) })
}

/// One that takes whoever comes.
async fn crowd_bare(stage: &Stage, target: &Target) -> Outcome<Finding> {
    serve(stage, target).await?;
    let (_, said) = at_crowd(stage, target, PORT, "700", "GET / HTTP/1.1\r\nX-Slow: {}", "30").await?;
    Ok(if said.contains("opened 700:") { Finding::escaped("700 were taken") } else { Finding::contained(said) })
}

/// An upload to the runtime from inside, its name said so many times over, and a command meanwhile.
async fn uploaded(stage: &Stage, target: &Target, times: usize) -> Outcome<(String, Duration)> {
    let chunk = format!("1000\r\n{}\r\n", "n".repeat(0x1000));
    let part = "--x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"";
    let head = "POST /upload HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Type: multipart/form-data; boundary=x";
    let end = "\"\r\n\r\nwhole\r\n--x--\r\n";
    let name = if times > 1 { Step::Many(times, chunk.into_bytes()) } else { Step::send("1\r\nn\r\n") };
    let steps = [
        Step::At("127.0.0.1:8888"),
        Step::send(format!("{head}\r\n\r\n{:x}\r\n{part}\r\n", part.len())),
        name,
        Step::send(format!("{:x}\r\n{end}\r\n0\r\n\r\n", end.len())),
        if times > 1 { Step::Rest(SILENCE) } else { Step::Answer(SILENCE) },
    ];
    let timed = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        let begun = Instant::now();
        stage.sh(target, "echo alive").await?;
        Ok(begun.elapsed())
    };
    let (heard, took): (Outcome<String>, Outcome<Duration>) = tokio::join!(stage.wire(target, &steps), timed);
    Ok((heard?, took?))
}

async fn endless_name(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let before = guests_memory(stage);
    let (heard, took) = uploaded(stage, target, 16 * 1024).await?;
    let taken = guests_memory(stage).saturating_sub(before);
    let said = format!("{} and exec in {took:.1?}, {taken} KiB", status(&heard));
    let good = status(&heard) != "200" && took < PROMPT && taken < SHARE;
    Ok(if good { Finding::contained(said) } else { Finding::escaped(said) })
}

async fn short_name(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let (heard, _) = uploaded(stage, target, 1).await?;
    Ok(if status(&heard) == "200" { Finding::escaped("it is taken") } else { Finding::contained(heard) })
}

/// A program that has a runtime's port after the sandbox was started anew would answer in its name.
async fn restarted(stage: &Stage, target: &Target, port: u16) -> Outcome<Finding> {
    let made = stage.fresh(target.profile, &recipe(target.profile, "[runtimes.legacy]\nport = 8889\n", &[])).await?;
    let argv = ["/workspace/attacks", "--inside", "answer", &port.to_string()].map(str::to_owned).to_vec();
    stage.client.stop(&made.id).await?;
    stage.client.start(&made.id).await?;
    let started = stage.client.start_process(&made.id, &StartProcess { argv, ..StartProcess::default() }).await?;
    until("it listens or fails", async || {
        let process = stage.client.process(&made.id, started.id.as_str()).await?;
        Ok(process.exit.is_some() || process.output.end > 0)
    })
    .await?;
    let said = crate::terminals::text(stage, &made, started.id.as_str()).await?;
    let state = stage.client.sandbox(&made.id).await?.state;
    stage.delete(&made).await?;
    Ok(match said.contains("listening") && state == SandboxState::Ready {
        true => Finding::escaped(format!("it has port {port}")),
        false => Finding::contained(said.trim()),
    })
}

async fn taken(stage: &Stage, target: &Target) -> Outcome<Finding> {
    restarted(stage, target, 8889).await
}

async fn free(stage: &Stage, target: &Target) -> Outcome<Finding> {
    restarted(stage, target, 8890).await
}
