//! What goes out on a connection: what was typed, what was asked for, and now and then whether anybody is there.

use std::time::Duration;

use bytes::Bytes;
use futures_util::{SinkExt as _, stream::SplitSink};
use sandbar_api::ViewerFrame;
use tokio::time;
use tokio_tungstenite::tungstenite::Message;

use super::{Shared, connection::Socket};

/// How often the server is asked whether it is there.
const PING: Duration = Duration::from_secs(15);
/// What the server said before it hung up arrives within this time.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// Why nothing more is written to a connection.
pub(super) enum Left {
    Failed,
    Redraw,
}

pub(super) async fn write(shared: &Shared, mut sink: SplitSink<Socket, Message>) -> Left {
    let mut ping = time::interval_at(time::Instant::now() + PING, PING);
    loop {
        let work = shared.work.notified();
        if std::mem::take(&mut shared.state().redraw) {
            return Left::Redraw;
        }
        let message = due(shared);
        let sent = match message {
            Some(message) => sink.send(message).await,
            None => tokio::select! {
                () = work => continue,
                _ = ping.tick() => sink.send(Message::Ping(Bytes::new())).await,
            },
        };
        if sent.is_err() {
            // The reader may still find out why.
            time::sleep(LAST_WORDS).await;
            return Left::Failed;
        }
    }
}

/// What is to be said next.
fn due(shared: &Shared) -> Option<Message> {
    let mut state = shared.state();
    // The size first: whoever takes control gives the terminal theirs.
    let frame = match std::mem::take(&mut state.resized).then_some(state.size).flatten() {
        Some(size) => Some(ViewerFrame::Resize { cols: size.cols, rows: size.rows }),
        None => state.ask.take(),
    };
    match frame.and_then(|frame| serde_json::to_string(&frame).ok()) {
        Some(text) => Some(Message::text(text)),
        None => state.pending.frame().map(Message::Binary),
    }
}
