//! Starting a command so that it can be ended with everything it started, in a container of which nothing is known but `/bin/sh`.
//!
//! Closing a stream leaves its command running, and Kubernetes has no call to end one. So a command that may be killed is
//! started by a shell that carries a mark among its arguments and puts it into the command's environment. A second command
//! finds, by `/proc`: whoever carries the mark, whoever shares a session with them, and whoever descends from them; and kills
//! until nobody is left. The runtime makes every command the leader of a session, so `setsid` is not needed; 0 and 1 are the
//! sessions of the container itself and never count. The shell waits rather than becoming the command, so that a command
//! which clears its environment is found by its session.

use std::{
    fmt::Write as _,
    hash::{BuildHasher as _, Hasher as _, RandomState},
    time::Duration,
};

use tokio::time::{Instant, sleep, timeout};

use super::{Exec, ExecError};
use crate::pods::{Pods, Target};

/// The shell survives what a terminal sends to its whole group, the command gets it; `exec` keeps built-ins out of the way. One
/// that drains reads what the command left of its input: a stream that is closed with something unread in it is reset on its way,
/// and the exit code may be lost with it.
const START: &str = r#"trap : INT QUIT
AGENT_SANDBOX_EXEC=$1; export AGENT_SANDBOX_EXEC; AGENT_SANDBOX_DRAIN=$2; shift 2
(exec "$@")
code=$?; [ "$AGENT_SANDBOX_DRAIN" ] && cat >/dev/null 2>&1
exit $code"#;

/// Who starts a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Starter {
    /// The container runtime; nobody can kill it.
    Runtime,
    /// A shell that keeps its outputs open, and by which it can be killed.
    Shell,
    /// Such a shell, for a command whose input ends whatever becomes of the command.
    DrainingShell,
}

/// Exits with 0 when everything is dead, 3 when nothing was ever found, 4 when somebody survives, 5 without `/proc`.
/// The mark comes in two swapped halves, so that this program does not carry it itself.
const KILL: &str = r#"mark=$2$1; found=; tries=0
[ -r "/proc/$$/stat" ] || exit 5
while :; do
  rows=; members=' '; sessions=' '
  for dir in /proc/[0-9]*; do
    stat=; while read -r line; do stat="$stat$line "; done <"$dir/stat"
    set -- ${stat##*') '}
    case $1 in Z|X|'') continue ;; esac
    pid=${dir#/proc/}
    rows="$rows $pid:$2:$4"
    case $(cat "$dir/environ" "$dir/cmdline" 2>/dev/null) in *"$mark"*) members="$members$pid " ;; esac
  done 2>/dev/null
  grew=1
  while [ $grew = 1 ]; do
    grew=0
    for row in $rows; do
      pid=${row%%:*}; session=${row##*:}; parent=${row#*:}; parent=${parent%%:*}
      case $members in
        *" $pid "*)
          case "$sessions 0 1 " in *" $session "*) ;; *) sessions="$sessions$session "; grew=1 ;; esac ;;
        *" $parent "*) members="$members$pid "; grew=1 ;;
        *) case $sessions in *" $session "*) members="$members$pid "; grew=1 ;; esac ;;
      esac
    done
  done
  [ "$members" = ' ' ] && { [ "$found" ] && exit 0; exit 3; }
  found=1; tries=$((tries + 1))
  kill -KILL $members 2>/dev/null
  [ $tries -gt 40 ] && exit 4
  [ $tries -gt 30 ] && sleep 1
done"#;

/// A command may be asked to die before its container has started it.
const APPEARS_WITHIN: Duration = Duration::from_secs(5);
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// Of one attempt to kill.
const PATIENCE: Duration = Duration::from_secs(60);

impl Starter {
    /// What the runtime is told to run, and the mark that its processes carry.
    pub(super) fn start(self, command: &[String]) -> (Vec<String>, Option<Mark>) {
        let drain = match self {
            Self::Runtime => return (command.to_vec(), None),
            Self::Shell => "",
            Self::DrainingShell => "drain",
        };
        let mark = Mark::random();
        let shell = ["/bin/sh", "-c", START, "agent-sandbox-exec", &mark.0, drain].map(str::to_owned);
        (shell.into_iter().chain(command.iter().cloned()).collect(), Some(mark))
    }
}

/// What tells the processes of one command from all others.
#[derive(Clone)]
pub(super) struct Mark(String);

impl Mark {
    fn random() -> Self {
        let mut mark = String::with_capacity(32);
        for _ in 0..2 {
            let _written = write!(mark, "{:016x}", RandomState::new().build_hasher().finish());
        }
        Self(mark)
    }

    /// The command that kills whoever is under this mark.
    fn killer(&self) -> [&str; 6] {
        let (head, tail) = self.0.split_at(self.0.len() / 2);
        ["/bin/sh", "-c", KILL, "agent-sandbox-kill", tail, head]
    }
}

/// Returns when nothing of the command is alive. `ended` says whether its end was reported meanwhile.
pub(super) async fn kill(
    pods: &Pods,
    target: &Target,
    container: Option<&str>,
    mark: &Mark,
    mut ended: impl FnMut() -> bool,
) -> Result<(), ExecError> {
    let deadline = Instant::now() + APPEARS_WITHIN;
    loop {
        // Boxed, since a command that is run can itself be killed.
        let command = Exec { container: container.map(str::to_owned), ..Exec::new(mark.killer()) }.direct();
        let output = timeout(PATIENCE, Box::pin(command.collect(pods, target))).await;
        let output = output.map_err(|_| ExecError::CannotKill(format!("no answer within {PATIENCE:?}")))??;
        match output.code {
            0 => return Ok(()),
            3 if ended() => return Ok(()),
            3 if Instant::now() > deadline => return Err(ExecError::NothingToKill),
            3 => sleep(LOOK_AGAIN).await,
            4 => return Err(ExecError::Survived),
            5 => return Err(ExecError::CannotKill("/proc cannot be read in the container".to_owned())),
            code => {
                let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
                return Err(ExecError::CannotKill(format!("/bin/sh in the container ended with {code}: {said}")));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        error::Error,
        io::{BufRead as _, BufReader, Read as _, Write as _},
        os::unix::process::ExitStatusExt as _,
        process::{Child, Command, Stdio},
    };

    use super::*;

    type Outcome<T = ()> = Result<T, Box<dyn Error>>;

    /// As a container runtime does: the command leads a session of its own.
    fn start(shell: &[&str], starter: Starter, command: &[&str]) -> Outcome<(Child, Mark)> {
        let command: Vec<_> = command.iter().map(|word| (*word).to_owned()).collect();
        let (wrapped, mark) = starter.start(&command);
        let mut session = Command::new("setsid");
        session.arg("--wait").args(shell).args(wrapped.iter().skip(1));
        session.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Ok((session.spawn()?, mark.ok_or("no mark")?))
    }

    fn kill(shell: &[&str], mark: &Mark) -> std::io::Result<Option<i32>> {
        let killer = mark.killer();
        let mut command = Command::new("setsid");
        Ok(command.arg("--wait").args(shell).args(killer.iter().skip(1)).status()?.code())
    }

    /// Every shell that this host has; a container's is one of them.
    fn shells(test: &str) -> Vec<Vec<&'static str>> {
        let all: [&[&str]; 3] = [&["/bin/sh"], &["/bin/bash"], &["busybox", "sh"]];
        let there = |shell: &&[&str]| {
            let there = Command::new(shell[0]).args(&shell[1..]).args(["-c", "exit 0"]).status().is_ok();
            if !there {
                sandbar_test_harness::partly_not_run(test, &format!("{shell:?} is not installed"));
            }
            there
        };
        all.into_iter().filter(there).map(<[&str]>::to_vec).collect()
    }

    #[test]
    fn a_wrapped_command_is_the_command() -> Outcome {
        for shell in shells("a_wrapped_command_is_the_command") {
            for starter in [Starter::Shell, Starter::DrainingShell] {
                let run =
                    |command: &[&str]| -> Outcome<_> { Ok(start(&shell, starter, command)?.0.wait_with_output()?) };
                let echoed = run(&["printf", "%s|", "a b", "", "$HOME", "*"])?;
                assert_eq!(String::from_utf8_lossy(&echoed.stdout), "a b||$HOME|*|", "{shell:?}");
                assert_eq!(run(&["sh", "-c", "exit 7"])?.status.code(), Some(7), "{shell:?}");
                assert_eq!(run(&["sh", "-c", "kill -9 $$"])?.status.code(), Some(137), "{shell:?}");
                assert_eq!(run(&["/no/such/program"])?.status.code(), Some(127), "{shell:?}");
            }
        }
        Ok(())
    }

    #[test]
    fn what_a_command_left_of_its_input_is_read_where_it_has_an_end() -> Outcome {
        let much = vec![b'x'; 1 << 20];
        for shell in shells("what_a_command_left_of_its_input_is_read_where_it_has_an_end") {
            for (starter, all_read) in [(Starter::DrainingShell, true), (Starter::Shell, false)] {
                let (mut running, _mark) = start(&shell, starter, &["sh", "-c", "exit 7"])?;
                let mut input = running.stdin.take().ok_or("no stdin")?;
                assert_eq!(input.write_all(&much).is_ok(), all_read, "{shell:?} {starter:?}");
                drop(input);
                assert_eq!(running.wait()?.code(), Some(7), "{shell:?} {starter:?}");
            }
        }
        Ok(())
    }

    #[test]
    fn everything_a_command_started_dies() -> Outcome {
        // A child, one in a session of its own that lost its parent, and one without environment.
        let script = "sleep 1000 & setsid sleep 1000 & env -i sleep 1000 & (setsid sleep 1000 &) ; echo up; wait";
        for shell in shells("everything_a_command_started_dies") {
            for command in [&["sh", "-c", script][..], &["env", "-i", "sh", "-c", "sleep 1000 & echo up; wait"]] {
                let (mut bystander, other) = start(&shell, Starter::Shell, &["sleep", "1000"])?;
                let (mut running, mark) = start(&shell, Starter::Shell, command)?;
                let mut output = BufReader::new(running.stdout.take().ok_or("no stdout")?);
                let mut line = String::new();
                output.read_line(&mut line)?;
                assert_eq!(line, "up\n");
                assert_eq!(kill(&shell, &mark)?, Some(0), "{shell:?}");
                // Each of them holds the pipe: it ends when the last one is dead.
                output.read_to_end(&mut vec![])?;
                assert_eq!(running.wait()?.signal(), Some(9), "{shell:?} {command:?}");
                assert_eq!(kill(&shell, &mark)?, Some(3), "{shell:?}: nothing is left");
                assert!(bystander.try_wait()?.is_none(), "{shell:?}: somebody else was killed");
                assert_eq!(kill(&shell, &other)?, Some(0), "{shell:?}");
                bystander.wait()?;
            }
        }
        Ok(())
    }
}
