//! Real programs in a real terminal with its real flags: those that ask are noticed when they stand still, and take what
//! is typed for the answer as it was meant; those that wait for commands are left alone.

use std::{
    cell::Cell,
    fs,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use sandbar_terminal::{
    Look, Prompt, detect,
    prompt::{QUIET_MS, Tty},
};

use crate::pane::{self, PATIENCE, Pane, agree, can_run};
use crate::plays::{self, Answer, Play, Rest, Step};

/// A pane, and since when nothing was printed in it.
struct Watched {
    pane: Pane,
    printed: Cell<(u64, Instant)>,
}

impl Watched {
    fn play(script: &str) -> Self {
        Self { pane: Pane::play(script), printed: Cell::new((0, Instant::now())) }
    }

    fn length(&self) -> u64 {
        fs::metadata(self.pane.recording()).map_or(0, |recording| recording.len())
    }

    fn look(&self) -> Look {
        let length = self.length();
        if length != self.printed.get().0 {
            self.printed.set((length, Instant::now()));
        }
        let quiet = self.printed.get().1.elapsed();
        let path = self.pane.tmux(&["display-message", "-p", "#{pane_tty}"]);
        let told = Command::new("stty").args(["-a", "-F", path.trim()]).output();
        let flags = told.map(|told| String::from_utf8_lossy(&told.stdout).into_owned()).unwrap_or_default();
        let set = |flag: &str| flags.split_whitespace().any(|word| word == flag);
        let screen = self.pane.screen();
        // What was printed meanwhile is of another moment than the flags, and not quiet.
        let quiet_ms = if self.length() == length { u64::try_from(quiet.as_millis()).unwrap_or(u64::MAX) } else { 0 };
        let tty = Tty { echo: set("echo"), canonical: set("icanon"), quiet_ms, blocked_read: None };
        Look::of(&screen, tty)
    }

    /// The question for which `step` waits, within a bound.
    fn asked(&self, step: &Step) -> Prompt {
        let begun = Instant::now();
        loop {
            let look = self.look();
            let found = detect(&look).filter(Prompt::asks);
            if let Some(prompt) = found.clone().filter(|prompt| prompt.question.contains(step.question)) {
                return prompt;
            }
            assert!(begun.elapsed() < PATIENCE, "{:?}: {found:?}\n{look:#?}", step.question);
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn shows(&self, sign: &str) {
        pane::until(sign, || self.pane.screen().text().contains(sign));
    }
}

fn act(test: &str, play: &Play) {
    let needs: Vec<&str> = ["tmux", "stty", "bash"].iter().chain(play.needs).copied().collect();
    if can_run(test, &needs) {
        take_part(&Watched::play(play.script), play);
    }
}

/// Answers each question in its turn.
fn take_part(watched: &Watched, play: &Play) {
    for step in play.steps {
        let prompt = watched.asked(step);
        let kind = serde_json::to_value(&prompt.kind).unwrap_or_default();
        assert_eq!(kind["type"], step.kind, "{prompt:?}");
        let choices: Vec<_> =
            prompt.choices.iter().map(|choice| (choice.label.as_str(), choice.keys.as_str())).collect();
        // Later versions of a program may offer more.
        assert!(choices.starts_with(step.choices), "{prompt:?}");
        assert_eq!(choices.is_empty(), step.choices.is_empty(), "{prompt:?}");
        let before = watched.length();
        match step.answer {
            Answer::Text(text) => watched.pane.press(&format!("{text}\r")),
            Answer::Choice(label) => {
                let chosen = prompt.choices.iter().find(|choice| choice.label == label);
                watched.pane.press(&chosen.unwrap_or_else(|| panic!("{prompt:?}")).keys);
            }
        }
        // The question stands until the program has read the answer.
        pane::until("it takes the answer", || watched.length() > before);
    }
    watched.shows(play.sign);
    let shown = watched.pane.screen().text();
    assert!(!shown.contains(plays::SECRET), "{shown}");
}

fn leave_alone(test: &str, rest: &Rest) {
    let needs: Vec<&str> = ["tmux", "stty", "bash"].iter().chain(rest.needs).copied().collect();
    if can_run(test, &needs) {
        let watched = Watched::play(rest.script);
        rests(&watched, rest.sign);
        agree(&watched.pane, rest.sign);
    }
}

/// Seen while it is still being drawn, and for longer than a question would have stood before somebody is asked.
fn rests(watched: &Watched, sign: &str) {
    let begun = Instant::now();
    let mut seen = false;
    loop {
        let look = watched.look();
        let found = detect(&look);
        assert!(!found.as_ref().is_some_and(Prompt::asks), "{found:?}\n{look:#?}");
        seen |= look.lines.iter().any(|line| line.contains(sign));
        if seen && look.quiet_ms > 3 * QUIET_MS {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "{look:#?}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Claude Code with a wish, where it is installed.
fn claude(test: &str, wish: &str) -> Option<Watched> {
    let program = plays::claude(test).filter(|_| can_run(test, &["tmux", "stty", "bash"]))?;
    let model = plays::model::start().unwrap_or_else(|error| panic!("{error}"));
    // Whatever it wants to reach beside the model is refused.
    let script = format!(
        "export CLAUDE='{}' ANTHROPIC_BASE_URL=http://{model} ANTHROPIC_API_KEY=sk-ant-a-key-that-nobody-has-given\n\
         export HTTPS_PROXY=http://127.0.0.1:1 HTTP_PROXY=http://127.0.0.1:1 NO_PROXY=127.0.0.1 WISH='{wish}'\n{}",
        program.display(),
        plays::CLAUDE_CODE.script
    );
    Some(Watched::play(&script))
}

/// It asks whether it may, does what it may, and then waits for the next wish, which is no question.
#[test]
fn claude_code() {
    if let Some(watched) = claude("claude_code", plays::model::WISH_FOR_A_FILE) {
        agree(&watched.pane, plays::CLAUDE_CODE.steps[0].question);
        take_part(&watched, &plays::CLAUDE_CODE);
        rests(&watched, plays::CLAUDE_CODE.sign);
        agree(&watched.pane, plays::CLAUDE_CODE.sign);
    }
}

#[test]
fn claude_code_asks() {
    if let Some(watched) = claude("claude_code_asks", plays::model::WISH_TO_BE_ASKED) {
        take_part(&watched, &plays::CLAUDE_CODE_ASKS);
    }
}

macro_rules! plays {
    ($($name:ident: $play:ident),* $(,)?) => { $(#[test] fn $name() { act(stringify!($name), &plays::$play); })* };
}

macro_rules! rests {
    ($($name:ident: $rest:ident),* $(,)?) => { $(#[test] fn $name() { leave_alone(stringify!($name), &plays::$rest); })* };
}

plays! {
    bash_read: BASH_READ,
    bash_read_of_a_key: BASH_READ_KEY,
    bash_read_of_a_secret: BASH_SECRET,
    bash_select: BASH_SELECT,
    python_input: PYTHON_INPUT,
    python_getpass: PYTHON_GETPASS,
    python_with_a_timer: PYTHON_TICKING,
    git_credentials: GIT_CREDENTIALS,
    git_hunk: GIT_HUNK,
    ssh_keygen: SSH_KEYGEN,
    ssh: SSH,
    apt: APT,
    npm_init: NPM_INIT,
}

rests! {
    vim: VIM,
    less: LESS,
    htop: HTOP,
    tmux: TMUX,
    bash_prompt: BASH_PROMPT,
    python_prompt: PYTHON_PROMPT,
    printed: PRINTED,
}
