//! The one writer: data to standard output, everything else to standard error.

use std::io::{self, IsTerminal as _, Write as _};

use serde::Serialize;

use crate::{
    args::Color,
    exit::{self, Failure},
    text::{inert, inert_json},
};

#[derive(Debug, Clone, Copy)]
pub(crate) struct Printer {
    pub json: bool,
    /// Whether standard output and standard error take colour.
    stdout_color: bool,
    stderr_color: bool,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Style {
    Bold,
    Red,
    Green,
    Yellow,
    Cyan,
}

impl Printer {
    pub(crate) fn new(json: bool, color: Color) -> Self {
        let allowed = |terminal: bool| match color {
            Color::Always => true,
            Color::Never => false,
            Color::Auto => {
                terminal
                    && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
                    && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
            }
        };
        Self {
            json,
            stdout_color: allowed(io::stdout().is_terminal()),
            stderr_color: allowed(io::stderr().is_terminal()),
        }
    }

    /// A line of data. The text is ours or has been made inert.
    pub(crate) fn line(&self, text: impl AsRef<str>) -> Result<(), Failure> {
        written(writeln!(io::stdout().lock(), "{}", text.as_ref()))
    }

    /// One JSON value on one line.
    pub(crate) fn json(&self, value: &impl Serialize) -> Result<(), Failure> {
        let json = serde_json::to_string(value).map_err(|error| Failure::new(exit::FAILED, error.to_string()))?;
        self.line(inert_json(&json))
    }

    /// A sentence about what happened. Standard error may be closed; the work is done all the same.
    pub(crate) fn say(&self, text: impl AsRef<str>) {
        let _ = writeln!(io::stderr().lock(), "{}", text.as_ref());
    }

    /// A question; the answer is typed behind it.
    pub(crate) fn ask(&self, text: impl AsRef<str>) {
        let mut stderr = io::stderr().lock();
        let _ = write!(stderr, "{}", text.as_ref()).and_then(|()| stderr.flush());
    }

    pub(crate) fn warn(&self, text: impl AsRef<str>) {
        self.say(format!("{} {}", self.note("warning:", Style::Yellow), inert(text.as_ref())));
    }

    /// Styled for standard output.
    pub(crate) fn mark(&self, text: &str, style: Style) -> String {
        styled(text, style, self.stdout_color)
    }

    /// Styled for standard error.
    pub(crate) fn note(&self, text: &str, style: Style) -> String {
        styled(text, style, self.stderr_color)
    }

    pub(crate) fn failure(&self, failure: &Failure) {
        let Failure::Told { code, what, fix, problem } = failure else { return };
        if self.json {
            let told = match problem {
                Some(problem) => serde_json::json!({"exit": code, "problem": problem}),
                None => serde_json::json!({"exit": code, "error": what, "hint": fix}),
            };
            self.say(inert_json(&told.to_string()));
            return;
        }
        self.say(format!("{} {}", self.note("error:", Style::Red), inert(what.trim_end_matches('.'))));
        if let Some(fix) = fix {
            self.say(format!("\n{} {}", self.note("hint:", Style::Cyan), inert(fix)));
        }
    }
}

fn styled(text: &str, style: Style, color: bool) -> String {
    let code = match style {
        Style::Bold => "1",
        Style::Red => "1;31",
        Style::Green => "32",
        Style::Yellow => "1;33",
        Style::Cyan => "1;36",
    };
    if color { format!("\u{1b}[{code}m{text}\u{1b}[0m") } else { text.to_owned() }
}

/// Nobody reads any more: that is their right, and no failure.
pub(crate) fn written(outcome: io::Result<()>) -> Result<(), Failure> {
    match outcome {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Failure::Quiet(exit::OK)),
        outcome => outcome.map_err(Failure::io("failed to write to standard output")),
    }
}
