//! Shells and interpreters that wait for a command: recognised so that their prompts are not taken for questions.

use super::{Found, Kind, scene::Scene, words::List};

const SHELL: f64 = 0.6;
const INTERPRETER: f64 = 0.55;

pub(super) fn recognise(scene: &Scene<'_>) -> Option<Found> {
    if !scene.at_end() {
        return None;
    }
    let text = scene.before.trim();
    is(text).map(|score| Found { kind: Kind::ShellPrompt, question: text.to_owned(), choices: Vec::new(), score })
}

/// The score of a line that is a shell's or interpreter's prompt.
pub(super) fn is(text: &str) -> Option<f64> {
    let text = text.trim();
    let body = text.trim_end_matches(['$', '#', '%', '>', '❯', '➜', 'λ', '»', '›', '⟩']);
    if body.len() < text.len() {
        let asks =
            body.trim_end().ends_with(['?', ':']) || (body.contains(' ') && List::Input.within(body) && !path(body));
        let sign = text.chars().next_back().unwrap_or('>');
        return (!asks).then_some(if matches!(sign, '>' | '›' | '»') { INTERPRETER } else { SHELL });
    }
    let name = text.strip_prefix('(').and_then(|text| text.strip_suffix(')'));
    let debugger =
        name.is_some_and(|name| name.chars().all(|letter| letter.is_alphanumeric() || "-_".contains(letter)));
    let notebook = text.strip_prefix("In [").and_then(|text| text.strip_suffix("]:"));
    let continued = text.chars().all(|letter| letter == '.') || text.ends_with("...:");
    let command_line = text.len() <= 2 && !text.chars().any(char::is_alphanumeric);
    (debugger || notebook.is_some() || continued || command_line).then_some(INTERPRETER)
}

/// `user@host:~/project` has words in it that ask nothing.
fn path(text: &str) -> bool {
    text.contains(['~', '/', '@', '\\'])
}

/// Something typed behind a shell's prompt, as `user@host:~$ what is this?`.
pub(super) fn typed(text: &str) -> bool {
    let signs = ["$ ", "# ", "% ", ">>> ", "❯ ", "➜ "];
    signs.iter().any(|sign| {
        text.find(sign).is_some_and(|at| {
            let head = &text[..at + sign.trim_end().len()];
            at == 0 || head.contains(['@', '~', '/']) || !head.trim_end_matches(['$', '#', '%']).contains(' ')
        })
    })
}
