//! A server that stands by: it holds its address and passes every connection on, as it is, to the server that leads. Bytes
//! only: who calls and what they may do is judged by the one that answers. But whether it lives it tells by itself, where it
//! can read what it is asked: one that is asked this way must not end because the leader hangs.

use std::{io, time::Duration};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{
    bind::Entrance,
    health::{self, Health},
    slots::Shares,
};

/// For the leader to take a connection. One that was just lost is followed by another within this.
const PATIENCE: Duration = Duration::from_secs(10);
/// Between two tries to reach a leader that does not answer.
const BREATH: Duration = Duration::from_millis(200);

impl Entrance {
    /// Passes connections on to whoever leads until `done`, which is also told to those that are open.
    pub async fn stand_by(
        &self,
        version: &'static str,
        leader: watch::Receiver<Option<String>>,
        done: CancellationToken,
    ) {
        // What is encrypted is for the leader to read.
        let own = self.tls.is_none().then_some(version);
        pass(&self.listener, own, leader, done).await;
    }
}

async fn pass(
    listener: &TcpListener,
    own: Option<&'static str>,
    leader: watch::Receiver<Option<String>>,
    done: CancellationToken,
) {
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
                    open.spawn(connection(stream, own, leader.clone()));
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    sleep(BREATH).await;
                }
            },
        }
    }
}

async fn connection(mut client: TcpStream, own: Option<&'static str>, leader: watch::Receiver<Option<String>>) {
    let mut opening = Vec::new();
    if let Some(version) = own {
        match timeout(PATIENCE, asks_for_health(&mut client, &mut opening)).await {
            Ok(Ok(false)) => {}
            Ok(Ok(true)) => return tell(client, version).await,
            // It said nothing for as long as the leader would have waited, or broke off.
            Ok(Err(_)) | Err(_) => return,
        }
    }
    match timeout(PATIENCE, reach(leader)).await {
        Ok(server) => {
            if let Err(error) = carry(client, server, &opening).await {
                tracing::debug!(%error, "a connection to the leading server ended early");
            }
        }
        // Closed unanswered: a client tries again, and nothing was done on its behalf.
        Err(_) => tracing::warn!("no server leads that could be reached"),
    }
}

async fn carry(mut client: TcpStream, mut server: TcpStream, opening: &[u8]) -> io::Result<()> {
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    server.write_all(opening).await?;
    copy_bidirectional(&mut client, &mut server).await.map(drop)
}

/// Reads no more than it takes to tell. What was read is passed on otherwise.
async fn asks_for_health(client: &mut TcpStream, read: &mut Vec<u8>) -> io::Result<bool> {
    let asked = format!("GET {} HTTP/1.", health::PATH);
    while asked.as_bytes().starts_with(read) && read.len() < asked.len() {
        let left = asked.len() - read.len();
        if (&mut *client).take(left as u64).read_buf(read).await? == 0 {
            return Ok(false);
        }
    }
    Ok(read == asked.as_bytes())
}

/// One answer, after which the connection ends.
async fn tell(mut client: TcpStream, version: &'static str) {
    let told = async {
        let mut end = [0; 4];
        // A connection that is closed with something unread is reset, and the answer could be lost with it.
        while end != *b"\r\n\r\n" {
            let next = client.read_u8().await?;
            end.rotate_left(1);
            end[3] = next;
        }
        let body = serde_json::to_string(&Health::lives(version))?;
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nCache-Control: no-store\r\nContent-Length: {}\r\n\
             Connection: close\r\n\r\n",
            body.len()
        );
        client.write_all((head + &body).as_bytes()).await?;
        client.shutdown().await
    };
    if let Ok(Err(error)) = timeout(PATIENCE, told).await {
        tracing::debug!(%error, "a supervisor's connection ended early");
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
                pass(&listener, Some("test"), leader, done).await;
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

    /// A leader that hangs: it takes connections, as the kernel does for a process that stands still, and never answers.
    #[tokio::test]
    async fn health_is_told_by_who_is_asked_whatever_the_leader_does() -> io::Result<()> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let hangs = TcpListener::bind("127.0.0.1:0").await?;
        let (_tell, leader) = watch::channel(Some(hangs.local_addr()?.to_string()));
        tokio::spawn(async move { pass(&listener, Some("test"), leader, CancellationToken::new()).await });
        let request = "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n";
        // At once, and in pieces.
        for pieces in [vec![request], request.split_inclusive('\n').collect(), vec!["GE", &request[2..]]] {
            let mut stream = TcpStream::connect(address).await?;
            for piece in pieces {
                stream.write_all(piece.as_bytes()).await?;
                stream.flush().await?;
                tokio::task::yield_now().await;
            }
            let mut told = String::new();
            stream.read_to_string(&mut told).await?;
            assert!(told.starts_with("HTTP/1.1 200 OK\r\n"), "{told}");
            assert!(told.ends_with("\r\n\r\n{\"status\":\"ok\",\"version\":\"test\"}"), "{told}");
        }
        // Everything else is the leader's, to the last byte.
        for other in ["GET /healthzz HTTP/1.1\r\n", "GET /readyz HTTP/1.1\r\n", "POST /healthz HTTP/1.1\r\n", "GET /h"]
        {
            let mut stream = TcpStream::connect(address).await?;
            stream.write_all(other.as_bytes()).await?;
            stream.shutdown().await?;
            let (mut leads, _) = hangs.accept().await?;
            let mut passed = String::new();
            leads.read_to_string(&mut passed).await?;
            assert_eq!(passed, other);
        }
        Ok(())
    }
}
