//! Holding a sandbox still and letting it go on: for a person, for idleness, and for a moment.
//!
//! The kernel is changed first and the record afterwards, both ways. A server that ends in between leaves one whose
//! record says what the next start makes true again: `ready` is thawed, `paused` is frozen.

use sandbar_api::{Problem, Sandbox, SandboxState, StateReason};
use sandbar_provider::Error;

use super::{IDLE, Owner, idle, is_put_away, reason};
use crate::{idle::Rest, problem};

pub(crate) fn requested_pause() -> StateReason {
    reason("requested", "It was asked to pause.")
}

impl Owner {
    pub(super) async fn pause(&self, why: StateReason) -> Result<Sandbox, Problem> {
        match self.handle.state() {
            SandboxState::Ready => {}
            SandboxState::Paused => {
                // Once more: the last start of the server may have failed to.
                self.freeze().await.map_err(problem::from_provider)?;
                return self.insist(why).await;
            }
            _ => return Err(problem::wrong_state(&self.handle.record.borrow())),
        }
        self.handle.hold();
        self.handle.settle(self.inner.patience.calls()).await;
        let paused = match self.freeze().await {
            Ok(()) => self.transition(SandboxState::Paused, Some(why)).await,
            Err(error) => Err(problem::from_provider(error)),
        };
        if paused.is_err() {
            // Nothing has changed: it goes on.
            self.thaw().await?;
            self.handle.release();
        }
        paused
    }

    pub(super) async fn resume(&self) -> Result<Sandbox, Problem> {
        match self.handle.state() {
            SandboxState::Ready => return Ok(self.handle.sandbox()),
            SandboxState::Paused => {}
            _ => return Err(problem::wrong_state(&self.handle.record.borrow())),
        }
        self.handle.provider.thaw(&self.handle.id).await.map_err(problem::from_provider)?;
        let resumed = self.inner.store.transition(&self.handle.id, SandboxState::Ready, None).await;
        match resumed {
            Ok(row) => {
                // Released before it is called ready, so that nobody who read `ready` is refused.
                self.handle.release();
                self.publish(row.sandbox.clone());
                Ok(row.sandbox)
            }
            Err(error) => {
                if let Err(error) = self.freeze().await {
                    tracing::error!(sandbox = %self.handle.id, %error, "a sandbox that is called paused runs");
                }
                Err(error.into())
            }
        }
    }

    /// Brings back what idleness put away; what a person put away stays.
    pub(super) async fn wake(&self) -> Result<(), Problem> {
        let (state, put_away) = {
            let sandbox = self.handle.record.borrow();
            (sandbox.state, is_put_away(&sandbox))
        };
        match state {
            // It could not be made to go on, nor could that be recorded.
            SandboxState::Ready if self.handle.is_held() => {
                self.thaw().await?;
                self.handle.release();
                Ok(())
            }
            SandboxState::Ready => Ok(()),
            SandboxState::Paused if put_away => self.resume().await.map(drop),
            SandboxState::Stopped if put_away => {
                self.start(idle("It is being started because it is needed again.")).await.map(drop)
            }
            _ => Err(problem::wrong_state(&self.handle.record.borrow())),
        }
    }

    /// Puts the sandbox away, unless it was used after `seen`.
    pub(super) async fn rest(&self, rest: Rest, seen: i64) -> Result<(), Problem> {
        let open = self.handle.state() == SandboxState::Ready;
        if open {
            // Looked at again when nobody is let in any more, so that whoever was let in has been seen.
            self.handle.hold();
        }
        let rested = match self.handle.activity.last() == seen {
            false => Ok(()),
            true => match rest {
                Rest::Pause => self.pause(idle("Nobody used it.")).await.map(drop),
                Rest::Stop => self.stop(idle("Nobody used it.")).await.map(drop),
                Rest::Delete => self.delete(idle("Nobody used it.")).await,
            },
        };
        if self.handle.state() == SandboxState::Ready {
            self.handle.release();
        }
        rested
    }

    /// What a person asks for outlasts what idleness did.
    pub(super) async fn insist(&self, why: StateReason) -> Result<Sandbox, Problem> {
        let put_away = is_put_away(&self.handle.record.borrow());
        if put_away && why.code != IDLE {
            let row = self.inner.store.restate(&self.handle.id, why).await?;
            self.publish(row.sandbox);
        }
        Ok(self.handle.sandbox())
    }

    pub(crate) async fn freeze(&self) -> Result<(), Error> {
        self.handle.provider.freeze(&self.handle.id).await
    }

    /// Lets a sandbox go on that is called ready. One that cannot is called what it is.
    pub(crate) async fn thaw(&self) -> Result<(), Problem> {
        let error = match self.handle.provider.thaw(&self.handle.id).await {
            // What cannot freeze has nothing to thaw.
            Ok(()) | Err(Error::Declined { .. } | Error::NotEnforceable { .. }) => return Ok(()),
            Err(error) => error,
        };
        tracing::error!(sandbox = %self.handle.id, %error, "a sandbox stands still and cannot be made to go on");
        self.handle.hold();
        let why = reason("thaw_failed", format!("It could not be made to go on: {error}."));
        if self.handle.state() == SandboxState::Ready
            && let Err(problem) = self.transition(SandboxState::Paused, Some(why)).await
        {
            tracing::error!(sandbox = %self.handle.id, %problem, "a sandbox that stands still is called ready");
        }
        Err(problem::from_provider(error))
    }
}
