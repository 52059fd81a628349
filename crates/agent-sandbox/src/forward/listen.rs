//! A local address whose connections end up in a pod.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream, ToSocketAddrs},
    sync::Semaphore,
    task::JoinSet,
    time::sleep,
};
use tokio_util::task::AbortOnDropHandle;

use super::open;
use crate::{
    AgentSandbox,
    pods::{Pods, Target},
};

/// Connections at once; more of them wait to be accepted.
const CONNECTIONS: usize = 64;
/// Who stopped sending may wait for an answer, or be gone; when nothing came for so long it is gone.
const LINGER: Duration = Duration::from_secs(30);
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);
const CHUNK: usize = 64 << 10;

/// A local address that leads to a port of a pod. Dropped, it is closed with all its connections.
pub struct Listening {
    address: SocketAddr,
    _serving: AbortOnDropHandle<()>,
}

impl Listening {
    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }
}

impl AgentSandbox {
    /// Listens at `local` (port 0 takes any free one) and forwards every connection to `port` of the pod. Whoever can connect there
    /// reaches the pod, so a loopback address is meant.
    pub async fn listen(
        &self,
        target: impl Into<Target>,
        local: impl ToSocketAddrs,
        port: u16,
    ) -> io::Result<Listening> {
        let listener = TcpListener::bind(local).await?;
        let address = listener.local_addr()?;
        let serving = tokio::spawn(serve(listener, self.pods(), target.into(), port));
        Ok(Listening { address, _serving: AbortOnDropHandle::new(serving) })
    }
}

async fn serve(listener: TcpListener, pods: Pods, target: Target, port: u16) {
    let (room, shared) = (Arc::new(Semaphore::new(CONNECTIONS)), Arc::new((pods, target)));
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else { return };
        let local = match listener.accept().await {
            Ok((local, _)) => local,
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                sleep(ACCEPT_AGAIN).await;
                continue;
            }
        };
        let shared = Arc::clone(&shared);
        connections.spawn(async move {
            let (pods, target) = &*shared;
            if let Err(error) = forward(local, pods, target, port).await {
                tracing::warn!(pod = target.pod(), port, %error, "a forwarded connection failed");
            }
            drop(permit);
        });
    }
}

async fn forward(local: TcpStream, pods: &Pods, target: &Target, port: u16) -> io::Result<()> {
    let remote = open(pods, target, port).await.map_err(io::Error::other)?;
    let (mut from_pod, mut to_pod) = tokio::io::split(remote);
    let (mut from_local, mut to_local) = local.into_split();
    let mut upload = std::pin::pin!(tokio::io::copy(&mut from_local, &mut to_pod));
    let mut open = true;
    let mut buffer = vec![0; CHUNK];
    loop {
        let read = tokio::select! {
            sent = &mut upload, if open => {
                sent?;
                open = false;
                continue;
            }
            read = from_pod.read(&mut buffer) => read?,
            () = sleep(LINGER), if !open => return Ok(()),
        };
        match buffer.get(..read) {
            Some(bytes) if read > 0 => to_local.write_all(bytes).await?,
            _ => return to_local.shutdown().await,
        }
    }
}
