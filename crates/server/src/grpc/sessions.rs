//! The service `Sessions`.

use sandbar_api::CreateSession;
use sandbar_engine::{SessionOutcome, SessionQuery};
use tonic::{Request, Response, Status};

use super::{
    Desk, caller,
    convert::{self, duration, id, known, process, restart, session, size},
    proto::{
        CreateSessionRequest, DeleteSessionReply, DeleteSessionRequest, GetSessionRequest, ListSessionsReply,
        ListSessionsRequest, Process, RestartSessionRequest, Session, sessions_server::Sessions,
    },
    sandboxes::made,
    status,
};
use crate::routes::sandboxes::idempotency_key;

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl Sessions for Desk {
    async fn create(&self, request: Request<CreateSessionRequest>) -> Answer<Session> {
        let caller = caller(&request)?;
        let (metadata, _, asked) = request.into_parts();
        let key = idempotency_key(metadata.as_ref()).map_err(status::of)?;
        let wanted = CreateSession {
            restart: restart(known(asked.restart, "restart")?),
            name: asked.name,
            template: asked.template,
            labels: asked.labels,
            parent: id(asked.parent)?,
            network: convert::network(asked.network),
            secrets: asked.secrets,
            command: Some(asked.command).filter(|command| !command.is_empty()),
            terminal: asked.terminal.map(size).transpose()?,
            cwd: asked.cwd,
            env: asked.env,
            ttl: duration(asked.ttl)?,
            workspace: convert::workspace_from(asked.workspace),
            limits: convert::limits(asked.limits)?,
            budget: convert::budget(asked.budget),
        };
        let SessionOutcome { session: begun, replayed } =
            self.engine().create_session(&caller, wanted, key).await.map_err(status::of)?;
        Ok(made(session(begun), replayed))
    }

    async fn get(&self, request: Request<GetSessionRequest>) -> Answer<Session> {
        let caller = caller(&request)?;
        let found = self.engine().session(&caller, &request.get_ref().session).await.map_err(status::of)?;
        Ok(Response::new(session(found)))
    }

    async fn list(&self, request: Request<ListSessionsRequest>) -> Answer<ListSessionsReply> {
        let caller = caller(&request)?;
        let ListSessionsRequest { labels, ended, limit, cursor } = request.into_inner();
        let query = SessionQuery { labels, ended, limit, cursor };
        let page = self.engine().sessions(&caller, query).await.map_err(status::of)?;
        let sessions = page.sessions.into_iter().map(session).collect();
        Ok(Response::new(ListSessionsReply { sessions, next_cursor: page.next_cursor }))
    }

    async fn delete(&self, request: Request<DeleteSessionRequest>) -> Answer<DeleteSessionReply> {
        self.engine().delete_session(&request.get_ref().session).await.map_err(status::of)?;
        Ok(Response::new(DeleteSessionReply {}))
    }

    async fn restart(&self, request: Request<RestartSessionRequest>) -> Answer<Process> {
        let RestartSessionRequest { session, process: ran } = request.into_inner();
        let ran = id(ran)?;
        let started = self.engine().restart_session(&session, ran.as_ref()).await.map_err(status::of)?;
        Ok(Response::new(process(started)))
    }
}
