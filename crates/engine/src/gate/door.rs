//! Opening a running sandbox's gate: it is taken from the provider, its programs are told whom to trust, and
//! the gateway serves it until the sandbox is closed.

use std::{io, sync::Arc};

use sandbar_api::Problem;
use sandbar_gateway::Entrance;
use sandbar_guest::protocol::TrustRequest;
use sandbar_provider::{Gate, Guest, Provider, Relay};
use tokio::net::TcpListener;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{Known, warden::SandboxWarden};
use crate::{Inner, handle::Handle, problem};

/// Held while a sandbox can be worked in; dropping it ends what goes through the gate.
pub(crate) struct Door {
    pub(crate) port: u16,
    _serving: DropGuard,
}

/// The gate, if this provider has gates.
pub(crate) async fn take(provider: &dyn Provider, id: &sandbar_api::SandboxId) -> Result<Option<Gate>, Problem> {
    match provider.gate(id).await {
        Ok(gate) => Ok(Some(gate)),
        Err(sandbar_provider::Error::Declined { .. }) => Ok(None),
        Err(error) => Err(problem::from_provider(error)),
    }
}

/// Serves the gate from now on.
pub(crate) fn open(inner: &Arc<Inner>, handle: &Arc<Handle>, known: Known, gate: Gate) -> Result<Door, Problem> {
    let unusable = |error: io::Error| {
        tracing::error!(sandbox = %handle.id, %error, "a gate cannot be served");
        Problem::new(sandbar_api::Code::Internal, "The sandbox's gate cannot be served.", "Look at the server's log.")
    };
    let (port, entrance) = entrance(gate).map_err(unusable)?;
    let stop = inner.halt.child_token();
    let warden = Arc::new(SandboxWarden::new(inner, handle, known));
    let gateway = inner.gates.gateway.clone();
    let (authority, until) = (handle.authority.clone(), stop.clone());
    inner.tasks.spawn(async move { gateway.serve(entrance, warden, authority, until).await });
    Ok(Door { port, _serving: CancellationToken::drop_guard(stop) })
}

/// The port at which programs inside find it, and what the gateway serves.
fn entrance(gate: Gate) -> io::Result<(u16, Entrance)> {
    match gate {
        Gate::Listener(listener) => {
            let port = listener.local_addr()?.port();
            Ok((port, TcpListener::from_std(listener)?.into()))
        }
        Gate::Relay(Relay { port, connections }) => {
            Ok((port, Entrance::carried(port, ReceiverStream::new(connections))))
        }
        _ => Err(io::Error::other("there is no way to serve a gate of this kind")),
    }
}

/// Tells programs inside whom to trust: the sandbox's own authority and, since tunnels are theirs to verify, whom the
/// operator trusts beyond the host's roots. An older guest has no gate either, and needs not know.
pub(crate) async fn trust(inner: &Inner, handle: &Handle, mut guest: Guest) -> Result<(), Problem> {
    let loaded = inner.gates.loaded();
    let extra = String::from_utf8_lossy(&loaded.settings.extra_roots);
    let bundle = !extra.is_empty() || inner.intercepts(handle);
    let authority = format!("{}{extra}", handle.authority.certificate_pem());
    match guest.trust(TrustRequest { authority, bundle }).await {
        Ok(_) => Ok(()),
        Err(status) if status.code() == tonic::Code::Unimplemented => Ok(()),
        Err(status) => Err(problem::from_status(&status)),
    }
}

impl Inner {
    /// Whether connections of this sandbox may be looked into, so that its programs must trust its authority.
    fn intercepts(&self, handle: &Handle) -> bool {
        let loaded = self.gates.loaded();
        !handle.rules.secrets().is_empty() || handle.rules.policy(loaded.generation, &loaded.sets).inspects()
    }

    /// After rules or secrets changed: programs that run already find the certificates where they look for them.
    pub(crate) async fn spread_trust(&self, handle: &Handle) -> Result<(), Problem> {
        match handle.guest() {
            Some(guest) => trust(self, handle, guest).await,
            None => Ok(()),
        }
    }
}
