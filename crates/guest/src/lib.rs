//! What runs inside a sandbox: its PID 1, and the protocol the server speaks to it.
//!
//! One thread, always: what it runs is forked from itself, and a fork of a threaded process may not even allocate.
//! So nothing here uses tokio's file functions or its blocking pool; files are done by forked workers.

mod accept;
mod answers;
mod behind;
mod children;
mod command;
mod dial;
mod ending;
mod entrance;
mod error;
mod files;
mod follow;
#[cfg(test)]
mod fuzz;
mod gate;
mod hosts;
mod identity;
mod input;
mod leader;
mod link;
mod look;
mod minder;
mod oom;
mod outlet;
mod probe;
mod process;
pub mod protocol;
mod ring;
mod runtimes;
mod search;
mod service;
mod sink;
mod stdio;
mod supervisor;
mod sys;
mod table;
mod tls;
mod tree;
pub mod trust;
mod worker;
mod workload;
mod writers;

use std::{collections::BTreeMap, io, net::IpAddr, os::fd::OwnedFd, sync::Arc, time::Duration};

use rustix::process::DumpableBehavior;
use tokio::sync::Semaphore;
use tonic::transport::Server;

use crate::{
    children::Parent,
    command::User,
    identity::{Identity, OnceKnown},
    protocol::{ServeRequest, guest_server::GuestServer},
    runtimes::Runtimes,
    service::Service,
    table::Table,
    workload::Workload,
};

pub use crate::entrance::Entrance;
pub use crate::gate::Gate;
pub use crate::hosts::name_host;
pub use crate::oom::OomScores;
pub use crate::workload::{Apply, Confine, Group};

/// Everything the guest is told by whoever made the sandbox.
pub struct Setup {
    /// None, where the server says so later.
    pub sandbox_id: Option<String>,
    /// Of the binary.
    pub version: String,
    /// None, where there is no server.
    pub entrance: Option<Entrance>,
    /// Of workloads; terminals are given to them.
    pub uid: u32,
    pub gid: u32,
    /// HOME and USER of workloads, unless a request says otherwise.
    pub home: String,
    pub user: String,
    /// Of workloads, likewise.
    pub env: BTreeMap<String, String>,
    /// Applied right before execve, and by file workers and the probe.
    pub confine: Box<dyn Confine>,
    /// Where workload processes are counted, limited and frozen.
    pub group: Option<Group>,
    /// None, where somebody else says who dies first when memory is short.
    pub oom: Option<OomScores>,
    /// The way out, if there is one.
    pub gate: Option<Gate>,
    /// Where programs find the certificates to trust; opened before any workload could replace it.
    pub trust: Option<OwnedFd>,
    /// Runtimes that are served from the start, whether or not there is a server.
    pub runtimes: Option<(ServeRequest, IpAddr)>,
    /// Whether SIGTERM from outside ends it, as it ends a pod.
    pub ends: bool,
}

/// Serves until killed. Must be called in a process with one thread; leaves it with an error on what cannot be helped.
pub fn run(setup: Setup) -> ! {
    match serve(setup) {
        Ok(()) => std::process::exit(0),
        Err(error) => {
            eprintln!("the guest failed: {error}");
            std::process::exit(1)
        }
    }
}

/// Much data is in flight only when much is moved, so windows cost an idle guest nothing.
const STREAM_WINDOW: u32 = 1024 * 1024;
/// Several uploads that wait for the disk must not keep other calls on the connection waiting.
const CONNECTION_WINDOW: u32 = 16 * STREAM_WINDOW;
/// Where programs' connections are carried as well: each has its own bound and all of them no other, so that any number
/// whose programs do not read holds up none.
const CARRIED_WINDOW: u32 = 256 * 1024;
const ALL_CARRIED: u32 = (1 << 31) - 1;
/// The guest watches few descriptors; the default would keep a list for a thousand events.
const EVENTS_PER_TICK: usize = 64;
/// A server that went away without a word is noticed after these two together.
const ASK: Duration = Duration::from_secs(10);
const ANSWER: Duration = Duration::from_secs(10);
/// Of a call: ours have none worth mentioning.
const HEADERS: u32 = 16 * 1024;

/// Like `run`, but returns when it was asked to end, or what went wrong.
pub fn serve(setup: Setup) -> Result<(), Box<dyn std::error::Error>> {
    prepare_process(setup.ends)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .max_io_events_per_tick(EVENTS_PER_TICK)
        .build()?;
    runtime.block_on(async {
        let (parent, forker) = Parent::new(Workload { group: setup.group, confine: setup.confine }, setup.oom)?;
        let user = User { uid: setup.uid, gid: setup.gid, name: setup.user, home: setup.home, env: setup.env };
        let table = Arc::new(Table::new(forker.clone(), Arc::new(user)));
        let runtimes = Arc::new(Runtimes::default());
        let gate = gate::port(setup.gate.as_ref())?;
        let (door, handout) = gate::split(setup.gate)?;
        if let Some((request, address)) = setup.runtimes {
            runtimes.serve(request, &table, &forker, gate, address)?;
        }
        let service = Service {
            identity: Arc::new(Identity::new(setup.sandbox_id)),
            version: setup.version,
            boot_id: boot_id()?,
            table: Arc::clone(&table),
            forker,
            runtimes: Arc::clone(&runtimes),
            searches: Arc::new(Semaphore::new(search::MOST)),
            trust: setup.trust,
            gate,
            door,
        };
        let ended = async {
            ending::asked(setup.ends).await?;
            ending::end(&table, &runtimes).await;
            Ok(())
        };
        tokio::select! {
            error = parent.run() => Err(error.into()),
            ended = gate::hand_out(handout) => match ended {
                Ok(never) => match never {},
                Err(error) => Err(error.into()),
            },
            ended = admit(setup.entrance, service) => ended,
            ended = ended => ended,
        }
    })
}

/// Serves whoever comes in.
async fn admit(entrance: Option<Entrance>, service: Service) -> Result<(), Box<dyn std::error::Error>> {
    let Some(entrance) = entrance else { return std::future::pending().await };
    let identity = Arc::clone(&service.identity);
    let (stream, connection) = match &entrance {
        Entrance::Unix(_) => (STREAM_WINDOW, CONNECTION_WINDOW),
        Entrance::Tls { .. } => (CARRIED_WINDOW, ALL_CARRIED),
    };
    let mut server = Server::builder()
        .initial_stream_window_size(stream)
        .initial_connection_window_size(connection)
        .http2_max_header_list_size(HEADERS);
    if let Entrance::Tls { .. } = entrance {
        server = server.http2_keepalive_interval(Some(ASK)).http2_keepalive_timeout(Some(ANSWER));
    }
    let service = OnceKnown { service: GuestServer::new(service), identity };
    server.serve_with_incoming(service, entrance::connections(entrance)?).await?;
    Err("the socket was closed".into())
}

fn prepare_process(ends: bool) -> io::Result<()> {
    // The streams of later processes are duplicated onto these numbers, so nothing else may have them.
    while stdio_is_missing() {
        std::mem::forget(stdio::null()?);
    }
    // A workload of the same user could otherwise read our memory and descriptors through /proc.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    // PID 1 adopts orphans anyway; outside a PID namespace this makes it the same.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    // Fails when we already lead a group, which serves as well: workloads are told apart by their sessions.
    let _ = rustix::process::setsid();
    sys::default_signal_handlers();
    sys::ignore_broken_pipes();
    sys::block_signals(if ends { sys::Mask::ChildAndEnding } else { sys::Mask::Child })
}

fn stdio_is_missing() -> bool {
    let (stdin, stdout, stderr) = (rustix::stdio::stdin(), rustix::stdio::stdout(), rustix::stdio::stderr());
    [stdin, stdout, stderr].into_iter().any(|fd| rustix::io::fcntl_getfd(fd).is_err())
}

fn boot_id() -> io::Result<String> {
    let mut random = [0; 16];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    Ok(format!("{:032x}", u128::from_le_bytes(random)))
}
