//! `replay`: what a terminal has shown, played again or exported.

use std::{
    io::{self, IsTerminal as _, Write as _},
    path::{Path, PathBuf},
    time::Duration,
};

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};
use sandbar_api::HumanDuration;
use sandbar_terminal::{InputModes, Neutral, Titles, neutral::RESTORE};

use super::look::Which;
use crate::{
    context::Context,
    exit::{self, Failure},
    print::{Printer, written},
    terminal::Signals,
};

/// A line of a recording that is longer is none of ours.
const LONGEST_LINE: usize = 4 << 20;

/// Play what a terminal has shown
///
/// Only what draws is played: sequences that would act on your terminal, such as those for clipboard and title, are left
/// out, and so they are from exported files.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sandbar replay agent                            the terminal started last
  sandbar replay agent --speed 4 --idle 500ms
  sandbar replay agent --export night.cast        for asciinema and its players")]
pub(crate) struct Replay {
    /// How many times as fast
    #[arg(long, value_name = "N", default_value = "1", value_parser = speed)]
    speed: f64,

    /// Make longer pauses as short as this
    #[arg(long, value_name = "DURATION", default_value = "2s")]
    idle: HumanDuration,

    /// Write it to a file as asciicast v3, with its own timing, instead of playing it
    #[arg(long, value_name = "FILE", conflicts_with_all = ["speed", "idle"])]
    export: Option<PathBuf>,

    #[command(flatten)]
    which: Which,
}

fn speed(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(speed) if speed.is_finite() && speed >= 0.01 => Ok(speed),
        _ => Err("write a number from 0.01 up, for example 4".into()),
    }
}

pub(crate) async fn replay(args: &Replay, context: &Context) -> Result<u8, Failure> {
    let client = context.client()?;
    let process = args.which.process(&client).await?;
    let recording = client.recording(&args.which.sandbox, &process).await?;
    let lines = Lines { recording: Box::pin(recording), held: Vec::new() };
    match &args.export {
        Some(file) => export(lines, file, context.print).await,
        None => {
            let mut signals = Signals::install().map_err(Failure::io("failed to listen for signals"))?;
            let played = tokio::select! {
                played = play(lines, args.speed, args.idle.0) => played.map(|()| exit::OK),
                code = signals.interrupted() => Err(Failure::Quiet(code)),
            };
            if io::stdout().is_terminal() {
                written(show(RESTORE))?;
            }
            played
        }
    }
}

/// Whole or not at all: a part of a recording would look like one.
async fn export(
    mut lines: Lines<impl Stream<Item = sandbar_client::Result<Bytes>> + Unpin>,
    file: &Path,
    print: Printer,
) -> Result<u8, Failure> {
    let failed = || Failure::io(format!("failed to write {}", file.display()));
    let directory = file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut new = tempfile::NamedTempFile::new_in(directory).map_err(failed())?;
    let mut count = 0u64;
    while let Some(line) = lines.next().await? {
        new.write_all(&line).and_then(|()| new.write_all(b"\n")).map_err(failed())?;
        count += 1;
    }
    new.persist(file).map_err(|error| failed()(error.error))?;
    print.say(format!("wrote {} events to {}", count.saturating_sub(1), file.display()));
    Ok(exit::OK)
}

async fn play(
    mut lines: Lines<impl Stream<Item = sandbar_client::Result<Bytes>> + Unpin>,
    speed: f64,
    idle: Duration,
) -> Result<(), Failure> {
    let mut neutral = Neutral::new(Titles::Drop, InputModes::Drop);
    // The header says nothing that a player in somebody's own terminal could heed.
    lines.next().await?;
    while let Some(line) = lines.next().await? {
        let (seconds, code, data): (f64, String, String) = serde_json::from_slice(&line)
            .map_err(|error| Failure::new(exit::FAILED, format!("the recording cannot be read: {error}")))?;
        let pause = Duration::try_from_secs_f64(seconds).unwrap_or_default().min(idle);
        let pause = pause.div_f64(speed);
        if !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
        if code == "o" {
            written(show(&neutral.filter(data.as_bytes())))?;
        }
    }
    Ok(())
}

fn show(bytes: &[u8]) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(bytes)?;
    stdout.flush()
}

/// The lines of a recording as they arrive.
struct Lines<S> {
    recording: S,
    held: Vec<u8>,
}

impl<S: Stream<Item = sandbar_client::Result<Bytes>> + Unpin> Lines<S> {
    async fn next(&mut self) -> Result<Option<Vec<u8>>, Failure> {
        let mut seen = 0;
        loop {
            if let Some(end) = self.held[seen..].iter().position(|byte| *byte == b'\n') {
                let mut line: Vec<u8> = self.held.drain(..=seen + end).collect();
                line.pop();
                return Ok(Some(line));
            }
            seen = self.held.len();
            match self.recording.next().await {
                Some(bytes) => self.held.extend_from_slice(&bytes?),
                None if self.held.is_empty() => return Ok(None),
                None => return Err(Failure::new(exit::FAILED, "the recording broke off")),
            }
            if self.held.len() > LONGEST_LINE {
                return Err(Failure::new(exit::FAILED, "the recording has a line without end"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_are_numbers_that_end() {
        assert_eq!((speed("4"), speed("0.5")), (Ok(4.0), Ok(0.5)));
        for bad in ["0", "-1", "NaN", "inf", "fast", "0.0001"] {
            assert!(speed(bad).is_err(), "{bad}");
        }
    }

    #[tokio::test]
    async fn lines_are_whole_wherever_pieces_end() -> Result<(), Failure> {
        let pieces = ["{\"version\"", ":3}\n[1,", "\"o\",\"x\"]\n[2,\"x\",\"0\"]\n"];
        let recording = futures_util::stream::iter(pieces.map(|piece| Ok(Bytes::from(piece))));
        let mut lines = Lines { recording, held: Vec::new() };
        let mut seen = vec![];
        while let Some(line) = lines.next().await? {
            seen.push(String::from_utf8_lossy(&line).into_owned());
        }
        assert_eq!(seen, ["{\"version\":3}", "[1,\"o\",\"x\"]", "[2,\"x\",\"0\"]"]);
        let recording = futures_util::stream::iter([Ok(Bytes::from("half"))]);
        assert!(Lines { recording, held: Vec::new() }.next().await.is_err());
        Ok(())
    }
}
