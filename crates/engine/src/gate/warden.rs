//! The engine's answers to the gateway about one sandbox.

use std::sync::Arc;

use async_trait::async_trait;
use sandbar_gateway::{
    Answer, Fact, Grant, Held, Question, Refused, Reservation, Reserve, Secret, Settlement, Warden, llm::Catalogue,
};
use sandbar_policy::{Placement, Policy};

use super::{Known, Share};
use crate::{Inner, handle::Handle};

pub(crate) struct SandboxWarden {
    inner: Arc<Inner>,
    handle: Arc<Handle>,
    /// What it may have written down.
    share: Share,
    /// Its session's accounts stay in memory as long as it is asked.
    _known: Known,
}

impl SandboxWarden {
    pub(crate) fn new(inner: &Arc<Inner>, handle: &Arc<Handle>, known: Known) -> Self {
        Self { inner: inner.clone(), handle: handle.clone(), share: Share::default(), _known: known }
    }
}

#[async_trait]
impl Warden for SandboxWarden {
    fn name(&self) -> String {
        self.handle.name()
    }

    fn policy(&self) -> Arc<Policy> {
        self.handle.activity.touch();
        let loaded = self.inner.gates.loaded();
        self.handle.rules.policy(loaded.generation, &loaded.sets)
    }

    fn grants(&self) -> Arc<[Grant]> {
        let gates = &self.inner.gates;
        gates.secrets.grants(&gates.vault, &self.handle.id, &self.handle.rules.secrets()).into()
    }

    fn reveal(&self, name: &str) -> Option<Secret> {
        let granted = self.handle.rules.secrets().iter().any(|granted| granted == name);
        let (secret, _, _) = self.inner.gates.secrets.reveal(&self.inner.gates.vault, name).filter(|_| granted)?;
        Some(secret)
    }

    async fn ask(&self, question: Question) -> Answer {
        // Put away, it would hear the answer only when somebody else needs it.
        let _waiting = self.handle.waiting.token();
        self.inner.gates.approvals.ask(&self.inner, &self.handle, question).await
    }

    fn record(&self, fact: Fact) {
        self.inner.gates.facts.record(&self.handle.id, &self.share, fact);
    }

    fn catalogue(&self) -> Arc<Catalogue> {
        self.inner.gates.loaded().catalogue.clone()
    }

    fn upstream_secret(&self, name: &str) -> Option<(Secret, Placement)> {
        let upstream = self.catalogue().upstreams.get(name).cloned()?;
        let secret = upstream.secret.filter(|_| upstream.tls)?;
        let (value, placement, hosts) = self.inner.gates.secrets.reveal(&self.inner.gates.vault, &secret)?;
        // A key goes to the hosts it was set for, whatever the configuration says.
        hosts.contains(&upstream.host).then_some((value, placement))
    }

    fn model(&self) -> Option<String> {
        self.inner.gates.ledger.model(&self.handle.session())
    }

    fn budget(&self) -> Held {
        self.inner.gates.ledger.budget(&self.handle.session())
    }

    async fn reserve(&self, call: Reserve) -> Result<Reservation, Refused> {
        self.handle.activity.touch();
        self.inner.gates.ledger.reserve(&self.handle.session(), &self.handle.id, call).await
    }

    fn settle(&self, reservation: Reservation, end: Settlement) {
        self.inner.gates.ledger.settle(reservation, end);
    }
}
