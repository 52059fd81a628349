//! The user's terminal: raw mode that is always undone, its size, and the signals we receive.

use std::{
    io::{self, IsTerminal as _},
    os::fd::AsFd as _,
    sync::{Mutex, PoisonError},
    task::Poll,
};

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use sandbar_api::TerminalSize;
use tokio::signal::unix::{Signal, SignalKind, signal};

const DEFAULT_SIZE: TerminalSize = TerminalSize { cols: 80, rows: 24 };

/// How the terminal was, while it is raw. Global, because a panic must be able to restore it too.
static COOKED: Mutex<Option<Termios>> = Mutex::new(None);

/// Keystrokes go through as they are until this is dropped.
pub(crate) struct Raw(());

impl Raw {
    /// `None` when standard input is no terminal.
    pub(crate) fn enter() -> io::Result<Option<Self>> {
        let stdin = io::stdin();
        if !stdin.is_terminal() {
            return Ok(None);
        }
        let cooked = tcgetattr(stdin.as_fd())?;
        let mut raw = cooked.clone();
        raw.make_raw();
        COOKED.lock().unwrap_or_else(PoisonError::into_inner).replace(cooked);
        tcsetattr(stdin.as_fd(), OptionalActions::Now, &raw)?;
        Ok(Some(Self(())))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        restore();
    }
}

fn restore() {
    // Not blocking: after a panic inside `enter` this thread may hold the lock itself.
    let cooked = match COOKED.try_lock() {
        Ok(mut cooked) => cooked.take(),
        Err(_) => None,
    };
    if let Some(cooked) = cooked {
        // If the terminal is gone there is nothing to restore.
        let _ = tcsetattr(io::stdin().as_fd(), OptionalActions::Drain, &cooked);
    }
}

/// Release builds abort on panic, so no destructor would do it.
pub(crate) fn restore_on_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        restore();
        report(panic);
    }));
}

/// The size of whichever standard stream is a terminal.
pub(crate) fn size() -> TerminalSize {
    let of = |stream: std::os::fd::BorrowedFd<'_>| tcgetwinsize(stream).ok();
    let (stdin, stdout, stderr) = (io::stdin(), io::stdout(), io::stderr());
    [of(stdout.as_fd()), of(stdin.as_fd()), of(stderr.as_fd())]
        .into_iter()
        .flatten()
        .map(|size| TerminalSize { cols: size.ws_col, rows: size.ws_row })
        .find(|size| size.is_usable())
        .unwrap_or(DEFAULT_SIZE)
}

/// Nothing can ever be read from `/dev/null`, so nothing is forwarded from it.
pub(crate) fn stdin_is_null() -> bool {
    let same_device = || {
        let stdin = rustix::fs::fstat(io::stdin().as_fd()).ok()?;
        let null = rustix::fs::stat("/dev/null").ok()?;
        Some(stdin.st_rdev == null.st_rdev && rustix::fs::FileType::from_raw_mode(stdin.st_mode).is_char_device())
    };
    // A closed descriptor gives nothing either.
    same_device().unwrap_or(true)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Received {
    /// For the command.
    Signal {
        name: &'static str,
        number: u8,
    },
    Resized,
}

/// Every signal a user or supervisor sends to a command in front of them.
pub(crate) struct Signals {
    streams: Vec<(Signal, Received)>,
}

impl Signals {
    /// From here on these signals no longer end us.
    pub(crate) fn install() -> io::Result<Self> {
        let forwarded = [
            (SignalKind::interrupt(), "INT", 2),
            (SignalKind::terminate(), "TERM", 15),
            (SignalKind::hangup(), "HUP", 1),
            (SignalKind::quit(), "QUIT", 3),
            (SignalKind::user_defined1(), "USR1", 10),
            (SignalKind::user_defined2(), "USR2", 12),
        ];
        let mut streams = vec![(signal(SignalKind::window_change())?, Received::Resized)];
        for (kind, name, number) in forwarded {
            streams.push((signal(kind)?, Received::Signal { name, number }));
        }
        Ok(Self { streams })
    }

    /// Loses nothing when it is dropped while waiting.
    pub(crate) async fn next(&mut self) -> Received {
        std::future::poll_fn(|cx| {
            for (stream, received) in &mut self.streams {
                if stream.poll_recv(cx).is_ready() {
                    return Poll::Ready(*received);
                }
            }
            Poll::Pending
        })
        .await
    }

    /// The exit code for a signal that came before there was a command to give it to.
    pub(crate) async fn interrupted(&mut self) -> u8 {
        loop {
            if let Received::Signal { number, .. } = self.next().await
                && !matches!(number, 10 | 12)
            {
                return 128 + number;
            }
        }
    }
}
