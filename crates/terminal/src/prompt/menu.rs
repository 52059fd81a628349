//! Lists with a pointer: `❯ 1. Yes` and its siblings in the same column, as inquirer, clack, gum, Claude Code and Codex
//! draw them.

use super::{
    Choice, Found, Kind,
    scene::{Scene, split, width},
    words::List,
};

const CERTAIN: f64 = 0.96;
const LIKELY: f64 = 0.9;
const POINTED: f64 = 0.7;

const POINTERS: &str = "❯›➤▸▶→●◉▌";
/// Also quotes, bullets and shells: they count only with other signs of a menu.
const WEAK_POINTERS: &str = ">*";
const UNPOINTED: &str = "○◯";
const ROUND: &str = "●◉";
const BARS: &str = "│┃|║";
const BOXES: [&str; 10] = ["◯", "◉", "☐", "☑", "☒", "[ ]", "[x]", "[✔]", "◻", "◼"];

/// So many lines with words may stand below a menu: hints, a status line.
const MOST_BELOW: usize = 6;
const MOST_ITEMS: usize = 40;

struct Item {
    row: usize,
    pointer: Option<char>,
    column: usize,
    label: String,
}

pub(super) fn recognise(scene: &Scene<'_>) -> Option<Found> {
    // Menus read single keys.
    if scene.line_mode() {
        return None;
    }
    let rows = scene.rows.get(..=scene.last)?;
    let pointed = rows.iter().enumerate().rev().take(60).filter_map(|(row, text)| item(row, text));
    let found = pointed.filter(|item| item.pointer.is_some()).filter_map(|item| menu(scene, &item));
    found.reduce(|best, next| if next.score > best.score { next } else { best })
}

fn menu(scene: &Scene<'_>, pointed: &Item) -> Option<Found> {
    let mut items = without_descriptions(siblings(scene, pointed));
    let selected = items.iter().position(|item| item.row == pointed.row)?;
    let (first, last) = (items.first()?.row, items.last()?.row);
    let below = scene.rows.get(last + 1..=scene.last).unwrap_or_default();
    if items.len() < 2 || below.iter().filter(worded).count() > MOST_BELOW {
        return None;
    }
    let question = scene.question_above(first).unwrap_or_default();
    let counted = counts_up(items.iter());
    let hint = below.iter().any(|row| List::Hint.within(row)) || List::Hint.within(&question);
    let asked = question.contains(['?', '？']) || question.ends_with(':') || question.starts_with(['?', '◆']);
    let weak = pointed.pointer.is_some_and(|pointer| WEAK_POINTERS.contains(pointer));
    // A shell that waits at the bottom has only shown a list.
    let at_shell =
        scene.at_end() && scene.row > last && super::shell::is(&scene.before).is_some() && scene.look.cursor_visible;
    let score = match (counted, hint, asked) {
        _ if at_shell => return None,
        (true, _, true) | (true, true, _) => CERTAIN,
        (_, true, true) => CERTAIN,
        (_, _, true) | (_, true, _) if !weak && !scene.look.cursor_visible => LIKELY,
        (true, _, _) if !weak => LIKELY,
        (_, _, true) if scene.row <= last && !weak => LIKELY,
        _ => POINTED,
    };
    let agrees = items.iter().any(|item| List::Yes.is(first_word(&item.label)));
    let declines = items.iter().any(|item| List::No.is(first_word(&item.label)));
    let kind = if agrees && declines && counted {
        Kind::Permission { selected: Some(selected) }
    } else if agrees && declines && items.len() == 2 {
        Kind::YesNo
    } else {
        Kind::Menu { selected: Some(selected) }
    };
    items.truncate(MOST_ITEMS);
    let mut choices: Vec<Choice> =
        items.iter().enumerate().map(|(index, item)| choice(scene, item, index, selected, counted)).collect();
    choices.extend(onward(scene, first));
    Some(Found { kind, question, choices, score })
}

fn choice(scene: &Scene<'_>, item: &Item, index: usize, selected: usize, counted: bool) -> Choice {
    let shown = if counted { numbered(&item.label) } else { number(&item.label) };
    let label = shown.map_or(item.label.as_str(), |(_, label)| label).to_owned();
    if let (true, Some((digit, _))) = (counted, shown.filter(|(digit, _)| *digit < 10)) {
        return Choice { label, keys: digit.to_string() };
    }
    let (up, down) = if scene.look.application_cursor { ("\x1bOA", "\x1bOB") } else { ("\x1b[A", "\x1b[B") };
    let step = if index < selected { up } else { down };
    let tick = if ticked(&item.label) { " " } else { "" };
    Choice { label, keys: format!("{}{tick}\r", step.repeat(index.abs_diff(selected))) }
}

/// Pages side by side, `←  ☒ Checks  ✔ Submit  →`: where numbers only tick, this ends it.
fn onward(scene: &Scene<'_>, first: usize) -> Option<Choice> {
    let pages = scene.above(first).take(MOST_BELOW).find_map(|row| row.trim().strip_prefix('←')?.strip_suffix('→'))?;
    let right = if scene.look.application_cursor { "\x1bOC" } else { "\x1b[C" };
    Some(Choice { label: format!("→ {}", pages.trim()), keys: right.to_owned() })
}

fn ticked(label: &str) -> bool {
    BOXES.iter().any(|tick| label.starts_with(tick))
}

/// From the first one's number, one after the other.
fn counts_up<'i>(mut items: impl Iterator<Item = &'i Item>) -> bool {
    let Some((first, _)) = items.next().and_then(|item| number(&item.label)) else { return false };
    items.zip(first + 1..).all(|(item, next)| numbered(&item.label).is_some_and(|(number, _)| number == next))
}

/// Between numbered items, what has no number describes the one above it, though it begins in the same column.
fn without_descriptions(items: Vec<Item>) -> Vec<Item> {
    let has = |item: Option<&Item>| item.is_some_and(|item| numbered(&item.label).is_some());
    let counts = counts_up(items.iter().filter(|item| has(Some(item))));
    let between = has(items.first()) && has(items.last());
    if counts && between { items.into_iter().filter(|item| has(Some(item))).collect() } else { items }
}

/// The rows next to the pointed one whose text begins in the same column.
fn siblings(scene: &Scene<'_>, pointed: &Item) -> Vec<Item> {
    let alike = |row: usize| {
        let (margin, label) = split(scene.rows.get(row)?, pointed.column);
        let marked = |letter: char| letter.is_whitespace() || BARS.contains(letter) || UNPOINTED.contains(letter);
        let label = label.trim_end_matches(|letter| letter == ' ' || BARS.contains(letter));
        let begins = ticked(label)
            || label.starts_with(|letter: char| letter.is_alphanumeric() || "\"'`(<[/@.-+$~#".contains(letter));
        // A filled circle is a pointer only among empty ones, or before numbers; alone it is a bullet.
        let round = pointed.pointer.is_some_and(|pointer| ROUND.contains(pointer)) && number(label).is_none();
        let begins = begins && (!round || margin.contains(|letter| UNPOINTED.contains(letter)));
        let item = Item { row, pointer: None, column: pointed.column, label: label.to_owned() };
        (begins && margin.chars().all(marked)).then_some(item)
    };
    // A label may run on, indented further.
    let continued = |row: usize| {
        let (margin, label) = split(scene.rows.get(row).copied().unwrap_or_default(), pointed.column);
        let blank = |letter: char| letter.is_whitespace() || BARS.contains(letter);
        label.starts_with(' ') && label.chars().any(char::is_alphanumeric) && margin.chars().all(blank)
    };
    let mut items = Vec::new();
    let mut row = pointed.row;
    while row > 0 && (alike(row - 1).is_some() || continued(row - 1)) {
        row -= 1;
        items.extend(alike(row));
    }
    items.reverse();
    items.push(Item {
        row: pointed.row,
        pointer: pointed.pointer,
        column: pointed.column,
        label: pointed.label.clone(),
    });
    row = pointed.row;
    while alike(row + 1).is_some() || continued(row + 1) {
        row += 1;
        items.extend(alike(row));
    }
    items
}

/// A row as an item: borders, indentation, perhaps a pointer, a label.
fn item(row: usize, text: &str) -> Option<Item> {
    let bar = |letter: char| BARS.contains(letter);
    let body = text.trim_end().trim_end_matches(bar).trim_end();
    let start = body.find(|letter: char| !letter.is_whitespace() && !bar(letter))?;
    let mut rest = &body[start..];
    let mut pointer = None;
    let first = rest.chars().next()?;
    if POINTERS.contains(first) || WEAK_POINTERS.contains(first) || UNPOINTED.contains(first) {
        let after = &rest[first.len_utf8()..];
        if !after.starts_with(' ') && !BOXES.iter().any(|tick| after.starts_with(tick)) {
            return None;
        }
        pointer = (!UNPOINTED.contains(first)).then_some(first);
        rest = after.trim_start();
    }
    let column = width(&body[..body.len() - rest.len()]);
    let label = rest.trim_end().to_owned();
    let worded = label.chars().any(char::is_alphanumeric);
    worded.then_some(Item { row, pointer, column, label })
}

/// `2. Yes` and `2) Yes`.
pub(super) fn number(label: &str) -> Option<(u32, &str)> {
    let digits = label.len() - label.trim_start_matches(|letter: char| letter.is_ascii_digit()).len();
    let number = label.get(..digits)?.parse().ok()?;
    let rest = label.get(digits..)?.strip_prefix(['.', ')', ':'])?;
    rest.starts_with(' ').then(|| (number, rest.trim()))
}

/// The same among items that count up, where a blank may have been lost to the width of the screen.
fn numbered(label: &str) -> Option<(u32, &str)> {
    let tight = || {
        let (digits, rest) = label.split_once('.')?;
        Some((digits.parse().ok()?, rest)).filter(|(_, rest)| rest.starts_with(char::is_alphabetic))
    };
    number(label).or_else(tight)
}

fn first_word(label: &str) -> &str {
    let label = numbered(label).map_or(label, |(_, label)| label);
    label.split(|letter: char| !letter.is_alphanumeric()).next().unwrap_or_default()
}

fn worded(row: &&&str) -> bool {
    row.chars().any(char::is_alphanumeric)
}
