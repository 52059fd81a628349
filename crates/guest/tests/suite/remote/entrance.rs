//! Who is let in: whoever proves to have one of the keys, and nobody else, whatever else comes by.

use std::{sync::Arc, time::Duration};

use sandbar_guest::protocol::HelloRequest;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::{Instant, timeout},
};

use super::house::{Identity, Remote, config, handshake};
use crate::support::{Guest, Outcome};

/// For what has to come.
const SOON: Duration = Duration::from_secs(300);
/// What idlers are given.
const HANDSHAKE: Duration = Duration::from_secs(10);

async fn serves(remote: &Remote, identity: &Identity) -> Outcome {
    let greeted = async { Ok(remote.connect(identity).await?.hello(HelloRequest {}).await?.into_inner()) };
    let told = timeout(SOON, greeted).await.map_err(|_| "it was kept waiting")?;
    told.map(|hello| assert_eq!(hello.protocol, sandbar_guest::protocol::VERSION))
}

pub(crate) async fn opens_for_its_keys(_: Guest) -> Outcome {
    let (first, second) = (Identity::new()?, Identity::with(rcgen::KeyPair::generate()?, |_| {})?);
    let remote = Remote::start(&[&first, &second]).await?;
    serves(&remote, &first).await?;
    serves(&remote, &second).await?;
    // Only the key counts: not when, by whom or for what its certificate was made.
    let expired = first.again(|parameters| {
        parameters.not_before = rcgen::date_time_ymd(1990, 1, 1);
        parameters.not_after = rcgen::date_time_ymd(1991, 1, 1);
    })?;
    serves(&remote, &expired).await?;
    let odd = first.again(|parameters| {
        parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        parameters.distinguished_name.push(rcgen::DnType::CommonName, "somebody else");
        parameters.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::CodeSigning];
    })?;
    serves(&remote, &odd).await
}

/// Whether a call comes through with this; the handshake of TLS 1.3 may seem to succeed before the client is judged.
async fn is_let_in(remote: &Remote, config: rustls::ClientConfig) -> Outcome<bool> {
    let greeted = async {
        let Ok(mut client) = remote.connect_with(config).await else { return false };
        client.hello(HelloRequest {}).await.is_ok()
    };
    Ok(timeout(SOON, greeted).await.map_err(|_| "neither let in nor refused")?)
}

pub(crate) async fn stays_shut_for_others(_: Guest) -> Outcome {
    let (known, stranger) = (Identity::new()?, Identity::new()?);
    let remote = Remote::start(&[&known]).await?;
    let thirteen = &rustls::version::TLS13;
    // The control: the same way of asking, with what it takes.
    assert!(is_let_in(&remote, config(Some(known.certificate.clone()), &known.key, thirteen)?).await?);
    let own = Some(stranger.certificate.clone());
    assert!(!is_let_in(&remote, config(own, &stranger.key, thirteen)?).await?, "a strange key");
    assert!(!is_let_in(&remote, config(None, &known.key, thirteen)?).await?, "no certificate");
    // Certificates are no secrets: whoever shows the right one must have its key too.
    let shown = Some(known.certificate.clone());
    assert!(!is_let_in(&remote, config(shown.clone(), &stranger.key, thirteen)?).await?, "a copied certificate");
    let twelve = config(shown.clone(), &known.key, &rustls::version::TLS12)?;
    assert!(handshake(remote.port, Arc::new(twelve)).await.is_err(), "TLS 1.2");
    let mut other = config(shown, &known.key, thirteen)?;
    other.alpn_protocols = vec![b"http/1.1".to_vec()];
    assert!(handshake(remote.port, Arc::new(other.clone())).await.is_err(), "another protocol");
    other.alpn_protocols.clear();
    assert!(!is_let_in(&remote, other).await?, "no protocol");
    serves(&remote, &known).await
}

pub(crate) async fn tells_strangers_nothing(_: Guest) -> Outcome {
    let known = Identity::new()?;
    let remote = Remote::start(&[&known]).await?;
    let http2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
    for words in [http2, b"GET / HTTP/1.1\r\nHost: guest\r\n\r\n".to_vec(), vec![0; 4096], vec![0x16; 1 << 20]] {
        let mut stream = TcpStream::connect(("127.0.0.1", remote.port)).await?;
        let _written = stream.write_all(&words).await;
        let mut heard = Vec::new();
        // Closed, or reset because we still talk.
        let _end = timeout(SOON, stream.read_to_end(&mut heard)).await?;
        // An alert of TLS has seven bytes.
        assert!(heard.len() <= 7, "{heard:?}");
    }
    serves(&remote, &known).await
}

pub(crate) async fn is_not_used_up_by_idlers(_: Guest) -> Outcome {
    // A busy machine may take as long as idlers are given, but not each time.
    for _ in 0..3 {
        if serves_beside_idlers().await? {
            return Ok(());
        }
    }
    Err("it was kept waiting".into())
}

/// Whether it did before their time was over.
async fn serves_beside_idlers() -> Outcome<bool> {
    let known = Identity::new()?;
    let remote = Remote::start(&[&known]).await?;
    serves(&remote, &known).await?;
    let begin = Instant::now();
    let mut idlers = Vec::new();
    for number in 0..200 {
        let mut idler = TcpStream::connect(("127.0.0.1", remote.port)).await?;
        if number % 2 == 0 {
            // The head of a handshake that never goes on.
            idler.write_all(&[0x16, 0x03, 0x01, 0x02, 0x00, 0x01]).await?;
        }
        idlers.push(idler);
    }
    serves(&remote, &known).await?;
    if begin.elapsed() >= HANDSHAKE {
        return Ok(false);
    }
    let descriptors = std::fs::read_dir(format!("/proc/{}/fd", remote.process.id()))?.count();
    assert!(descriptors < 160, "{descriptors} descriptors");
    // Those that were not pushed out by others are not waited for much longer either.
    let mut last = idlers.pop().ok_or("no idler")?;
    let mut heard = Vec::new();
    let _end = timeout(SOON, last.read_to_end(&mut heard)).await?;
    assert!(begin.elapsed() > HANDSHAKE / 2, "it had no time for a handshake");
    serves(&remote, &known).await?;
    Ok(true)
}

pub(crate) async fn is_never_open_to_all(_: Guest) -> Outcome {
    let mut remote = Remote::start(&[]).await?;
    let ended = tokio::task::spawn_blocking(move || remote.process.wait());
    let status = timeout(SOON, ended).await???;
    assert_eq!(status.code(), Some(1), "it serves without a key");
    Ok(())
}
