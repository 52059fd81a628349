//! The modes a program has set: those of the grid, and those that `vt100` does not keep.

use serde::{Deserialize, Serialize};

use super::Screen;

/// What mouse events the program wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mouse {
    None,
    Press,
    PressRelease,
    Drag,
    Motion,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Modes {
    pub application_cursor: bool,
    pub application_keypad: bool,
    pub bracketed_paste: bool,
    pub focus_events: bool,
    pub insert: bool,
    pub autowrap: bool,
    pub mouse: Mouse,
    pub mouse_sgr: bool,
}

/// What one of the two grids has beyond its cells. Kept in step with `vt100`, which has it and does not show it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Margins {
    /// First and last row of the scroll region, from 0; `None` is the whole screen.
    pub(super) region: Option<(u16, u16)>,
    pub(super) origin: bool,
    pub(super) saved_origin: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tracked {
    pub(super) title: String,
    pub(super) titles: Vec<String>,
    pub(super) insert: bool,
    pub(super) autowrap: bool,
    pub(super) focus_events: bool,
    pub(super) synchronised: bool,
    /// Which of G0 and G1 are line drawing, and whether G1 is in use.
    pub(super) drawing: [bool; 2],
    pub(super) shifted: bool,
    /// What a repeat repeats.
    pub(super) last: Option<char>,
    pub(super) main: Margins,
    pub(super) alternate: Margins,
}

impl Default for Tracked {
    fn default() -> Self {
        Self {
            title: String::new(),
            titles: Vec::new(),
            insert: false,
            autowrap: true,
            focus_events: false,
            synchronised: false,
            drawing: [false; 2],
            shifted: false,
            last: None,
            main: Margins::default(),
            alternate: Margins::default(),
        }
    }
}

impl Tracked {
    pub(super) fn resized(&mut self) {
        self.main.region = None;
        self.alternate.region = None;
    }

    /// Everything but the title, which outlives resets as it does in terminals.
    pub(super) fn reset(&mut self) {
        let (title, titles) = (std::mem::take(&mut self.title), std::mem::take(&mut self.titles));
        *self = Self { title, titles, ..Self::default() };
    }

    pub(super) fn reset_drawing(&mut self) {
        self.insert = false;
        self.autowrap = true;
        self.drawing = [false; 2];
        self.shifted = false;
    }

    pub(super) fn margins(&self, alternate: bool) -> Margins {
        if alternate { self.alternate } else { self.main }
    }

    pub(super) fn margins_mut(&mut self, alternate: bool) -> &mut Margins {
        if alternate { &mut self.alternate } else { &mut self.main }
    }
}

impl Screen {
    pub fn modes(&self) -> Modes {
        let grid = self.grid.screen();
        Modes {
            application_cursor: grid.application_cursor(),
            application_keypad: grid.application_keypad(),
            bracketed_paste: grid.bracketed_paste(),
            focus_events: self.tracked.focus_events,
            insert: self.tracked.insert,
            autowrap: self.tracked.autowrap,
            mouse: match grid.mouse_protocol_mode() {
                vt100::MouseProtocolMode::None => Mouse::None,
                vt100::MouseProtocolMode::Press => Mouse::Press,
                vt100::MouseProtocolMode::PressRelease => Mouse::PressRelease,
                vt100::MouseProtocolMode::ButtonMotion => Mouse::Drag,
                vt100::MouseProtocolMode::AnyMotion => Mouse::Motion,
            },
            mouse_sgr: grid.mouse_protocol_encoding() == vt100::MouseProtocolEncoding::Sgr,
        }
    }
}
