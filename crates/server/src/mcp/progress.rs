//! Progress of a call that lasts, for clients that asked to be told: how long it has run, and the last line of output.

use std::{sync::OnceLock, time::Duration};

use rmcp::{
    Peer, RoleServer,
    model::{ProgressNotificationParam, ProgressToken},
    service::RequestContext,
};
use sandbar_api::ProcessId;
use sandbar_engine::{Engine, OutputItem};
use tokio::time::{Instant, sleep_until};

/// Between two notifications while there is output, and while there is none.
const PERIOD: Duration = Duration::from_secs(1);
const SILENT: u32 = 10;
/// How much of the end of the output is looked at, and of a line is told.
const LOOK_BACK: u64 = 4096;
const LONGEST: usize = 200;

pub(super) struct Progress {
    peer: Peer<RoleServer>,
    token: Option<ProgressToken>,
}

/// The process whose progress it is, once it runs.
pub(super) struct Watched<'a> {
    pub(super) engine: &'a Engine,
    pub(super) sandbox: &'a str,
    pub(super) process: &'a OnceLock<ProcessId>,
}

/// What a process has written so far: how much, and its last line.
struct SoFar {
    bytes: u64,
    last: String,
}

impl Progress {
    pub(super) fn of(context: &RequestContext<RoleServer>) -> Self {
        Self { peer: context.peer.clone(), token: context.meta.get_progress_token() }
    }

    /// The call's result. A notification is sent to its end before the result is looked at, so that none follows it.
    pub(super) async fn during<T>(&self, call: impl Future<Output = T>, of: Watched<'_>) -> T {
        let Some(token) = &self.token else { return call.await };
        let mut call = std::pin::pin!(call);
        let (begun, mut next, mut told, mut silent) = (Instant::now(), Instant::now() + PERIOD, None, 0);
        loop {
            tokio::select! {
                biased;
                result = &mut call => return result,
                () = sleep_until(next) => {}
            }
            next = Instant::now() + PERIOD;
            let so_far = of.so_far().await;
            let bytes = so_far.as_ref().map(|so_far| so_far.bytes);
            silent += 1;
            if told == Some(bytes) && silent < SILENT {
                continue;
            }
            (told, silent) = (Some(bytes), 0);
            let message = so_far.map_or_else(|| "waiting".to_owned(), |so_far| so_far.shown());
            let progress = ProgressNotificationParam::new(token.clone(), begun.elapsed().as_secs_f64());
            if self.peer.notify_progress(progress.with_message(message)).await.is_err() {
                // Nobody listens any more; if that is a cancellation, the call is ended by it.
                return call.await;
            }
        }
    }
}

impl SoFar {
    fn shown(self) -> String {
        match self.last.as_str() {
            "" if self.bytes == 0 => "no output yet".to_owned(),
            "" => format!("{} bytes of output", self.bytes),
            _ => self.last,
        }
    }
}

impl Watched<'_> {
    /// None where it cannot be known: progress is a courtesy.
    async fn so_far(&self) -> Option<SoFar> {
        let process = self.process.get()?.as_str();
        let kept = self.engine.process(self.sandbox, process).await.ok()?.output;
        let from = kept.end.saturating_sub(LOOK_BACK).max(kept.start);
        let mut reader = self.engine.output(self.sandbox, process, Some(from)).await.ok()?;
        let mut end = Vec::new();
        // It may be written faster than it is read.
        while reader.offset() < kept.end
            && let Ok(Some(OutputItem::Chunk(chunk))) = reader.next(false).await
        {
            end.extend_from_slice(&chunk.data);
        }
        Some(SoFar { bytes: kept.end, last: last_line(&end) })
    }
}

fn last_line(end: &[u8]) -> String {
    let text = String::from_utf8_lossy(end);
    // Progress bars go back to the beginning of their line.
    let last = text.split(['\n', '\r']).map(str::trim).rfind(|line| !line.is_empty()).unwrap_or_default();
    last.chars().filter(|character| !character.is_control()).take(LONGEST).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_with_something_on_it() {
        for (end, want) in [
            (&b"one\ntwo\n\n"[..], "two"),
            (b" 10%\r 20%\r", "20%"),
            (b"\x1b[32mok\x1b[0m\n", "[32mok[0m"),
            (b"\n \n", ""),
            (b"", ""),
            (b"\xff\xfe", "\u{fffd}\u{fffd}"),
        ] {
            assert_eq!(last_line(end), want);
        }
        assert_eq!(last_line("é".repeat(500).as_bytes()).chars().count(), LONGEST);
    }

    #[test]
    fn silence_is_told_too() {
        let shown = |bytes, last: &str| SoFar { bytes, last: last.to_owned() }.shown();
        assert_eq!([shown(0, ""), shown(3, ""), shown(9, "x")], ["no output yet", "3 bytes of output", "x"]);
    }
}
