//! What only the kernel knows of a terminal: how it takes keys, whether output waits in it, whether its programs work.

use std::{fs, io, os::fd::OwnedFd};

use rustix::{
    event::{PollFd, PollFlags, Timespec},
    io::Errno,
    termios::LocalModes,
};

use crate::{
    answers::Moment,
    process::State,
    protocol::LookReply,
    sys,
    tree::{self, Member},
};

/// Whether whole lines are gathered for the program. Where that cannot be told, keys are typed as for one that does.
pub(crate) fn is_canonical(terminal: &OwnedFd) -> bool {
    rustix::termios::tcgetattr(terminal).map_or(true, |attributes| attributes.local_modes.contains(LocalModes::ICANON))
}

/// Where the terminal is, unless something was printed that has no offset yet.
pub(crate) fn moment(state: &State, terminal: &OwnedFd) -> io::Result<Option<Moment>> {
    let echo = rustix::termios::tcgetattr(terminal)?.local_modes.contains(LocalModes::ECHO);
    let now = Moment { output: state.ring.end(), input: state.input_offset, echo };
    Ok(if output_waits(terminal)? { None } else { Some(now) })
}

/// Whether something was printed that nobody has read; the kernel also looks at what is still on its way to the reader.
fn output_waits(terminal: &OwnedFd) -> io::Result<bool> {
    let mut polled = [PollFd::new(terminal, PollFlags::IN)];
    loop {
        match rustix::event::poll(&mut polled, Some(&Timespec::default())) {
            Ok(_) => return Ok(polled[0].revents().contains(PollFlags::IN)),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

pub(crate) fn look(state: &State, terminal: &OwnedFd) -> io::Result<LookReply> {
    let modes = rustix::termios::tcgetattr(terminal)?.local_modes;
    let family = state.minder.map_or_else(|| Ok(Vec::new()), tree::family)?;
    Ok(LookReply {
        output_end: state.ring.end(),
        input_offset: state.input_offset,
        output_waits: output_waits(terminal)?,
        echo: modes.contains(LocalModes::ECHO),
        canonical: modes.contains(LocalModes::ICANON),
        cpu_us: processor_time(&family),
        reading: is_read(terminal, &family),
    })
}

/// In microseconds. The minder's own work does not count, but what it has waited for did work for the process.
fn processor_time(family: &[Member]) -> u64 {
    let own = family.iter().skip(1).map(|member| member.own_time);
    let waited = family.iter().map(|member| member.waited_time);
    let ticks: u64 = own.chain(waited).fold(0, u64::saturating_add);
    ticks.saturating_mul(1_000_000 / sys::clock_ticks())
}

/// Whether a process in the foreground waits for keys; `None` where the kernel does not tell us.
fn is_read(terminal: &OwnedFd, family: &[Member]) -> Option<bool> {
    let foreground = rustix::termios::tcgetpgrp(terminal).ok()?.as_raw_pid();
    let name = rustix::pty::ptsname(terminal, Vec::new()).ok()?;
    let mut everything_told = true;
    for member in family.iter().filter(|member| member.group == foreground && !member.zombie) {
        match waits_for_keys(member.pid, name.to_str().ok()?) {
            Some(true) => return Some(true),
            // What its other threads do is not looked at.
            Some(false) => everything_told &= member.threads <= 1,
            None => everything_told = false,
        }
    }
    everything_told.then_some(false)
}

fn waits_for_keys(pid: i32, terminal: &str) -> Option<bool> {
    let call = fs::read_to_string(format!("/proc/{pid}/syscall")).ok()?;
    let Some(descriptor) = read_from(&call) else { return Some(false) };
    // The name, and not what is behind it: a look at a file of the workload's could block.
    let file = fs::read_link(format!("/proc/{pid}/fd/{descriptor}")).ok()?;
    Some(file.to_str().is_some_and(|file| file == terminal || file == "/dev/tty"))
}

/// The descriptor, if `/proc/PID/syscall` tells of a read.
fn read_from(call: &str) -> Option<u32> {
    let mut fields = call.split_ascii_whitespace();
    let number: i64 = fields.next()?.parse().ok()?;
    let descriptor = u64::from_str_radix(fields.next()?.strip_prefix("0x")?, 16).ok()?;
    (number == libc::SYS_read).then(|| u32::try_from(descriptor).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_counts_also_when_who_did_it_is_gone() {
        let member = |own: u64, waited: u64| {
            Member::parse(&format!("42 (sh) S 1 42 42 0 -1 0 0 0 0 0 {own} 0 0 {waited} 20 0 1 0 99"))
        };
        let family: Vec<Member> = [member(1000, 3), member(5, 7)].into_iter().flatten().collect();
        assert_eq!(processor_time(&family), (3 + 5 + 7) * 1_000_000 / sys::clock_ticks());
        assert_eq!(processor_time(&[]), 0);
    }

    #[test]
    fn only_a_read_has_a_descriptor() {
        let call = |number: i64| format!("{number} 0xa 0x55d88a34bf40 0x1000 0x8 0x7fa7 0x0 0x7ffd 0x7fa7\n");
        assert_eq!(read_from(&call(libc::SYS_read)), Some(10));
        assert_eq!(read_from(&call(libc::SYS_write)), None);
        assert_eq!((read_from("running\n"), read_from("-1 0x7ffd 0x7fa7\n"), read_from("")), (None, None, None));
    }
}
