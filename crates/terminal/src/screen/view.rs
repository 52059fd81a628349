//! The screen as something to send: for `GET …/screen` and for prompt detection.

use serde::{Deserialize, Serialize};

use super::{Modes, Screen};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cursor {
    pub row: u16,
    pub col: u16,
    pub visible: bool,
}

/// What a person would see, as data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct View {
    pub cols: u16,
    pub rows: u16,
    pub cursor: Cursor,
    pub title: String,
    pub alternate_screen: bool,
    pub modes: Modes,
    pub lines: Vec<String>,
}

impl Screen {
    pub fn view(&self) -> View {
        let ((cols, rows), (row, col)) = (self.size(), self.cursor());
        View {
            cols,
            rows,
            cursor: Cursor { row, col, visible: self.cursor_visible() },
            title: self.title().to_owned(),
            alternate_screen: self.alternate_screen(),
            modes: self.modes(),
            lines: self.lines(),
        }
    }
}
