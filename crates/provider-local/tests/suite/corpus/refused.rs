//! What the fence refuses to real programs, with the words they say then. The control: each works without the fence.

use sandbar_provider::suite::{Case, Outcome, Running, same};

use super::{inside, is_visible, spec};
use crate::Home;

struct Attempt {
    program: &'static str,
    script: &'static str,
    /// In what it says.
    words: &'static str,
    /// Said only where it got through.
    prize: &'static str,
}

const GDB: Attempt = Attempt {
    program: "gdb",
    script: "gdb -nx -batch -ex run -ex 'info registers rip' --args /usr/bin/sleep 0 2>&1 || true",
    words: "Operation not permitted",
    prize: "exited normally",
};
const STRACE: Attempt = Attempt {
    program: "strace",
    script: "strace -e trace=exit_group true 2>&1 || true",
    words: "Operation not permitted",
    prize: "exit_group(0)",
};
const UNSHARE: Attempt = Attempt {
    program: "unshare",
    script: "unshare --user --map-root-user sh -c 'echo uid $(id -u)' 2>&1 || true",
    words: "Operation not permitted",
    prize: "uid 0",
};
const SU: Attempt = Attempt {
    program: "su",
    script: "su root -c 'echo uid $(id -u)' 2>&1 </dev/null || true",
    words: "su: ",
    prize: "uid 0",
};
const SUDO: Attempt = Attempt {
    program: "sudo",
    script: "sudo -n sh -c 'echo uid $(id -u)' 2>&1 || true",
    words: "sudo: ",
    prize: "uid 0",
};

macro_rules! refused {
    ($($name:literal $attempt:ident)*) => {
        vec![$(Case {
            name: $name,
            run: |home| refused(home, &$attempt),
            not_here: || (!is_visible($attempt.program)).then(|| format!("this host has no {}", $attempt.program)),
        }),*]
    };
}

pub(crate) fn cases() -> Vec<Case<Home>> {
    refused!["gdb_is_refused" GDB "strace_is_refused" STRACE "unshare_is_refused" UNSHARE "su_gives_nothing" SU "sudo_gives_nothing" SUDO]
}

fn refused<'a>(home: &'a Home, attempt: &'static Attempt) -> Running<'a> {
    Box::pin(async move {
        for profile in ["standard", "hardened"] {
            let ran = inside(home, &spec(attempt.program, profile), attempt.script).await?;
            if !ran.output.contains(attempt.words) || ran.output.contains(attempt.prize) {
                return Err(format!("under {profile}, {}: {}", attempt.program, ran.output));
            }
        }
        control(attempt)
    })
}

/// Becoming somebody else takes a root who asks; the rest works for anybody.
fn control(attempt: &Attempt) -> Outcome {
    if attempt.program.starts_with("su") && !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let control = std::process::Command::new("bash").args(["-c", attempt.script]).output();
    let output = control.map_err(|error| error.to_string())?.stdout;
    let output = String::from_utf8_lossy(&output).into_owned();
    same(&format!("control of {} ({output})", attempt.program), &output.contains(attempt.prize), &true)
}
