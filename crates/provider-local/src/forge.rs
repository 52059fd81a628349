//! The server's side of the launcher: a thread that owns its process and its socket, and starts a new one when it dies.

use std::{
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Mutex, PoisonError, mpsc},
    thread::JoinHandle,
    time::Duration,
};

use rustix::process::Signal;
use sandbar_provider::Error;
use tokio::{io::AsyncReadExt as _, sync::oneshot};

use crate::{
    LAUNCHER_NAME, frame,
    launch::{Reply, Request, Told},
    launcher::{DIRECTORY, WITH_PARENT},
    local::Lifetime,
};

/// A fork's pidfd and its status pipe.
type Forked = (OwnedFd, OwnedFd);

struct Job {
    request: Request,
    fds: Vec<OwnedFd>,
    reply: oneshot::Sender<Result<Forked, Error>>,
}

#[derive(Debug)]
pub(crate) struct Forge {
    /// `None` once closed.
    running: Mutex<Option<Running>>,
}

#[derive(Debug)]
struct Running {
    jobs: mpsc::SyncSender<Job>,
    thread: JoinHandle<()>,
}

struct Launcher {
    process: Child,
    socket: OwnedFd,
}

/// A launcher takes a millisecond or two; one that has not answered by then is replaced.
const ANSWER: Duration = Duration::from_secs(10);
/// A guest boots in a few milliseconds, on a busy machine in a few hundred.
const PATIENCE: Duration = Duration::from_secs(30);
/// Launches that may wait; beyond it callers are held up, which is what a full machine wants.
const QUEUE: usize = 256;

impl Forge {
    pub(crate) fn start(lifetime: Lifetime, directory: PathBuf) -> Result<Self, Error> {
        let (jobs, queue) = mpsc::sync_channel::<Job>(QUEUE);
        let mut launcher = Launcher::start(&lifetime, &directory).map_err(Error::io("start the launcher"))?;
        let work = move || {
            for job in queue {
                let mut result = launcher.ask(&job.request, &job.fds);
                if matches!(&result, Err(Error::Io { .. })) {
                    // Its sandboxes live on; only new ones need a launcher. One that cannot be started is tried again.
                    launcher.replace();
                    match Launcher::start(&lifetime, &directory) {
                        Ok(fresh) => {
                            launcher = fresh;
                            result = launcher.ask(&job.request, &job.fds);
                        }
                        Err(error) => result = Err(Error::io("start the launcher")(error)),
                    }
                }
                // Nobody waits any more when the caller was cancelled; the sandbox is found by its pid file.
                job.reply.send(result).ok();
            }
            launcher.end();
        };
        let thread = std::thread::Builder::new()
            .name("sandbar-forge".into())
            .stack_size(256 * 1024)
            .spawn(work)
            .map_err(Error::io("start a thread"))?;
        Ok(Self { running: Mutex::new(Some(Running { jobs, thread })) })
    }

    /// Ends the launcher and returns when it is gone, and with it whatever was to die with us.
    pub(crate) fn close(&self) {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Running { jobs, thread }) = running {
            drop(jobs);
            if thread.join().is_err() {
                tracing::error!("the launcher's thread panicked");
            }
        }
    }

    /// Has the launcher fork what is asked for, and waits for what the fork tells.
    pub(crate) async fn ask(&self, request: Request, fds: Vec<OwnedFd>) -> Result<Told, Error> {
        // A copy takes as long as there are files; everything else walks what a sandbox may have left, and must end.
        let patience = if matches!(request, Request::Keep(_)) { Duration::MAX } else { PATIENCE };
        let (fork, status) = self.fork(request, fds).await?;
        let failed = || Error::io("hear from the launcher's fork");
        let mut status = tokio::net::unix::pipe::Receiver::from_owned_fd(status).map_err(failed())?;
        let mut told = Vec::new();
        match tokio::time::timeout(patience, status.read_to_end(&mut told)).await {
            Ok(read) => read.map_err(failed())?,
            Err(_) => {
                // It is ended, which ends a guest and all that is in it.
                rustix::process::pidfd_send_signal(&fork, Signal::KILL).ok();
                return Err(failed()(io::ErrorKind::TimedOut.into()));
            }
        };
        match serde_json::from_slice(&told) {
            Ok(Told::Failed(failure)) => Err(failure.into_error()),
            Ok(told) => Ok(told),
            Err(_) => Err(failed()(io::Error::other("it died in the middle of its work"))),
        }
    }

    async fn fork(&self, request: Request, fds: Vec<OwnedFd>) -> Result<Forked, Error> {
        let (reply, answer) = oneshot::channel();
        let gone = || Error::io("reach the launcher")(io::ErrorKind::BrokenPipe.into());
        let jobs = {
            let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
            running.as_ref().map(|running| running.jobs.clone()).ok_or_else(gone)?
        };
        jobs.try_send(Job { request, fds, reply }).map_err(|error| match error {
            mpsc::TrySendError::Full(_) => {
                Error::io("queue another launch")(io::Error::other(format!("{QUEUE} are waiting already")))
            }
            mpsc::TrySendError::Disconnected(_) => gone(),
        })?;
        answer.await.map_err(|_| gone())?
    }
}

impl Launcher {
    fn start(lifetime: &Lifetime, directory: &Path) -> io::Result<Self> {
        let (ours, theirs) = frame::pair()?;
        rustix::net::sockopt::set_socket_timeout(&ours, rustix::net::sockopt::Timeout::Recv, Some(ANSWER))?;
        let mut command = Command::new("/proc/self/exe");
        // Nothing of the server's environment may be in a guest's memory.
        command.arg0(LAUNCHER_NAME).env_clear().stdin(Stdio::from(theirs)).stdout(Stdio::null());
        if let Lifetime::WithParent { home } = lifetime {
            command.env(WITH_PARENT, home).env(DIRECTORY, directory);
        }
        Ok(Self { process: command.spawn()?, socket: ours })
    }

    fn ask(&self, request: &Request, fds: &[OwnedFd]) -> Result<Forked, Error> {
        let failed = || Error::io("talk to the launcher");
        let borrowed: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        frame::send(&self.socket, request, &borrowed).map_err(failed())?;
        match frame::receive(&self.socket).map_err(failed())? {
            Some((Reply::Forked, fds)) => match <[OwnedFd; 2]>::try_from(fds) {
                Ok([pidfd, status]) => Ok((pidfd, status)),
                Err(_) => Err(failed()(io::ErrorKind::InvalidData.into())),
            },
            Some((Reply::Failed(failure), _)) => Err(failure.into_error()),
            None => Err(failed()(io::ErrorKind::UnexpectedEof.into())),
        }
    }

    /// It ends by itself when its socket does; asked for its status so that no zombie stays.
    fn end(&mut self) {
        rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both).ok();
        if let Err(error) = self.process.wait() {
            tracing::warn!(%error, "failed to wait for the launcher");
        }
    }

    /// One that failed to answer must not fork after all what the next one is asked for.
    fn replace(&mut self) {
        if let Err(error) = self.process.kill() {
            tracing::warn!(%error, "failed to kill the launcher");
        }
        self.end();
    }
}
