//! Gates that a provider relays: served like those with a listener, for sandboxes that were made and for those claimed.

use std::time::Duration;

use sandbar_api::{Code, CreateSandbox};
use sandbar_provider::{Carried, Gate, Relay};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    sync::mpsc,
    time::timeout,
};

use super::{Bed, Tested, code, owner, soon};

const PORT: u16 = 7228;

/// The next gate of a sandbox of this bed, from inside.
fn relayed(bed: &Bed) -> mpsc::Sender<Carried> {
    let (inside, connections) = mpsc::channel(1);
    bed.provider.gates.lock().expect("a lock").push(Gate::Relay(Relay { port: PORT, connections }));
    inside
}

/// What the gateway says to a program that connects.
async fn ask(inside: &mpsc::Sender<Carried>) -> Result<String, Box<dyn std::error::Error>> {
    let (mut program, carried) = tokio::io::duplex(4096);
    inside.send(Box::new(carried)).await?;
    program.write_all(b"GET / HTTP/1.1\r\nHost: gate\r\nConnection: close\r\n\r\n").await?;
    let mut answer = String::new();
    timeout(Duration::from_secs(300), program.read_to_string(&mut answer)).await??;
    Ok(answer)
}

#[tokio::test]
async fn a_relayed_gate_is_served_until_the_sandbox_stops() -> Tested {
    let bed = Bed::new().await?;
    let inside = relayed(&bed);
    bed.create("a").await?;
    let answer = ask(&inside).await?;
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("way out"), "{answer}");
    assert_eq!(code(bed.engine.dial("a", PORT).await), Some(Code::BadRequest), "nobody outside goes that way");
    bed.engine.stop("a").await?;
    timeout(Duration::from_secs(300), inside.closed()).await?;
    let again = relayed(&bed);
    bed.engine.start("a").await?;
    assert!(ask(&again).await?.contains("way out"));
    Ok(())
}

#[tokio::test]
async fn a_claimed_sandbox_has_its_gate() -> Tested {
    let bed = Bed::new().await?;
    bed.engine.set_pool("default", 1).await?;
    let warm = || async { bed.engine.pools().await.ok()?.into_iter().find(|pool| pool.warm == 1) };
    soon(warm).await?;
    let inside = relayed(&bed);
    let made = bed.engine.create(&owner(), CreateSandbox::default(), None).await?.sandbox;
    assert!(ask(&inside).await?.contains("way out"));
    assert_eq!(code(bed.engine.dial(&made.name, PORT).await), Some(Code::BadRequest));
    Ok(())
}
