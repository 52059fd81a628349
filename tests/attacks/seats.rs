//! Those who may look but not type, those who may do neither, and WebSockets that misbehave.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    time::Duration,
};

use sandbar_api::{CreateToken, Role};

use crate::{
    attack::{Attack, Class, Control, Finding, act},
    person::{Program, readable},
    stage::{Stage, Target, token},
    support::Outcome,
    web,
};

const ONE: &[&str] = &["standard"];
/// Viewers of one terminal.
const MOST: usize = 256;
/// What the server may have grown by in MiB.
const GROWTH: u64 = 64;

pub(crate) fn all() -> Vec<Attack> {
    let doing =
        |name, act, place, control| Attack::act(Class::Terminals, name, act, Control::Act(place, control)).on(ONE);
    let operator = "by the operator";
    vec![
        doing("agent_at_a_terminal", act!(by_agent), operator, act!(by_operator)),
        doing("viewer_takes_control", act!(viewer_takes), operator, act!(operator_types)),
        doing("viewer_types", act!(viewer_types), operator, act!(operator_types)),
        doing("attach_without_a_token", act!(by_nobody), operator, act!(operator_types)),
        doing("attach_from_a_foreign_page", act!(foreign), operator, act!(operator_types)),
        doing("three_hundred_viewers", act!(crowd), "a few", act!(few)),
        doing("frame_of_ten_megabytes", act!(large), "a small one", act!(operator_types)),
        doing("fragments_without_end", act!(fragments), "a small one", act!(operator_types)),
        doing("pings_in_a_flood", act!(pings), "a small frame", act!(operator_types)),
        doing("half_open_sockets", act!(half_open), "a whole one", act!(operator_types)),
    ]
}

/// One side of a WebSocket, frame by frame as they are.
struct Socket(TcpStream);

const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const LAST: u8 = 0x80;

impl Socket {
    /// The status that was answered, and the connection.
    fn open(stage: &Stage, path: &str, headers: &[String]) -> Outcome<(u16, Self)> {
        let mut stream = TcpStream::connect(stage.address()?)?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        stream.set_write_timeout(Some(Duration::from_secs(5)))?;
        let mut text =
            format!("GET {path} HTTP/1.1\r\n{}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n", web::host(stage)?);
        text.push_str("Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n");
        headers.iter().for_each(|header| text.push_str(&format!("{header}\r\n")));
        stream.write_all(format!("{text}\r\n").as_bytes())?;
        let mut head = vec![];
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            if stream.read(&mut byte)? == 0 {
                return Err(format!("no answer: {}", readable(&head)).into());
            }
            head.push(byte[0]);
        }
        let status = String::from_utf8_lossy(&head).split_whitespace().nth(1).and_then(|status| status.parse().ok());
        Ok((status.ok_or("no status")?, Self(stream)))
    }

    fn head(first: u8, length: u64) -> Vec<u8> {
        let mut head = vec![first];
        match length {
            0..126 => head.push(0x80 | length as u8),
            126..65536 => {
                head.push(0x80 | 126);
                head.extend((length as u16).to_be_bytes());
            }
            _ => {
                head.push(0x80 | 127);
                head.extend(length.to_be_bytes());
            }
        }
        // A mask of zeroes is one.
        head.extend([0; 4]);
        head
    }

    fn send(&mut self, first: u8, data: &[u8]) -> std::io::Result<()> {
        self.0.write_all(&[Self::head(first, data.len() as u64), data.to_vec()].concat())
    }

    fn types(&mut self, offset: u64, keys: &[u8]) -> std::io::Result<()> {
        self.send(LAST | BINARY, &[&offset.to_be_bytes()[..], keys].concat())
    }

    fn frame(&mut self) -> std::io::Result<(u8, Vec<u8>)> {
        let mut head = [0; 2];
        self.0.read_exact(&mut head)?;
        let length = match head[1] & 0x7f {
            126 => {
                let mut long = [0; 2];
                self.0.read_exact(&mut long)?;
                u64::from(u16::from_be_bytes(long))
            }
            127 => {
                let mut long = [0; 8];
                self.0.read_exact(&mut long)?;
                u64::from_be_bytes(long)
            }
            short => u64::from(short),
        };
        let mut data = vec![0; usize::try_from(length).map_err(std::io::Error::other)?];
        self.0.read_exact(&mut data)?;
        Ok((head[0] & 0x0f, data))
    }

    /// Text frames until one says this, or the code of the end.
    fn hears(&mut self, word: &str) -> Outcome<String> {
        loop {
            match self.frame()? {
                (TEXT, data) if String::from_utf8_lossy(&data).contains(word) => {
                    return Ok(String::from_utf8_lossy(&data).into_owned());
                }
                (CLOSE, data) => {
                    return Ok(format!(
                        "closed {:?}",
                        data.get(..2).map(|code| u16::from_be_bytes([code[0], code[1]]))
                    ));
                }
                _ => {}
            }
        }
    }
}

/// Reads lines in silence, and tells them.
const LISTENS: &str = r#"
tty.setraw(0)
put("ready", b"")
await_("go")
put("heard", heard(1.0))
while True: time.sleep(1000)
"#;

async fn listening<'a>(stage: &'a Stage, target: &'a Target) -> Outcome<Program<'a>> {
    let program = Program::start(stage, target, LISTENS).await?;
    program.tells("ready").await?;
    Ok(program)
}

/// What the program heard by now; it ends.
async fn heard(program: Program<'_>) -> Outcome<Vec<u8>> {
    program.tell("go")?;
    let heard = program.tells("heard").await?;
    program.end().await?;
    Ok(heard)
}

fn path(target: &Target, program: &Program<'_>, query: &str) -> String {
    format!("/v1/sandboxes/{}/processes/{}/attach{query}", target.id, program.process)
}

async fn operators(stage: &Stage) -> Outcome<[String; 1]> {
    Ok([web::bearer(&token(&stage.client, Role::Operator).await?)])
}

async fn operator_types(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let program = listening(stage, target).await?;
    let (status, mut socket) = Socket::open(stage, &path(target, &program, "?control=take"), &operators(stage).await?)?;
    socket.hears("attached")?;
    socket.types(0, b"word")?;
    socket.hears("taken")?;
    let heard = heard(program).await?;
    Ok(if heard == b"word" {
        Finding::escaped("it was typed")
    } else {
        Finding::contained(format!("{status}: {}", readable(&heard)))
    })
}

async fn viewer_takes(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let program = listening(stage, target).await?;
    let bearer = [web::bearer(&token(&stage.client, Role::Viewer).await?)];
    let mut statuses = vec![];
    for control in ["take", "free"] {
        statuses.push(Socket::open(stage, &path(target, &program, &format!("?control={control}")), &bearer)?.0);
    }
    let (_, mut socket) = Socket::open(stage, &path(target, &program, ""), &bearer)?;
    let attached = socket.hears("attached")?;
    socket.send(LAST | TEXT, b"{\"type\":\"take\"}")?;
    let told = socket.hears("error")?;
    socket.types(0, b"word")?;
    let heard = heard(program).await?;
    let said = format!("{statuses:?}, then {}", code(&told));
    let refused = statuses == [403, 403] && told.contains("forbidden") && attached.contains("\"control\":false");
    Ok(if refused && heard.is_empty() {
        Finding::contained(said)
    } else {
        Finding::escaped(format!("{said}: {}", readable(&heard)))
    })
}

fn code(told: &str) -> &str {
    told.split("\"code\":\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap_or(told)
}

/// It may look, so it has a connection to type and resize by.
async fn viewer_types(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let program = listening(stage, target).await?;
    let bearer = [web::bearer(&token(&stage.client, Role::Viewer).await?)];
    let (status, mut socket) = Socket::open(stage, &path(target, &program, "?cols=33&rows=7"), &bearer)?;
    if status != 101 || !socket.hears("attached")?.contains("attached") {
        return Err(format!("a viewer cannot look: {status}").into());
    }
    socket.types(0, b"word")?;
    let told = socket.hears("error")?;
    socket.types(4, b"more")?;
    socket.send(LAST | TEXT, b"{\"type\":\"resize\",\"cols\":33,\"rows\":7}")?;
    let size = stage.client.screen(&target.id, &program.process).await?.size;
    let heard = heard(program).await?;
    Ok(if heard.is_empty() && size.cols == 80 {
        Finding::contained(code(&told))
    } else {
        Finding::escaped(format!("{} by {} columns: {}", code(&told), size.cols, readable(&heard)))
    })
}

async fn by_nobody(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let program = listening(stage, target).await?;
    let (status, _) = Socket::open(stage, &path(target, &program, "?control=take"), &[])?;
    program.end().await?;
    Ok(if status == 401 { Finding::contained("401") } else { Finding::escaped(status.to_string()) })
}

async fn foreign(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let program = listening(stage, target).await?;
    let mut headers = operators(stage).await?.to_vec();
    headers.push("Origin: http://evil.example".into());
    let (status, _) = Socket::open(stage, &path(target, &program, "?control=take"), &headers)?;
    program.end().await?;
    Ok(if status == 403 { Finding::contained("403") } else { Finding::escaped(status.to_string()) })
}

/// Every route of terminals, their answers and what tells of them, and the token that a sandbox could have.
async fn at_all_routes(stage: &Stage, target: &Target, token: &str) -> Outcome<(Vec<String>, Vec<u8>)> {
    let program = listening(stage, target).await?;
    let (sandbox, process) = (format!("/v1/sandboxes/{}", target.id), &program.process);
    let headers = [web::host(stage)?, web::bearer(token), web::JSON.to_owned()];
    let mut open = vec![];
    for query in ["", "?raw=true", "?control=take", "?control=free", "?from=0"] {
        let path = path(target, &program, query);
        if Socket::open(stage, &path, &[web::bearer(token)])?.0 != 403 {
            open.push(path);
        }
    }
    let start = "{\"argv\":[\"true\"],\"restart\":{\"when\":\"always\"}}";
    for (first, body) in [
        (format!("GET {sandbox}/processes/{process}/screen"), ""),
        (format!("GET {sandbox}/processes/{process}/transcript"), ""),
        (format!("GET {sandbox}/processes/{process}/recording"), ""),
        (format!("GET {sandbox}/processes/{process}/output"), ""),
        (format!("POST {sandbox}/processes/{process}/stdin"), "word"),
        (format!("POST {sandbox}/processes/{process}/resize"), "{\"cols\":33,\"rows\":7}"),
        (format!("POST {sandbox}/processes/{process}/signal"), "{\"signal\":\"CONT\"}"),
        (format!("POST {sandbox}/processes"), start),
        ("POST /v1/approvals/apr-00000000000000000000000000/answer".into(), "{\"choice\":\"yes\"}"),
        ("GET /v1/webhooks".into(), ""),
        ("POST /v1/webhooks".into(), "{\"url\":\"https://evil.example\"}"),
        ("GET /v1/events".into(), ""),
    ] {
        if web::ask(stage, &first, &headers, body)?.0 != 403 {
            open.push(first);
        }
    }
    Ok((open, heard(program).await?))
}

async fn by_agent(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let session = stage.client.sandbox(&target.id).await?.session;
    let name = format!("agent-{}", stage.number());
    let request = CreateToken { name, role: Role::Agent, session: Some(session), ttl: None };
    let token = stage.client.create_token(&request).await?.secret;
    let (open, heard) = at_all_routes(stage, target, &token).await?;
    Ok(if open.is_empty() && heard.is_empty() {
        Finding::contained("403 everywhere")
    } else {
        Finding::escaped(format!("{open:?}: {}", readable(&heard)))
    })
}

async fn by_operator(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let token = token(&stage.client, Role::Operator).await?;
    let (open, heard) = at_all_routes(stage, target, &token).await?;
    let reached = !open.is_empty() && !heard.is_empty();
    Ok(if reached { Finding::escaped(format!("{} routes answer", open.len())) } else { Finding::contained("403") })
}

/// Whether somebody else can type, in another terminal.
async fn others_go_on(stage: &Stage, target: &Target) -> Outcome<bool> {
    Ok(matches!(operator_types(stage, target).await?, Finding::Escaped(_)))
}

async fn seated(stage: &Stage, target: &Target, many: usize) -> Outcome<(usize, Vec<u16>, bool, u64)> {
    let program = listening(stage, target).await?;
    let (bearer, before) = (operators(stage).await?, stage.server.resident()?);
    let (mut sockets, mut refused) = (vec![], vec![]);
    for _ in 0..many {
        match Socket::open(stage, &path(target, &program, ""), &bearer)? {
            (101, socket) => sockets.push(socket),
            (status, _) => refused.push(status),
        }
    }
    let good = others_go_on(stage, target).await?;
    let first_goes_on = sockets.first_mut().map(|first| first.hears("attached")).transpose()?;
    let grown = stage.server.resident()?.saturating_sub(before) >> 10;
    let accepted = sockets.len();
    drop(sockets);
    program.end().await?;
    refused.sort_unstable();
    refused.dedup();
    Ok((accepted, refused, good && first_goes_on.is_some_and(|told| told.contains("attached")), grown))
}

async fn crowd(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let (accepted, refused, good, grown) = seated(stage, target, 300).await?;
    let said = format!("{accepted} seated, others {refused:?}, {grown} MiB more, the rest goes on: {good}");
    let held = accepted <= MOST && refused == [429] && good && grown < GROWTH;
    Ok(if held { Finding::contained(said) } else { Finding::escaped(said) })
}

async fn few(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let (accepted, refused, ..) = seated(stage, target, 3).await?;
    Ok(if accepted == 3 { Finding::escaped("three seated") } else { Finding::contained(format!("{refused:?}")) })
}

/// One who misbehaves, in control; then the end of the connection, the server's growth, and whether others go on.
async fn misbehaves(
    stage: &Stage,
    target: &Target,
    act: impl FnOnce(&mut Socket) -> std::io::Result<()>,
    ends: &str,
) -> Outcome<Finding> {
    let program = listening(stage, target).await?;
    let before = stage.server.resident()?;
    let (_, mut socket) = Socket::open(stage, &path(target, &program, "?control=take"), &operators(stage).await?)?;
    socket.hears("attached")?;
    // Writing to who has closed fails, as it should.
    let acted = act(&mut socket);
    let grown = stage.server.resident()?.saturating_sub(before) >> 10;
    let good = others_go_on(stage, target).await?;
    let told =
        if ends.is_empty() { String::new() } else { socket.hears("error").unwrap_or_else(|error| error.to_string()) };
    let heard = heard(program).await?;
    let said = format!(
        "{} {grown} MiB more, others go on: {good}, {}",
        code(&told),
        acted.map_or_else(|error| error.to_string(), |()| "all was sent".into())
    );
    let held = good && grown < GROWTH && heard.is_empty() && told.contains(ends);
    Ok(if held { Finding::contained(said) } else { Finding::escaped(format!("{said}: {}", readable(&heard))) })
}

async fn large(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let act = |socket: &mut Socket| {
        socket.0.write_all(&Socket::head(LAST | BINARY, 10 << 20))?;
        (0..160).try_for_each(|_| socket.0.write_all(&[b'x'; 65536]))
    };
    misbehaves(stage, target, act, "too_large").await
}

async fn fragments(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let act = |socket: &mut Socket| {
        socket.send(BINARY, &[0; 8])?;
        (0..2000).try_for_each(|_| socket.send(0, &[b'x'; 32768]))
    };
    misbehaves(stage, target, act, "too_large").await
}

/// Whose answers nobody reads.
async fn pings(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let act = |socket: &mut Socket| {
        let many = [Socket::head(LAST | PING, 125), vec![b'x'; 125]].concat().repeat(1000);
        (0..800).try_for_each(|_| socket.0.write_all(&many))
    };
    misbehaves(stage, target, act, "").await
}

/// Heads without an end, frames without a body, and connections that say nothing after they are let in.
async fn half_open(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let program = listening(stage, target).await?;
    let (bearer, before) = (operators(stage).await?, stage.server.resident()?);
    let path = path(target, &program, "");
    let (mut heads, mut sockets) = (vec![], vec![]);
    for _ in 0..100 {
        let mut stream = TcpStream::connect(stage.address()?)?;
        stream.write_all(format!("GET {path} HTTP/1.1\r\n{}\r\nUpgrade: webs", web::host(stage)?).as_bytes())?;
        heads.push(stream);
        let (_, mut socket) = Socket::open(stage, &path, &bearer)?;
        socket.0.write_all(&Socket::head(LAST | BINARY, 60_000))?;
        sockets.push(socket);
    }
    let good = others_go_on(stage, target).await?;
    let grown = stage.server.resident()?.saturating_sub(before) >> 10;
    drop((heads, sockets));
    program.end().await?;
    let said = format!("{grown} MiB more, others go on: {good}");
    Ok(if good && grown < GROWTH { Finding::contained(said) } else { Finding::escaped(said) })
}
