//! From standard input to the terminal: keys are typed, commands go to whoever shows the terminal.

use sandbar_api::Code;
use sandbar_client::Typist;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _},
    sync::mpsc,
};

use super::keys::{Command, Keys, Typed};

const PIECE: usize = 64 << 10;

/// What the one who shows the terminal is told.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Told {
    Command(Command),
    /// Keys went nowhere, because somebody else controls the terminal.
    Unheard,
    /// Standard input cannot be read.
    Unreadable(String),
}

/// Until the input ends, or the terminal does.
pub(super) async fn forward(
    mut input: impl AsyncRead + Unpin,
    mut keys: Keys,
    typist: &Typist,
    tell: &mpsc::Sender<Told>,
) {
    loop {
        let mut piece = Vec::with_capacity(PIECE);
        let typed = match input.read_buf(&mut piece).await {
            Ok(0) => keys.finish(),
            Ok(_) => keys.feed(&piece),
            Err(error) => {
                // Whoever shows the terminal may have left.
                let _ = tell.send(Told::Unreadable(error.to_string())).await;
                return;
            }
        };
        let ended = piece.is_empty();
        for one in typed {
            let told = match one {
                Typed::Command(command) => Told::Command(command),
                Typed::Keys(keys) => match typist.send(keys).await {
                    Ok(()) => continue,
                    Err(error) if error.code() == Some(Code::NotController) => Told::Unheard,
                    Err(_) => return,
                },
            };
            if tell.send(told).await.is_err() {
                return;
            }
        }
        if ended {
            return;
        }
    }
}
