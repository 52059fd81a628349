//! A line to be filled in, or a key to be pressed: the cursor stands behind a question mark, a colon, or an invitation.

use super::{Found, Kind, scene::Scene, shell, words::List};

const ASKED: f64 = 0.87;
const ASKED_IN_WORDS: f64 = 0.91;
const COLON: f64 = 0.78;
const PRESS: f64 = 0.92;
const PRESS_BELOW: f64 = 0.86;
/// Less than for a shape that offers its answers.
const SURE: f64 = 0.95;
const READING: f64 = 0.08;
const NAMED: f64 = 0.09;
/// Lines that begin like a log's are seldom questions.
const LOG: f64 = 0.4;

const LONGEST: usize = 300;

pub(super) fn recognise(scene: &Scene<'_>) -> Option<Found> {
    press(scene).or_else(|| told_above(scene)).or_else(|| fill_in(scene))
}

/// A bare sign in a terminal that gathers lines, below a sentence that says what to type.
fn told_above(scene: &Scene<'_>) -> Option<Found> {
    let sign = scene.before.trim();
    let short = sign.len() <= 2 && sign.contains(['>', '?']) && !sign.contains(char::is_alphanumeric);
    let bare = scene.at_end() && scene.line_mode() && short;
    let told: Vec<&str> = scene.above(scene.row).filter(|row| !row.is_empty()).take(3).collect();
    let told = told.into_iter().rev().collect::<Vec<_>>().join(" ");
    let found = Found { kind: Kind::Text, question: told.clone(), choices: Vec::new(), score: ASKED };
    (bare && List::Input.within(&told)).then_some(found)
}

fn press(scene: &Scene<'_>) -> Option<Found> {
    let (text, below) = if scene.at_end() {
        (scene.before.as_str(), false)
    } else if (scene.below_end() && scene.reading()) || !scene.look.cursor_visible {
        (scene.rows.get(scene.last).copied()?, true)
    } else {
        return None;
    };
    // Installers print the invitation and wait below it behind a bare sign.
    let bare = scene.line_mode() && text.trim().chars().all(|letter| letter == '>');
    let text = if bare { scene.above(scene.row).next()?.trim() } else { text.trim() };
    let pager = text.trim_start_matches(['-', ' ']).to_lowercase();
    let more =
        text.starts_with("--") && (pager.starts_with("more") || pager.starts_with("mehr") || pager.starts_with("plus"));
    let kind = if more || (List::Key.within(text) && !List::Enter.within(text)) {
        Kind::PressKey
    } else if List::Enter.within(text) {
        Kind::PressEnter
    } else {
        return None;
    };
    let score = if below { PRESS_BELOW } else { PRESS } - if log(text) { LOG } else { 0.0 };
    if text.chars().count() > LONGEST || (below && scene.look.alternate_screen) {
        return None;
    }
    let keys = if kind == Kind::PressEnter { "\r" } else { " " };
    let choices = vec![super::Choice { label: text.to_owned(), keys: keys.to_owned() }];
    Some(Found { kind, question: text.to_owned(), choices, score })
}

fn fill_in(scene: &Scene<'_>) -> Option<Found> {
    let text = scene.before.trim();
    let fits = scene.at_end() && !scene.look.alternate_screen && text.chars().count() <= LONGEST;
    if !fits || shell::is(text).is_some() || shell::typed(text) {
        return None;
    }
    let stem = without_default(text.trim_end_matches(['>', '›', '»', ' ']));
    let sign = stem.chars().next_back()?;
    let base = match sign {
        '?' | '？' | '؟' if List::Question.within(stem) => ASKED_IN_WORDS,
        '?' | '？' | '؟' => ASKED,
        ':' | '：' => COLON,
        // Only a default or an arrow follows: `? Project name › (app)`.
        _ if stem.len() < text.len() && (text.starts_with("? ") || List::Input.within(stem)) => COLON,
        _ => return None,
    };
    let mut score = base;
    if matches!(sign, ':' | '：') || base == COLON {
        let default = stem.len() < text.len() || stem.trim_end_matches([':', ' ']).ends_with([')', ']']);
        score += if default || List::Input.within(stem) || text.starts_with("? ") { NAMED } else { 0.0 };
        score -= if at_work(stem) { LOG } else { 0.0 };
    }
    match scene.look.blocked_read {
        Some(true) => score += READING,
        // In line mode a program that does not read has not asked yet.
        Some(false) if scene.line_mode() => score -= READING,
        _ => {}
    }
    score -= if log(text) { LOG } else { 0.0 };
    Some(Found { kind: Kind::Text, question: text.to_owned(), choices: Vec::new(), score: score.min(SURE) })
}

/// `package name: (demo)` and `Name [root]:` without the default.
fn without_default(text: &str) -> &str {
    let text = text.trim_end();
    let close = match text.chars().next_back() {
        Some(')') => '(',
        Some(']') => '[',
        _ => return text,
    };
    match text.rfind(close) {
        Some(start) if start > 0 => text[..start].trim_end(),
        _ => text,
    }
}

/// `Downloading:` and `Waiting for lock:` tell what goes on.
fn at_work(stem: &str) -> bool {
    let words: Vec<&str> = stem.split_whitespace().collect();
    let first = words.first().map(|word| word.trim_end_matches([':', '…', '.'])).unwrap_or_default();
    let goes_on = first.len() > 5 && first.ends_with("ing") && !List::Input.is(first);
    let told = ["error", "warning", "note", "info", "debug", "fatal", "hint", "status", "usage", "caused by", "output"];
    let label = stem.trim_end_matches(':').to_lowercase();
    goes_on || told.iter().any(|word| label == *word || label.starts_with(&format!("{word}:")))
}

/// A time or a level stands first.
fn log(text: &str) -> bool {
    let text = text.trim_start_matches(['[', '(', '<']);
    let digits = text.chars().take_while(|letter| letter.is_ascii_digit()).count();
    let next = text.chars().nth(digits);
    let timed = digits >= 2
        && matches!(next, Some(':' | '-' | '/' | 'T' | '.'))
        && text.chars().nth(digits + 1).is_some_and(|letter| letter.is_ascii_digit());
    let first = text.split(|letter: char| !letter.is_alphanumeric()).next().unwrap_or_default();
    timed || ["INFO", "WARN", "WARNING", "ERROR", "DEBUG", "TRACE", "FATAL", "NOTICE"].contains(&first)
}
