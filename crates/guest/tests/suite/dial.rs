//! Connections from outside to a port inside: every byte, both ends, and what breaks.

use std::time::Duration;

use bytes::Bytes;
use sandbar_guest::protocol::{CHUNK, DialReply, DialRequest, dial_request::Message};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::mpsc,
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use crate::support::{Guest, Outcome, Variant, code_of, not_run};

struct Dialled {
    requests: mpsc::Sender<DialRequest>,
    replies: Streaming<DialReply>,
}

async fn dial(guest: &Guest, port: u32) -> Result<Dialled, Status> {
    let (requests, receiver) = mpsc::channel(4);
    requests.try_send(message(Message::Port(port))).map_err(|_| Status::internal("no room"))?;
    let replies = guest.client.clone().dial(ReceiverStream::new(receiver)).await?.into_inner();
    Ok(Dialled { requests, replies })
}

fn message(message: Message) -> DialRequest {
    DialRequest { message: Some(message) }
}

impl Dialled {
    async fn say(&self, data: &[u8]) -> Outcome {
        Ok(self.requests.send(message(Message::Data(Bytes::copy_from_slice(data)))).await?)
    }

    async fn end(&self) -> Outcome {
        Ok(self.requests.send(message(Message::End(true))).await?)
    }

    /// What comes until the other side has ended.
    async fn rest(&mut self) -> Outcome<Vec<u8>> {
        let mut seen = vec![];
        loop {
            let reply = self.replies.message().await?.ok_or("it ended without an end")?;
            assert!(reply.data.len() <= CHUNK);
            seen.extend_from_slice(&reply.data);
            if reply.end {
                return Ok(seen);
            }
        }
    }
}

async fn listen() -> Outcome<(TcpListener, u32)> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let port = listener.local_addr()?.port().into();
    Ok((listener, port))
}

/// Both sides of a connection.
async fn pair(guest: &Guest) -> Outcome<(Dialled, TcpStream)> {
    let (listener, port) = listen().await?;
    let (dialled, accepted) = tokio::join!(dial(guest, port), listener.accept());
    Ok((dialled?, accepted?.0))
}

pub(crate) async fn passes_bytes_and_ends_on(guest: Guest) -> Outcome {
    // Outside ends first, and still hears the answer.
    let (mut dialled, mut inside) = pair(&guest).await?;
    dialled.say(b"question").await?;
    dialled.end().await?;
    let mut heard = String::new();
    inside.read_to_string(&mut heard).await?;
    assert_eq!(heard, "question");
    inside.write_all(b"answer").await?;
    drop(inside);
    assert_eq!(dialled.rest().await?, b"answer");
    assert!(dialled.replies.message().await?.is_none(), "it ends well");

    // Inside ends first, and still hears the rest.
    let (mut dialled, mut inside) = pair(&guest).await?;
    inside.shutdown().await?;
    assert_eq!(dialled.rest().await?, b"");
    dialled.say(b"late").await?;
    dialled.end().await?;
    let mut heard = String::new();
    inside.read_to_string(&mut heard).await?;
    assert_eq!(heard, "late");
    assert!(dialled.replies.message().await?.is_none(), "it ends well");
    Ok(())
}

pub(crate) async fn moves_much_both_ways(guest: Guest) -> Outcome {
    const SIZE: usize = 32 << 20;
    let data: Vec<u8> =
        (0..SIZE / 4).flat_map(|number| (number as u32).wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    let (mut dialled, inside) = pair(&guest).await?;
    let (mut reader, mut writer) = inside.into_split();
    let echo = tokio::spawn(async move {
        tokio::io::copy(&mut reader, &mut writer).await?;
        writer.shutdown().await
    });
    let requests = dialled.requests.clone();
    let sent = data.clone();
    let sending = tokio::spawn(async move {
        for piece in sent.chunks(CHUNK) {
            let piece = message(Message::Data(Bytes::copy_from_slice(piece)));
            requests.send(piece).await.map_err(|error| error.to_string())?;
        }
        requests.send(message(Message::End(true))).await.map_err(|error| error.to_string())
    });
    assert!(dialled.rest().await? == data, "bytes were lost or changed");
    sending.await??;
    echo.await??;
    Ok(())
}

pub(crate) async fn is_held_up_by_whom_does_not_read(guest: Guest) -> Outcome {
    let (dialled, mut inside) = pair(&guest).await?;
    let before = guest.memory("VmRSS:")?;
    let block = vec![7_u8; 1 << 20];
    // Nobody reads outside: windows and buffers fill, and then whoever writes inside waits.
    let mut taken = 0;
    while let Ok(written) = tokio::time::timeout(Duration::from_secs(1), inside.write(&block)).await {
        taken += written?;
        assert!(taken < 64 << 20, "it is kept somewhere");
    }
    assert!(guest.memory("VmRSS:")? < before + (16 << 10), "the guest keeps it");
    drop(dialled);
    Ok(())
}

pub(crate) async fn tells_what_is_closed(guest: Guest) -> Outcome {
    let (listener, port) = listen().await?;
    drop(listener);
    let refused = dial(&guest, port).await;
    let text = refused.as_ref().err().map(|status| status.message().to_owned()).unwrap_or_default();
    assert_eq!(code_of(refused), "port_closed");
    assert_eq!(text, format!("Nothing listens on port {port} in the sandbox."));
    for wrong in [0, 65536, u32::MAX] {
        assert_eq!(code_of(dial(&guest, wrong).await), "bad_request", "{wrong}");
    }
    let (requests, receiver) = mpsc::channel(1);
    requests.send(message(Message::Data(Bytes::new()))).await?;
    assert_eq!(code_of(guest.client.clone().dial(ReceiverStream::new(receiver)).await), "bad_request");
    Ok(())
}

pub(crate) async fn leaves_the_way_out_to_those_inside(open: Guest) -> Outcome {
    let gate = std::net::TcpListener::bind("127.0.0.1:0")?;
    gate.set_nonblocking(true)?;
    let port = gate.local_addr()?.port();
    // The control: to one for whom it is no gate, it is a port like others.
    dial(&open, port.into()).await?;
    gate.accept()?;
    let guest = Guest::start_as(Variant { gate: Some(gate.try_clone()?), ..Variant::default() }).await?;
    assert_eq!(code_of(dial(&guest, port.into()).await), "bad_request");
    assert!(gate.accept().is_err(), "it was reached");
    Ok(())
}

pub(crate) async fn reaches_ipv6(guest: Guest) -> Outcome {
    let Ok(listener) = TcpListener::bind("[::1]:0").await else {
        return not_run("dial::reaches_ipv6", "there is no [::1] here");
    };
    let port = listener.local_addr()?.port();
    let (dialled, accepted) = tokio::join!(dial(&guest, port.into()), listener.accept());
    accepted?.0.write_all(b"six").await?;
    assert_eq!(dialled?.rest().await?, b"six");
    Ok(())
}

pub(crate) async fn resets_what_broke_off(guest: Guest) -> Outcome {
    let (dialled, mut inside) = pair(&guest).await?;
    dialled.say(b"half of it").await?;
    let mut heard = [0; 10];
    inside.read_exact(&mut heard).await?;
    drop(dialled);
    let broken = inside.read(&mut heard).await.map_err(|error| error.kind());
    assert_eq!(broken, Err(std::io::ErrorKind::ConnectionReset), "it would look complete");
    Ok(())
}

pub(crate) async fn says_what_was_said_before_it_broke(guest: Guest) -> Outcome {
    let (mut dialled, mut inside) = pair(&guest).await?;
    dialled.say(b"never read").await?;
    // A look, since readiness alone may be told too early.
    inside.peek(&mut [0]).await?;
    inside.write_all(b"last words").await?;
    let first = dialled.replies.message().await?.ok_or("nothing came")?;
    assert_eq!(first.data, "last words");
    // Closed with something unread, a connection is reset.
    drop(inside);
    let broken = dialled.replies.message().await.map(|reply| reply.map(|reply| reply.end));
    assert_eq!(broken.map_err(|status| status.code()), Err(tonic::Code::Aborted));
    Ok(())
}
