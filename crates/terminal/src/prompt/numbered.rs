//! A numbered list and below it a line that waits for the number: bash's `select`, `Enter choice:`.

use super::{
    Choice, Found, Kind,
    menu::number,
    scene::{Scene, inner},
};

const LISTED: f64 = 0.93;
/// bash's own prompt for `select`, which nothing else prints.
const SELECT: &str = "#?";

/// The list may be that far above the line, with a blank or a sentence between.
const FARTHEST: usize = 4;
const MOST_ITEMS: usize = 40;
/// What is listed as `key) label` but is not numbered goes by its letter.
const LONGEST_LABEL: usize = 120;

pub(super) fn recognise(scene: &Scene<'_>) -> Option<Found> {
    if !scene.at_end() || scene.look.alternate_screen {
        return None;
    }
    let text = scene.before.trim();
    let asks = text.ends_with(['?', ':', '>', '：', '？', ']', ')', '›']);
    let terse = text == SELECT || text == ">" || text == "#" || text.starts_with("==>");
    if !asks && !terse {
        return None;
    }
    let items = listed(scene)?;
    let question = if terse { scene.question_above(items[0].0).unwrap_or_default() } else { text.to_owned() };
    let choices = items
        .iter()
        .map(|(_, number, label)| Choice { label: label.clone(), keys: format!("{number}\r") })
        .take(MOST_ITEMS)
        .collect();
    Some(Found { kind: Kind::Menu { selected: None }, question, choices, score: LISTED })
}

/// Rows that count up from 0 or 1, the last of them near the cursor.
fn listed(scene: &Scene<'_>) -> Option<Vec<(usize, u32, String)>> {
    let mut items: Vec<(usize, u32, String)> = Vec::new();
    let mut missed = 0;
    for (distance, row) in scene.above(scene.row).enumerate() {
        let row = inner(row);
        let expected = items.last().map(|(_, number, _)| *number);
        let label = row.replacen('[', "", usize::from(row.starts_with('['))).replacen("] ", ") ", 1);
        match number(&label).or_else(|| number(row.as_str())) {
            Some((found, text)) if expected.is_none_or(|next| found + 1 == next) && text.len() <= LONGEST_LABEL => {
                items.push((scene.row - 1 - distance, found, text.to_owned()));
                missed = 0;
            }
            _ => missed += 1,
        }
        if missed > FARTHEST || items.last().is_some_and(|(_, number, _)| *number == 0) {
            break;
        }
    }
    items.reverse();
    let begins = items.first().is_some_and(|(_, number, _)| *number <= 1);
    (items.len() >= 2 && begins).then_some(items)
}
