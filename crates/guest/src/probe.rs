//! What a workload process finds around it: a child goes through the fence that every workload goes through, looks, tries
//! what must be refused, and tells. It draws no conclusions. Values, where a fact cannot be read, are `error: ERRNO`.
//!
//! | key | value |
//! | --- | --- |
//! | `status.FIELD` | that line of `/proc/self/status`, blanks made single: Uid, Gid, Groups, CapInh, CapPrm, CapEff, CapBnd, CapAmb, NoNewPrivs, Seccomp, Seccomp_filters |
//! | `ns.NAME` | where `/proc/self/ns/NAME` points: user, mnt, pid, net, ipc, uts, cgroup |
//! | `hostname` | of the uts namespace |
//! | `pid1` | the name of process 1 |
//! | `pids` | how many processes `/proc` shows |
//! | `interfaces` | names of the network interfaces, by blanks |
//! | `routes` | how many routes, of IPv4 and IPv6, lead anywhere but to loopback |
//! | `uid_map` | of the user namespace, blanks made single, lines joined by `;` |
//! | `cgroup` | the lines of `/proc/self/cgroup`, joined by `;` |
//! | `rlimit.nofile`, `rlimit.core` | soft and hard, a number or `unlimited` |
//! | `mount.NAME` | type and options of the mount that covers a directory, `ro` also when only its filesystem is: root `/`, usr `/usr`, workspace `/workspace`, tmp `/tmp`, run `/run`, shm `/dev/shm`, home `/home/agent`, proc `/proc` |
//! | `statfs.root`, `statfs.tmp`, `statfs.workspace` | the size of that filesystem in bytes |
//! | `landlock.abi` | the version that the kernel has |
//! | `limit.memory`, `limit.cpu`, `limit.pids` | what the cgroup that is seen at `/sys/fs/cgroup` allows: bytes; quota and period; processes; `max` for no limit |
//! | `kernel` | `/proc/version` |
//! | `boot` | the identity of the kernel's present run, which all sandboxes of one machine share |
//! | `service_account` | `ok` when the token of a Kubernetes service account can be read, else the errno's name |
//! | `reach.ADDRESS` | `ok`, the errno's name or `timeout`: what came of a connection to an address that was asked for; `not an address` and perhaps why, where nothing was tried (see `reach.rs`) |
//! | `try.NAME` | `ok`, or the errno's name: what came of an attempt (see `attempts.rs`) |

mod attempts;
mod facts;
mod reach;

use std::{
    collections::HashMap,
    io::{self, Write},
    os::fd::{AsFd, OwnedFd},
    time::Duration,
};

use prost::Message;
use rustix::{
    pipe::{PipeFlags, pipe_with},
    process::Signal,
};
use tokio::{io::AsyncReadExt, net::unix::pipe, time::timeout};

use crate::{
    children::{Forker, Task},
    error::{Code, Fault},
    leader::{Failure, Step},
    protocol::{ProbeReply, ProbeRequest},
    sys,
    workload::Workload,
};

/// It only reads and tries; whatever takes longer is stuck.
const PATIENCE: Duration = Duration::from_secs(15);
/// Many times what it says.
const MAX_ANSWER: u64 = 256 * 1024;
/// Before the facts; a failure's first byte is its step, which is never this.
const FACTS: u8 = 0;

type Facts = HashMap<String, String>;

/// The guest's side. In a task of its own: a caller that goes away leaves no probe behind.
pub(crate) async fn ask(forker: &Forker, request: ProbeRequest) -> Result<ProbeReply, Fault> {
    let forker = forker.clone();
    let answer = tokio::spawn(async move { converse(&forker, request).await });
    answer.await.unwrap_or_else(|_| Err(Fault::new(Code::Internal, "The probe was given up.")))
}

async fn converse(forker: &Forker, request: ProbeRequest) -> Result<ProbeReply, Fault> {
    let (inbox, outbox) =
        pipe_with(PipeFlags::CLOEXEC).map_err(|errno| Fault::internal("make a pipe")(errno.into()))?;
    let inbox = pipe::Receiver::from_owned_fd(inbox).map_err(Fault::internal("watch a pipe"))?;
    let child = forker
        .fork(Task::Probe(outbox, request))
        .await
        .map_err(Fault::internal("fork the probe into the cgroup of workloads"))?;
    let mut answer = Vec::new();
    let read = timeout(PATIENCE, inbox.take(MAX_ANSWER).read_to_end(&mut answer)).await;
    // Also of one that has answered: nothing it started or waits for is wanted any more.
    child.signal(Signal::KILL);
    match read {
        Ok(Ok(_)) => parse(&answer),
        Ok(Err(error)) => Err(Fault::internal("read the probe's answer")(error)),
        Err(_) => Err(Fault::new(Code::Internal, format!("The probe did not answer in {PATIENCE:?}."))),
    }
}

fn parse(answer: &[u8]) -> Result<ProbeReply, Fault> {
    match answer.split_first() {
        Some((&FACTS, facts)) => ProbeReply::decode(facts)
            .map_err(|error| Fault::new(Code::Internal, format!("The probe's answer makes no sense: {error}."))),
        Some(_) => match answer.try_into().ok().and_then(Failure::from_bytes) {
            Some(failure) => Err(failure.fault("probe", "/")),
            None => Err(Fault::new(Code::Internal, "The probe's answer makes no sense.")),
        },
        None => Err(Fault::new(Code::Internal, "The probe ended without an answer.")),
    }
}

/// The body of the probe's process; returns its exit code.
pub(crate) fn run(outbox: &OwnedFd, request: &ProbeRequest, workload: &Workload) -> i32 {
    let answer = match become_workload(outbox, workload) {
        Ok(()) => {
            let mut facts = facts::gather();
            facts.extend(reach::attempt(&request.reach, |name| std::env::var(name).ok()));
            // Afterwards, because one that works may change what there is to see.
            facts.extend(attempts::make());
            let mut answer = vec![FACTS];
            answer.extend(ProbeReply { facts }.encode_to_vec());
            answer
        }
        Err(failure) => failure.to_bytes().to_vec(),
    };
    let told = outbox.try_clone().and_then(|outbox| std::fs::File::from(outbox).write_all(&answer));
    i32::from(told.is_err())
}

fn become_workload(outbox: &OwnedFd, workload: &Workload) -> Result<(), Failure> {
    workload.join()?;
    let session = || -> io::Result<()> {
        rustix::thread::set_name(c"sandbar-probe")?;
        rustix::process::setsid()?;
        // Its terminal hangs up when it is done with it, and other workloads may signal it.
        sys::block_signals(sys::Mask::Everything)?;
        Ok(rustix::process::chdir("/")?)
    };
    session().map_err(|error| Failure::new(Step::Session, &error))?;
    workload.confine()?;
    // After `confine`, which may own some of them.
    sys::close_all_but(&[outbox.as_fd()]).map_err(|error| Failure::new(Step::Session, &error))
}

/// `ok`, or what the kernel calls the error.
fn outcome<T>(attempt: Result<T, io::Error>) -> String {
    attempt.map_or_else(|error| errno_name(&error), |_| "ok".to_owned())
}

/// A fact, or why it could not be had.
fn fact(read: io::Result<String>) -> String {
    read.unwrap_or_else(|error| format!("error: {}", errno_name(&error)))
}

fn errno_name(error: &io::Error) -> String {
    macro_rules! name {
        ($($name:ident)*) => {
            match error.raw_os_error() {
                $(Some(libc::$name) => stringify!($name).to_owned(),)*
                Some(number) => format!("errno {number}"),
                None => error.to_string(),
            }
        };
    }
    name! {
        EPERM ENOENT ESRCH EINTR EIO ENXIO E2BIG ENOEXEC EBADF ECHILD EAGAIN ENOMEM EACCES EFAULT EBUSY EEXIST EXDEV
        ENODEV ENOTDIR EISDIR EINVAL ENFILE EMFILE ENOTTY ETXTBSY EFBIG ENOSPC EROFS EMLINK ENAMETOOLONG ENOSYS ELOOP
        EOPNOTSUPP EDQUOT ENOKEY EUSERS EPROTO EOVERFLOW ECONNREFUSED ECONNRESET ENETUNREACH EHOSTUNREACH ETIMEDOUT EADDRNOTAVAIL EAFNOSUPPORT
        ENETDOWN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_facts_or_the_step_that_failed() {
        let facts = Facts::from([("a".to_owned(), "b".to_owned())]);
        let mut answer = vec![FACTS];
        answer.extend(ProbeReply { facts: facts.clone() }.encode_to_vec());
        assert_eq!(parse(&answer).map(|reply| reply.facts), Ok(facts));
        let failure = Failure { step: Step::Group, errno: libc::ENODEV };
        let fault = parse(&failure.to_bytes());
        assert!(fault.is_err_and(|fault| fault.message.contains("cgroup")));
        for nonsense in [&[][..], &[99, 1], &[FACTS, 255]] {
            assert!(parse(nonsense).is_err());
        }
    }

    #[test]
    fn errors_have_the_kernels_names() {
        assert_eq!(errno_name(&io::Error::from_raw_os_error(libc::EROFS)), "EROFS");
        assert_eq!(fact(Err(io::Error::from_raw_os_error(4000))), "error: errno 4000");
    }
}
