//! A process in front of the user: what reaches it besides input, and what its end means.

use sandbar_api::{Code, ExitReason, Process};
use sandbar_client::Client;

use crate::{
    exit::{self, Failure},
    print::Printer,
};

#[derive(Clone, Copy)]
pub(crate) struct Running<'a> {
    pub client: &'a Client,
    pub sandbox: &'a str,
    pub process: &'a Process,
    pub print: Printer,
}

impl Running<'_> {
    pub(crate) async fn signal(&self, name: &str) {
        let outcome = self.client.signal(self.sandbox, self.process.id.as_str(), name).await;
        // A command that has just ended needs no signal, and its end is on its way to us.
        if let Err(error) = outcome
            && !is_over(error.code())
        {
            self.print.warn(format!("SIG{name} did not reach the command: {}", exit::chain(&error)));
        }
    }

    /// The exit code that becomes ours.
    pub(crate) fn ending(&self, ended: &Process) -> Result<u8, Failure> {
        let Some(exit) = &ended.exit else {
            return Err(Failure::new(exit::SANDBAR, "the sandbox died while the command ran, nobody saw how it ended")
                .hint(format!("`sandbar inspect {}` says why.", self.sandbox)));
        };
        // A shell may outlive what was killed, and fail for it.
        let how = if exit.signal.is_some() { "killed" } else { "failed" };
        let why = match exit.reason {
            ExitReason::Timeout => Some("the command's time was over"),
            ExitReason::Stopped => Some("the sandbox was stopped"),
            ExitReason::Oom => Some("the sandbox's memory limit was reached"),
            ExitReason::PidsLimit => Some("the sandbox's process limit was reached"),
            ExitReason::OutputLimit => Some("the sandbox's output limit was reached"),
            ExitReason::DiskLimit => Some("the sandbox's disk limit was reached"),
            ExitReason::Exited | ExitReason::Killed => None,
        };
        if let Some(why) = why {
            self.print.say(format!("{how}: {why}"));
        }
        // The kernel keeps eight bits of it too.
        Ok(exit.code as u8)
    }
}

/// Whether a process takes nothing any more.
pub(crate) fn is_over(code: Option<Code>) -> bool {
    matches!(
        code,
        Some(Code::ProcessOver | Code::NoStdin | Code::UnknownProcess | Code::SandboxGone | Code::WrongState)
    )
}
