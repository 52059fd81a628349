//! Connections of programs inside to the gate, carried outside by calls of the server. One is accepted only while a call
//! waits for it: all others stay in the kernel's backlog, also while there is no server.

use std::{io, net::TcpListener as StdListener, os::fd::OwnedFd, sync::Arc};

use futures_util::{Stream, stream};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::mpsc,
    time::sleep,
};
use tonic::Streaming;

use crate::{
    dial::{self, Reply},
    entrance::ACCEPT_PAUSE,
    error::{Code, Fault},
    protocol::{DialReply, DialRequest},
};

/// Where programs inside that want out connect to.
pub(crate) struct Door(TcpListener);

impl Door {
    pub(crate) fn new(listener: OwnedFd) -> io::Result<Self> {
        let listener = StdListener::from(listener);
        listener.set_nonblocking(true)?;
        Ok(Self(TcpListener::from_std(listener)?))
    }

    async fn accept(&self) -> TcpStream {
        loop {
            match self.0.accept().await {
                Ok((stream, _)) => return stream,
                Err(_) => sleep(ACCEPT_PAUSE).await,
            }
        }
    }
}

/// The replies of one call.
pub(crate) fn next(door: Arc<Door>, requests: Streaming<DialRequest>) -> impl Stream<Item = Reply> + Send + use<> {
    let (replies, mut receiver) = mpsc::channel(dial::IN_FLIGHT);
    tokio::spawn(wait(door, requests, replies));
    stream::poll_fn(move |context| receiver.poll_recv(context))
}

async fn wait(door: Arc<Door>, mut requests: Streaming<DialRequest>, replies: mpsc::Sender<Reply>) {
    let stream = tokio::select! {
        biased;
        () = replies.closed() => return,
        request = requests.message() => {
            // A caller that ends before there is anything to end has given up.
            if let Ok(Some(_)) = request {
                let fault = Fault::new(Code::BadRequest, "Nothing can be said before a program has connected.");
                let _told = replies.send(Err(fault.into())).await;
            }
            return;
        }
        stream = door.accept() => stream,
    };
    // Only speed depends on it.
    let _sooner = stream.set_nodelay(true);
    // A call that broke off just now does not take it, which `carry` finds out as well: the program is told by a reset.
    let _heard = replies.send(Ok(DialReply::default())).await;
    dial::carry(stream, requests, replies).await;
}
