//! Who may pass: those who may act on a sandbox, an agent to a sandbox of its own session, and the holder of a scoped token
//! to the one sandbox it names.

use axum::http::{Extensions, HeaderMap};
use sandbar_api::{Code, Problem, Role};
use sandbar_engine::Caller;

use super::{answer::Refusal, ask::Ask, scoped::Claims};
use crate::{
    App,
    access::{self, Channel},
    slots,
};

pub(super) enum Identity {
    Known(Caller),
    Scoped(Claims),
}

pub(super) async fn identify(app: &App, channel: Channel, headers: &HeaderMap) -> Result<Identity, Refusal> {
    if channel == Channel::Socket {
        return Ok(Identity::Known(access::owner_of_the_socket()));
    }
    let secret = access::bearer(headers).ok_or(Refusal::Unauthenticated)?;
    if let Some(claims) = app.router_key.open(secret) {
        return Ok(Identity::Scoped(claims));
    }
    let known = app.engine.authenticate(secret).await.map_err(|problem| failed(&problem))?;
    known.map(Identity::Known).ok_or(Refusal::Unauthenticated)
}

/// Counts the connection for who holds it.
pub(super) fn count(identity: &Identity, request: &Extensions) -> Result<(), Refusal> {
    let counted = match identity {
        Identity::Known(caller) => slots::claim(request, caller),
        Identity::Scoped(claims) => slots::claim_for(request, &format!("router:{}", claims.name), false),
    };
    counted.map_err(|problem| Refusal::Busy(problem.detail))
}

/// The id of the sandbox that is meant. Who may not pass does not learn whether it is there.
pub(super) async fn admit(app: &App, identity: &Identity, ask: &Ask) -> Result<String, Refusal> {
    let may_aim = match identity {
        Identity::Known(caller) => match caller.role {
            Role::Operator | Role::Admin | Role::Agent => true,
            Role::Viewer => return Err(Refusal::Forbidden),
        },
        Identity::Scoped(claims) if claims.ns != ask.namespace => return Err(Refusal::Forbidden),
        Identity::Scoped(_) => false,
    };
    if ask.aims && !may_aim {
        return Err(Refusal::Forbidden);
    }
    let found = if ask.is_elsewhere() { None } else { find(app, &ask.id).await? };
    let own = match identity {
        Identity::Known(caller) if caller.role == Role::Agent => {
            found.as_ref().is_some_and(|sandbox| caller.session.as_ref() == Some(&sandbox.session))
        }
        Identity::Known(_) => true,
        Identity::Scoped(claims) => {
            claims.name == ask.id || found.as_ref().is_some_and(|sandbox| claims.name == sandbox.id.as_str())
        }
    };
    if !own {
        return Err(Refusal::Forbidden);
    }
    found.map(|sandbox| sandbox.id.to_string()).ok_or_else(|| ask.unreachable())
}

async fn find(app: &App, id: &str) -> Result<Option<sandbar_api::Sandbox>, Refusal> {
    match app.engine.get(id).await {
        Ok(sandbox) => Ok(Some(sandbox)),
        Err(problem) if matches!(problem.code, Code::UnknownSandbox | Code::SandboxGone) => Ok(None),
        Err(problem) => Err(failed(&problem)),
    }
}

fn failed(problem: &Problem) -> Refusal {
    tracing::warn!(code = problem.code.as_str(), detail = problem.detail, "the router failed");
    Refusal::Internal
}
