//! Attaching to a terminal: a WebSocket, whose frames `sandbar_api::attach` describes.
//!
//! Eyes and hands of a viewer are served side by side: a viewer that does not read still types, and a program that does
//! not read still shows. Nothing is collected for either.

use std::{
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    time::Duration,
};

use axum::{
    extract::{
        State,
        ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade, close_code, rejection::WebSocketUpgradeRejection},
    },
    response::Response,
};
use bytes::{BufMut as _, Bytes, BytesMut};
use futures_util::{
    SinkExt as _, StreamExt as _,
    stream::{SplitSink, SplitStream},
};
use sandbar_api::{ATTACH_HEADER, Code, Control, Problem, TerminalFrame, TerminalSize, ViewerFrame};
use sandbar_engine::{AttachAsk, Attached, Caller, Engine, Keyboard, Viewed, Viewer};
use serde::Deserialize;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tokio_tungstenite::tungstenite::Error as SocketError;
use tokio_util::sync::CancellationToken;
use utoipa::IntoParams;

use super::ProcessPath;
use crate::{
    App,
    access::{Calling, unauthenticated},
    extract::{Path, Query},
    problem::{Refused, Result, bad_request, shutting_down},
    registry::{Routes, routes},
};

/// The largest payload of a message.
const MOST: usize = 64 * 1024;
/// What is still read of a larger one, so that its sender can be told.
const READABLE: usize = 4 * MOST;
const BUFFER: usize = 16 * 1024;
const PING: Duration = Duration::from_secs(20);
/// Spans as long without a word from the other side after which it is taken for dead.
const UNANSWERED: u32 = 3;
/// Pings of a viewer between two frames to it: their answers wait in memory for one that does not read.
const MOST_PINGS: u32 = 1000;
/// For the last frames, and for the other side's goodbye.
const GOODBYE: Duration = Duration::from_secs(1);

pub(super) fn routes() -> Routes {
    Routes::default().routes(routes!(attach))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct AttachQuery {
    /// The first byte of output wanted; when absent, the screen as it is now comes first.
    from: Option<u64>,
    /// Output as the program wrote it. Otherwise without what acts on the viewer's machine, such as clipboard, title and
    /// queries.
    #[serde(default)]
    raw: bool,
    /// Whether to control the terminal.
    #[serde(default)]
    control: Control,
    /// A random name that the client keeps over its connections, so that its input is typed once. Letters, digits, `-`, `_`.
    #[param(min_length = 1, max_length = 64)]
    writer: Option<String>,
    /// The viewer's window; the terminal has the size of its controller's.
    #[param(minimum = 1, maximum = 9999)]
    cols: Option<u16>,
    #[param(minimum = 1, maximum = 9999)]
    rows: Option<u16>,
}

/// Attach to a terminal
///
/// A WebSocket. Binary frames are bytes behind eight that count, big-endian: to the viewer, output, behind the offset at
/// which it ends; to the server, input, behind the offset at which it begins among all that this writer types, at most 64 KiB.
/// Text frames are JSON: `TerminalFrame` to the viewer, `ViewerFrame` to the server. Whoever connects again with `from` =
/// the last offset misses nothing and gets nothing twice. Closed with 1000 after the exit, 1001 when the server ends, 1008
/// when the token is revoked or expired, 1011 when it failed, and 1002, 1007 or 1009 after a frame that could not be
/// understood; an `error` frame says why.
#[utoipa::path(
    get, path = "/v1/sandboxes/{sandbox}/processes/{process}/attach", operation_id = "attach_terminal",
    tag = "processes", params(ProcessPath, AttachQuery),
    responses(
        (status = 101, description = "Attached. Text frames to the viewer are as described here.", body = TerminalFrame),
        (status = 400, description = "`bad_request`; also without a WebSocket's headers"),
        (status = 403, description = "`forbidden`: control, with a viewer's token"),
        (status = 404, description = "`unknown_sandbox`, `unknown_process`"),
        (status = 409, description = "`no_terminal`"),
        (status = 410, description = "`output_dropped`, with `first_kept`; `sandbox_gone`"),
        (status = 416, description = "`offset_beyond`"),
        (status = 429, description = "`too_many`: viewers of one terminal"),
    )
)]
async fn attach(
    State(app): State<App>,
    Path(path): Path<ProcessPath>,
    Query(query): Query<AttachQuery>,
    Calling(caller): Calling,
    upgrade: std::result::Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response> {
    let upgrade = upgrade.map_err(|rejection| {
        let detail = format!("The request does not ask for a WebSocket: {}", rejection.body_text());
        Refused(bad_request(detail, "Connect with a WebSocket client, over HTTP/1.1."))
    })?;
    let AttachQuery { from, raw, control, writer, cols, rows } = query;
    let size = match (cols, rows) {
        (Some(cols), Some(rows)) => Some(TerminalSize { cols, rows }),
        (None, None) => None,
        _ => return Err(bad_request("A size has both columns and rows.", "Give `cols` and `rows`, or neither.").into()),
    };
    let wanted = AttachAsk { from, raw, control, writer, size };
    let attached = app.engine.attach(&caller, &path.sandbox, &path.process, wanted).await?;
    let (closing, counted, engine) = (app.closing.clone(), app.sockets.token(), app.engine.clone());
    let upgrade = upgrade.max_message_size(READABLE).max_frame_size(READABLE).read_buffer_size(BUFFER);
    Ok(upgrade.on_upgrade(async move |socket| {
        serve(socket, attached, closing, turned_away(&engine, &caller)).await;
        drop(counted);
    }))
}

/// Why a connection ends.
enum End {
    Exited,
    Closing,
    Failed(Problem),
    Malformed(u16, Problem),
    TurnedAway,
    /// It closed the connection, or the connection broke, or nothing was heard for long.
    Left,
}

/// What of a viewer's life is seen on either side of its connection.
struct Pulse {
    heard: AtomicBool,
    /// Since something was sent to the end.
    pings: AtomicU32,
}

async fn turned_away(engine: &Engine, caller: &Caller) -> End {
    engine.turned_away(caller).await.map_or_else(End::Failed, |()| End::TurnedAway)
}

async fn serve(
    socket: WebSocket,
    attached: Attached,
    closing: CancellationToken,
    turned_away: impl Future<Output = End>,
) {
    let Attached { mut viewer, mut keyboard } = attached;
    let (mut sink, mut stream) = socket.split();
    let pulse = Pulse { heard: AtomicBool::new(true), pings: AtomicU32::new(0) };
    let end = tokio::select! {
        biased;
        () = closing.cancelled() => End::Closing,
        end = turned_away => end,
        // Beside the sending, which a dead peer holds up.
        () = silence(&pulse) => End::Left,
        end = show(&mut viewer, &mut sink, &pulse) => end,
        end = hear(&mut keyboard, &mut stream, &pulse) => end,
    };
    // Others need not wait for the goodbye to be in control.
    drop((viewer, keyboard));
    let (code, problem) = match end {
        End::Exited => (close_code::NORMAL, None),
        End::Closing => (close_code::AWAY, Some(shutting_down())),
        End::Failed(problem) if problem.code == Code::ShuttingDown => (close_code::AWAY, Some(problem)),
        End::Failed(problem) => (close_code::ERROR, Some(problem)),
        End::Malformed(code, problem) => (code, Some(problem)),
        End::TurnedAway => (close_code::POLICY, Some(unauthenticated("The token was revoked, or has expired."))),
        End::Left => (close_code::NORMAL, None),
    };
    // A peer that does not read must not hold us up.
    let _told = timeout(GOODBYE, farewell(&mut sink, &mut stream, code, problem)).await;
}

async fn farewell(
    sink: &mut SplitSink<WebSocket, Message>,
    stream: &mut SplitStream<WebSocket>,
    code: u16,
    problem: Option<Problem>,
) {
    let error = problem.map(|problem| TerminalFrame::Error { problem: Box::new(problem) });
    if let Some(Ok(text)) = error.map(|error| serde_json::to_string(&error))
        && sink.send(Message::Text(text.into())).await.is_err()
    {
        return;
    }
    let close = Message::Close(Some(CloseFrame { code, reason: "".into() }));
    if sink.send(close).await.is_err() {
        return;
    }
    while let Some(Ok(_)) = stream.next().await {}
    if code == close_code::SIZE || code == close_code::PROTOCOL {
        // What cannot be read any more would reset the connection before the other side has read the reason.
        sleep(GOODBYE).await;
    }
}

/// Sends what there is to see, one frame at a time.
async fn show(viewer: &mut Viewer, sink: &mut SplitSink<WebSocket, Message>, pulse: &Pulse) -> End {
    let mut ticks = interval(PING);
    // A peer that lets us wait is not asked in vain meanwhile.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.reset();
    loop {
        let message = tokio::select! {
            biased;
            _ = ticks.tick() => Message::Ping(Bytes::new()),
            next = viewer.next() => match next {
                Ok(Some(Viewed::Output { end, data })) => binary(end, &data),
                Ok(Some(Viewed::Frame(frame))) => match serde_json::to_string(&frame) {
                    Ok(text) => Message::Text(text.into()),
                    Err(error) => return End::Failed(unwritable(&error)),
                },
                Ok(None) => return End::Exited,
                Err(problem) => return End::Failed(problem),
            },
        };
        if sink.send(message).await.is_err() {
            return End::Left;
        }
        pulse.pings.store(0, Ordering::Relaxed);
    }
}

/// Returns when nothing was heard for long: nobody is there, or somebody who reads nothing either and can come back.
async fn silence(pulse: &Pulse) {
    let mut unanswered = 0;
    while unanswered < UNANSWERED {
        sleep(PING).await;
        unanswered = if pulse.heard.swap(false, Ordering::Relaxed) { 0 } else { unanswered + 1 };
    }
}

fn binary(end: u64, data: &[u8]) -> Message {
    let mut frame = BytesMut::with_capacity(ATTACH_HEADER + data.len());
    frame.put_u64(end);
    frame.extend_from_slice(data);
    Message::Binary(frame.freeze())
}

fn unwritable(error: &serde_json::Error) -> Problem {
    Problem::new(Code::Internal, format!("A frame could not be written: {error}."), "Report it.")
}

/// Takes what the viewer says, one frame at a time.
async fn hear(keyboard: &mut Keyboard, stream: &mut SplitStream<WebSocket>, pulse: &Pulse) -> End {
    loop {
        let message = match stream.next().await {
            Some(Ok(message)) => message,
            Some(Err(error)) => return broken(error),
            None => return End::Left,
        };
        pulse.heard.store(true, Ordering::Relaxed);
        match message {
            Message::Text(text) if text.len() > MOST => return too_large(text.len()),
            Message::Binary(data) if data.len() > ATTACH_HEADER + MOST => return too_large(data.len()),
            Message::Text(text) => match serde_json::from_str::<ViewerFrame>(&text) {
                Ok(frame) => awaited(keyboard.frame(frame), pulse).await,
                Err(error) => {
                    let detail = format!("A text frame was not understood: {error}.");
                    return malformed(close_code::INVALID, detail, "Send a ViewerFrame; see /docs.");
                }
            },
            Message::Binary(mut data) => {
                if data.len() < ATTACH_HEADER {
                    let detail = format!("A binary frame has {} bytes, not even those of its offset.", data.len());
                    let fix = "Put eight bytes before the input that say where it begins.";
                    return malformed(close_code::PROTOCOL, detail, fix);
                }
                let offset = bytes::Buf::get_u64(&mut data);
                awaited(keyboard.type_input(offset, data), pulse).await;
            }
            Message::Ping(_) if pulse.pings.fetch_add(1, Ordering::Relaxed) >= MOST_PINGS => {
                let detail = format!("More than {MOST_PINGS} pings came before anything could be sent.");
                return malformed(
                    close_code::PROTOCOL,
                    detail,
                    "Read what is sent, and ping every few seconds at most.",
                );
            }
            Message::Ping(_) | Message::Pong(_) => {}
            Message::Close(_) => return End::Left,
        }
    }
}

/// While what was said is worked on, nothing else can be heard: that is no silence.
async fn awaited(work: impl Future<Output = ()>, pulse: &Pulse) {
    let mut work = std::pin::pin!(work);
    while timeout(PING / 2, &mut work).await.is_err() {
        pulse.heard.store(true, Ordering::Relaxed);
    }
}

fn malformed(code: u16, detail: impl Into<String>, fix: &str) -> End {
    End::Malformed(code, bad_request(detail, fix))
}

fn too_large(size: usize) -> End {
    let detail = format!("A frame has {size} bytes, more than {MOST} behind its offset.");
    End::Malformed(close_code::SIZE, Problem::new(Code::TooLarge, detail, "Send it in smaller pieces."))
}

fn broken(error: axum::Error) -> End {
    let error = error.into_inner();
    match error.downcast_ref::<SocketError>() {
        Some(SocketError::Capacity(_)) => too_large(READABLE),
        Some(SocketError::Utf8(_)) => {
            malformed(close_code::INVALID, "A text frame is not UTF-8.", "Send bytes in binary frames.")
        }
        Some(SocketError::Protocol(error)) => {
            let detail = format!("The WebSocket protocol was broken: {error}.");
            malformed(close_code::PROTOCOL, detail, "Use a WebSocket client that follows RFC 6455.")
        }
        _ => {
            tracing::debug!(%error, "a viewer's connection broke");
            End::Left
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    fn pulse() -> Pulse {
        Pulse { heard: AtomicBool::new(true), pings: AtomicU32::new(0) }
    }

    #[tokio::test(start_paused = true)]
    async fn who_says_nothing_for_long_is_taken_for_dead() {
        let began = Instant::now();
        silence(&pulse()).await;
        assert!((PING * UNANSWERED..PING * (UNANSWERED + 2)).contains(&began.elapsed()), "{:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_word_now_and_then_is_enough() {
        let pulse = pulse();
        let words = async {
            loop {
                sleep(PING * UNANSWERED - Duration::from_secs(1)).await;
                pulse.heard.store(true, Ordering::Relaxed);
            }
        };
        let ended = timeout(PING * 100, async {
            tokio::select! { () = silence(&pulse) => {}, () = words => {} }
        });
        assert!(ended.await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn while_a_key_waits_for_its_program_nobody_is_taken_for_dead() {
        let pulse = pulse();
        let ended = timeout(PING * 100, async {
            tokio::select! { () = silence(&pulse) => {}, () = awaited(std::future::pending(), &pulse) => {} }
        });
        assert!(ended.await.is_err());
    }
}
