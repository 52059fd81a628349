//! The gate of a guest that listens for the server: programs inside connect, and the server has their connections.

use std::{io::ErrorKind, time::Duration};

use sandbar_provider::{Carried, Relay};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::TcpStream,
    time::{sleep, timeout},
};

use crate::support::{Outcome, Pod, soon, until};

const MUCH: usize = 10 << 20;
/// Connections that nobody reads, in either direction.
const STALLED: usize = 32;

async fn taken(relay: &mut Relay) -> Outcome<Carried> {
    Ok(soon("a connection", relay.connections.recv()).await?.ok_or("the relay ended")?)
}

/// Both ends of a connection; the program's first byte tells it from others.
async fn pair(pod: &Pod, relay: &mut Relay) -> Outcome<(TcpStream, Carried)> {
    let program = pod.program().await?;
    Ok((program, taken(relay).await?))
}

async fn is_reset(program: &mut TcpStream) -> Outcome {
    let mut rest = Vec::new();
    match soon("its reset", program.read_to_end(&mut rest)).await? {
        Err(error) if error.kind() == ErrorKind::ConnectionReset => Ok(()),
        other => Err(format!("no reset: {other:?}").into()),
    }
}

pub(crate) async fn bytes_and_ends_pass() -> Outcome {
    let pod = Pod::start()?;
    let (mut relay, _) = pod.relay().await?;
    for inside_first in [true, false] {
        let (mut program, mut server) = pair(&pod, &mut relay).await?;
        let mut word = [0; 5];
        program.write_all(b"hello").await?;
        server.read_exact(&mut word).await?;
        assert_eq!(&word, b"hello");
        server.write_all(b"there").await?;
        program.read_exact(&mut word).await?;
        assert_eq!(&word, b"there");
        let mut rest = String::new();
        if inside_first {
            program.shutdown().await?;
            soon("the end from inside", server.read_to_string(&mut rest)).await??;
            server.write_all(b"still heard").await?;
            server.shutdown().await?;
            soon("the end from outside", program.read_to_string(&mut rest)).await??;
        } else {
            server.shutdown().await?;
            soon("the end from outside", program.read_to_string(&mut rest)).await??;
            program.write_all(b"still heard").await?;
            program.shutdown().await?;
            soon("the end from inside", server.read_to_string(&mut rest)).await??;
        }
        assert_eq!(rest, "still heard");
    }
    Ok(())
}

async fn exchange(stream: impl AsyncRead + AsyncWrite, says: u8) -> Outcome<Vec<u8>> {
    let (mut reader, mut writer) = tokio::io::split(stream);
    let mut got = Vec::new();
    let says = vec![says; MUCH];
    let write = async {
        writer.write_all(&says).await?;
        writer.shutdown().await
    };
    tokio::try_join!(write, reader.read_to_end(&mut got))?;
    Ok(got)
}

pub(crate) async fn much_passes_both_ways_at_once() -> Outcome {
    let pod = Pod::start()?;
    let (mut relay, _) = pod.relay().await?;
    let (program, server) = pair(&pod, &mut relay).await?;
    let (inside, outside) = tokio::try_join!(exchange(program, 1), exchange(server, 2))?;
    assert!(inside == vec![2; MUCH] && outside == vec![1; MUCH], "{} and {}", inside.len(), outside.len());
    Ok(())
}

/// Writes until nothing more is taken, and tells how much was.
async fn fill(stream: &mut (impl AsyncWrite + Unpin)) -> usize {
    let chunk = vec![0; 64 * 1024];
    let mut count = 0;
    while let Ok(Ok(written)) = timeout(Duration::from_secs(1), stream.write(&chunk)).await {
        count += written;
    }
    count
}

pub(crate) async fn who_does_not_read_holds_up_nobody() -> Outcome {
    let pod = Pod::start()?;
    let (mut relay, _) = pod.relay().await?;
    let mut stalled = Vec::new();
    for _ in 0..STALLED {
        stalled.push((pod.reader_of_little().await?, taken(&mut relay).await?));
    }
    let fills = stalled.iter_mut().map(|(program, server)| async move { tokio::join!(fill(program), fill(server)) });
    let filled = futures_util::future::join_all(fills).await;
    let held = |(up, down): &(usize, usize)| *up < 16 << 20 && *down < 16 << 20;
    assert!(filled.iter().all(held), "so much is held for who reads nothing: {filled:?}");
    let (program, server) = pair(&pod, &mut relay).await?;
    let both = async { tokio::try_join!(exchange(program, 1), exchange(server, 2)) };
    let (inside, outside) = soon("another passes", both).await??;
    assert_eq!((inside.len(), outside.len()), (MUCH, MUCH));
    Ok(())
}

pub(crate) async fn more_than_are_taken_wait() -> Outcome {
    const MANY: u8 = 40;
    let pod = Pod::start()?;
    let (mut relay, _) = pod.relay().await?;
    let mut programs = Vec::new();
    for number in 0..MANY {
        let mut program = pod.program().await?;
        program.write_all(&[number]).await?;
        programs.push(program);
    }
    let mut heard = Vec::new();
    let mut held = Vec::new();
    for _ in 0..MANY {
        let mut server = taken(&mut relay).await?;
        heard.push(soon("its number", server.read_u8()).await??);
        held.push(server);
    }
    heard.sort_unstable();
    assert_eq!(heard, (0..MANY).collect::<Vec<_>>(), "each once");
    Ok(())
}

pub(crate) async fn what_breaks_off_is_reset() -> Outcome {
    let pod = Pod::start()?;
    let (mut relay, _) = pod.relay().await?;
    let (mut program, server) = pair(&pod, &mut relay).await?;
    drop(server);
    is_reset(&mut program).await?;

    let (program, mut server) = pair(&pod, &mut relay).await?;
    program.set_zero_linger()?;
    drop(program);
    let error = soon("its reset", server.read_u8()).await?.expect_err("nothing was sent");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
    until("writing fails", async || server.write_all(b"x").await.is_err()).await
}

pub(crate) async fn last_bytes_arrive_after_it_was_let_go() -> Outcome {
    let pod = Pod::start()?;
    let (mut relay, _) = pod.relay().await?;
    let (mut program, mut server) = pair(&pod, &mut relay).await?;
    let sent = tokio::spawn(async move {
        server.write_all(&vec![7; MUCH]).await?;
        server.shutdown().await
    });
    let mut got = Vec::new();
    let mut chunk = vec![0; 1 << 20];
    loop {
        let count = soon("more of it", program.read(&mut chunk)).await??;
        if count == 0 {
            break;
        }
        got.extend_from_slice(&chunk[..count]);
        // Slower than it is sent, so that the server is done with it long before.
        sleep(Duration::from_millis(2)).await;
    }
    sent.await??;
    assert_eq!(got.len(), MUCH);
    Ok(())
}

pub(crate) async fn what_nobody_took_is_reset_and_later_ones_wait() -> Outcome {
    let pod = Pod::start()?;
    let (mut relay, _) = pod.relay().await?;
    let mut untaken = pod.program().await?;
    until("it is there to be taken", async || !relay.connections.is_empty()).await?;
    relay.connections.close();
    drop(relay);
    is_reset(&mut untaken).await?;

    // The calls that waited are given up by now or soon: until then one of them may take a connection, and resets it. On a
    // busy machine that may be later than it is looked for here, but not each time.
    for _ in 0..5 {
        let mut late = pod.program().await?;
        while timeout(Duration::from_millis(300), late.read_u8()).await.is_ok() {
            late = pod.program().await?;
        }
        if late.write_all(b"!").await.is_err() {
            continue;
        }
        let (mut relay, _) = pod.relay().await?;
        tokio::select! {
            server = taken(&mut relay) => {
                assert_eq!(server?.read_u8().await?, b'!');
                return Ok(());
            }
            _ = late.read_u8() => {}
        }
    }
    Err("it never waits".into())
}

pub(crate) async fn it_goes_on_after_a_broken_connection() -> Outcome {
    let pod = Pod::start()?;
    let (mut relay, line) = pod.relay().await?;
    let (mut program, mut server) = pair(&pod, &mut relay).await?;
    line.cut();
    is_reset(&mut program).await?;
    assert!(soon("its end", server.read_u8()).await?.is_err());
    let (mut program, mut server) = pair(&pod, &mut relay).await?;
    program.write_all(b"!").await?;
    assert_eq!(server.read_u8().await?, b'!');
    assert_eq!(line.dialled(), 2);
    Ok(())
}
