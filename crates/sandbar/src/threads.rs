//! The server's runtime. Every thread that it cannot do without is there before it serves, and stays: on a host whose
//! process table is full a request may fail for want of a process, the server does not.

use std::{io, sync::mpsc, thread, time::Duration};

use tokio::runtime::{Builder, Runtime};

use crate::exit::Failure;

/// Enough: the work is done by the sandboxes and by SQLite's own threads, and each worker costs memory.
const WORKERS: usize = 2;
/// Work that blocks, such as the removal of files, at most at once.
const BLOCKING_THREADS: usize = 16;
/// So many of these are never given back. What finds them busy, and gets no other, waits for its turn.
const RESERVED: usize = 4;
/// Threads that are there begin within this.
const PATIENCE: Duration = Duration::from_secs(60);
/// The runtime gives back blocking threads that were idle for this; it ends the program when it then finds that it has none
/// and gets none.
const FOR_EVER: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

pub(crate) fn runtime() -> Result<Runtime, Failure> {
    let failed = |error| {
        Failure::io("failed to start the server's threads")(error)
            .hint("Raise the limit of processes (`ulimit -u`, pids.max of its control group), or end some.")
    };
    // First, since the runtime panics where it gets none of its own.
    probe(WORKERS + RESERVED).map_err(failed)?;
    let runtime = Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .max_blocking_threads(BLOCKING_THREADS)
        .thread_keep_alive(FOR_EVER)
        .enable_all()
        .build()
        .map_err(failed)?;
    reserve(&runtime).map_err(failed)?;
    Ok(runtime)
}

/// Whether so many threads are to be had at once.
fn probe(threads: usize) -> io::Result<()> {
    let mut held = Vec::new();
    for _ in 0..threads {
        let (release, released) = mpsc::channel::<()>();
        // It waits until this one lets go of its end.
        let thread = thread::Builder::new().spawn(move || released.recv().is_err())?;
        held.push((release, thread));
    }
    for (release, thread) in held {
        drop(release);
        // It has nothing to panic about.
        thread.join().ok();
    }
    Ok(())
}

/// Has the runtime make its blocking threads now.
fn reserve(runtime: &Runtime) -> io::Result<()> {
    let (begun, there) = mpsc::channel();
    let mut held = Vec::new();
    for _ in 0..RESERVED {
        let begun = begun.clone();
        let (release, released) = mpsc::channel::<()>();
        // Each of them keeps its thread busy until all are there.
        runtime.spawn_blocking(move || {
            begun.send(()).ok();
            released.recv().ok();
        });
        held.push(release);
    }
    for _ in 0..RESERVED {
        there.recv_timeout(PATIENCE).map_err(|_| io::Error::from(io::ErrorKind::WouldBlock))?;
    }
    Ok(())
}
