//! Connections of programs inside to the gate, which calls of the server carry.

use std::time::Duration;

use bytes::Bytes;
use sandbar_guest::protocol::{
    BindRequest, CHUNK, DialReply, DialRequest, dial_request::Message, guest_client::GuestClient,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    sync::mpsc,
    time::timeout,
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming, transport::Channel};

use super::house::{Identity, Remote};
use crate::support::{Guest, Outcome, code_of, until};

/// For what has to come.
const PATIENCE: Duration = Duration::from_secs(300);

struct Call {
    requests: mpsc::Sender<DialRequest>,
    replies: Streaming<DialReply>,
}

/// Answered when it waits.
async fn call(client: &GuestClient<Channel>) -> Result<Call, Status> {
    let (requests, receiver) = mpsc::channel(4);
    let replies = client.clone().accept(ReceiverStream::new(receiver)).await?.into_inner();
    Ok(Call { requests, replies })
}

fn message(message: Message) -> DialRequest {
    DialRequest { message: Some(message) }
}

impl Call {
    async fn connected(&mut self) -> Outcome {
        let first = timeout(PATIENCE, self.replies.message()).await??.ok_or("it ended")?;
        assert_eq!(first, DialReply::default());
        Ok(())
    }

    async fn say(&self, data: &[u8]) -> Outcome {
        Ok(self.requests.send(message(Message::Data(Bytes::copy_from_slice(data)))).await?)
    }

    async fn end(&self) -> Outcome {
        Ok(self.requests.send(message(Message::End(true))).await?)
    }

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

async fn house() -> Outcome<(Remote, GuestClient<Channel>)> {
    let known = Identity::new()?;
    let remote = Remote::start(&[&known]).await?;
    let mut client = remote.connect(&known).await?;
    client.bind(BindRequest { sandbox_id: "sbx-one".into() }).await?;
    Ok((remote, client))
}

async fn program(remote: &Remote) -> Outcome<TcpStream> {
    Ok(TcpStream::connect(("127.0.0.1", remote.gate)).await?)
}

async fn heard(program: &mut TcpStream) -> Outcome<String> {
    let mut heard = String::new();
    timeout(PATIENCE, program.read_to_string(&mut heard)).await??;
    Ok(heard)
}

pub(crate) async fn passes_bytes_and_ends_on(_: Guest) -> Outcome {
    let (remote, client) = house().await?;
    // The program ends first, and still hears the answer.
    let mut carried = call(&client).await?;
    let mut inside = program(&remote).await?;
    carried.connected().await?;
    inside.write_all(b"question").await?;
    inside.shutdown().await?;
    assert_eq!(carried.rest().await?, b"question");
    carried.say(b"answer").await?;
    carried.end().await?;
    assert_eq!(heard(&mut inside).await?, "answer");
    assert!(carried.replies.message().await?.is_none(), "it ends well");

    // The server ends first, and still hears the rest.
    let mut carried = call(&client).await?;
    let mut inside = program(&remote).await?;
    carried.connected().await?;
    carried.end().await?;
    assert_eq!(heard(&mut inside).await?, "");
    inside.write_all(b"late").await?;
    drop(inside);
    assert_eq!(carried.rest().await?, b"late");
    assert!(carried.replies.message().await?.is_none(), "it ends well");
    Ok(())
}

pub(crate) async fn moves_much_both_ways(_: Guest) -> Outcome {
    const SIZE: usize = 10 << 20;
    let bytes = |seed: u32| -> Vec<u8> {
        (0..SIZE / 4).flat_map(|at| (at as u32 ^ seed).wrapping_mul(2_654_435_761).to_le_bytes()).collect()
    };
    let (out, back) = (bytes(1), bytes(2));
    let (remote, client) = house().await?;
    let mut carried = call(&client).await?;
    let (mut reader, mut writer) = program(&remote).await?.into_split();
    carried.connected().await?;
    let sent = out.clone();
    let writing = tokio::spawn(async move {
        writer.write_all(&sent).await?;
        writer.shutdown().await
    });
    let reading = tokio::spawn(async move {
        let mut seen = Vec::new();
        reader.read_to_end(&mut seen).await.map(|_| seen)
    });
    let (requests, answer) = (carried.requests.clone(), back.clone());
    let answering = tokio::spawn(async move {
        for piece in answer.chunks(CHUNK) {
            let piece = message(Message::Data(Bytes::copy_from_slice(piece)));
            requests.send(piece).await.map_err(|error| error.to_string())?;
        }
        requests.send(message(Message::End(true))).await.map_err(|error| error.to_string())
    });
    assert!(carried.rest().await? == out, "bytes of the program were lost or changed");
    answering.await??;
    assert!(reading.await?? == back, "bytes of the server were lost or changed");
    writing.await??;
    Ok(())
}

pub(crate) async fn each_goes_to_one_call(_: Guest) -> Outcome {
    const MANY: usize = 100;
    let (remote, client) = house().await?;
    // More come than calls wait: those wait for the next call.
    let mut programs = Vec::new();
    for number in 0..MANY {
        let mut program = program(&remote).await?;
        program.write_all(format!("{number}").as_bytes()).await?;
        program.shutdown().await?;
        programs.push(program);
    }
    let calls = (0..4).map(|_| {
        let client = client.clone();
        async move {
            let mut names = Vec::new();
            for _ in 0..MANY / 4 {
                let mut carried = call(&client).await?;
                carried.connected().await?;
                let name = carried.rest().await?;
                carried.say(&name).await?;
                carried.end().await?;
                assert!(carried.replies.message().await?.is_none());
                names.push(String::from_utf8(name)?);
            }
            Outcome::Ok(names)
        }
    });
    let mut seen = Vec::new();
    for names in futures_util::future::join_all(calls).await {
        seen.extend(names?);
    }
    seen.sort_by_key(|name| name.parse().unwrap_or(MANY));
    assert_eq!(seen, (0..MANY).map(|number| number.to_string()).collect::<Vec<_>>());
    for (number, mut program) in programs.into_iter().enumerate() {
        assert_eq!(heard(&mut program).await?, number.to_string());
    }
    Ok(())
}

pub(crate) async fn given_up_calls_take_nothing(_: Guest) -> Outcome {
    let (remote, client) = house().await?;
    for _ in 0..20 {
        // One that is cancelled, one whose sender ends, and one that says something too early.
        drop(call(&client).await?);
        let mut ended = call(&client).await?;
        drop(ended.requests);
        assert!(timeout(PATIENCE, ended.replies.message()).await??.is_none());
        let mut early = call(&client).await?;
        early.requests.send(message(Message::Data(Bytes::from_static(b"x")))).await?;
        let told = timeout(PATIENCE, early.replies.message()).await?;
        assert_eq!(code_of(told), "bad_request");
    }
    let mut waiting = call(&client).await?;
    let mut inside = program(&remote).await?;
    waiting.connected().await?;
    inside.write_all(b"here").await?;
    drop(inside);
    assert_eq!(waiting.rest().await?, b"here");
    Ok(())
}

pub(crate) async fn waits_for_the_next_server(_: Guest) -> Outcome {
    let known = Identity::new()?;
    let remote = Remote::start(&[&known]).await?;
    let descriptors = || std::fs::read_dir(format!("/proc/{}/fd", remote.process.id())).map_or(0, Iterator::count);
    let mut first = remote.connect(&known).await?;
    first.bind(BindRequest { sandbox_id: "sbx-one".into() }).await?;
    let waiting = call(&first).await?;
    let connected = descriptors();
    // The server goes, and programs come while there is none.
    drop((waiting, first));
    until("the guest to notice", || descriptors() < connected).await?;
    let mut inside = program(&remote).await?;
    inside.write_all(b"anybody?").await?;
    inside.shutdown().await?;
    let second = remote.connect(&known).await?;
    let mut carried = call(&second).await?;
    carried.connected().await?;
    assert_eq!(carried.rest().await?, b"anybody?");
    carried.say(b"yes").await?;
    carried.end().await?;
    assert_eq!(heard(&mut inside).await?, "yes");
    Ok(())
}

pub(crate) async fn resets_what_broke_off(_: Guest) -> Outcome {
    let (remote, client) = house().await?;
    let mut carried = call(&client).await?;
    let mut inside = program(&remote).await?;
    carried.connected().await?;
    carried.say(b"half of it").await?;
    let mut half = [0; 10];
    inside.read_exact(&mut half).await?;
    drop(carried);
    let broken = timeout(PATIENCE, inside.read(&mut half)).await?;
    assert_eq!(broken.map_err(|error| error.kind()), Err(std::io::ErrorKind::ConnectionReset));
    // And the other way: what broke inside is told.
    let mut carried = call(&client).await?;
    let inside = program(&remote).await?;
    carried.connected().await?;
    carried.say(b"never read").await?;
    inside.readable().await?;
    drop(inside);
    let told = timeout(PATIENCE, carried.replies.message()).await?;
    assert_eq!(told.map_err(|status| status.code()), Err(tonic::Code::Aborted));
    Ok(())
}

pub(crate) async fn is_not_for_those_outside(_: Guest) -> Outcome {
    let (remote, client) = house().await?;
    let (requests, receiver) = mpsc::channel(1);
    requests.send(message(Message::Port(remote.gate.into()))).await?;
    assert_eq!(code_of(client.clone().dial(ReceiverStream::new(receiver)).await), "bad_request");
    Ok(())
}
