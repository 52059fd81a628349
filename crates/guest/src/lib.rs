//! What runs inside a sandbox: its PID 1, and the protocol the server speaks to it.
//!
//! One thread, always: what it runs is forked from itself, and a fork of a threaded process may not even allocate.
//! So nothing here uses tokio's file functions or its blocking pool; files are done by forked workers.

mod answers;
mod behind;
mod children;
mod command;
mod dial;
mod error;
mod files;
mod follow;
#[cfg(test)]
mod fuzz;
mod gate;
mod input;
mod leader;
mod link;
mod look;
mod minder;
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
mod tree;
pub mod trust;
mod worker;
mod workload;
mod writers;

use std::{io, os::fd::OwnedFd, os::unix::net::UnixListener as StdListener, sync::Arc, time::Duration};

use futures_util::stream;
use rustix::process::DumpableBehavior;
use tokio::{net::UnixListener, sync::Semaphore};
use tonic::transport::Server;

use crate::{
    children::Parent, command::User, protocol::guest_server::GuestServer, runtimes::Runtimes, service::Service,
    table::Table, workload::Workload,
};

pub use crate::gate::Gate;
pub use crate::workload::{Apply, Confine, Group};

/// Everything the guest is told by whoever made the sandbox.
pub struct Setup {
    pub sandbox_id: String,
    /// Of the binary.
    pub version: String,
    /// Listening Unix socket, bound outside the sandbox.
    pub listener: OwnedFd,
    /// Of workloads; terminals are given to them.
    pub uid: u32,
    pub gid: u32,
    /// HOME and USER of workloads, unless a request says otherwise.
    pub home: String,
    pub user: String,
    /// Applied right before execve, and by file workers and the probe.
    pub confine: Box<dyn Confine>,
    /// Where workload processes are counted, limited and frozen.
    pub group: Option<Group>,
    /// The way out, if there is one.
    pub gate: Option<Gate>,
    /// Where programs find the certificates to trust; opened before any workload could replace it.
    pub trust: Option<OwnedFd>,
}

/// Serves until killed. Must be called in a process with one thread; leaves it with an error on what cannot be helped.
pub fn run(setup: Setup) -> ! {
    let Err(error) = serve(setup);
    eprintln!("the guest failed: {error}");
    std::process::exit(1)
}

/// Much data is in flight only when much is moved, so windows cost an idle guest nothing.
const STREAM_WINDOW: u32 = 1024 * 1024;
/// Several uploads that wait for the disk must not keep other calls on the connection waiting.
const CONNECTION_WINDOW: u32 = 16 * STREAM_WINDOW;
/// The guest watches few descriptors; the default would keep a list for a thousand events.
const EVENTS_PER_TICK: usize = 64;
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

fn serve(setup: Setup) -> Result<std::convert::Infallible, Box<dyn std::error::Error>> {
    prepare_process()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .max_io_events_per_tick(EVENTS_PER_TICK)
        .build()?;
    runtime.block_on(async {
        let (parent, forker) = Parent::new(Workload { group: setup.group, confine: setup.confine })?;
        let user = User { uid: setup.uid, gid: setup.gid, name: setup.user, home: setup.home };
        let service = Service {
            sandbox_id: setup.sandbox_id,
            version: setup.version,
            boot_id: boot_id()?,
            table: Arc::new(Table::new(forker.clone(), Arc::new(user))),
            forker,
            runtimes: Runtimes::default(),
            searches: Arc::new(Semaphore::new(search::MOST)),
            trust: setup.trust,
            gate: gate::port(setup.gate.as_ref())?,
        };
        let listener = StdListener::from(setup.listener);
        listener.set_nonblocking(true)?;
        let server = Server::builder()
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .serve_with_incoming(GuestServer::new(service), connections(UnixListener::from_std(listener)?));
        tokio::select! {
            error = parent.run() => Err(error.into()),
            ended = gate::hand_out(setup.gate) => match ended {
                Ok(never) => match never {},
                Err(error) => Err(error.into()),
            },
            ended = server => {
                ended?;
                Err("the socket was closed".into())
            }
        }
    })
}

fn prepare_process() -> io::Result<()> {
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
    sys::block_signals(sys::Mask::Child)
}

fn stdio_is_missing() -> bool {
    let (stdin, stdout, stderr) = (rustix::stdio::stdin(), rustix::stdio::stdout(), rustix::stdio::stderr());
    [stdin, stdout, stderr].into_iter().any(|fd| rustix::io::fcntl_getfd(fd).is_err())
}

/// Accepted connections. Running out of descriptors passes, so it is waited out and not the guest's end.
fn connections(listener: UnixListener) -> impl stream::Stream<Item = io::Result<tokio::net::UnixStream>> {
    stream::unfold(listener, |listener| async {
        loop {
            match listener.accept().await {
                Ok((connection, _)) => return Some((Ok(connection), listener)),
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            }
        }
    })
}

fn boot_id() -> io::Result<String> {
    let mut random = [0; 16];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    Ok(format!("{:032x}", u128::from_le_bytes(random)))
}
