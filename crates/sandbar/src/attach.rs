//! Drives a command without a terminal as if it ran here: input, output, signals, exit code. Shared by `run` and `exec`.

use futures_util::StreamExt as _;
use sandbar_api::Stream;
use sandbar_client::OutputItem;

use crate::{
    exit::{self, Failure},
    outlet::Outlet,
    running::{Running, is_over},
    terminal::{Received, Signals},
};

pub(crate) struct Attachment<'a> {
    pub running: Running<'a>,
    pub forward_input: bool,
}

impl Attachment<'_> {
    /// Until the command ends, with its code.
    pub(crate) async fn drive(&self, signals: &mut Signals) -> Result<u8, Failure> {
        let input = self.forward_input.then(|| {
            let Running { client, sandbox, process, print } = self.running;
            let (client, sandbox, process) = (client.clone(), sandbox.to_owned(), process.id.to_string());
            tokio::spawn(async move {
                if let Err(error) = client.forward_stdin(&sandbox, &process, tokio::io::stdin()).await
                    && !is_over(error.code())
                {
                    print.warn(format!("standard input is no longer forwarded: {}", exit::chain(&error)));
                }
            })
        });
        let outcome = tokio::select! {
            outcome = self.pump() => outcome,
            never = self.heed(signals) => match never {},
        };
        if let Some(input) = input {
            input.abort();
        }
        outcome
    }

    async fn pump(&self) -> Result<u8, Failure> {
        let Running { client, sandbox, process, .. } = self.running;
        let mut output = std::pin::pin!(client.output(sandbox, process.id.as_str(), Some(0), true));
        let mut stdout = Outlet::new(tokio::io::stdout());
        let mut stderr = Outlet::new(tokio::io::stderr());
        while let Some(item) = output.next().await {
            let signal = match item? {
                OutputItem::Exit(process) => return self.running.ending(&process),
                OutputItem::Chunk(chunk) => match chunk.stream {
                    Stream::Stdout => stdout.write(&chunk.data).await?,
                    Stream::Stderr => stderr.write(&chunk.data).await?,
                },
            };
            if let Some(name) = signal {
                self.running.signal(name).await;
            }
        }
        Err(Failure::new(exit::SANDBAR, "the output ended without the command's exit"))
    }

    async fn heed(&self, signals: &mut Signals) -> std::convert::Infallible {
        loop {
            if let Received::Signal { name, .. } = signals.next().await {
                self.running.signal(name).await;
            }
        }
    }
}
