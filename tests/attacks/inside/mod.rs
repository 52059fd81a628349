//! The probes: what runs inside a sandbox (or, as a control, outside the fence) and says in one line what it got.

mod answer;
mod calls;
mod crowd;
mod ground;
mod inodes;
mod shared;
mod sockets;
mod weight;
mod wire;

use std::{io, process::ExitCode};

use crate::{attack::Finding, score::say};

/// What a probe got away with, or the error that stopped it.
pub(crate) type Got = io::Result<String>;

pub(crate) use inodes::is_locked;

pub(crate) fn main(name: &str, arguments: &[&str]) -> ExitCode {
    let found = calls::named(name)
        .or_else(|| sockets::named(name, arguments))
        .or_else(|| ground::named(name))
        .or_else(|| inodes::named(name, arguments))
        .or_else(|| shared::named(name))
        .or_else(|| weight::named(name, arguments))
        .or_else(|| client(name, arguments));
    let Some(found) = found else {
        say(&format!("not run: there is no probe {name}"));
        return ExitCode::FAILURE;
    };
    let found = verdict(found);
    say(&found.line());
    if matches!(found, Finding::Escaped(_)) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Clients of the gate: what they heard is not theirs to judge.
fn client(name: &str, arguments: &[&str]) -> Option<Got> {
    Some(match name {
        "answer" => answer::answer(arguments),
        "talk" => wire::talk(arguments),
        "relay" => wire::relay(arguments.first()?),
        "storm" => crowd::storm(arguments),
        "crowd" => crowd::crowd(arguments),
        _ => return None,
    })
}

fn verdict(got: Got) -> Finding {
    match got {
        Ok(what) => Finding::escaped(what),
        Err(error) => match error.raw_os_error() {
            Some(number) => Finding::contained(errno(number)),
            None => Finding::contained(error.to_string()),
        },
    }
}

/// By the name that manuals give it.
pub(crate) fn errno(number: i32) -> String {
    let name = match number {
        libc::EPERM => "EPERM",
        libc::ENOENT => "ENOENT",
        libc::ESRCH => "ESRCH",
        libc::EIO => "EIO",
        libc::ENOEXEC => "ENOEXEC",
        libc::EBADF => "EBADF",
        libc::EAGAIN => "EAGAIN",
        libc::ENOMEM => "ENOMEM",
        libc::EACCES => "EACCES",
        libc::EFAULT => "EFAULT",
        libc::EEXIST => "EEXIST",
        libc::EXDEV => "EXDEV",
        libc::ENODEV => "ENODEV",
        libc::EINVAL => "EINVAL",
        libc::EMFILE => "EMFILE",
        libc::ENOTTY => "ENOTTY",
        libc::ENOSPC => "ENOSPC",
        libc::EROFS => "EROFS",
        libc::ENOSYS => "ENOSYS",
        libc::ESTALE => "ESTALE",
        libc::ENOKEY => "ENOKEY",
        libc::EAFNOSUPPORT => "EAFNOSUPPORT",
        libc::EPROTONOSUPPORT => "EPROTONOSUPPORT",
        libc::ESOCKTNOSUPPORT => "ESOCKTNOSUPPORT",
        libc::ENOPROTOOPT => "ENOPROTOOPT",
        libc::ENOTCONN => "ENOTCONN",
        libc::ENETUNREACH => "ENETUNREACH",
        libc::ECONNREFUSED => "ECONNREFUSED",
        libc::EDQUOT => "EDQUOT",
        _ => return format!("errno {number}"),
    };
    name.to_owned()
}

/// The errors by which the kernel shows that it has looked at a request, past every layer that could have refused it.
fn reached(got: io::Result<i64>, past: &[i32]) -> Got {
    match got {
        Ok(value) => Ok(format!("returned {value}")),
        Err(error) => match error.raw_os_error() {
            Some(number) if past.contains(&number) => Ok(format!("the kernel looked at it: {}", errno(number))),
            _ => Err(error),
        },
    }
}
