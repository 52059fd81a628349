//! Attaching to a terminal through a server that breaks every connection somewhere: nothing shown is missing or comes
//! twice, nothing is typed twice, and control is never taken back.

use std::{
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures_util::{SinkExt as _, StreamExt as _};
use sandbar_api::{Code, Control, Problem, TerminalFrame, TerminalSize, ViewerFrame};
use sandbar_client::{AttachEvent, AttachOptions, Attachment, Client, Error, Patience};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{UnixListener, UnixStream},
};
use tokio_tungstenite::{WebSocketStream, accept_hdr_async, tungstenite::Message};

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

const QUICK: Patience =
    Patience { first: Duration::from_millis(1), longest: Duration::from_millis(4), total: Duration::from_secs(300) };
const SIZE: TerminalSize = TerminalSize { cols: 80, rows: 24 };

/// xorshift: reproducible, and no dependency for a test.
struct Random(u64);
impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }
}

fn number(query: &str, name: &str) -> Option<u64> {
    value(query, name)?.parse().ok()
}

fn value<'q>(query: &'q str, name: &str) -> Option<&'q str> {
    query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
}

/// One connection as the server sees it.
struct Viewer {
    query: String,
    socket: WebSocketStream<UnixStream>,
}

impl Viewer {
    async fn accept(listener: &UnixListener) -> Outcome<Self> {
        let (stream, _) = listener.accept().await?;
        let mut query = String::new();
        #[expect(clippy::result_large_err, reason = "the callback's type is the library's")]
        let look = |request: &tokio_tungstenite::tungstenite::handshake::server::Request, response| {
            query = request.uri().query().unwrap_or_default().to_owned();
            Ok(response)
        };
        let socket = accept_hdr_async(stream, look).await?;
        Ok(Self { query, socket })
    }

    async fn say(&mut self, frame: &TerminalFrame) -> Outcome {
        Ok(self.socket.send(Message::text(serde_json::to_string(frame)?)).await?)
    }

    async fn greet(&mut self, offset: u64, control: bool, input: u64) -> Outcome {
        let process = format!("prc-{:026}", 1).parse()?;
        let controller = (!control).then(|| "somebody".to_owned());
        self.say(&TerminalFrame::Attached { process, offset, size: SIZE, control, controller, input }).await
    }

    async fn show(&mut self, end: u64, data: &[u8]) -> Outcome {
        let frame = [&end.to_be_bytes(), data].concat();
        Ok(self.socket.send(Message::binary(frame)).await?)
    }

    async fn exit(&mut self) -> Outcome {
        let process = serde_json::from_value(serde_json::json!({
            "id": format!("prc-{:026}", 1), "sandbox": format!("sbx-{:026}", 1), "argv": ["x"], "cwd": "/",
            "terminal": true, "state": "exited", "exit": {"code": 7, "reason": "exited"},
            "started_at": "2026-01-01T00:00:00Z", "output": {"start": 0, "end": 0},
        }))?;
        self.say(&TerminalFrame::Exit { process: Box::new(process) }).await
    }

    /// What is typed, with its number.
    async fn typed(&mut self) -> Outcome<(u64, Vec<u8>)> {
        loop {
            if let Message::Binary(frame) = self.socket.next().await.ok_or("closed")?? {
                let (offset, data) = frame.split_first_chunk::<8>().ok_or("short")?;
                return Ok((u64::from_be_bytes(*offset), data.to_vec()));
            }
        }
    }

    async fn said(&mut self) -> Outcome<ViewerFrame> {
        loop {
            if let Message::Text(text) = self.socket.next().await.ok_or("closed")?? {
                return Ok(serde_json::from_str(&text)?);
            }
        }
    }
}

fn options(control: Control) -> AttachOptions {
    AttachOptions { raw: true, control, size: Some(SIZE), ..AttachOptions::default() }
}

fn listen(directory: &Path) -> Outcome<(UnixListener, Client)> {
    let socket = directory.join("s");
    Ok((UnixListener::bind(&socket)?, Client::unix(&socket)?.with_patience(QUICK)))
}

async fn next(attachment: &mut Attachment) -> Outcome<AttachEvent> {
    Ok(tokio::time::timeout(Duration::from_secs(300), attachment.next()).await?.ok_or("it ended")??)
}

/// Answers one plain request.
async fn refuse(listener: &UnixListener, problem: &Problem) -> Outcome {
    let (mut stream, _) = listener.accept().await?;
    let _ = stream.read(&mut [0; 4096]).await?;
    let body = serde_json::to_string(problem)?;
    let (status, length) = (problem.status, body.len());
    let head = format!("HTTP/1.1 {status} No\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n");
    Ok(stream.write_all(format!("{head}{body}").as_bytes()).await?)
}

#[tokio::test]
async fn everything_is_shown_and_typed_once_through_connections_that_break_anywhere() -> Outcome {
    let directory = tempfile::tempdir()?;
    let (listener, client) = listen(directory.path())?;
    let output: Arc<Vec<u8>> = Arc::new((0..40_000u32).flat_map(u32::to_le_bytes).collect());
    let input: Vec<u8> = (0..300_000u32).map(|n| (n % 251) as u8).collect();
    let typed = Arc::new(Mutex::new(Vec::new()));
    let (served, taken, wanted) = (output.clone(), typed.clone(), input.len());
    let server = tokio::spawn(async move {
        let (mut random, mut writers) = (Random(42), std::collections::HashSet::new());
        loop {
            let mut viewer = Viewer::accept(&listener).await?;
            writers.insert(value(&viewer.query, "writer").unwrap_or_default().to_owned());
            assert_eq!((writers.len(), value(&viewer.query, "raw")), (1, Some("true")));
            let count = |typed: &Mutex<Vec<u8>>| typed.lock().unwrap_or_else(PoisonError::into_inner).len();
            let mut at = number(&viewer.query, "from").unwrap_or(0) as usize;
            // Now and then it dies before it has said anything.
            if random.below(6) == 0 {
                continue;
            }
            viewer.greet(at as u64, true, count(&taken) as u64).await?;
            for _ in 0..random.below(12) {
                if at < served.len() {
                    // Sometimes from a little before, as a server may that reads in blocks.
                    let from = at.saturating_sub(random.below(20));
                    let end = (at + 1 + random.below(4000)).min(served.len());
                    viewer.show(end as u64, &served[from..end]).await?;
                    at = end;
                } else if count(&taken) == wanted {
                    return viewer.exit().await;
                }
                let wait = Duration::from_millis(5);
                if let Ok(Ok((offset, data))) = tokio::time::timeout(wait, viewer.typed()).await {
                    let mut typed = taken.lock().unwrap_or_else(PoisonError::into_inner);
                    let seen = typed.len() - offset as usize;
                    typed.extend_from_slice(data.get(seen..).unwrap_or_default());
                }
                // What was taken is not always told.
                if random.below(3) > 0 {
                    viewer.say(&TerminalFrame::Taken { input: count(&taken) as u64 }).await?;
                }
            }
        }
        #[expect(unreachable_code, reason = "says what the task returns")]
        Outcome::Ok(())
    });
    let from = AttachOptions { from: Some(0), ..options(Control::Take) };
    // The first connection of a client that was never answered must succeed.
    let mut attachment = loop {
        match client.attach("box", "prc", from.clone()).await {
            Err(Error::Broken { .. }) => {}
            attached => break attached?,
        }
    };
    let typist = attachment.typist();
    let typing = tokio::spawn(async move {
        for piece in input.chunks(1777) {
            typist.send(piece.to_vec()).await?;
        }
        Ok::<_, Error>(input)
    });
    let (mut shown, mut broken) = (Vec::new(), 0);
    loop {
        match next(&mut attachment).await? {
            AttachEvent::Output { offset, data } => {
                shown.extend_from_slice(&data);
                assert_eq!(offset, shown.len() as u64);
            }
            AttachEvent::Reconnecting => broken += 1,
            AttachEvent::Reconnected(standing) => assert!(standing.held),
            AttachEvent::Exit(process) => {
                assert_eq!(process.exit.map(|exit| exit.code), Some(7));
                break;
            }
            event => return Err(format!("{event:?}").into()),
        }
    }
    assert!(attachment.next().await.is_none());
    assert!(shown == *output, "{} bytes of {}", shown.len(), output.len());
    let input = typing.await??;
    assert!(*typed.lock().map_err(|_| "poisoned")? == input, "typed otherwise");
    assert!(broken > 5, "it broke only {broken} times");
    server.await??;
    Ok(())
}

#[tokio::test]
async fn control_that_somebody_took_meanwhile_stays_theirs() -> Outcome {
    let directory = tempfile::tempdir()?;
    let (listener, client) = listen(directory.path())?;
    let server = tokio::spawn(async move {
        let mut viewer = Viewer::accept(&listener).await?;
        assert_eq!(value(&viewer.query, "control"), Some("take"));
        assert_eq!((number(&viewer.query, "cols"), number(&viewer.query, "rows")), (Some(80), Some(24)));
        viewer.greet(0, true, 0).await?;
        assert_eq!(viewer.typed().await?, (0, b"first".to_vec()));
        viewer.say(&TerminalFrame::Taken { input: 3 }).await?;
        drop(viewer);
        let mut viewer = Viewer::accept(&listener).await?;
        assert_eq!(value(&viewer.query, "control"), Some("free"), "it was this viewer's, and is asked for politely");
        viewer.greet(0, false, 0).await?;
        assert_eq!(viewer.said().await?, ViewerFrame::Resize { cols: 100, rows: 30 });
        assert_eq!(viewer.said().await?, ViewerFrame::Take {});
        viewer.say(&TerminalFrame::Control { held: true, controller: None }).await?;
        tokio::time::sleep(Duration::from_millis(20)).await;
        viewer.say(&TerminalFrame::Taken { input: 4 }).await?;
        assert_eq!(viewer.typed().await?, (4, b"again".to_vec()), "numbers go on where the server is");
        viewer.say(&TerminalFrame::Control { held: false, controller: Some("other".into()) }).await?;
        drop(viewer);
        let viewer = Viewer::accept(&listener).await?;
        assert_eq!(value(&viewer.query, "control"), Some("view"));
        assert_eq!((number(&viewer.query, "cols"), number(&viewer.query, "rows")), (Some(100), Some(30)));
        Outcome::Ok(())
    });
    let mut attachment = client.attach("box", "prc", options(Control::Take)).await?;
    assert!(attachment.standing().held);
    let typist = attachment.typist();
    typist.send("first").await?;
    assert_eq!(next(&mut attachment).await?, AttachEvent::Reconnecting);
    let AttachEvent::Reconnected(standing) = next(&mut attachment).await? else {
        return Err("not again".into());
    };
    assert_eq!((standing.held, standing.controller.as_deref()), (false, Some("somebody")));
    assert_eq!(next(&mut attachment).await?, AttachEvent::Lost { bytes: 2 });
    let refused = typist.send("lost").await.err().ok_or("typed")?;
    assert_eq!(refused.code(), Some(Code::NotController));
    typist.resize(TerminalSize { cols: 100, rows: 30 });
    typist.take();
    assert_eq!(next(&mut attachment).await?, AttachEvent::Control { held: true, controller: None });
    typist.send("again").await?;
    assert!(matches!(next(&mut attachment).await?, AttachEvent::Control { held: false, .. }));
    assert_eq!(next(&mut attachment).await?, AttachEvent::Lost { bytes: 5 });
    typist.flush().await;
    server.await?
}

#[tokio::test]
async fn what_retention_took_is_a_screen_and_so_is_a_redraw() -> Outcome {
    let directory = tempfile::tempdir()?;
    let (listener, client) = listen(directory.path())?;
    let screen = |offset| TerminalFrame::Screen { offset, size: SIZE, data: format!("at {offset}") };
    let server = tokio::spawn(async move {
        let mut viewer = Viewer::accept(&listener).await?;
        assert_eq!(number(&viewer.query, "from"), None);
        viewer.greet(10, true, 0).await?;
        viewer.say(&screen(10)).await?;
        viewer.show(13, b"abc").await?;
        drop(viewer);
        refuse(&listener, &Problem::new(Code::ShuttingDown, "not now", "wait")).await?;
        refuse(&listener, &Problem::new(Code::OutputDropped, "gone", "later").with_first_kept(50)).await?;
        let mut viewer = Viewer::accept(&listener).await?;
        assert_eq!(number(&viewer.query, "from"), None);
        viewer.greet(60, true, 0).await?;
        viewer.say(&screen(60)).await?;
        viewer.say(&TerminalFrame::Skipped { from: 60, to: 90 }).await?;
        viewer.say(&screen(90)).await?;
        let mut viewer = Viewer::accept(&listener).await?;
        assert_eq!((number(&viewer.query, "from"), value(&viewer.query, "control")), (None, Some("free")));
        viewer.greet(95, true, 0).await?;
        viewer.say(&screen(95)).await?;
        let problem = Box::new(Problem::new(Code::SandboxGone, "It was deleted.", "Make another."));
        viewer.say(&TerminalFrame::Error { problem }).await?;
        viewer.socket.close(None).await?;
        Outcome::Ok(())
    });
    let mut attachment = client.attach("box", "prc", options(Control::Free)).await?;
    let mut seen = Vec::new();
    let error = loop {
        match tokio::time::timeout(Duration::from_secs(300), attachment.next()).await?.ok_or("it ended")? {
            Err(error) => break error,
            Ok(event) => {
                if event == (AttachEvent::Screen { offset: 90, size: SIZE, data: "at 90".into() }) {
                    attachment.typist().redraw();
                }
                seen.push(match event {
                    AttachEvent::Screen { offset, .. } => format!("screen {offset}"),
                    AttachEvent::Output { offset, .. } => format!("output {offset}"),
                    AttachEvent::Skipped { from, to } => format!("skipped {from} {to}"),
                    AttachEvent::Reconnecting => "reconnecting".to_owned(),
                    AttachEvent::Reconnected(_) => "reconnected".to_owned(),
                    AttachEvent::Refused(problem) => problem.detail,
                    other => format!("{other:?}"),
                });
            }
        }
    };
    assert_eq!(error.code(), Some(Code::SandboxGone), "{error:?}");
    let expected = [
        "screen 10",
        "output 13",
        "reconnecting",
        "reconnected",
        "screen 60",
        "skipped 60 90",
        "screen 90",
        "reconnected",
        "screen 95",
        "It was deleted.",
    ];
    assert_eq!(seen, expected);
    server.await?
}

#[tokio::test]
async fn refusals_come_before_there_is_an_attachment() -> Outcome {
    let directory = tempfile::tempdir()?;
    let (listener, client) = listen(directory.path())?;
    let server = tokio::spawn(async move {
        for code in [Code::NoTerminal, Code::UnknownRoute, Code::OffsetBeyond] {
            refuse(&listener, &Problem::new(code, "No.", "Do something else.")).await?;
        }
        let (mut stream, _) = listener.accept().await?;
        let _ = stream.read(&mut [0; 4096]).await?;
        stream.write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}").await?;
        let (mut stream, _) = listener.accept().await?;
        let _ = stream.read(&mut [0; 4096]).await?;
        let forged =
            "HTTP/1.1 101 Sure\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-accept: x\r\n\r\n";
        stream.write_all(forged.as_bytes()).await?;
        let mut viewer = Viewer::accept(&listener).await?;
        viewer.greet(10, true, 0).await?;
        viewer.show(20, b"x").await?;
        // Held open, so that what follows is about the gap.
        let _ = viewer.said().await;
        Outcome::Ok(())
    });
    let attach = async || client.attach("box", "prc", options(Control::View)).await;
    assert_eq!(attach().await.err().and_then(|error| error.code()), Some(Code::NoTerminal));
    let old = attach().await.err().ok_or("attached")?;
    assert!(old.code() == Some(Code::UnknownRoute) && old.to_string().contains("too old"), "{old}");
    let from = AttachOptions { from: Some(10), ..options(Control::View) };
    let beyond = client.attach("box", "prc", from.clone()).await;
    assert_eq!(beyond.err().and_then(|error| error.code()), Some(Code::OffsetBeyond));
    for status in [200, 101] {
        let error = attach().await.err().ok_or("attached")?;
        assert!(matches!(error, Error::Foreign { status: got, .. } if got == status), "{error:?}");
    }
    let mut attachment = client.attach("box", "prc", from).await?;
    let gap = attachment.next().await.ok_or("it ended")?;
    assert!(matches!(gap, Err(Error::Gap { expected: 10, got: 19 })), "{gap:?}");
    assert!(attachment.next().await.is_none());
    drop(attachment);
    server.await?
}
