//! Buttons in a row: `<Yes>   <No>` of whiptail and dialog, `[ OK ]`, `● Yes / ○ No` of clack, the plain ones of gum.

use super::{
    Choice, Found, Kind,
    scene::{Scene, inner},
    words::List,
};

const FRAMED: f64 = 0.94;
const PLAIN: f64 = 0.9;

/// Hints and borders may stand below the buttons.
const MOST_BELOW: usize = 4;
const LONGEST_LABEL: usize = 16;

pub(super) fn recognise(scene: &Scene<'_>) -> Option<Found> {
    // Buttons read single keys.
    if scene.line_mode() {
        return None;
    }
    let mut worded = 0;
    for row in (0..=scene.last).rev() {
        let text = inner(scene.rows.get(row)?);
        if let Some(found) = framed(scene, row, &text).or_else(|| plain(scene, row, &text)) {
            return Some(found);
        }
        worded += usize::from(text.chars().any(char::is_alphanumeric));
        if worded > MOST_BELOW {
            break;
        }
    }
    None
}

/// `<Yes>` and `[ Yes ]`, nothing else in the row, and a box around it.
fn framed(scene: &Scene<'_>, row: usize, text: &str) -> Option<Found> {
    let boxed = scene.rows.get(row)?.contains(['│', '┃', '|', '║', '┤', 'x']);
    let mut labels = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let close = match rest.chars().next()? {
            '<' => '>',
            '[' => ']',
            _ => return None,
        };
        let (label, behind) = rest[1..].split_once(close)?;
        labels.push(label.trim().to_owned());
        rest = behind.trim_start();
    }
    let fits = |label: &String| {
        (1..=LONGEST_LABEL).contains(&label.chars().count()) && label.chars().next().is_some_and(char::is_uppercase)
    };
    if labels.is_empty() || labels.len() > 5 || !boxed || !labels.iter().all(fits) {
        return None;
    }
    // `Ok` ends a form rather than agreeing to anything.
    let agrees = labels.iter().any(|label| List::Yes.is(label) && !label.eq_ignore_ascii_case("ok"));
    let declines = labels.iter().any(|label| List::No.is(label));
    let kind = match labels.len() {
        1 => Kind::PressEnter,
        2 if agrees && declines => Kind::YesNo,
        _ => Kind::Menu { selected: None },
    };
    // The first button has the focus when a dialog opens.
    let key = |index: usize| format!("{}\r", "\t".repeat(index));
    let choices = labels.into_iter().enumerate().map(|(index, label)| Choice { label, keys: key(index) }).collect();
    let question = scene.question_above(row).unwrap_or_default();
    Some(Found { kind, question, choices, score: FRAMED })
}

/// Two words far apart or behind round marks, one that agrees and one that declines, below a question.
fn plain(scene: &Scene<'_>, row: usize, text: &str) -> Option<Found> {
    let marks = ['●', '○', '◯', '◉', '❯', '▸'];
    let labels: Vec<&str> = if text.contains(marks) {
        text.split(marks).map(|part| part.trim_matches([' ', '/'])).filter(|part| !part.is_empty()).collect()
    } else {
        text.split("   ").map(str::trim).filter(|part| !part.is_empty()).collect()
    };
    let [first, second] = labels.as_slice() else { return None };
    let answers = List::Yes.is(first) && List::No.is(second);
    let question = scene.question_above(row)?;
    if !answers || first.chars().count() < 2 || !question.contains(['?', '？']) {
        return None;
    }
    // The letters choose in all of these and end the dialog, so that an Enter would answer the next one.
    let letter = |label: &str| label.chars().next().map(|letter| letter.to_lowercase().to_string()).unwrap_or_default();
    let choices = [first, second].map(|label| Choice { label: (*label).to_owned(), keys: letter(label) }).to_vec();
    Some(Found { kind: Kind::YesNo, question, choices, score: PLAIN })
}
