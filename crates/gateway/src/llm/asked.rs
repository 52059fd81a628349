//! A request as it came, kept until something is reserved for it: what was planned while no budget held is planned again
//! when one came into force in between.

use bytes::Bytes;
use hyper::HeaderMap;

use super::{
    betas,
    outgoing::Outgoing,
    plan::{self, Plan},
    refusal::Refusal,
    room::Shared,
    route::Endpoint,
};
use crate::{Held, Settings, Warden};

pub(super) struct Asked {
    pub(super) endpoint: Endpoint,
    pub(super) query: Option<String>,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    pub(super) is_large: bool,
}

impl Asked {
    /// As things are now.
    pub(super) async fn plan(
        &self,
        warden: &dyn Warden,
        shared: &Shared,
        settings: &Settings,
    ) -> Result<(Plan, Outgoing), Refusal> {
        let (catalogue, switched, held) = (warden.catalogue(), warden.model(), warden.budget());
        let endpoint = self.endpoint;
        if endpoint != Endpoint::CountTokens {
            betas::check(&self.headers, matches!(held, Held::Budget { priced: true, .. }))?;
        }
        let body = self.body.clone();
        let plan = move || plan::plan(endpoint, body, &catalogue, switched.as_deref(), &held);
        let mut plan = if self.is_large {
            let turn = shared.reader(settings.head_timeout).await?;
            let plan = move || {
                let planned = plan();
                drop(turn);
                planned
            };
            // reading megabytes would hold up everybody else's chunks
            tokio::task::spawn_blocking(plan).await.map_err(|_| Refusal::ending())?
        } else {
            plan()
        }?;
        let body = std::mem::take(&mut plan.body);
        let outgoing = Outgoing::new(endpoint, self.query.as_deref(), &self.headers, &plan.selected, warden, body)
            .map_err(|refusal| refusal.at(&plan.selected.upstream))?;
        Ok((plan, outgoing))
    }

    /// Nothing more is planned.
    pub(super) fn forget(&mut self) {
        self.body = Bytes::new();
        self.headers = HeaderMap::new();
    }
}
