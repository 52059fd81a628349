//! Answers in brackets at the end of a line: `[Y/n]`, `(yes/no/[fingerprint])?`, `[y,n,q,a,?]?`, `(major/minor)`.

use super::{Choice, Found, Kind, scene::Scene, shell, words::List};

const YES_NO: f64 = 0.96;
const DEFAULTED: f64 = 0.92;
/// A bracket with some words in it, and nothing that says they are answers.
const SOME: f64 = 0.7;
const SOME_ASKED: f64 = 0.9;
/// The question was printed as a whole line, and the program is known to read.
const BELOW: f64 = 0.87;

const LONGEST_OPTION: usize = 16;
const MOST_OPTIONS: usize = 16;

pub(super) fn recognise(scene: &Scene<'_>) -> Option<Found> {
    let (text, score) = if scene.at_end() {
        (scene.before.as_str(), YES_NO)
    } else if scene.below_end() && scene.reading() && scene.line_mode() {
        (scene.rows.get(scene.last).copied()?, BELOW)
    } else {
        return None;
    };
    if shell::typed(text) {
        return None;
    }
    let Some((question, options, rest)) = offered(text) else { return defaulted(text) };
    let agrees = options.iter().any(|option| List::Yes.is(option));
    let declines = options.iter().any(|option| List::No.is(option));
    let asked =
        question.ends_with(['?', '？']) || rest.contains(['?', ':', '>', '›']) || List::Question.within(&question);
    let (kind, score) = match (agrees && declines, asked) {
        (true, _) if scene.look.alternate_screen && !scene.at_bottom() => (Kind::YesNo, SOME),
        (true, _) => (Kind::YesNo, score),
        (false, true) if question.split_whitespace().count() > 1 => {
            (Kind::Menu { selected: None }, score.min(SOME_ASKED))
        }
        (false, _) => (Kind::Menu { selected: None }, SOME),
    };
    // Single letters in a terminal without lines are read at once; an Enter would answer the next question.
    let enter = if scene.line_mode() || options.iter().any(|option| option.chars().count() > 1) { "\r" } else { "" };
    let choices =
        options.into_iter().map(|option| Choice { keys: format!("{option}{enter}"), label: option }).collect();
    Some(Found { kind, question: text.trim().to_owned(), choices, score })
}

/// Only the default is shown: `Continue as root [yes]?`, `Fix<y>?`.
fn defaulted(text: &str) -> Option<Found> {
    let end = text.trim_end_matches(|letter: char| letter.is_whitespace() || "?:".contains(letter));
    let (question, inside) = bracket(end)?;
    let asked = text[end.len()..].contains('?') || question.trim_end().ends_with('?');
    if !asked || !(List::Yes.is(inside) || List::No.is(inside)) {
        return None;
    }
    let answers = if inside.chars().count() == 1 { ["y", "n"] } else { ["yes", "no"] };
    let choices = answers.map(|answer| Choice { label: answer.to_owned(), keys: format!("{answer}\r") }).to_vec();
    Some(Found { kind: Kind::YesNo, question: text.trim().to_owned(), choices, score: DEFAULTED })
}

/// The question, the options in the last bracket (or bare, when they say yes and no), and what stands behind them.
fn offered(text: &str) -> Option<(String, Vec<String>, String)> {
    let text = text.trim_end();
    let mut end = text.trim_end_matches(|letter: char| letter.is_whitespace() || "?:>›»？：".contains(letter));
    let mut rest = &text[end.len()..];
    // A default in a bracket of its own may follow the options.
    for _ in 0..2 {
        let Some((question, inside)) = bracket(end) else { break };
        if let Some(options) = split(inside) {
            return Some((question.trim_end().to_owned(), options, rest.to_owned()));
        }
        end = question.trim_end();
        rest = &text[end.len()..];
    }
    let bare = text.trim_end_matches(|letter: char| letter.is_whitespace() || "?:>".contains(letter));
    let word = bare.rsplit(char::is_whitespace).next()?;
    let options = split(word).filter(|options| {
        options.iter().any(|option| List::Yes.is(option)) && options.iter().any(|option| List::No.is(option))
    })?;
    Some((bare[..bare.len() - word.len()].trim_end().to_owned(), options, text[bare.len()..].to_owned()))
}

/// A bracket that ends the text: what is before it, what is in it.
fn bracket(text: &str) -> Option<(&str, &str)> {
    let close = text.chars().next_back()?;
    let open = match close {
        ')' => '(',
        ']' => '[',
        '）' => '（',
        '}' => '{',
        '>' => '<',
        _ => return None,
    };
    let mut depth = 0usize;
    for (index, letter) in text.char_indices().rev() {
        if letter == close {
            depth += 1;
        } else if letter == open {
            depth = depth.saturating_sub(1);
            if depth == 0 {
                let inside = &text[index + letter.len_utf8()..text.len() - close.len_utf8()];
                return Some((&text[..index], inside));
            }
        }
    }
    None
}

/// At least two short words between slashes, commas or bars; numbers alone are counters.
fn split(inside: &str) -> Option<Vec<String>> {
    let separator = [',', '|', '/'].into_iter().find(|separator| inside.contains(*separator))?;
    let clean = |part: &str| part.trim().trim_matches(['[', ']', '(', ')', '\'', '"', '*']).to_owned();
    let options: Vec<String> = inside.split(separator).flat_map(|part| part.split(" or ")).map(clean).collect();
    let word = |option: &String| {
        let length = option.chars().count();
        (1..=LONGEST_OPTION).contains(&length)
            && (length == 1 || option.chars().all(|letter| letter.is_alphanumeric() || "-_?!'^".contains(letter)))
    };
    let counter = options.iter().all(|option| option.chars().all(|letter| letter.is_ascii_digit()));
    ((2..=MOST_OPTIONS).contains(&options.len()) && options.iter().all(word) && !counter).then_some(options)
}
