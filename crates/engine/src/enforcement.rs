//! What holds a sandbox: asked of a probe inside it, and remembered for when it stands still.

use std::sync::PoisonError;

use sandbar_api::{Enforcement, Problem, SandboxState};

use crate::{Engine, clock, handle::Handle, problem};

impl Engine {
    pub async fn enforcement(&self, sandbox: &str) -> Result<Enforcement, Problem> {
        let handle = self.inner.handle(sandbox).await?;
        let mut record = handle.record.subscribe();
        if handle.state() == SandboxState::Ready {
            // A probe in a sandbox that is paused meanwhile would stand still with it.
            tokio::select! {
                probed = probe(&handle) => return probed,
                _ = record.wait_for(|sandbox| sandbox.state != SandboxState::Ready) => {}
            }
        }
        let remembered = handle.enforcement.lock().unwrap_or_else(PoisonError::into_inner).clone();
        remembered
            .filter(|_| handle.state() == SandboxState::Paused)
            .ok_or_else(|| problem::wrong_state(&handle.record.borrow()))
    }
}

async fn probe(handle: &Handle) -> Result<Enforcement, Problem> {
    let layers = handle.provider.inspect(&handle.spec()).await.map_err(problem::from_provider)?;
    let enforcement = Enforcement {
        sandbox: handle.id.clone(),
        profile: handle.template.profile.clone(),
        user: handle.template.user.as_str().to_owned(),
        probed_at: clock::now(),
        layers,
    };
    *handle.enforcement.lock().unwrap_or_else(PoisonError::into_inner) = Some(enforcement.clone());
    Ok(enforcement)
}
