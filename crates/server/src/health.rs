//! Whether this very server lives, told to whoever supervises it: also while it stands by, when everything else is passed on
//! to the server that leads. Without TLS and tokens: nothing is told but that it lives.

use std::{io, net::SocketAddr, time::Duration};

use axum::{Json, Router, routing::get};
use hyper_util::server::graceful::GracefulShutdown;
use serde::Serialize;
use tokio::{net::TcpListener, task::JoinSet, time::sleep};
use utoipa::ToSchema;

use crate::{BindError, access::Channel, serve};

pub(crate) const PATH: &str = "/healthz";
/// A supervisor has one at a time.
const MAX_CONNECTIONS: usize = 64;
const BREATH: Duration = Duration::from_millis(100);

/// The answer to it.
#[derive(Serialize, ToSchema)]
pub(crate) struct Health {
    #[schema(example = "ok")]
    pub(crate) status: &'static str,
    pub(crate) version: &'static str,
    /// Where it listens on TCP, if it does; told over the owner's socket alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) url: Option<String>,
}

impl Health {
    pub(crate) fn lives(version: &'static str) -> Self {
        Self { status: "ok", version, url: None }
    }
}

/// An address where nothing else is answered.
pub struct HealthListener {
    listener: TcpListener,
    address: SocketAddr,
}

impl HealthListener {
    pub async fn open(address: SocketAddr) -> Result<Self, BindError> {
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::AddrInUse => BindError::HealthInUse(address),
            _ => BindError::Health { address, source },
        };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Self { listener, address })
    }

    /// With the real port when 0 was asked for.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers for as long as the server runs.
    pub async fn serve(self, version: &'static str) {
        let router = Router::new().route(PATH, get(async move || Json(Health::lives(version))));
        let graceful = GracefulShutdown::new();
        let mut open = JoinSet::new();
        loop {
            tokio::select! {
                Some(ended) = open.join_next() => {
                    if let Err(error) = ended {
                        tracing::error!(%error, "a connection's task failed");
                    }
                }
                accepted = self.listener.accept(), if open.len() < MAX_CONNECTIONS => match accepted {
                    Ok((stream, _)) => {
                        open.spawn(serve::connection(stream, Channel::Tcp, None, router.clone(), graceful.watcher()));
                    }
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept a supervisor's connection");
                        sleep(BREATH).await;
                    }
                },
            }
        }
    }
}
