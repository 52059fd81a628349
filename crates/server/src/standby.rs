//! A server that stands by: it holds its address and passes every connection on, as it is, to the server that leads. Bytes
//! only: who calls and what they may do is judged by the one that answers.

use std::{io, time::Duration};

use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{bind::Entrance, slots::Shares};

/// For the leader to take a connection. One that was just lost is followed by another within this.
const PATIENCE: Duration = Duration::from_secs(10);
/// Between two tries to reach a leader that does not answer.
const BREATH: Duration = Duration::from_millis(200);

impl Entrance {
    /// Passes connections on to whoever leads until `done`, which is also told to those that are open.
    pub async fn stand_by(&self, leader: watch::Receiver<Option<String>>, done: CancellationToken) {
        pass(&self.listener, leader, done).await;
    }
}

async fn pass(listener: &TcpListener, leader: watch::Receiver<Option<String>>, done: CancellationToken) {
    let mut open = JoinSet::new();
    // Each has two descriptors. Whose they are is known where they lead.
    let most = Shares::here().all;
    loop {
        tokio::select! {
            () = done.cancelled() => return,
            Some(ended) = open.join_next() => {
                if let Err(error) = ended {
                    tracing::error!(%error, "a connection's task failed");
                }
            }
            accepted = listener.accept(), if open.len() < most => match accepted {
                Ok((stream, _)) => {
                    open.spawn(connection(stream, leader.clone()));
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    sleep(BREATH).await;
                }
            },
        }
    }
}

async fn connection(mut client: TcpStream, leader: watch::Receiver<Option<String>>) {
    match timeout(PATIENCE, reach(leader)).await {
        Ok(mut server) => {
            let nodelay = client.set_nodelay(true).and_then(|()| server.set_nodelay(true));
            let passed = match nodelay {
                Ok(()) => copy_bidirectional(&mut client, &mut server).await.map(drop),
                Err(error) => Err(error),
            };
            if let Err(error) = passed {
                tracing::debug!(%error, "a connection to the leading server ended early");
            }
        }
        // Closed unanswered: a client tries again, and nothing was done on its behalf.
        Err(_) => tracing::warn!("no server leads that could be reached"),
    }
}

/// Whoever leads by the time it answers.
async fn reach(leader: watch::Receiver<Option<String>>) -> TcpStream {
    loop {
        let address = leader.borrow().clone();
        let tried = match address {
            Some(address) => TcpStream::connect(address).await,
            None => Err(io::ErrorKind::NotConnected.into()),
        };
        match tried {
            Ok(stream) => return stream,
            Err(_) => sleep(BREATH).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    /// Says its name to whoever connects, then repeats what it hears.
    async fn server(name: &'static str) -> io::Result<String> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?.to_string();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let (mut read, mut write) = stream.split();
                    write.write_all(name.as_bytes()).await?;
                    tokio::io::copy(&mut read, &mut write).await?;
                    write.shutdown().await
                });
            }
        });
        Ok(address)
    }

    async fn ask(address: std::net::SocketAddr) -> io::Result<String> {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(b"hello").await?;
        stream.shutdown().await?;
        let mut heard = String::new();
        stream.read_to_string(&mut heard).await?;
        Ok(heard)
    }

    #[tokio::test]
    async fn connections_go_to_whoever_leads_and_wait_while_nobody_does() -> io::Result<()> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (tell, leader) = watch::channel(None);
        let done = CancellationToken::new();
        let standing = tokio::spawn({
            let done = done.clone();
            async move {
                pass(&listener, leader, done).await;
                listener
            }
        });
        let early = tokio::spawn(ask(address));
        tell.send_replace(Some(server("one ").await?));
        assert_eq!(early.await??, "one hello");
        tell.send_replace(Some(server("two ").await?));
        assert_eq!(ask(address).await?, "two hello");
        done.cancel();
        let listener = standing.await?;
        // The address stays ours, for the server that leads from now on.
        let (accepted, connected) = tokio::join!(listener.accept(), TcpStream::connect(address));
        accepted.and(connected).map(drop)
    }
}
