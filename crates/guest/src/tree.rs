//! Finding and killing everything below a process, however it forked, daemonised or changed its session.

use std::{collections::BTreeSet, fs, io};

use rustix::process::{Pid, Signal};

use crate::sys;

/// One line of `/proc/PID/stat`.
#[derive(Debug, PartialEq, Eq)]
struct Member {
    pid: i32,
    zombie: bool,
    parent: i32,
    group: i32,
    session: i32,
}

impl Member {
    fn parse(stat: &str) -> Option<Self> {
        // The name may hold blanks and parentheses; what follows its last parenthesis may not.
        let (head, tail) = stat.rsplit_once(") ")?;
        let pid = head.split_once(' ')?.0.parse().ok()?;
        let mut fields = tail.split(' ');
        let zombie = matches!(fields.next()?, "Z" | "X");
        let mut number = || fields.next()?.parse().ok();
        Some(Self { pid, zombie, parent: number()?, group: number()?, session: number()? })
    }
}

/// Sends SIGKILL to all descendants of the calling process, except those for which `spare` holds and what is below
/// them. Returns how many were alive: call it until none are, since they may fork meanwhile and orphans move up.
pub(crate) fn kill_descendants(spare: impl Fn(i32) -> bool) -> io::Result<usize> {
    let own = rustix::process::getpid().as_raw_pid();
    let members = scan()?;
    let own_session = members.iter().find(|member| member.pid == own).map(|member| member.session);
    let mut below = BTreeSet::from([own]);
    let mut found = Vec::new();
    loop {
        let before = below.len();
        for member in &members {
            if below.contains(&member.parent) && !spare(member.pid) && below.insert(member.pid) && !member.zombie {
                found.push(member);
            }
        }
        if below.len() == before {
            break;
        }
    }
    // What cannot be killed is found again by the next call, which is how its survival shows.
    for member in &found {
        // A group dies in one step, which outruns a process that keeps forking. Groups never span sessions and every
        // session below us was made below us, so nobody else is in it.
        if Some(member.session) != own_session
            && member.group > 1
            && let Some(group) = Pid::from_raw(member.group)
        {
            let _ = sys::signal_group(group, libc::SIGKILL);
        }
        if let Some(pid) = Pid::from_raw(member.pid) {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
    }
    Ok(found.len())
}

fn scan() -> io::Result<Vec<Member>> {
    let mut members = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(name) = name.to_str().filter(|name| name.bytes().all(|byte| byte.is_ascii_digit())) else { continue };
        // Ended since it was listed.
        let Ok(stat) = fs::read(format!("/proc/{name}/stat")) else { continue };
        members.extend(Member::parse(&String::from_utf8_lossy(&stat)));
    }
    Ok(members)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_forge_the_fields_after_it() {
        let stat = "42 (a) Z 1 1 1 (b)) S 7 8 9 0 -1 4194304";
        assert_eq!(Member::parse(stat), Some(Member { pid: 42, zombie: false, parent: 7, group: 8, session: 9 }));
        assert_eq!(Member::parse("42 (a"), None);
    }
}
