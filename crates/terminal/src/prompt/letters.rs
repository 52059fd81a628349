//! Answers by their marked letters: `[Y] Yes  [N] No`, `[O]pen Read-Only, (E)dit anyway, (Q)uit:`.

use super::{Choice, Found, Kind, scene::Scene, words::List};

const MARKED: f64 = 0.91;
const MARKED_NOT_ASKED: f64 = 0.6;

pub(super) fn recognise(scene: &Scene<'_>) -> Option<Found> {
    let text = scene.before.trim();
    if !scene.at_end() {
        return listed_below(scene, text);
    }
    // The list may run over the row above, and then only its end is at the cursor.
    let above = scene.above(scene.row).next().unwrap_or_default();
    let own = marked(text);
    let wrapped = if own.len() < 2 { marked(&format!("{above} {text}")) } else { Vec::new() };
    let found = if own.len() >= 2 { own } else { wrapped };
    if found.len() < 2 {
        return None;
    }
    let asks = text.ends_with([':', '?', '>', '：', '？']);
    let agrees = found.iter().any(|(_, label)| List::Yes.is(first(label)));
    let declines = found.iter().any(|(_, label)| List::No.is(first(label)));
    let kind = if agrees && declines { Kind::YesNo } else { Kind::Menu { selected: None } };
    let enter = if scene.line_mode() { "\r" } else { "" };
    let choices = found.into_iter().map(|(letter, label)| Choice { label, keys: format!("{letter}{enter}") }).collect();
    let score = if asks { MARKED } else { MARKED_NOT_ASKED };
    Some(Found { kind, question: text.to_owned(), choices, score })
}

/// A question at the bottom of an editor, and below it the keys: ` Y Yes`.
fn listed_below(scene: &Scene<'_>, text: &str) -> Option<Found> {
    let below = scene.rows.get(scene.row + 1..=scene.last)?;
    if scene.line_mode() || !scene.behind.trim().is_empty() || !text.ends_with(['?', '？']) || below.len() > 3 {
        return None;
    }
    let keyed = |entry: &str| {
        let (key, label) = entry.trim().split_once(' ')?;
        let letter = key.chars().next().filter(|_| key.chars().count() == 1)?;
        let named = label.trim().chars().next()?.to_lowercase().eq(letter.to_lowercase());
        named.then(|| Choice { label: label.trim().to_owned(), keys: letter.to_string() })
    };
    let choices: Vec<Choice> = below.iter().flat_map(|row| row.split("   ")).filter_map(keyed).collect();
    let agrees = choices.iter().any(|choice| List::Yes.is(&choice.label));
    let declines = choices.iter().any(|choice| List::No.is(&choice.label));
    (agrees && declines).then(|| Found { kind: Kind::YesNo, question: text.to_owned(), choices, score: MARKED })
}

fn first(label: &str) -> &str {
    label.split_whitespace().next().unwrap_or_default()
}

/// Letters in brackets with a word behind them, and the word with its letter put back.
fn marked(text: &str) -> Vec<(char, String)> {
    let mut found = Vec::new();
    let letters: Vec<(usize, char)> = text.char_indices().collect();
    for window in letters.windows(4) {
        let [(at, open), (_, letter), (_, close), (next, follows)] = window else { continue };
        let pair = matches!((open, close), ('[', ']') | ('(', ')'));
        let fresh = *at == 0 || text[..*at].ends_with([' ', ',', '/', '|']);
        if !pair || !fresh || !letter.is_ascii_alphanumeric() || !(follows.is_alphabetic() || *follows == ' ') {
            continue;
        }
        let rest = &text[*next..];
        let end = rest.find(['[', '(', ',', ':', '?', '/', '|']).unwrap_or(rest.len());
        let word = rest[..end].trim();
        if word.is_empty() || word.chars().count() > 40 {
            continue;
        }
        let label = if *follows == ' ' { word.to_owned() } else { format!("{letter}{word}") };
        found.push((*letter, label));
    }
    found
}
