//! Meeting guests: over their pod's address or through the API server, always with the server's key, and never taking
//! one guest for another.

use std::{
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use sandbar_api::SandboxId;
use sandbar_guest::protocol::HelloRequest;
use sandbar_provider::{
    Error, Guest,
    tls::{self, Carries, GuestKey},
};
use tokio::{net::TcpStream, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::{
    failure,
    kubernetes::{Kubernetes, Shared},
    life::{self, Place},
    objects::GUEST_PORT,
};

/// A container counts as ready when it is started; its guest listens some milliseconds later.
const PATIENCE: Duration = Duration::from_secs(20);
const PAUSE: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(500));

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Address,
    Forward,
}

/// A guest that was met, and is the only one that counts as this sandbox's until it is started again.
#[derive(Clone)]
pub(crate) struct Met {
    pub(crate) place: Place,
    pub(crate) key: GuestKey,
    /// All calls share one connection, which is made again by itself when it breaks.
    pub(crate) guest: Guest,
    /// Another guest was found in its place.
    pub(crate) replaced: CancellationToken,
    /// A connection for its gate that was made ahead, while the guest was at work.
    ahead: Arc<Mutex<Option<Guest>>>,
}

impl Met {
    fn new(place: &Place, key: GuestKey, guest: Guest) -> Self {
        Self { place: place.clone(), key, guest, replaced: CancellationToken::new(), ahead: Arc::default() }
    }

    fn ahead(&self) -> MutexGuard<'_, Option<Guest>> {
        self.ahead.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    pub(crate) async fn dial(
        &self,
        place: &Place,
        carries: Carries,
        expected: Option<GuestKey>,
    ) -> Result<(Guest, GuestKey), tls::Error> {
        match self.way {
            Way::Address => {
                let address = place.address.clone();
                let dial = move || {
                    let address = address.clone();
                    async move {
                        let stream = TcpStream::connect((address.as_str(), GUEST_PORT)).await?;
                        stream.set_nodelay(true)?;
                        Ok(stream)
                    }
                };
                tls::connect(&self.identity, carries, expected, dial).await
            }
            Way::Forward => {
                let (cluster, pod) = (self.cluster.clone(), place.sandbox.clone());
                let dial = move || {
                    let (cluster, pod) = (cluster.clone(), pod.clone());
                    async move { cluster.port_forward(pod, GUEST_PORT).await.map_err(io::Error::other) }
                };
                tls::connect(&self.identity, carries, expected, dial).await
            }
        }
    }

    /// Connects for the gate before anybody asks for it. One that fails is made, and its failure told, when it is asked for.
    pub(crate) async fn connect_ahead(&self, met: &Met) {
        match self.dial(&met.place, Carries::Gate, Some(met.key.clone())).await {
            Ok((guest, _)) => *met.ahead() = Some(guest),
            Err(error) => tracing::debug!(pod = met.place.sandbox, %error, "a gate is not connected to ahead"),
        }
    }

    /// The connection that programs inside talk through.
    pub(crate) async fn connect_gate(&self, met: &Met) -> Result<Guest, tls::Error> {
        let ahead = met.ahead().take();
        match ahead {
            Some(guest) => Ok(guest),
            None => Ok(self.dial(&met.place, Carries::Gate, Some(met.key.clone())).await?.0),
        }
    }
}

impl Kubernetes {
    /// The first meeting: tells the guest whose sandbox it is in.
    pub(crate) async fn meet(&self, id: &SandboxId, place: &Place) -> Result<Met, Error> {
        let deadline = Instant::now() + PATIENCE;
        let mut pause = PAUSE.0;
        let (guest, key) = loop {
            match self.shared.dial(place, Carries::Calls, None).await {
                Ok(met) => break met,
                Err(error) => {
                    let over = life::is_over(self.shared.claims.get(id.as_str()).as_deref(), place);
                    if over || Instant::now() + pause > deadline {
                        return Err(error.of(id));
                    }
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(PAUSE.1);
                }
            }
        };
        tls::bind(&guest, id).await.map_err(|error| error.of(id))?;
        let met = Met::new(place, key, guest);
        self.shared.met().insert(id.clone(), met.clone());
        Ok(met)
    }

    /// Every later one: the same guest, or none. After a restart of the server it is the one that knows whose it is.
    pub(crate) async fn meet_again(&self, id: &SandboxId, place: &Place) -> Result<Met, Error> {
        let known = self.shared.met().get(id).cloned();
        if let Some(met) = known {
            if met.place == *place && !met.replaced.is_cancelled() {
                return Ok(met);
            }
            met.replaced.cancel();
            return Err(replaced(id));
        }
        let (guest, key) = self.shared.dial(place, Carries::Calls, None).await.map_err(|error| error.of(id))?;
        let hello = guest.clone().hello(HelloRequest {}).await;
        let hello = hello.map_err(|status| failure::not_running(id, status.message()))?.into_inner();
        if hello.sandbox_id != id.as_str() {
            return Err(replaced(id));
        }
        let met = Met::new(place, key, guest);
        // Whoever was faster met the same guest, or one of us is wrong about which it is.
        let first = self.shared.met().entry(id.clone()).or_insert(met.clone()).clone();
        if first.key == met.key { Ok(first) } else { Err(replaced(id)) }
    }
}

fn replaced(id: &SandboxId) -> Error {
    failure::not_running(id, "its pod was replaced, and with it all that ran; stop and start it")
}
