//! What the operator's terminal is given: the attached one's output made harmless, notices that leave it as it was, and
//! at the end the order it had before.

use std::io::{self, IsTerminal as _};

use sandbar_terminal::{InputModes, Neutral, Titles, neutral::RESTORE};

use crate::{exit::Failure, outlet::Outlet, print::Printer, terminal, text::inert};

/// Keeps the operator's title, where the terminal can.
const KEEP_TITLE: &str = "\x1b[22;2t";
const TITLE_BACK: &[u8] = b"\x1b[23;2t";

/// What standard output is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stdout {
    Terminal,
    /// A file or a pipe.
    Stream,
}

impl Stdout {
    pub(super) fn is() -> Self {
        if io::stdout().is_terminal() { Self::Terminal } else { Self::Stream }
    }
}

pub(super) struct Face {
    stdout: Outlet<tokio::io::Stdout>,
    kind: Stdout,
    /// Absent where what the program prints is passed on as it is.
    neutral: Option<Neutral>,
    titles: Titles,
    painted: bool,
    print: Printer,
}

impl Face {
    /// `filtered` says whether output that goes into a stream is made harmless too.
    pub(super) fn new(kind: Stdout, name: &str, filtered: bool, print: Printer) -> Self {
        let titles = Titles::Prefix(format!("{name}: "));
        let neutral = (kind == Stdout::Terminal || filtered).then(|| filter(kind, &titles));
        Self { stdout: Outlet::new(tokio::io::stdout()), kind, neutral, titles, painted: false, print }
    }

    pub(super) fn kind(&self) -> Stdout {
        self.kind
    }

    pub(super) async fn begin(&mut self) -> Result<(), Failure> {
        if self.kind == Stdout::Terminal {
            self.stdout.write(KEEP_TITLE.as_bytes()).await?;
        }
        Ok(())
    }

    /// Returns the signal that a command must get whose output nobody reads any more.
    pub(super) async fn output(&mut self, data: &[u8]) -> Result<Option<&'static str>, Failure> {
        let harmless = self.neutral.as_mut().map(|neutral| neutral.filter(data));
        self.stdout.write(harmless.as_deref().unwrap_or(data)).await
    }

    /// The whole screen. What was seen before the first one scrolls up and stays.
    pub(super) async fn paint(&mut self, data: &str) -> Result<Option<&'static str>, Failure> {
        if self.neutral.is_some() {
            // What the one before has of an unfinished sequence is on the screen, or of no use.
            self.neutral = Some(filter(self.kind, &self.titles));
        }
        if self.kind == Stdout::Terminal {
            let rows = usize::from(terminal::size().rows);
            let away = if self.painted { String::new() } else { format!("\x1b[{rows};1H{}", "\n".repeat(rows)) };
            self.painted = true;
            self.stdout.write(format!("{away}\x1b[H\x1b[2J").as_bytes()).await?;
        }
        self.output(data.as_bytes()).await
    }

    /// A sentence of ours: on the last line until that is drawn again, the cursor where it was.
    pub(super) async fn notice(&mut self, text: &str) -> Result<(), Failure> {
        match self.kind {
            // A raw terminal returns to the left only when it is told to.
            Stdout::Stream if io::stdin().is_terminal() && io::stderr().is_terminal() => {
                self.print.say(format!("\r{}\r", inert(text)));
            }
            Stdout::Stream => self.print.say(inert(text)),
            Stdout::Terminal => _ = self.stdout.write(line(text, terminal::size()).as_bytes()).await?,
        }
        Ok(())
    }

    pub(super) async fn bell(&mut self) -> Result<(), Failure> {
        if self.kind == Stdout::Terminal {
            self.stdout.write(b"\x07").await?;
        }
        Ok(())
    }

    /// Puts the terminal in order. With `fresh_line` what follows stands below everything.
    pub(super) async fn leave(&mut self, fresh_line: bool) {
        if self.kind == Stdout::Stream {
            return;
        }
        // Resetting margins moves the cursor, and so may leaving an alternate screen that was not entered.
        let mut order = [b"\x1b[m\x1b7", RESTORE, b"\x1b8", TITLE_BACK].concat();
        if fresh_line {
            order.extend(format!("\x1b[{};1H\r\n", terminal::size().rows).into_bytes());
        }
        // A terminal that is gone needs no order.
        let _ = self.stdout.write(&order).await;
    }
}

fn filter(kind: Stdout, titles: &Titles) -> Neutral {
    match kind {
        Stdout::Terminal => Neutral::new(titles.clone(), InputModes::Pass),
        Stdout::Stream => Neutral::new(Titles::Drop, InputModes::Drop),
    }
}

fn line(text: &str, size: sandbar_api::TerminalSize) -> String {
    let text: String = inert(text).chars().take(usize::from(size.cols).saturating_sub(1)).collect();
    format!("\x1b7\x1b[{};1H\x1b[m\x1b[7m{text}\x1b[m\x1b[K\x1b8", size.rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notice_is_one_inert_line_at_the_bottom() {
        let size = sandbar_api::TerminalSize { cols: 10, rows: 5 };
        assert_eq!(line("ab\x1b[2J\ncdefghijk", size), "\x1b7\x1b[5;1H\x1b[m\x1b[7mab\\x1b[2J\x1b[m\x1b[K\x1b8");
    }
}
