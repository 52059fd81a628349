//! `session attach`: in front of what runs in a terminal of a session, until it ends or the visitor leaves.

use sandbar_api::{Control, Process, SandboxId, Session, SessionState, SessionTerminal};
use sandbar_client::Client;

use crate::{
    context::Context,
    exit::{self, Failure},
    print::Printer,
    terminal::Signals,
    text::inert,
    verbs::attach::{How, Place, brief},
    visit::Chord,
};

/// Come back to what runs in a terminal of a session
///
/// As `attach` does, which tells the keys: Ctrl-A d leaves and ends nothing.
#[derive(Debug, clap::Args)]
pub(crate) struct Attach {
    #[command(flatten)]
    how: How,

    /// Its id or name, or that of a sandbox of it
    session: String,

    /// The process, if more than one runs in a terminal
    process: Option<String>,
}

pub(crate) async fn attach(args: &Attach, context: &Context) -> Result<u8, Failure> {
    let how = (args.how.control(), args.how.keys.chord()?);
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
    visit(&client, &session, &process.ok_or_else(|| nothing_runs(&session))?, how, &mut signals, context.print).await
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
    let (name, sandbox) = (called(session), session.sandboxes.first().map_or("SANDBOX", SandboxId::as_str));
    let hint = match (session.restarting.first(), session.crash_loops.first()) {
        (Some(_), _) => format!("It is about to be started again: try once more, or `sandbar session restart {name}`."),
        (None, Some(one)) => format!(
            "It kept dying: look with `sandbar screen {} {}`, start it with `sandbar session restart {name}`.",
            one.sandbox, one.process
        ),
        (None, None) => format!("Start something with `sandbar exec -t {sandbox} COMMAND`."),
    };
    Failure::new(exit::NOT_FOUND, format!("nothing runs in a terminal of {name}")).hint(hint)
}

/// In front of the terminal until its process ends, with its code, or until we leave.
pub(crate) async fn visit(
    client: &Client,
    session: &Session,
    process: &Process,
    (control, chord): (Control, Chord),
    signals: &mut Signals,
    print: Printer,
) -> Result<u8, Failure> {
    let name = called(session);
    let back = match session.terminals.as_slice() {
        [] | [_] => format!("sandbar session attach {name}"),
        _ => format!("sandbar session attach {name} {}", process.id),
    };
    Place { client, process, name: &name, back }.visit(control, chord, signals, print).await
}

fn called(session: &Session) -> String {
    session.name.as_deref().map_or_else(|| session.id.to_string(), |name| inert(name).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::session_show::tests::shown;

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
