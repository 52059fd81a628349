//! Approvals of terminals: what a person is asked when a program waits for somebody to type, and which keys an answer is.

use chrono::TimeDelta;
use sandbar_api::{
    Approval, ApprovalKind, ApprovalState, Choice, Code, Problem, Process, ProcessId, Role, SandboxId, SessionId,
};
use sandbar_terminal::{Prompt, prompt::Kind};
use serde_json::{Map, Value, json};
use zeroize::Zeroizing;

use crate::{clock, ids};

/// A person may be away for a long weekend; the program waits as long as it likes.
const DEADLINE: TimeDelta = TimeDelta::days(7);
/// Nothing is typed then.
const NOTHING: &str = "none";
/// Why one is withdrawn.
pub(crate) const PROCESS_ENDED: &str = "process_ended";
pub(crate) const MOVED_ON: &str = "moved_on";
pub(crate) const TYPED_OVER: &str = "typed_over";
const TEXT: &str = "text";
const ENTER: &str = "\r";
/// Of a question and of a command, in letters.
const LONGEST: usize = 400;
const LONGEST_LABEL: usize = 200;
/// Of a line of the screen.
const LONGEST_LINE: usize = 500;

/// Where a terminal stood: the ends of its output and of its input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) output: u64,
    pub(crate) input: u64,
}

impl Place {
    pub(crate) fn of(approval: &Approval) -> Option<Self> {
        let number = |name: &str| approval.context[name].as_u64();
        Some(Self { output: number("output")?, input: number("input")? })
    }
}

/// Whose terminal it is.
pub(crate) fn process(approval: &Approval) -> Option<ProcessId> {
    approval.context["process"].as_str()?.parse().ok()
}

/// What is asked, apart from where and when.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Asked {
    prompt: &'static str,
    question: String,
    choices: Vec<(Choice, String)>,
    takes_text: bool,
    screen: String,
}

impl Asked {
    /// None where nobody is asked anything.
    pub(crate) fn new(found: Prompt) -> Option<Self> {
        let (prompt, otherwise) = match found.kind {
            Kind::YesNo => ("yes_no", "Yes or no?"),
            Kind::Menu { .. } => ("menu", "A choice is to be made."),
            Kind::Permission { .. } => ("permission", "A permission is asked for."),
            Kind::PressEnter => ("press_enter", "Enter is waited for."),
            Kind::PressKey => ("press_key", "A key is waited for."),
            Kind::Password => ("password", "Something secret is asked for."),
            Kind::Text => ("text", "Some text is asked for."),
            Kind::ShellPrompt => return None,
        };
        let takes_text = matches!(found.kind, Kind::Password | Kind::Text);
        let choices = match found.kind {
            Kind::Password => vec![(Choice::new(TEXT, "Type it, unseen"), String::new())],
            Kind::Text => vec![(Choice::new(TEXT, "Type a line"), String::new())],
            Kind::PressKey => vec![
                (Choice::new("key", "Press a key"), " ".to_owned()),
                (Choice::new("enter", "Press Enter"), ENTER.to_owned()),
            ],
            Kind::PressEnter => {
                let keys = found.choices.first().map_or(ENTER, |choice| choice.keys.as_str());
                vec![(Choice::new("enter", "Press Enter"), keys.to_owned())]
            }
            _ => numbered(&found),
        };
        if choices.is_empty() {
            return None;
        }
        let question = one_line(&found.question, LONGEST);
        let question = if question.is_empty() { otherwise.to_owned() } else { question };
        let screen: Vec<_> = found.excerpt.lines().map(|line| cut(line, LONGEST_LINE)).collect();
        Some(Self { prompt, question, choices, takes_text, screen: screen.join("\n") })
    }

    /// Whether this is what was asked then.
    pub(crate) fn is(&self, approval: &Approval) -> bool {
        self.prompt == approval.context["prompt"]
            && self.question == approval.question
            && self.choices.iter().map(|(choice, _)| choice).eq(&approval.choices)
            && self.keys() == approval.context["keys"]
            && (!self.is_about_more() || alike(&self.screen, approval.context["screen"].as_str().unwrap_or_default()))
    }

    /// Where the question is a phrase and what it is about stands above it: another command below which the same is asked is
    /// another question.
    fn is_about_more(&self) -> bool {
        matches!(self.prompt, "menu" | "permission")
    }

    pub(crate) fn approval(
        &self,
        sandbox: SandboxId,
        session: SessionId,
        process: &Process,
        place: Place,
    ) -> Result<Approval, Problem> {
        let now = clock::now();
        Ok(Approval {
            id: ids::approval(now)?,
            kind: ApprovalKind::Terminal,
            state: ApprovalState::Open,
            session,
            sandbox: Some(sandbox),
            question: self.question.clone(),
            choices: self.choices.iter().map(|(choice, _)| choice.clone()).collect(),
            takes_text: self.takes_text,
            context: self.context(process, place),
            answerable_by: Role::Operator,
            created_at: now,
            deadline: now + DEADLINE,
            on_deadline: NOTHING.into(),
            answer: None,
            delivery: None,
            reason: None,
            closed_at: None,
        })
    }

    /// What was typed into the terminal is never in it, other than what the screen shows.
    pub(crate) fn context(&self, process: &Process, place: Place) -> Value {
        json!({
            "process": process.id.as_str(),
            "command": one_line(&process.argv.join(" "), LONGEST),
            "prompt": self.prompt,
            "screen": self.screen,
            "keys": self.keys(),
            "output": place.output,
            "input": place.input,
        })
    }

    /// What each choice types, kept so that an answer after a restart types what was offered.
    fn keys(&self) -> Value {
        let keys = self.choices.iter().filter(|(choice, _)| choice.id != TEXT);
        Value::Object(keys.map(|(choice, keys)| (choice.id.clone(), keys.as_str().into())).collect::<Map<_, _>>())
    }
}

/// `yes` and `no` where the labels are such, else the number in the list.
fn numbered(found: &Prompt) -> Vec<(Choice, String)> {
    let (mut agreed, mut declined) = (found.kind != Kind::YesNo, found.kind != Kind::YesNo);
    let mut choices = Vec::new();
    for (index, choice) in found.choices.iter().enumerate() {
        let id = if !agreed && choice.agrees() {
            agreed = true;
            "yes".to_owned()
        } else if !declined && choice.declines() {
            declined = true;
            "no".to_owned()
        } else {
            (index + 1).to_string()
        };
        choices.push((Choice::new(id, one_line(&choice.label, LONGEST_LABEL)), choice.keys.clone()));
    }
    choices
}

/// What is typed for an answer, and whether its text may be kept.
pub(super) fn keys(
    approval: &Approval,
    choice: &str,
    text: Option<&str>,
) -> Result<(Zeroizing<String>, bool), Problem> {
    let bad = |detail: &str, fix: &str| Err(Problem::new(Code::BadAnswer, detail, fix));
    match (choice, text) {
        (TEXT, None) => bad("The answer has no text.", "Give the text to be typed; it may be empty for Enter alone."),
        (TEXT, Some(text)) if text.chars().any(char::is_control) => bad(
            "The text has a control character in it, such as a line break.",
            "Give one line; Enter is typed behind it.",
        ),
        (TEXT, Some(text)) => Ok((format!("{text}{ENTER}").into(), approval.context["prompt"] != "password")),
        (_, Some(_)) => bad("This choice takes no text.", "Give the choice alone, or the choice `text`."),
        (choice, None) => match approval.context["keys"][choice].as_str() {
            Some(keys) => Ok((keys.to_owned().into(), true)),
            None => bad("It is not known what to type for this choice.", "Attach to the terminal and type it."),
        },
    }
}

/// Whether two screens say the same, apart from what moves by itself: clocks, counters, spinners, bars.
fn alike(one: &str, other: &str) -> bool {
    let lasting = |screen: &str| -> Vec<String> {
        screen.split_whitespace().filter(|word| !moves(word)).map(str::to_owned).collect()
    };
    lasting(one) == lasting(other)
}

/// `⠋`, `12:34:56`, `45%`, `(12s`, `1.5MB`: no letters or digits, or a number with what shows that it is measured.
fn moves(word: &str) -> bool {
    let word = word.trim_matches(|letter: char| !letter.is_alphanumeric() && letter != '%');
    let unit = word.trim_start_matches(|letter: char| letter.is_ascii_digit() || ".:,".contains(letter));
    let measured =
        unit == "%" || (1..=2).contains(&unit.len()) && unit.chars().all(|letter| letter.is_ascii_alphabetic());
    let number = word.starts_with(|letter: char| letter.is_ascii_digit());
    word.is_empty() || number && (measured || unit.is_empty() && word.contains(':'))
}

/// Whatever the sandbox printed stays on its line and says what it seems to say.
fn one_line(text: &str, longest: usize) -> String {
    let mut line = String::new();
    for letter in cut(text.trim(), longest).chars() {
        match letter {
            '\'' | '"' | '\\' => line.push(letter),
            letter if letter.is_whitespace() => line.push(' '),
            letter => line.extend(letter.escape_debug()),
        }
    }
    // Escapes make it longer.
    cut(&line, longest)
}

fn cut(text: &str, longest: usize) -> String {
    match text.char_indices().nth(longest) {
        Some(_) => text.chars().take(longest - 1).chain(['…']).collect(),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(kind: Kind, question: &str, choices: &[(&str, &str)]) -> Option<Asked> {
        let choices = choices
            .iter()
            .map(|(label, keys)| sandbar_terminal::prompt::Choice {
                label: (*label).to_owned(),
                keys: (*keys).to_owned(),
            })
            .collect();
        Asked::new(Prompt { kind, question: question.into(), choices, score: 1.0, excerpt: "a\nb".into() })
    }

    fn ids(asked: Option<Asked>) -> Vec<(String, String)> {
        asked
            .map(|asked| asked.choices.into_iter().map(|(choice, keys)| (choice.id, keys)).collect())
            .unwrap_or_default()
    }

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(id, keys)| ((*id).to_owned(), (*keys).to_owned())).collect()
    }

    #[test]
    fn choices_have_ids_that_programs_can_rely_on() {
        let ssh = [("yes", "yes\r"), ("no", "no\r"), ("fingerprint", "fingerprint\r")];
        assert_eq!(
            ids(found(Kind::YesNo, "?", &ssh)),
            pairs(&[("yes", "yes\r"), ("no", "no\r"), ("3", "fingerprint\r")])
        );
        assert_eq!(ids(found(Kind::YesNo, "?", &[("n", "n"), ("Y", "Y")])), pairs(&[("no", "n"), ("yes", "Y")]));
        let git = [("y", "y\r"), ("n", "n\r"), ("a", "a\r")];
        assert_eq!(ids(found(Kind::YesNo, "?", &git)), pairs(&[("yes", "y\r"), ("no", "n\r"), ("3", "a\r")]));
        let menu = [("Yes", "1"), ("No", "2")];
        let permission = Kind::Permission { selected: Some(0) };
        assert_eq!(ids(found(permission, "?", &menu)), pairs(&[("1", "1"), ("2", "2")]));
        assert_eq!(ids(found(Kind::PressEnter, "Press Enter", &[("x", "\r")])), pairs(&[("enter", "\r")]));
        assert_eq!(ids(found(Kind::PressKey, "--More--", &[])), pairs(&[("key", " "), ("enter", "\r")]));
        assert_eq!(ids(found(Kind::Password, "Password:", &[])), pairs(&[("text", "")]));
        assert_eq!(ids(found(Kind::Text, "Name:", &[])), pairs(&[("text", "")]));
        assert_eq!(found(Kind::ShellPrompt, "$", &[]), None);
        assert_eq!(found(Kind::Menu { selected: None }, "?", &[]), None, "there is nothing to choose");
    }

    #[test]
    fn what_is_asked_below_something_else_is_another_question() {
        assert!(alike("10:59:59 ⠋ rm a (12s · 45%) 1.5MB\n❯ 1. Yes", "11:00:00 ⠙ rm a (13s · 46%) 2.0MB\n❯ 1. Yes"));
        for (one, other) in [("rm a", "rm b"), ("rm 1", "rm 2"), ("rm /a/1s", "rm /a/2s"), ("rm a", "rm a b")] {
            assert!(!alike(one, other), "{one} {other}");
        }
    }

    #[test]
    fn a_question_is_one_line_and_hides_nothing() {
        let asked = |question: &str| found(Kind::Text, question, &[]).map(|asked| asked.question).unwrap_or_default();
        assert_eq!(asked(" Delete \"a\"\nand b? "), "Delete \"a\" and b?");
        assert_eq!(asked("ok\u{202e}gpj.exe?"), "ok\\u{202e}gpj.exe?");
        assert_eq!(asked("\u{1b}[2J?"), "\\u{1b}[2J?");
        assert_eq!(asked("Wirklich löschen?"), "Wirklich löschen?");
        assert_eq!(asked(""), "Some text is asked for.");
        assert_eq!(asked(&"x".repeat(9000)).chars().count(), LONGEST);
        assert_eq!(asked(&"\u{202e}".repeat(390)).chars().count(), LONGEST);
    }
}
