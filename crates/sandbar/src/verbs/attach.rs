//! `attach`: in front of a terminal in a sandbox until its process ends or the visitor leaves.

use sandbar_api::{Control, Process, ProcessState};
use sandbar_client::Client;

use crate::{
    context::Context,
    exit::{self, Failure},
    print::Printer,
    running::Running,
    terminal::{self, Signals},
    text::{self, inert},
    visit::{Chord, End, Manner, Visit},
};

const DETACH_KEYS: &str = "SANDBAR_DETACH_KEYS";

/// Attach to what runs in a terminal of a sandbox
///
/// Shows what the terminal shows, then goes on with it; what would act on your own terminal rather than draw (clipboard,
/// links, queries) is left out. Many may look on, one of them controls it: types, and gives it the size of their window.
/// Ctrl-A d leaves and ends nothing, Ctrl-A t takes control, Ctrl-A r draws anew, Ctrl-A a types Ctrl-A, Ctrl-A ? helps.
/// The command's exit code becomes ours; signals sent to this client end the client alone.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sandbar attach agent                          the terminal that runs there
  sandbar attach agent prc-01k9… --view         look over its shoulder
  sandbar attach agent --detach-keys ctrl-p,ctrl-q")]
pub(crate) struct Attach {
    #[command(flatten)]
    how: How,

    /// The sandbox's id or name
    sandbox: String,

    /// The process, if more than one runs in a terminal
    process: Option<String>,
}

/// How to attach; shared with `session`.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct How {
    /// Look on; by default you control the terminal if nobody else does
    #[arg(long, conflicts_with = "take")]
    view: bool,

    /// Control the terminal, whoever does now
    #[arg(long)]
    take: bool,

    #[command(flatten)]
    pub(crate) keys: DetachKeys,
}

#[derive(Debug, Default, clap::Args)]
pub(crate) struct DetachKeys {
    /// The keys that leave; all but the last also begin the other commands. Or `none` [default: ctrl-a,d]
    /// [env: SANDBAR_DETACH_KEYS]
    #[arg(long = "detach-keys", value_name = "KEYS")]
    keys: Option<Chord>,
}

impl DetachKeys {
    /// Looked up before anything is begun that a mistake would leave behind.
    pub(crate) fn chord(&self) -> Result<Chord, Failure> {
        let set = || std::env::var(DETACH_KEYS).ok().filter(|text| !text.is_empty());
        match (&self.keys, set()) {
            (Some(chord), _) => Ok(chord.clone()),
            (None, Some(text)) => {
                text.parse().map_err(|cause: String| Failure::usage(format!("{DETACH_KEYS} cannot be used: {cause}")))
            }
            (None, None) => Ok(Chord::default()),
        }
    }
}

impl How {
    pub(crate) fn control(&self) -> Control {
        match (self.view, self.take) {
            (true, _) => Control::View,
            (_, true) => Control::Take,
            // Who can type nothing should not keep others from it.
            _ if terminal::stdin_is_null() => Control::View,
            _ => Control::Free,
        }
    }
}

/// What is attached to, and how to come back to it.
pub(crate) struct Place<'a> {
    pub client: &'a Client,
    pub process: &'a Process,
    pub name: &'a str,
    /// The command that comes back.
    pub back: String,
}

impl Place<'_> {
    /// In front of the terminal until its process ends, with its code, or until we leave.
    pub(crate) async fn visit(
        &self,
        control: Control,
        chord: Chord,
        signals: &mut Signals,
        print: Printer,
    ) -> Result<u8, Failure> {
        let Self { client, process, name, back } = self;
        let running = Running { client, sandbox: process.sandbox.as_str(), process, print };
        let forward_input = !terminal::stdin_is_null();
        let visit = Visit { running, name, manner: Manner::Visit, control, chord, forward_input };
        match visit.drive(signals).await? {
            End::Exit(code) => Ok(code),
            End::Detached => {
                print.say(format!("[detached from {name}; \"{back}\" comes back]"));
                Ok(exit::OK)
            }
        }
    }
}

pub(crate) async fn attach(args: &Attach, context: &Context) -> Result<u8, Failure> {
    let chord = args.how.keys.chord()?;
    let client = context.client()?;
    let mut signals = Signals::install().map_err(Failure::io("failed to listen for signals"))?;
    let process = match &args.process {
        Some(process) => client.process(&args.sandbox, process).await?,
        None => chosen(client.processes(&args.sandbox).await?, &args.sandbox)?,
    };
    let name = inert(&args.sandbox);
    let back = match &args.process {
        Some(process) => format!("sandbar attach {name} {}", inert(process)),
        None => format!("sandbar attach {name}"),
    };
    let place = Place { client: &client, process: &process, name: &name, back };
    place.visit(args.how.control(), chord, &mut signals, context.print).await
}

fn chosen(processes: Vec<Process>, sandbox: &str) -> Result<Process, Failure> {
    let sandbox = inert(sandbox);
    let runs = |process: &Process| process.terminal && process.state == ProcessState::Running;
    let mut running: Vec<_> = processes.into_iter().filter(runs).collect();
    match (running.pop(), running.as_slice()) {
        (Some(one), []) => Ok(one),
        (None, _) => Err(Failure::new(exit::NOT_FOUND, format!("nothing runs in a terminal of {sandbox}"))
            .hint(format!("Start something with `sandbar exec -t {sandbox} COMMAND`."))),
        (Some(one), others) => {
            let list: Vec<_> = others.iter().chain([&one]).map(described).collect();
            Err(Failure::usage(format!("{sandbox} has several terminals: {}", list.join(", ")))
                .hint(format!("Choose one: `sandbar attach {sandbox} PROCESS`.")))
        }
    }
}

fn described(process: &Process) -> String {
    format!("{} ({})", process.id, brief(&process.argv))
}

pub(crate) fn brief(argv: &[String]) -> String {
    text::shortened(&text::command(argv), 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(number: usize, terminal: bool, state: &str) -> Result<Process, serde_json::Error> {
        serde_json::from_value(serde_json::json!({
            "id": format!("prc-{number:026}"), "sandbox": format!("sbx-{:026}", 1), "argv": ["bash"], "cwd": "/",
            "terminal": terminal, "state": state, "started_at": "2026-01-01T00:00:00Z",
            "output": {"start": 0, "end": 0},
        }))
    }

    #[test]
    fn the_one_terminal_that_runs_is_meant() -> Result<(), serde_json::Error> {
        let (one, two) = (process(1, true, "running")?, process(2, true, "running")?);
        let others = [process(3, false, "running")?, process(4, true, "exited")?];
        let code = |processes: Vec<Process>| chosen(processes, "box").err().map(|failure| failure.code());
        assert_eq!(code(others.to_vec()), Some(exit::NOT_FOUND));
        assert_eq!(code(vec![one.clone(), two]), Some(exit::USAGE));
        let all = [others.to_vec(), vec![one.clone()]].concat();
        assert_eq!(chosen(all, "box").ok(), Some(one));
        Ok(())
    }
}
