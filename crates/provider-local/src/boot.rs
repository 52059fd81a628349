//! The first moments of a guest: from a fresh fork in new namespaces to PID 1 of a finished sandbox. Every step that
//! fails is told to the server on the status pipe, and the guest ends: there is no half-made sandbox.

use std::{
    collections::BTreeMap,
    fs, io,
    net::{Ipv4Addr, SocketAddrV4},
    os::fd::{AsFd, OwnedFd},
};

use rustix::{
    net::{AddressFamily, SocketFlags, SocketType},
    process::{Resource, Rlimit},
    thread::{Gid, Uid},
};

use sandbar_api::{User, network::GATE_PORT};
use sandbar_guest::{Confine, Group};

use crate::{
    fence::Fence,
    frame,
    launch::{Go, Launch, Told},
    launcher,
    programs::Program,
    step::{Failure, Step},
    sys,
    uids::{Uids, WORKLOAD},
    view,
};

/// A fork of the launcher whose working directory is the sandbox's.
pub(crate) struct Boot<'a> {
    pub launch: Launch,
    pub listener: OwnedFd,
    /// Where the server is given the gate.
    pub handout: OwnedFd,
    /// Where the parent says that uid maps and trees are ready.
    pub go: OwnedFd,
    pub status: io::PipeWriter,
    pub fence: &'a Fence,
    /// Of the workload's processes.
    pub group: Option<Group>,
}

/// A quarter of what a host gives each user.
const INOTIFY_INSTANCES: &str = "32";
const SIGNALS: u64 = 8192;
const MESSAGE_BYTES: u64 = 200 * 1024;
/// Connections that wait for a server, also while it is being restarted.
const GATE_BACKLOG: i32 = 1024;

pub(crate) fn run(boot: Boot<'_>) -> ! {
    let mut kept = vec![boot.listener.as_fd(), boot.handout.as_fd(), boot.go.as_fd(), boot.status.as_fd()];
    if let Some(group) = &boot.group {
        kept.extend(group.directory.iter().chain(&group.joins).map(AsFd::as_fd));
    }
    if sys::keep_only(&kept).is_err() {
        sys::exit(1);
    }
    let Ok(Some((Go { oom, programs }, mut trees))) = frame::receive(&boot.go) else {
        // The parent failed, and has told its reason itself.
        sys::exit(1);
    };
    let oom = oom.filter(|_| !trees.is_empty()).map(|scores| scores.of_guest(trees.remove(0)));
    let others = trees.split_off(programs.len().min(trees.len()));
    let programs = programs.into_iter().zip(trees).map(|(place, tree)| Program { place, tree }).collect();
    let Boot { launch, listener, handout, go, status, fence, group } = boot;
    drop(go);
    match build(&launch, programs, others, fence) {
        Ok(Built { confine, gate, trust }) => {
            let told = serde_json::to_vec(&Told::Done).unwrap_or_default();
            if rustix::io::write(&status, &told).is_err() {
                sys::exit(1);
            }
            drop(status);
            let (uid, user, home) = match launch.user {
                User::Agent => (WORKLOAD, "agent", "/home/agent"),
                User::Root => (0, "root", "/root"),
            };
            sandbar_guest::run(sandbar_guest::Setup {
                sandbox_id: Some(launch.id.to_string()),
                version: env!("CARGO_PKG_VERSION").into(),
                entrance: Some(sandbar_guest::Entrance::Unix(listener)),
                uid,
                gid: uid,
                home: home.into(),
                user: user.into(),
                env: BTreeMap::new(),
                confine,
                group,
                oom,
                gate: Some(sandbar_guest::Gate::Handed { listener: gate, handout }),
                trust: Some(trust),
                runtimes: None,
                ends: false,
            })
        }
        Err(failure) => launcher::tell(&status, Err(failure)),
    }
}

/// What the guest needs of what was built.
struct Built {
    confine: Box<dyn Confine>,
    gate: OwnedFd,
    trust: OwnedFd,
}

fn build(launch: &Launch, programs: Vec<Program>, trees: Vec<OwnedFd>, fence: &Fence) -> Result<Built, Failure> {
    identity(launch.uids).map_err(Failure::at(Step::Identity, "become the sandbox's root"))?;
    budget();
    view::build(launch, programs, trees)?;
    rustix::system::sethostname(launch.hostname.as_bytes())
        .map_err(|errno| Failure::at(Step::Hostname, "set the host name")(errno.into()))?;
    // On a full disk a sandbox is to start all the same.
    sandbar_guest::name_host(&launch.hostname).ok();
    sys::loopback_up().map_err(Failure::at(Step::Loopback, "bring loopback up"))?;
    let gate = gate().map_err(Failure::at(Step::Loopback, "listen for programs that want out"))?;
    let trust = view::trust().map_err(Failure::at(Step::Mounts, "prepare the certificates to trust"))?;
    forbid_core_files()?;
    let confine = fence.arm(&launch.wanted())?;
    silence().map_err(Failure::at(Step::Dev, "open /dev/null"))?;
    Ok(Built { confine, gate, trust })
}

/// Core files of a workload could hold what it was given, and land where nobody counts them. One byte, because at zero
/// the kernel still starts the host's handler of crashes, if it has one, and at one it does not. Where the host says
/// zero already, that cannot be raised.
pub(crate) fn forbid_core_files() -> Result<(), Failure> {
    let core = Some(rustix::process::getrlimit(Resource::Core).maximum.unwrap_or(1).min(1));
    rustix::process::setrlimit(Resource::Core, Rlimit { current: core, maximum: core })
        .map_err(|errno| Failure::at(Step::Capabilities, "forbid core files")(errno.into()))
}

/// The one thing in this network that leads out of it, as far as whoever accepts on it lets one.
pub(crate) fn gate() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
    rustix::net::bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, GATE_PORT))?;
    rustix::net::listen(&socket, GATE_BACKLOG)?;
    Ok(socket)
}

/// With a range, the guest is root of its user namespace; with one uid it is the workload's user, with capabilities.
fn identity(uids: Uids) -> io::Result<()> {
    if let Uids::Range(_) = uids {
        // The host's groups of whoever started the server grant nothing here.
        rustix::thread::set_thread_groups(&[])?;
        rustix::thread::set_thread_res_gid(Gid::ROOT, Gid::ROOT, Gid::ROOT)?;
        rustix::thread::set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT)?;
    }
    Ok(())
}

/// What the kernel counts per user is shared by all sandboxes of one who has a single uid: each gets a part of it.
/// Limits of processes and not of the namespace, which the kernel would hold against the user's total.
fn budget() {
    // A kernel that does not bound them per namespace has nothing to be told.
    fs::write("/proc/sys/user/max_inotify_instances", INOTIFY_INSTANCES).ok();
    for (resource, part) in [(Resource::Sigpending, SIGNALS), (Resource::Msgqueue, MESSAGE_BYTES)] {
        let limit = Some(rustix::process::getrlimit(resource).maximum.unwrap_or(u64::MAX).min(part));
        // Lowering a limit is always allowed.
        rustix::process::setrlimit(resource, Rlimit { current: limit, maximum: limit }).ok();
    }
}

/// The server's standard streams must not be reachable from inside.
fn silence() -> io::Result<()> {
    let null = fs::File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok(())
}
