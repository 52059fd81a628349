//! The end of a guest that is asked to end, as a pod is: programs are asked as well, and after a moment killed.

use std::{io, time::Duration};

use rustix::io::Errno;
use tokio::{
    io::Interest,
    time::{sleep, timeout},
};

use crate::{process::Order, protocol::ExitReason, runtimes::Runtimes, sys, table::Table};

/// How long programs have to end by themselves, and then the kernel to end them.
const GRACE: Duration = Duration::from_secs(1);
const KILL: Duration = Duration::from_millis(500);
/// Between two looks whether something is left.
const LOOK: Duration = Duration::from_millis(20);

/// Returns when the guest is asked to end from outside; never, unless it `ends`.
pub(crate) async fn asked(ends: bool) -> io::Result<()> {
    if !ends {
        return std::future::pending().await;
    }
    let signals = sys::watch(sys::ending_signals()?, Interest::READABLE)?;
    loop {
        let mut ready = signals.readable().await?;
        let mut info = [0; INFO];
        match rustix::io::read(signals.get_ref(), &mut info) {
            Ok(_) if is_from_outside(info, rustix::process::getpid().is_init()) => return Ok(()),
            Ok(_) | Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => ready.clear_ready(),
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// The kernel's `signalfd_siginfo`, and where in it the sender's pid is.
const INFO: usize = 128;
const SENDER: usize = 12;

/// A workload of our own user may signal us; to the first process of a namespace, whoever is outside has no pid.
fn is_from_outside(info: [u8; INFO], first: bool) -> bool {
    !first || info[SENDER..SENDER + 4] == [0; 4]
}

/// Whatever is left then ends with us.
pub(crate) async fn end(table: &Table, runtimes: &Runtimes) {
    let left = || table.minded().into_iter().chain(runtimes.minded()).map(|(_, process)| process);
    let asked = futures_util::future::join_all(left().map(|process| async move {
        // It may have ended just now.
        let _ended = process.order(|reply| Order::Signal(libc::SIGTERM, reply)).await;
    }));
    let gone = || async {
        while left().next().is_some() {
            sleep(LOOK).await;
        }
    };
    let quietly = async { tokio::join!(asked, runtimes.drain(), gone()) };
    if timeout(GRACE, quietly).await.is_ok() {
        return;
    }
    let killed = futures_util::future::join_all(left().map(|process| async move {
        let _ended = process.kill(ExitReason::Killed).await;
    }));
    let _gone = timeout(KILL, async { tokio::join!(killed, gone()) }).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workload_cannot_ask() {
        let mut info = [0; INFO];
        assert!(is_from_outside(info, true));
        info[SENDER] = 7;
        assert!(!is_from_outside(info, true));
        assert!(is_from_outside(info, false));
    }
}
