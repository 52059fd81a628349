//! What a terminal shows and whether it waits for a person: screen state, snapshots, a filter for operators' terminals,
//! and prompt detection. Pure: no I/O, no clock.

pub mod neutral;
pub mod prompt;
mod scan;
pub mod screen;
pub mod transcript;

pub use neutral::{InputModes, Neutral, Titles};
pub use prompt::{Look, Prompt, THRESHOLD, detect};
pub use screen::Screen;
pub use transcript::{Line, Lines};

#[cfg(test)]
mod fuzz;
