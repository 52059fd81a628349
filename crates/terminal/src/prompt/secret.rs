//! Passwords: the terminal's echo is off while whole lines are gathered, or the line names a secret.

use super::{Found, Kind, scene::Scene, words::List};

const NOT_ECHOED: f64 = 0.97;
const NAMED: f64 = 0.9;
/// Echo is off, yet the line does not look like a question: perhaps a progress bar that wants no typing.
const ONLY_SILENT: f64 = 0.6;

pub(super) fn recognise(scene: &Scene<'_>) -> Option<Found> {
    if !scene.at_end() || scene.look.alternate_screen {
        return None;
    }
    let text = scene.before.trim();
    let asks = text.ends_with([':', '?', '>', '：', '›']);
    let named = List::Secret.within(text);
    let score = match (scene.look.echo, scene.line_mode(), named, asks) {
        (false, true, true, _) | (false, true, _, true) => NOT_ECHOED,
        (false, true, false, false) => ONLY_SILENT,
        (true, true, true, true) if short(text) => NAMED,
        (_, false, true, true) if short(text) && text.ends_with([':', '：', '›', '?']) => NAMED,
        _ => return None,
    };
    Some(Found { kind: Kind::Password, question: text.to_owned(), choices: Vec::new(), score })
}

/// A sentence about passwords is longer than a question for one.
fn short(text: &str) -> bool {
    text.split_whitespace().count() <= 10
}
