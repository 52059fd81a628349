//! Finding and killing everything below a process, however it forked, daemonised or changed its session.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
};

use rustix::process::{Pid, Signal};

use crate::sys;

/// One line of `/proc/PID/stat`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) pid: i32,
    pub(crate) zombie: bool,
    parent: i32,
    pub(crate) group: i32,
    session: i32,
    pub(crate) threads: usize,
    /// Processor time in clock ticks: its own, and that of children it has waited for.
    pub(crate) own_time: u64,
    pub(crate) waited_time: u64,
}

impl Member {
    pub(crate) fn parse(stat: &str) -> Option<Self> {
        // The name may hold blanks and parentheses; what follows its last parenthesis may not.
        let (head, tail) = stat.rsplit_once(") ")?;
        let pid = head.split_once(' ')?.0.parse().ok()?;
        let mut fields = tail.split(' ');
        let zombie = matches!(fields.next()?, "Z" | "X");
        let mut number = || fields.next()?.parse().ok();
        let (parent, group, session) = (number()?, number()?, number()?);
        // After the session: terminal, its group, flags, four counts of faults.
        fields.nth(6)?;
        let mut time = || fields.next().and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
        let (own_time, waited_time) = (time().saturating_add(time()), time().saturating_add(time()));
        // After the times: priority, nice.
        let threads = fields.nth(2)?.parse().ok()?;
        Some(Self { pid, zombie, parent, group, session, threads, own_time, waited_time })
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

/// How many tasks each of the given processes has below it, in one look. Threads count, and so do zombies: both take up
/// what a limit of processes gives.
pub(crate) fn count_below(roots: &[i32]) -> io::Result<Vec<usize>> {
    Ok(count(&scan()?, roots))
}

fn count(members: &[Member], roots: &[i32]) -> Vec<usize> {
    let mut children = by_parent(members);
    let tasks = |root: &i32| below(&mut children, *root).iter().map(|member| member.threads.max(1)).sum();
    roots.iter().map(tasks).collect()
}

/// A process and everything below it, the process first.
pub(crate) fn family(root: i32) -> io::Result<Vec<Member>> {
    let members = scan()?;
    let pids: BTreeSet<i32> = below(&mut by_parent(&members), root).iter().map(|member| member.pid).collect();
    let mut family: Vec<Member> =
        members.into_iter().filter(|member| member.pid == root || pids.contains(&member.pid)).collect();
    family.sort_by_key(|member| member.pid != root);
    Ok(family)
}

fn by_parent(members: &[Member]) -> BTreeMap<i32, Vec<&Member>> {
    let mut children: BTreeMap<i32, Vec<&Member>> = BTreeMap::new();
    for member in members {
        children.entry(member.parent).or_default().push(member);
    }
    children
}

fn below<'a>(children: &mut BTreeMap<i32, Vec<&'a Member>>, root: i32) -> Vec<&'a Member> {
    let mut found = Vec::new();
    let mut next = vec![root];
    while let Some(pid) = next.pop() {
        // Removed, not looked up: a scan is no snapshot, so parents could seem to go round in a circle.
        for member in children.remove(&pid).unwrap_or_default() {
            found.push(member);
            next.push(member.pid);
        }
    }
    found
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
        let stat = "42 (a) Z 1 1 1 (b)) S 7 8 9 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 11 0 99";
        let (own_time, waited_time) = (5 + 6, 7 + 8);
        let member =
            Member { pid: 42, zombie: false, parent: 7, group: 8, session: 9, threads: 11, own_time, waited_time };
        assert_eq!(Member::parse(stat), Some(member));
        assert_eq!(Member::parse("42 (a"), None);
    }

    #[test]
    fn everything_below_a_root_counts_with_its_threads() {
        let (group, session, own_time, waited_time) = (0, 0, 0, 0);
        let member = |pid, parent, threads| Member {
            pid,
            zombie: false,
            parent,
            group,
            session,
            threads,
            own_time,
            waited_time,
        };
        let zombie = Member { zombie: true, ..member(6, 5, 0) };
        // 2 and 3 are roots; 8 and 9 seem to be each other's parents.
        let members = [member(2, 1, 1), member(3, 1, 1), member(4, 2, 3), member(5, 4, 1), zombie, member(7, 3, 1)];
        let members: Vec<Member> = members.into_iter().chain([member(8, 9, 1), member(9, 8, 1)]).collect();
        assert_eq!(count(&members, &[2, 3, 77]), [5, 1, 0]);
    }
}
