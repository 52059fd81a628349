//! `session attach`: in front of what runs in a terminal of a session, until it ends or the visitor leaves.

use std::io::{IsTerminal as _, Write as _};

use sandbar_api::{Process, SandboxId, Session, SessionState, SessionTerminal};
use sandbar_client::Client;
use sandbar_terminal::neutral::RESTORE;

use crate::{
    attach::{Attachment, End, Manner},
    context::Context,
    exit::{self, Failure},
    print::Printer,
    terminal::{self, Raw, Signals},
    text::{self, inert},
};

/// Come back to what runs in a terminal of a session
///
/// Shows what the terminal kept of its output, then goes on with it; what would act on your own terminal rather than draw
/// (clipboard, titles, queries) is left out. Several may look and type at once. Signals sent to
/// this client end the client alone.
#[derive(Debug, clap::Args)]
pub(crate) struct Attach {
    /// Its id or name, or that of a sandbox of it
    session: String,

    /// The process, if more than one runs in a terminal
    process: Option<String>,
}

pub(crate) async fn attach(args: &Attach, context: &Context) -> Result<u8, Failure> {
    let client = context.client()?;
    let mut signals = Signals::install().map_err(Failure::io("failed to listen for signals"))?;
    let session = client.session(&args.session).await?;
    if session.state == SessionState::Ended {
        return Err(Failure::new(exit::NOT_FOUND, format!("the session {} has ended", called(&session)))
            .hint("Begin another one with `sandbar session new`."));
    }
    let terminal = chosen(&session, args.process.as_deref())?;
    let processes = client.processes(terminal.sandbox.as_str()).await?;
    let process = processes.into_iter().find(|process| process.id == terminal.process);
    visit(&client, &session, &process.ok_or_else(|| nothing_runs(&session))?, &mut signals, context.print).await
}

fn chosen<'s>(session: &'s Session, process: Option<&str>) -> Result<&'s SessionTerminal, Failure> {
    match (process, session.terminals.as_slice()) {
        (None, [one]) => Ok(one),
        (None, []) => Err(nothing_runs(session)),
        (None, several) => {
            let list: Vec<_> = several.iter().map(|one| format!("{} ({})", one.process, brief(&one.argv))).collect();
            Err(Failure::new(exit::USAGE, format!("{} has several terminals: {}", called(session), list.join(", ")))
                .hint(format!("Choose one: `sandbar session attach {} PROCESS`.", called(session))))
        }
        (Some(process), terminals) => terminals.iter().find(|one| one.process.as_str() == process).ok_or_else(|| {
            Failure::new(exit::NOT_FOUND, format!("no process {} runs in a terminal of it", inert(process)))
                .hint(format!("`sandbar session show {}` shows those that do.", called(session)))
        }),
    }
}

pub(crate) fn nothing_runs(session: &Session) -> Failure {
    let sandbox = session.sandboxes.first().map_or("SANDBOX", SandboxId::as_str);
    Failure::new(exit::NOT_FOUND, format!("nothing runs in a terminal of {}", called(session)))
        .hint(format!("Start something with `sandbar exec -t {sandbox} COMMAND`."))
}

/// In front of the terminal until its process ends, with its code, or until we leave.
pub(crate) async fn visit(
    client: &Client,
    session: &Session,
    process: &Process,
    signals: &mut Signals,
    print: Printer,
) -> Result<u8, Failure> {
    let sandbox = process.sandbox.as_str();
    let raw = Raw::enter().map_err(Failure::io("failed to put the terminal into raw mode"))?;
    let attachment = Attachment {
        client,
        sandbox,
        process,
        forward_input: !terminal::stdin_is_null(),
        manner: Manner::Visit,
        print,
    };
    if std::io::stdout().is_terminal() {
        attachment.fit().await;
    }
    let end = attachment.drive(signals).await;
    if std::io::stdout().is_terminal() {
        // A terminal that is gone needs no order.
        let mut stdout = std::io::stdout().lock();
        let _ = stdout.write_all(RESTORE).and_then(|()| stdout.flush());
    }
    drop(raw);
    match end? {
        End::Exit(code) => Ok(code),
        End::Detached => {
            let name = called(session);
            print.say(format!("detached from {name}, which goes on; `sandbar session attach {name}` comes back"));
            Ok(exit::OK)
        }
    }
}

fn called(session: &Session) -> String {
    session.name.as_deref().map_or_else(|| session.id.to_string(), |name| inert(name).into_owned())
}

pub(crate) fn brief(argv: &[String]) -> String {
    text::shortened(&text::command(argv), 60)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::session::tests::shown;

    #[test]
    fn one_terminal_is_meant_and_of_several_one_is_named() -> Result<(), serde_json::Error> {
        let (none, one, two) = (shown(0)?, shown(1)?, shown(2)?);
        let code = |outcome: Result<&SessionTerminal, Failure>| outcome.err().map(|failure| failure.code());
        assert_eq!(code(chosen(&none, None)), Some(exit::NOT_FOUND));
        assert_eq!(code(chosen(&one, None)), None);
        assert_eq!(code(chosen(&two, None)), Some(exit::USAGE));
        assert_eq!(code(chosen(&two, Some("prc-x"))), Some(exit::NOT_FOUND));
        assert_eq!(chosen(&two, Some(two.terminals[1].process.as_str())).ok(), Some(&two.terminals[1]));
        Ok(())
    }
}
