//! Whether a terminal waits for a person, judged by what is on its screen: a question stands where the cursor is, and
//! nothing moves.
//!
//! Each recogniser knows one shape (options in brackets, a menu with a pointer, buttons, a line to be filled in) and
//! scores what it found; the best one counts. Scores at or above [`THRESHOLD`] are worth asking a person about.

mod buttons;
mod letters;
mod line;
mod menu;
mod numbered;
mod options;
mod scene;
mod secret;
mod shell;
mod words;

use serde::{Deserialize, Serialize};

use crate::Screen;
use scene::Scene;

/// From here on a person is asked.
pub const THRESHOLD: f64 = 0.85;

/// Without output and processor time for less than this, a program is still at work.
pub const QUIET_MS: u64 = 300;
/// Enough when the program is known to be reading the terminal.
const QUIET_READING_MS: u64 = 50;

/// How much of the screen goes along with a question.
const EXCERPT_LINES: usize = 20;
const LONGEST_QUESTION: usize = 400;

/// What is known of a terminal at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Look {
    pub lines: Vec<String>,
    pub cols: u16,
    /// Row and column from 0.
    pub cursor: (u16, u16),
    pub cursor_visible: bool,
    pub alternate_screen: bool,
    pub application_cursor: bool,
    pub title: String,
    /// The terminal's ECHO flag. Off in line mode, something secret is asked for.
    pub echo: bool,
    /// The terminal's ICANON flag: whole lines are gathered. Off in readline, editors and menus, which echo themselves.
    pub canonical: bool,
    /// How long there was neither output nor processor time.
    pub quiet_ms: u64,
    /// Whether the foreground program sits in a read of the terminal, where that can be known.
    pub blocked_read: Option<bool>,
}

/// What only the kernel knows of a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tty {
    pub echo: bool,
    pub canonical: bool,
    pub quiet_ms: u64,
    pub blocked_read: Option<bool>,
}

impl Look {
    pub fn of(screen: &Screen, tty: Tty) -> Self {
        Self {
            lines: screen.lines(),
            cols: screen.size().0,
            cursor: screen.cursor(),
            cursor_visible: screen.cursor_visible(),
            alternate_screen: screen.alternate_screen(),
            application_cursor: screen.modes().application_cursor,
            title: screen.title().to_owned(),
            echo: tty.echo,
            canonical: tty.canonical,
            quiet_ms: tty.quiet_ms,
            blocked_read: tty.blocked_read,
        }
    }
}

/// One way to answer: what a person reads, and what is typed for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Choice {
    pub label: String,
    pub keys: String,
}

impl Choice {
    /// Its label says yes, in a language that is known.
    pub fn agrees(&self) -> bool {
        words::List::Yes.is(&self.label)
    }

    pub fn declines(&self) -> bool {
        words::List::No.is(&self.label)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "type")]
pub enum Kind {
    YesNo,
    /// A list to pick from; `selected` is where its pointer is.
    Menu {
        selected: Option<usize>,
    },
    PressEnter,
    PressKey,
    /// Never shown, never stored.
    Password,
    /// A line to be typed, ended by Enter.
    Text,
    /// A shell or another interpreter waits for its next command: nobody is being asked.
    ShellPrompt,
    /// A menu in which an agent asks whether it may.
    Permission {
        selected: Option<usize>,
    },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prompt {
    #[serde(flatten)]
    pub kind: Kind,
    pub question: String,
    pub choices: Vec<Choice>,
    /// From 0 to 1.
    pub score: f64,
    /// The last lines of the screen.
    pub excerpt: String,
}

impl Prompt {
    pub fn asks(&self) -> bool {
        self.score >= THRESHOLD
    }
}

/// What a recogniser found.
struct Found {
    kind: Kind,
    question: String,
    choices: Vec<Choice>,
    score: f64,
}

type Recogniser = fn(&Scene<'_>) -> Option<Found>;

/// In this order, and the first of equals counts.
const RECOGNISERS: [Recogniser; 8] = [
    secret::recognise,
    options::recognise,
    menu::recognise,
    buttons::recognise,
    numbered::recognise,
    letters::recognise,
    shell::recognise,
    line::recognise,
];

/// What the terminal waits for, if it seems to wait for anything.
pub fn detect(look: &Look) -> Option<Prompt> {
    let enough = if look.blocked_read == Some(true) { QUIET_READING_MS } else { QUIET_MS };
    if look.quiet_ms < enough {
        return None;
    }
    let scene = Scene::of(look);
    let mut best: Option<Found> = None;
    for found in RECOGNISERS.iter().filter_map(|recognise| recognise(&scene)) {
        if best.as_ref().is_none_or(|best| found.score > best.score) {
            best = Some(found);
        }
    }
    best.map(|found| Prompt {
        question: found.question.trim().chars().take(LONGEST_QUESTION).collect(),
        excerpt: excerpt(&scene),
        kind: found.kind,
        choices: found.choices,
        score: found.score.clamp(0.0, 1.0),
    })
}

fn excerpt(scene: &Scene<'_>) -> String {
    let seen = scene.rows.get(..=scene.last).unwrap_or_default();
    seen[seen.len().saturating_sub(EXCERPT_LINES)..].join("\n")
}

#[cfg(test)]
#[path = "prompt/tests.rs"]
mod tests;
