//! The gateway: the only way out of a sandbox. An HTTP proxy (CONNECT, absolute form) for whatever the rules allow, and
//! LLM endpoints under `/llm/` that reserve from a budget before a call and settle after it.
//!
//! It decides nothing itself and remembers nothing: `policy` decides, and a [`Warden`] answers for the sandbox that a
//! entrance belongs to. Identity is the entrance: nothing a client sends can choose another sandbox.

mod accept;
mod authority;
mod body;
mod client;
mod connect;
mod dial;
mod error;
mod facts;
mod first;
mod forward;
mod gate;
mod happy_eyeballs;
mod headers;
mod hello;
pub mod llm;
mod local;
mod mask;
mod outbound;
mod pool;
mod proxy;
mod refusal;
mod request_line;
mod resolve;
mod roots;
mod secrets;
mod settings;
mod sockets;
mod stream;
mod terminate;
mod tunnel;
mod warden;

pub use authority::{Authority, BadAuthority};
pub use client::Entrance;
pub use error::GatewayError;
pub use outbound::{Answered, BadTarget, NotPosted, Target};
pub use settings::Settings;
pub use warden::{
    Answer, Direction, Fact, Grant, Held, Outcome, Question, Refused, Reservation, Reserve, Secret, Settlement, Warden,
};

use std::{
    net::SocketAddr,
    sync::{Arc, OnceLock, RwLock},
};

use tokio_util::sync::CancellationToken;

/// Shared by the gates of all sandboxes: resolver, trusted roots, connections' settings. Cheap to clone.
#[derive(Clone)]
pub struct Gateway {
    reach: Arc<RwLock<Arc<dial::Reach>>>,
    llm: llm::Pool,
    /// Where the server itself listens, from the moment that it does.
    own: Arc<OnceLock<SocketAddr>>,
    sockets: sockets::Sockets,
}

impl Gateway {
    /// With as many sockets as the process's limit of descriptors leaves beside everything else.
    pub fn new(settings: Settings) -> Result<Self, GatewayError> {
        Self::bounded(settings, sockets::Sockets::of_process())
    }

    /// With at most so many sockets, to clients and servers of all gates together.
    pub fn with_sockets(settings: Settings, most: usize) -> Result<Self, GatewayError> {
        Self::bounded(settings, sockets::Sockets::new(most))
    }

    fn bounded(settings: Settings, sockets: sockets::Sockets) -> Result<Self, GatewayError> {
        let own = Arc::<OnceLock<SocketAddr>>::default();
        let reach = Arc::new(RwLock::new(Arc::new(dial::Reach::new(settings, &own)?)));
        Ok(Self { reach, llm: llm::Pool::default(), own, sockets })
    }

    /// For the next connection; those that are open stay as they are. What cannot be used changes nothing.
    pub fn configure(&self, settings: Settings) -> Result<(), GatewayError> {
        let reach = Arc::new(dial::Reach::new(settings, &self.own)?);
        *self.reach.write().unwrap_or_else(std::sync::PoisonError::into_inner) = reach;
        Ok(())
    }

    /// The server's own address: no sandbox gets there, whatever its rules and the operator's ranges say. Counts for
    /// connections that are open already, and once.
    pub fn keep_away(&self, own: SocketAddr) {
        let _first = self.own.set(own);
    }

    /// Serves one sandbox until told to stop. Then it accepts nothing more, and ends what is open; LLM calls under way are
    /// still settled.
    pub async fn serve(
        &self,
        entrance: impl Into<Entrance>,
        warden: Arc<dyn Warden>,
        authority: Arc<Authority>,
        stop: CancellationToken,
    ) {
        let reach = self.reach();
        let (llm, share) = (llm::Desk::new(&reach.settings), self.sockets.share(reach.settings.connections));
        drop(reach);
        let gate = gate::Gate { gateway: self.clone(), warden, authority, llm, share };
        accept::serve(Arc::new(gate), entrance.into(), stop).await;
    }
}
