//! A connection from outside to a port inside: dialled on the sandbox's loopback, bytes and the end of either side passed
//! on. Only the server calls here, and only loopback is dialled: nothing inside gets out this way.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use futures_util::{Stream, stream};
use tokio::{
    io::AsyncWriteExt as _,
    net::{
        TcpStream,
        tcp::{ReadHalf, WriteHalf},
    },
    sync::mpsc,
    time::timeout,
};
use tonic::{Status, Streaming};

use crate::{
    error::{Code, Fault},
    protocol::{CHUNK, DialReply, DialRequest, dial_request::Message},
};

/// The kernel answers at once for whoever listens, unless too many wait to be accepted already.
const PATIENCE: Duration = Duration::from_secs(10);
/// Replies that wait to be sent; more wait in the kernel.
pub(crate) const IN_FLIGHT: usize = 1;

pub(crate) type Reply = Result<DialReply, Status>;

/// Returns when the connection is there. `gate` is the port of the sandbox's way out, which acts for the sandbox and for
/// nobody outside.
pub(crate) async fn open(
    mut requests: Streaming<DialRequest>,
    gate: Option<u16>,
) -> Result<impl Stream<Item = Reply> + Send + use<>, Status> {
    let Some(Message::Port(port)) = requests.message().await?.and_then(|first| first.message) else {
        return Err(Fault::new(Code::BadRequest, "The first message must say which port to connect to.").into());
    };
    let port = u16::try_from(port).ok().filter(|port| *port != 0);
    let port = port.ok_or_else(|| Fault::new(Code::BadRequest, "A port is a number from 1 to 65535."))?;
    if gate == Some(port) {
        let message = format!("Port {port} is the sandbox's own way out, for programs inside only.");
        return Err(Fault::new(Code::BadRequest, message).into());
    }
    let stream = connect(port).await?;
    stream.set_nodelay(true).map_err(Fault::internal("prepare a connection"))?;
    let (replies, mut receiver) = mpsc::channel(IN_FLIGHT);
    tokio::spawn(carry(stream, requests, replies));
    Ok(stream::poll_fn(move |context| receiver.poll_recv(context)))
}

async fn connect(port: u16) -> Result<TcpStream, Fault> {
    let first = match reach(Ipv4Addr::LOCALHOST.into(), port).await {
        Ok(stream) => return Ok(stream),
        Err(error) => error,
    };
    // Whether or not there is IPv6 at all, what IPv4 said is the reason.
    if let Ok(stream) = reach(Ipv6Addr::LOCALHOST.into(), port).await {
        return Ok(stream);
    }
    Err(match first.kind() {
        io::ErrorKind::ConnectionRefused => {
            Fault::new(Code::PortClosed, format!("Nothing listens on port {port} in the sandbox."))
        }
        io::ErrorKind::TimedOut => {
            let message = format!("What listens on port {port} in the sandbox accepts no connections.");
            Fault::new(Code::PortClosed, message)
        }
        _ => Fault::internal("connect to a port inside")(first),
    })
}

async fn reach(address: IpAddr, port: u16) -> io::Result<TcpStream> {
    let stream = timeout(PATIENCE, TcpStream::connect(SocketAddr::new(address, port))).await??;
    // Where nobody listens, a socket that happens to have this very port connects to itself.
    if stream.local_addr()? == stream.peer_addr()? {
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    Ok(stream)
}

/// Passes everything on, until both sides have ended or one broke.
pub(crate) async fn carry(mut stream: TcpStream, mut requests: Streaming<DialRequest>, replies: mpsc::Sender<Reply>) {
    let (mut reader, mut writer) = stream.split();
    let both = async {
        let (written, ()) = tokio::try_join!(inwards(&mut requests, &mut writer), outwards(&mut reader, &replies))?;
        written.map_err(Broken::Inside)
    };
    let outcome = tokio::select! {
        outcome = both => outcome,
        () = replies.closed() => Err(Broken::Outside),
    };
    let Err(broken) = outcome else { return };
    // What broke off must not look complete to whoever reads inside: closing now resets the connection.
    let _reset = rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO));
    if let Broken::Inside(error) = broken {
        let status = Status::aborted(format!("the connection inside broke: {error}"));
        let _told = replies.send(Err(status)).await;
    }
}

enum Broken {
    Inside(io::Error),
    Outside,
}

/// Whoever inside takes no more may have said something before, which is still to be read: that does not break it yet.
async fn inwards(requests: &mut Streaming<DialRequest>, writer: &mut WriteHalf<'_>) -> Result<io::Result<()>, Broken> {
    loop {
        let request = requests.message().await.ok().flatten();
        let written = match request.and_then(|request| request.message) {
            Some(Message::Data(data)) => writer.write_all(&data).await,
            Some(Message::End(true)) => return Ok(writer.shutdown().await),
            _ => return Err(Broken::Outside),
        };
        if written.is_err() {
            return Ok(written);
        }
    }
}

async fn outwards(reader: &mut ReadHalf<'_>, replies: &mpsc::Sender<Reply>) -> Result<(), Broken> {
    loop {
        let data = read(reader).await.map_err(Broken::Inside)?;
        let end = data.is_empty();
        replies.send(Ok(DialReply { data, end })).await.map_err(|_| Broken::Outside)?;
        if end {
            return Ok(());
        }
    }
}

/// No buffer is held while there is nothing to read.
async fn read(reader: &ReadHalf<'_>) -> io::Result<Bytes> {
    loop {
        reader.readable().await?;
        let mut data = BytesMut::with_capacity(CHUNK);
        match reader.try_read_buf(&mut data) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            read => return read.map(|_| data.freeze()),
        }
    }
}
