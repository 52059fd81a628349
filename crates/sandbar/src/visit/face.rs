//! What the operator's terminal is given: the attached one's output made harmless, or a part of its screen where that is
//! larger, notices that leave it as it was, and at the end the order it had before.

use std::io::{self, IsTerminal as _};

use sandbar_api::TerminalSize;
use sandbar_terminal::{InputModes, Neutral, Titles, neutral::RESTORE};
use tokio::time::Instant;

use super::window::Window;
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
    /// While the attached terminal is larger than ours: then its output is not passed on.
    window: Option<Window>,
    print: Printer,
}

impl Face {
    /// `filtered` says whether output that goes into a stream is made harmless too.
    pub(super) fn new(kind: Stdout, name: &str, filtered: bool, print: Printer) -> Self {
        let titles = Titles::Prefix(format!("{name}: "));
        let neutral = (kind == Stdout::Terminal || filtered).then(|| filter(kind, &titles));
        Self { stdout: Outlet::new(tokio::io::stdout()), kind, neutral, titles, painted: false, window: None, print }
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

    /// Whether a terminal of this size can be shown whole.
    pub(super) fn holds(&self, size: TerminalSize) -> bool {
        self.kind == Stdout::Stream || holds(terminal::size(), size)
    }

    /// Whether a part is shown, or all.
    pub(super) fn shows_part(&self) -> bool {
        self.window.is_some()
    }

    /// Returns the signal that a command must get whose output nobody reads any more.
    pub(super) async fn output(&mut self, data: &[u8]) -> Result<Option<&'static str>, Failure> {
        // Also of what is not passed on, so that what follows is read right.
        let harmless = self.neutral.as_mut().map(|neutral| neutral.filter(data));
        let Some(window) = &mut self.window else {
            return self.stdout.write(harmless.as_deref().unwrap_or(data)).await;
        };
        window.feed(data);
        let now = Instant::now();
        if window.due(now).is_some_and(|due| due <= now) { self.draw().await } else { Ok(None) }
    }

    /// When to draw next, if anything is left to draw.
    pub(super) fn due(&self) -> Option<Instant> {
        self.window.as_ref()?.due(Instant::now())
    }

    pub(super) async fn draw(&mut self) -> Result<Option<&'static str>, Failure> {
        let Some(window) = &mut self.window else { return Ok(None) };
        let frame = window.frame(terminal::size(), Instant::now());
        if frame.is_empty() {
            return Ok(None);
        }
        let frame = filter(self.kind, &self.titles).filter(frame.as_bytes());
        self.stdout.write(&frame).await
    }

    /// The whole screen, of this size. What was seen before the first one scrolls up and stays.
    pub(super) async fn paint(&mut self, size: TerminalSize, data: &str) -> Result<Option<&'static str>, Failure> {
        if self.neutral.is_some() {
            // What the one before has of an unfinished sequence is on the screen, or of no use.
            self.neutral = Some(filter(self.kind, &self.titles));
        }
        if self.kind == Stdout::Stream {
            return self.output(data.as_bytes()).await;
        }
        let shown_part = self.window.take().is_some();
        if !self.painted {
            let rows = usize::from(terminal::size().rows);
            self.stdout.write(format!("\x1b[{rows};1H{}", "\n".repeat(rows)).as_bytes()).await?;
            self.painted = true;
        }
        if !self.holds(size) {
            self.stdout.write(RESTORE).await?;
            self.window = Some(Window::new(size, data));
            return self.draw().await;
        }
        if shown_part {
            self.stdout.write(RESTORE).await?;
        }
        self.paint_all(data).await
    }

    async fn paint_all(&mut self, data: &str) -> Result<Option<&'static str>, Failure> {
        self.stdout.write(b"\x1b[H\x1b[2J").await?;
        let harmless = filter(self.kind, &self.titles).filter(data.as_bytes());
        self.stdout.write(&harmless).await
    }

    /// The attached terminal has this size now.
    pub(super) async fn resized(&mut self, size: TerminalSize) -> Result<(), Failure> {
        if let Some(window) = &mut self.window {
            window.resize(size);
        }
        self.fit().await
    }

    /// After a change of either size: all of it is shown as soon as that can be.
    pub(super) async fn fit(&mut self) -> Result<(), Failure> {
        match self.window.take_if(|window| holds(terminal::size(), window.size())) {
            None => _ = self.draw().await?,
            Some(mut window) => {
                self.stdout.write(RESTORE).await?;
                self.paint_all(&window.painting()).await?;
                if let Some(text) = window.take_notice() {
                    self.notice(&text).await?;
                }
            }
        }
        Ok(())
    }

    /// A sentence of ours: on the last line until that is drawn again, the cursor where it was.
    pub(super) async fn notice(&mut self, text: &str) -> Result<(), Failure> {
        match (self.kind, &mut self.window) {
            // A raw terminal returns to the left only when it is told to.
            (Stdout::Stream, _) if io::stdin().is_terminal() && io::stderr().is_terminal() => {
                self.print.say(format!("\r{}\r", inert(text)));
            }
            (Stdout::Stream, _) => self.print.say(inert(text)),
            (Stdout::Terminal, None) => _ = self.stdout.write(line(text, terminal::size()).as_bytes()).await?,
            (Stdout::Terminal, Some(window)) => {
                window.notice(text, Instant::now());
                self.draw().await?;
            }
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
        if let Some(window) = &mut self.window {
            window.take_notice();
            // A terminal that is gone needs no picture.
            let _ = self.draw().await;
        }
        let mut order = [RESTORE, TITLE_BACK].concat();
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

fn holds(ours: TerminalSize, size: TerminalSize) -> bool {
    ours.cols >= size.cols && ours.rows >= size.rows
}

fn line(text: &str, size: TerminalSize) -> String {
    let text: String = inert(text).chars().take(usize::from(size.cols).saturating_sub(1)).collect();
    format!("\x1b7\x1b[{};1H\x1b[m\x1b[7m{text}\x1b[m\x1b[K\x1b8", size.rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notice_is_one_inert_line_at_the_bottom() {
        let size = TerminalSize { cols: 10, rows: 5 };
        assert_eq!(line("ab\x1b[2J\ncdefghijk", size), "\x1b7\x1b[5;1H\x1b[m\x1b[7mab\\x1b[2J\x1b[m\x1b[K\x1b8");
    }
}
