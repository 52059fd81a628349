//! `approve`, `deny`, `answer`: one answer to one question.

use std::io::{IsTerminal as _, Read as _};

use sandbar_api::{AnswerApproval, Approval, Code, Delivery};
use sandbar_client::Client;

use crate::{
    context::Context,
    exit::{self, Failure},
    hidden::hidden,
    print::Printer,
    text::inert,
    verbs::sandbox::each,
};

/// As much as the server takes.
const MAX_TEXT: usize = 64 * 1024;
const TEXT: &str = "text";

/// Allow what a sandbox asks for, or say yes to a program in its terminal
#[derive(Debug, clap::Args)]
pub(crate) struct Approve {
    /// Also whenever this sandbox asks for the same again
    #[arg(long)]
    for_sandbox: bool,

    /// The approvals' ids
    #[arg(required = true, value_name = "APPROVAL")]
    approvals: Vec<String>,
}

/// Refuse what a sandbox asks for, or say no to a program in its terminal
#[derive(Debug, clap::Args)]
pub(crate) struct Deny {
    /// The approvals' ids
    #[arg(required = true, value_name = "APPROVAL")]
    approvals: Vec<String>,
}

/// Answer an approval with one of its choices, or with text
///
/// Text is one line and is typed with Enter behind it. Without text and choice it is taken from standard input; a question
/// for something secret is then asked without showing what is typed. Text on the command line can be read by other users
/// of the machine while this runs, so give no passwords there.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sandbar answer apr-01k9… --choice once
  sandbar answer apr-01k9… --choice 2          the second in the list
  sandbar answer apr-01k9… my-project          types a line
  sandbar answer apr-01k9… - < password
  sandbar answer apr-01k9…                     asks for what to type")]
pub(crate) struct Answer {
    /// The approval's id
    approval: String,

    /// What to type, where the question takes text; - for standard input
    #[arg(allow_hyphen_values = true)]
    text: Option<String>,

    /// The choice's id, as `approvals` shows it, or its place in the list
    #[arg(long, value_name = "CHOICE")]
    choice: Option<String>,
}

pub(crate) async fn approve(args: Approve, context: &Context) -> Result<u8, Failure> {
    let wanted: &[&str] = if args.for_sandbox { &["sandbox"] } else { &["once", "yes"] };
    each_answer(&args.approvals, wanted, context).await
}

pub(crate) async fn deny(args: Deny, context: &Context) -> Result<u8, Failure> {
    each_answer(&args.approvals, &["deny", "no"], context).await
}

async fn each_answer(approvals: &[String], wanted: &[&str], context: &Context) -> Result<u8, Failure> {
    let client = context.client()?;
    each(approvals, context, async |id| {
        let (approval, choice) = first_of(&client, id, wanted).await?;
        answered(&approval, choice, context.print)
    })
    .await
}

/// Answers with the first of these that is among its choices: what is none of them counts for nothing.
async fn first_of<'c>(client: &Client, id: &str, wanted: &[&'c str]) -> Result<(Approval, &'c str), Failure> {
    for choice in wanted {
        let request = AnswerApproval { choice: (*choice).to_owned(), text: None };
        match client.answer_approval(id, &request).await {
            Ok(approval) => return Ok((approval, choice)),
            Err(error) if error.code() == Some(Code::BadAnswer) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let approval = client.approval(id, None).await?;
    let what = format!("{id} has no choice {}: {}", wanted.join(" or "), inert(&approval.question));
    Err(Failure::usage(what).hint(offered(&approval)))
}

fn offered(approval: &Approval) -> String {
    let choices: Vec<_> =
        approval.choices.iter().map(|choice| format!("{} ({})", choice.id, inert(&choice.label))).collect();
    // A password is not for the command line.
    let how = match (approval.takes_text, is_secret(approval)) {
        (false, _) => " --choice CHOICE",
        (true, false) => " TEXT",
        (true, true) => "",
    };
    format!("Use `sandbar answer {}{how}`; its choices: {}.", approval.id, choices.join(", "))
}

pub(crate) async fn answer(args: Answer, context: &Context) -> Result<u8, Failure> {
    let client = context.client()?;
    let print = context.print;
    let request = match (args.choice, args.text) {
        (Some(choice), text) => {
            let choice = match choice.parse::<usize>() {
                Ok(number) => numbered(&client.approval(&args.approval, None).await?, &choice, number)?,
                Err(_) => choice,
            };
            AnswerApproval { choice, text: text.map(given).transpose()? }
        }
        (None, Some(text)) => AnswerApproval { choice: TEXT.into(), text: Some(given(text)?) },
        (None, None) => {
            let approval = client.approval(&args.approval, None).await?;
            if !approval.takes_text {
                return Err(Failure::usage("it is answered with a choice").hint(offered(&approval)));
            }
            AnswerApproval { choice: TEXT.into(), text: Some(asked(&approval, print).await?) }
        }
    };
    match client.answer_approval(&args.approval, &request).await {
        Ok(approval) => answered(&approval, &request.choice, print).map(|()| exit::OK),
        Err(error) if error.code() == Some(Code::BadAnswer) => {
            let fix = offered(&client.approval(&args.approval, None).await?);
            Err(Failure::from(error).hint(fix))
        }
        Err(error) => Err(error.into()),
    }
}

/// A choice may be called by a number; all others are found by their place.
fn numbered(approval: &Approval, choice: &str, number: usize) -> Result<String, Failure> {
    if approval.choices.iter().any(|one| one.id == choice) {
        return Ok(choice.to_owned());
    }
    let place = number.checked_sub(1).and_then(|index| approval.choices.get(index));
    let none = || Failure::usage(format!("there is no choice {number}")).hint(offered(approval));
    place.map(|choice| choice.id.clone()).ok_or_else(none)
}

fn given(text: String) -> Result<String, Failure> {
    if text == "-" { read(std::io::stdin().lock()) } else { Ok(text) }
}

async fn asked(approval: &Approval, print: Printer) -> Result<String, Failure> {
    if !std::io::stdin().is_terminal() {
        return read(std::io::stdin().lock());
    }
    let question = inert(&approval.question).into_owned();
    if is_secret(approval) {
        // `Password:` has the colon that is put behind it.
        let what = question.trim_end_matches([':', ' ']);
        return usable(hidden(what, MAX_TEXT, print).await?);
    }
    print.ask(format!("{question} "));
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).map_err(Failure::io("failed to read the answer"))?;
    usable(line.into_bytes())
}

fn is_secret(approval: &Approval) -> bool {
    approval.context.get("prompt").is_some_and(|prompt| prompt == "password")
}

/// A little more than is allowed, so that too much is noticed.
fn read(source: impl std::io::Read) -> Result<String, Failure> {
    let mut text = Vec::new();
    let failed = Failure::io("failed to read the answer from standard input");
    source.take(MAX_TEXT as u64 + 3).read_to_end(&mut text).map_err(failed)?;
    usable(text)
}

/// Files and `echo` end with a newline that is no part of the answer.
fn usable(mut text: Vec<u8>) -> Result<String, Failure> {
    if text.last() == Some(&b'\n') {
        text.pop();
        if text.last() == Some(&b'\r') {
            text.pop();
        }
    }
    if text.len() > MAX_TEXT {
        return Err(Failure::usage(format!("the answer is longer than {MAX_TEXT} bytes")));
    }
    // Not quoted: it may be a secret.
    String::from_utf8(text).map_err(|_| Failure::usage("the answer is not UTF-8"))
}

/// With the question, so that a wrong id is noticed.
fn answered(approval: &Approval, choice: &str, print: Printer) -> Result<(), Failure> {
    if print.json {
        return print.json(approval);
    }
    let later = match approval.delivery {
        Some(Delivery::Pending) => " (it is typed as soon as the sandbox answers)",
        _ => "",
    };
    print.say(inert(&format!("answered {} with {choice}: {}{later}", approval.id, approval.question)));
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn approval() -> Result<Approval, serde_json::Error> {
        serde_json::from_value(json!({
            "id": "apr-01m7fje0w77fd20zgc1dwm573g", "kind": "terminal", "state": "open",
            "session": "ses-01m7fje0w77fd20zgc1dwm573g", "question": "Go on?", "context": {},
            "choices": [{"id": "yes", "label": "y"}, {"id": "no", "label": "n"}, {"id": "3", "label": "a"}],
            "answerable_by": "operator", "on_deadline": "none",
            "created_at": "2026-01-01T00:00:00Z", "deadline": "2026-01-08T00:00:00Z",
        }))
    }

    #[test]
    fn a_choice_is_found_by_id_or_place() -> Result<(), serde_json::Error> {
        let approval = approval()?;
        let found = |text: &str, number| numbered(&approval, text, number).map_err(|failure| failure.code());
        assert_eq!((found("1", 1), found("2", 2), found("3", 3)), (Ok("yes".into()), Ok("no".into()), Ok("3".into())));
        assert_eq!((found("0", 0), found("4", 4)), (Err(exit::USAGE), Err(exit::USAGE)));
        assert!(offered(&approval).contains("--choice CHOICE`; its choices: yes (y), no (n), 3 (a)."));
        let secret = Approval { takes_text: true, context: json!({"prompt": "password"}), ..approval };
        assert!(!offered(&secret).contains("TEXT"), "a password is not for the command line");
        Ok(())
    }

    #[test]
    fn text_loses_one_newline_and_is_bounded() {
        let taken = |bytes: &[u8]| read(bytes).map_err(|failure| failure.code());
        for (given, want) in [("a", "a"), ("a\n", "a"), ("a\r\n", "a"), ("", ""), ("\n", "")] {
            assert_eq!(taken(given.as_bytes()), Ok(want.to_owned()));
        }
        for bad in [&b"\xff"[..], &[b'x'; MAX_TEXT + 1]] {
            assert_eq!(taken(bad), Err(exit::USAGE));
        }
        assert!(read(std::io::repeat(b'x')).is_err());
    }
}
