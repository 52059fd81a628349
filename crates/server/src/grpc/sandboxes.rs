//! The service `Sandboxes`.

use sandbar_api::{CreateSandbox, Fork};
use sandbar_engine::ListQuery;
use tonic::{Request, Response, Status, metadata::MetadataValue};

use super::{
    Desk, caller,
    convert::{self, duration, id, known, sandbox, sandbox_state},
    proto::{
        CreateSandboxRequest, DeleteSandboxReply, DeleteSandboxRequest, ForkSandboxReply, ForkSandboxRequest,
        GetSandboxRequest, ListSandboxesReply, ListSandboxesRequest, PauseSandboxRequest, ResumeSandboxRequest,
        Sandbox, StartSandboxRequest, StopSandboxRequest, sandboxes_server::Sandboxes,
    },
    status,
};
use crate::routes::sandboxes::idempotency_key;

type Answer<T> = Result<Response<T>, Status>;

/// What was made now, or before with the same key.
pub(super) fn made<T>(what: T, replayed: bool) -> Response<T> {
    let mut response = Response::new(what);
    if replayed {
        response.metadata_mut().insert("idempotency-replayed", MetadataValue::from_static("true"));
    }
    response
}

#[tonic::async_trait]
impl Sandboxes for Desk {
    async fn create(&self, request: Request<CreateSandboxRequest>) -> Answer<Sandbox> {
        let caller = caller(&request)?;
        let (metadata, _, asked) = request.into_parts();
        let key = idempotency_key(metadata.as_ref()).map_err(status::of)?;
        let wanted = CreateSandbox {
            name: asked.name,
            template: asked.template,
            labels: asked.labels,
            env: asked.env,
            ttl: duration(asked.ttl)?,
            workspace: convert::workspace_from(asked.workspace),
            from: asked.from_snapshot,
            session: id(asked.session)?,
            parent: id(asked.parent)?,
            network: convert::network(asked.network),
            secrets: asked.secrets,
            limits: convert::limits(asked.limits)?,
            budget: convert::budget(asked.budget),
        };
        let outcome = self.engine().create(&caller, wanted, key).await.map_err(status::of)?;
        Ok(made(sandbox(outcome.sandbox), outcome.replayed))
    }

    async fn get(&self, request: Request<GetSandboxRequest>) -> Answer<Sandbox> {
        let found = self.engine().get(&request.get_ref().sandbox).await.map_err(status::of)?;
        Ok(Response::new(sandbox(found)))
    }

    async fn list(&self, request: Request<ListSandboxesRequest>) -> Answer<ListSandboxesReply> {
        let ListSandboxesRequest { labels, states, limit, cursor } = request.into_inner();
        let state = |state| sandbox_state(known(state, "states")?);
        let states = states.into_iter().map(state).collect::<Result<_, _>>()?;
        let query = ListQuery { labels, states, limit, cursor };
        let page = self.engine().list(query).await.map_err(status::of)?;
        let sandboxes = page.sandboxes.into_iter().map(sandbox).collect();
        Ok(Response::new(ListSandboxesReply { sandboxes, next_cursor: page.next_cursor }))
    }

    async fn delete(&self, request: Request<DeleteSandboxRequest>) -> Answer<DeleteSandboxReply> {
        self.engine().delete(&request.get_ref().sandbox).await.map_err(status::of)?;
        Ok(Response::new(DeleteSandboxReply {}))
    }

    async fn start(&self, request: Request<StartSandboxRequest>) -> Answer<Sandbox> {
        let started = self.engine().start(&request.get_ref().sandbox).await.map_err(status::of)?;
        Ok(Response::new(sandbox(started)))
    }

    async fn stop(&self, request: Request<StopSandboxRequest>) -> Answer<Sandbox> {
        let stopped = self.engine().stop(&request.get_ref().sandbox).await.map_err(status::of)?;
        Ok(Response::new(sandbox(stopped)))
    }

    async fn pause(&self, request: Request<PauseSandboxRequest>) -> Answer<Sandbox> {
        let paused = self.engine().pause(&request.get_ref().sandbox).await.map_err(status::of)?;
        Ok(Response::new(sandbox(paused)))
    }

    async fn resume(&self, request: Request<ResumeSandboxRequest>) -> Answer<Sandbox> {
        let resumed = self.engine().resume(&request.get_ref().sandbox).await.map_err(status::of)?;
        Ok(Response::new(sandbox(resumed)))
    }

    async fn fork(&self, request: Request<ForkSandboxRequest>) -> Answer<ForkSandboxReply> {
        let caller = caller(&request)?;
        let ForkSandboxRequest { sandbox: of, count, name, labels, ttl } = request.into_inner();
        let wanted = Fork { count: count.unwrap_or(1), name, labels, ttl: duration(ttl)? };
        let forks = self.engine().fork(&caller, &of, wanted).await.map_err(status::of)?;
        Ok(Response::new(ForkSandboxReply { sandboxes: forks.into_iter().map(sandbox).collect() }))
    }
}
