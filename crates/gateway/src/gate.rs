//! One sandbox's gate: what its connections share, and how a decision about one of them is carried out.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use sandbar_policy::{Decision, Effect, Host, Verdict};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::{Answer, Authority, Gateway, Question, Warden, llm, refusal::Refusal, sockets::Share};

pub(crate) struct Gate {
    pub(crate) gateway: Gateway,
    pub(crate) warden: Arc<dyn Warden>,
    pub(crate) authority: Arc<Authority>,
    pub(crate) llm: llm::Desk,
    pub(crate) share: Share,
}

/// A request that was seen.
pub(crate) struct Seen<'r> {
    pub(crate) method: &'r str,
    pub(crate) path: &'r str,
}

impl Gate {
    /// Goes on if the decision allows it, or a person does; until then the client waits.
    pub(crate) async fn carry_out(
        &self,
        decision: &Decision,
        host: &Host,
        port: u16,
        seen: Option<Seen<'_>>,
        pulse: &Pulse,
    ) -> Result<(), Refusal> {
        match decision.effect {
            Effect::Allow => Ok(()),
            Effect::Deny => Err(Refusal::by_rules(&self.warden.name(), host, port, seen.as_ref(), decision)),
            Effect::Ask => {
                let question = Question {
                    host: host.clone(),
                    port,
                    method: seen.as_ref().map(|seen| seen.method.to_owned()),
                    path: seen.as_ref().map(|seen| seen.path.to_owned()),
                    rule: decision.rule.clone().unwrap_or_default(),
                };
                let _parked = pulse.park();
                match self.warden.ask(question).await {
                    Answer::Allow => self.still_allows(host, port, seen.as_ref()),
                    Answer::Deny(reason) => Err(Refusal::by_answer(&self.warden.name(), host, port, &reason)),
                }
            }
        }
    }

    /// A person's answer goes before what asked for it, never before a deny rule that came while it was waited for.
    fn still_allows(&self, host: &Host, port: u16, seen: Option<&Seen<'_>>) -> Result<(), Refusal> {
        let policy = self.warden.policy();
        let now = match seen {
            Some(seen) => policy.request(host, port, seen.method, seen.path),
            None => match policy.connect(host, port) {
                Verdict::Decided(decision) => decision,
                Verdict::Inspect => return Ok(()),
            },
        };
        if now.effect == Effect::Deny && now.rule.is_some() {
            return Err(Refusal::by_rules(&self.warden.name(), host, port, seen, &now));
        }
        Ok(())
    }

    /// Whether a secret of this sandbox may go there.
    pub(crate) fn has_grant(&self, host: &Host) -> bool {
        self.warden.grants().iter().any(|grant| grant.hosts.contains(host))
    }
}

/// Whether a connection lives: bytes that passed, and whether it waits for a person.
#[derive(Default)]
pub(crate) struct Pulse {
    bytes: AtomicU64,
    parked: AtomicUsize,
}

/// While it exists, silence is not idleness.
pub(crate) struct Parked<'p>(&'p Pulse);

impl Drop for Parked<'_> {
    fn drop(&mut self) {
        self.0.bytes.fetch_add(1, Ordering::Relaxed);
        self.0.parked.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Pulse {
    pub(crate) fn park(&self) -> Parked<'_> {
        self.parked.fetch_add(1, Ordering::Relaxed);
        Parked(self)
    }

    pub(crate) fn beat(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Returns when no byte has passed for so long, give or take a quarter.
    pub(crate) async fn stopped(&self, idle: Duration) {
        const LOOKS: u32 = 4;
        let mut seen = self.bytes.load(Ordering::Relaxed);
        let mut silent = 0;
        while silent < LOOKS {
            tokio::time::sleep(idle / LOOKS).await;
            let now = self.bytes.load(Ordering::Relaxed);
            if now != seen || self.parked.load(Ordering::Relaxed) > 0 {
                silent = 0;
                seen = now;
            } else {
                silent += 1;
            }
        }
    }
}

/// A client's connection, felt by its pulse.
pub(crate) struct Felt<S> {
    pub(crate) inner: S,
    pub(crate) pulse: Arc<Pulse>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Felt<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.inner).poll_read(cx, buf);
        self.pulse.beat(buf.filled().len() - before);
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Felt<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.inner).poll_write(cx, bytes);
        if let Poll::Ready(Ok(written)) = &polled {
            self.pulse.beat(*written);
        }
        polled
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.inner).poll_write_vectored(cx, bufs);
        if let Poll::Ready(Ok(written)) = &polled {
            self.pulse.beat(*written);
        }
        polled
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_silence_without_a_question_is_idleness() {
        let pulse = Arc::new(Pulse::default());
        let idle = Duration::from_secs(60);
        let waits = |seconds| tokio::time::timeout(Duration::from_secs(seconds), pulse.stopped(idle));
        waits(61).await.expect("silence is idleness");
        let parked = pulse.park();
        assert!(waits(600).await.is_err(), "a question is out");
        drop(parked);
        let beating = Arc::clone(&pulse);
        let beats = tokio::spawn(async move {
            for _ in 0..10 {
                tokio::time::sleep(Duration::from_secs(30)).await;
                beating.beat(1);
            }
        });
        assert!(waits(320).await.is_err(), "bytes pass");
        beats.await.expect("beats");
        waits(80).await.expect("silence again");
    }
}
