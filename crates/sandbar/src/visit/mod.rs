//! In front of a terminal in a sandbox: what it shows is shown here, what is typed here is typed there, until it ends or
//! we leave. Shared by `attach`, `session`, `exec -t` and `run -t`.

mod chord;
mod face;
mod keys;
mod typing;
mod watch;
mod window;

use std::sync::OnceLock;

use sandbar_api::{Code, Control, Process};
use sandbar_client::{AttachOptions, Typist};
use tokio::{
    sync::{Notify, mpsc},
    time,
};
use tokio_util::task::AbortOnDropHandle;

pub(crate) use self::chord::Chord;
use self::{
    face::{Face, Stdout},
    keys::Keys,
    watch::{FLUSH, Watch},
};
use crate::{
    exit::{self, Failure},
    running::Running,
    terminal::{self, Raw, Received, Signals},
};

/// What is between us and the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Manner {
    /// It runs for us: signals are for it, and its input ends with ours.
    Ours,
    /// It may have been there before us, and goes on when we leave: signals are for us.
    Visit,
}

#[derive(Debug)]
pub(crate) enum End {
    /// Of the process, whose code is ours.
    Exit(u8),
    /// Of our visit.
    Detached,
}

/// The same before its code was looked at.
enum Left {
    Exit(Box<Process>),
    Detached,
}

pub(crate) struct Visit<'a> {
    pub running: Running<'a>,
    /// As people call it.
    pub name: &'a str,
    pub manner: Manner,
    pub control: Control,
    pub chord: Chord,
    pub forward_input: bool,
}

impl Visit<'_> {
    /// Until the process ends, or the visit does. The terminal is as before then.
    pub(crate) async fn drive(&self, signals: &mut Signals) -> Result<End, Failure> {
        let raw = Raw::enter().map_err(Failure::io("failed to put the terminal into raw mode"))?;
        let filtered = self.manner == Manner::Visit;
        let mut face = Face::new(Stdout::is(), self.name, filtered, self.running.print);
        let (typist, resized) = (OnceLock::new(), Notify::new());
        let left = tokio::select! {
            left = self.show(&mut face, &typist, &resized) => left,
            () = self.heed(signals, &typist, &resized) => Ok(Left::Detached),
        };
        face.leave(matches!(left, Ok(Left::Detached))).await;
        drop(raw);
        match left? {
            Left::Exit(process) => self.running.ending(&process).map(End::Exit),
            Left::Detached => Ok(End::Detached),
        }
    }

    fn options(&self, stdout: Stdout) -> AttachOptions {
        let from = match (self.manner, stdout) {
            (Manner::Ours, _) => Some(0),
            (Manner::Visit, Stdout::Terminal) => None,
            // A picture is nothing to a file: it gets all that is kept.
            (Manner::Visit, Stdout::Stream) => Some(self.running.process.output.start),
        };
        let size = (stdout == Stdout::Terminal).then(terminal::size);
        AttachOptions { from, raw: true, control: self.control, writer: None, size }
    }

    async fn show(&self, face: &mut Face, known: &OnceLock<Typist>, resized: &Notify) -> Result<Left, Failure> {
        let Running { client, sandbox, process, .. } = self.running;
        // Notices are for the screen here.
        let client = client.clone().on_away(|| ());
        let options = self.options(face.kind());
        let process = process.id.as_str();
        let mut attachment = match client.attach(sandbox, process, options.clone()).await {
            // A token that may only look does so without being told to.
            Err(error) if error.code() == Some(Code::Forbidden) && self.control == Control::Free => {
                let look = AttachOptions { control: Control::View, ..options.clone() };
                client.attach(sandbox, process, look).await?
            }
            attached => attached?,
        };
        let typist = known.get_or_init(|| attachment.typist());
        // It may have changed while nobody could be told.
        if options.size.is_some_and(|size| size != terminal::size()) {
            typist.resize(terminal::size());
        }
        let (tell, mut told) = mpsc::channel(16);
        let _typing = self.forward_input.then(|| {
            let (typist, keys, manner) = (typist.clone(), Keys::new(self.keys()), self.manner);
            AbortOnDropHandle::new(tokio::spawn(async move {
                typing::forward(tokio::io::stdin(), keys, &typist, &tell).await;
                if manner == Manner::Ours {
                    // The end of the input, as a terminal knows it; the process may have ended first.
                    let _ = typist.send(&b"\x04"[..]).await;
                }
            }))
        });
        face.begin().await?;
        let mut watch = Watch::new(self, attachment.standing().clone(), options.from.is_none());
        watch.look_again(typist, face);
        loop {
            let left = tokio::select! {
                event = attachment.next() => match event {
                    Some(event) => watch.see(event?, typist, face).await?,
                    None => return Err(Failure::new(exit::SANDBAR, "the output ended without the command's exit")),
                },
                Some(told) = told.recv() => watch.obey(told, typist, face).await?,
                () = time::sleep_until(watch.tells_of_absence()) => {
                    watch.tell_of_absence(face).await?;
                    None
                }
                () = resized.notified() => {
                    watch.fit(typist, face).await?;
                    None
                }
                () = drawing(face.due()) => {
                    face.draw().await?;
                    None
                }
            };
            if let Some(left) = left {
                if matches!(left, Left::Detached) {
                    // What was typed last is on its way; a server that is away must not keep us.
                    let _ = time::timeout(FLUSH, typist.flush()).await;
                }
                return Ok(left);
            }
        }
    }

    /// Only what is typed at a terminal is looked at for commands.
    fn keys(&self) -> Chord {
        if std::io::IsTerminal::is_terminal(&std::io::stdin()) { self.chord.clone() } else { Chord::None }
    }

    /// Returns when a signal ends a visit.
    async fn heed(&self, signals: &mut Signals, typist: &OnceLock<Typist>, resized: &Notify) {
        loop {
            match (signals.next().await, self.manner) {
                (Received::Signal { name, .. }, Manner::Ours) => self.running.signal(name).await,
                (Received::Signal { .. }, Manner::Visit) => return,
                (Received::Resized, _) => {
                    if let (Some(typist), Stdout::Terminal) = (typist.get(), Stdout::is()) {
                        typist.resize(terminal::size());
                        resized.notify_one();
                    }
                }
            }
        }
    }
}

async fn drawing(due: Option<time::Instant>) {
    match due {
        Some(due) => time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}
