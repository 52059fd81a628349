//! Connecting to a guest over a network: TLS 1.3 with the server's key shown, whatever the bytes travel on. Who the guest is
//! follows from how it was reached; that it stays the same one follows from its key, which it keeps in memory only: one
//! that was started anew or replaced has another.

use std::{
    error::Error as StdError,
    io,
    sync::{Arc, OnceLock},
    time::Duration,
};

use hyper_util::rt::TokioIo;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, SignatureScheme,
    client::{
        Resumption,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime},
    server::ParsedCertificate,
    sign::SingleCertAndKey,
    version::TLS13,
};
use sandbar_api::SandboxId;
use sandbar_guest::protocol::{BindRequest, HelloRequest, guest_client::GuestClient};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tonic::{Code, Status, transport::Endpoint};

use crate::{Guest, identity::Identity};

/// To reach it and to agree on keys.
const CONNECT: Duration = Duration::from_secs(10);
/// A pod that vanished says nothing: it is asked this often, also when nothing is under way, and given as long to answer.
const ALIVE: Duration = Duration::from_secs(10);
/// What a peer may send on a call before it is read.
const CALL: u32 = 1024 * 1024;
/// The same for a program's connection, of which there are many; whatever holds one up holds so much.
const CONNECTION: u32 = 128 * 1024;
/// On all calls together there is no other bound, so that what nobody reads on one of them holds up none.
const ALL: u32 = (1 << 31) - 1;
const HTTP2: &[u8] = b"h2";

/// What a connection to a guest is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Carries {
    Calls,
    /// The connections of programs inside.
    Gate,
}

/// A guest's public key (SubjectPublicKeyInfo in DER), by which it is recognised when it is met again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuestKey(Arc<[u8]>);

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("it cannot be reached: {0}")]
    Unreachable(String),
    #[error("it closed the connection, as it does to a server whose key it was not given when it was made")]
    Closed,
    #[error("another guest answers in its place: it was started anew or replaced")]
    Replaced,
    #[error("it is the guest of {0}")]
    Taken(String),
    #[error("it does not do what it is told: {0}")]
    Refused(String),
}

/// Connects by what `dial` gives, and again by itself when the connection breaks, but never to a guest that has another key
/// than `expected` or, if that is not known yet, than the one that it first met. Tells the key.
///
/// That the guest refuses the server's key shows with the first call; [`bind`] is made to be it.
pub async fn connect<D, F, S>(
    identity: &Identity,
    carries: Carries,
    expected: Option<GuestKey>,
    dial: D,
) -> Result<(Guest, GuestKey), Error>
where
    D: Fn() -> F + Send + Sync + 'static,
    F: Future<Output = io::Result<S>> + Send + 'static,
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let config = Arc::new(config(identity).map_err(|error| Error::Refused(error.to_string()))?);
    let met = Arc::new(expected.map_or_else(OnceLock::new, OnceLock::from));
    let (dial, known) = (Arc::new(dial), Arc::clone(&met));
    let connector = tower::service_fn(move |_: tonic::transport::Uri| {
        let (dial, config, known) = (Arc::clone(&dial), Arc::clone(&config), Arc::clone(&known));
        async move { greet(dial().await?, config, &known).await.map(TokioIo::new) }
    });
    let stream = match carries {
        Carries::Calls => CALL,
        Carries::Gate => CONNECTION,
    };
    let channel = Endpoint::from_static("http://guest")
        .connect_timeout(CONNECT)
        .initial_stream_window_size(stream)
        .initial_connection_window_size(ALL)
        .http2_keep_alive_interval(ALIVE)
        .keep_alive_timeout(ALIVE)
        .keep_alive_while_idle(true)
        .connect_with_connector(connector)
        .await
        .map_err(|error| failure(&error))?;
    let key = met.get().cloned().ok_or_else(|| Error::Unreachable("it showed no key".into()))?;
    Ok((GuestClient::new(channel), key))
}

/// Tells a guest whose sandbox it is in. Fine to repeat; an error if it is another's.
pub async fn bind(guest: &Guest, id: &SandboxId) -> Result<(), Error> {
    let mut guest = guest.clone();
    match guest.bind(BindRequest { sandbox_id: id.to_string() }).await {
        Ok(_) => Ok(()),
        Err(status) if status.code() == Code::FailedPrecondition => {
            let hello = guest.hello(HelloRequest {}).await.map_err(|status| told(&status))?;
            Err(Error::Taken(hello.into_inner().sandbox_id))
        }
        Err(status) => Err(told(&status)),
    }
}

impl Error {
    /// As providers say it.
    pub fn of(self, id: &SandboxId) -> crate::Error {
        crate::Error::Unreachable { id: id.clone(), cause: self.to_string() }
    }
}

async fn greet<S>(stream: S, config: Arc<ClientConfig>, known: &OnceLock<GuestKey>) -> io::Result<TlsStream<S>>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    // Names mean nothing here: none is sent, none is checked.
    let name = ServerName::try_from("guest").map_err(io::Error::other)?;
    let stream = TlsConnector::from(config).connect(name, stream).await?;
    let (_, session) = stream.get_ref();
    if session.alpn_protocol() != Some(HTTP2) {
        return Err(io::Error::other("it does not speak HTTP/2"));
    }
    let shown = session.peer_certificates().and_then(<[_]>::first).ok_or_else(|| io::Error::other("no certificate"))?;
    let shown = ParsedCertificate::try_from(shown).map_err(io::Error::other)?.subject_public_key_info();
    // Only now: that it has the key was proved by the handshake.
    if known.get_or_init(|| GuestKey(shown.as_ref().into())).0.as_ref() == shown.as_ref() {
        Ok(stream)
    } else {
        Err(io::Error::other(Error::Replaced))
    }
}

fn config(identity: &Identity) -> Result<ClientConfig, rustls::Error> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Possession(provider)))
        .with_client_cert_resolver(Arc::new(SingleCertAndKey::from(identity.certified())));
    config.alpn_protocols = vec![HTTP2.to_vec()];
    config.enable_sni = false;
    // Every connection proves both keys.
    config.resumption = Resumption::disabled();
    Ok(config)
}

/// Verifies that the guest has the key of the certificate that it shows, and nothing about the certificate.
#[derive(Debug)]
struct Possession(Arc<CryptoProvider>);

impl ServerCertVerifier for Possession {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        ParsedCertificate::try_from(end_entity).map(|_| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::InvalidCertificate(CertificateError::BadSignature))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// The cause in words, from the outermost error to the one that it began with.
fn failure(error: &(dyn StdError + 'static)) -> Error {
    let chain = std::iter::successors(Some(error), |error| source(*error));
    let mut words: Vec<String> = Vec::new();
    for error in chain {
        if let Some(Error::Replaced) = error.downcast_ref() {
            return Error::Replaced;
        }
        if is_closed(error) {
            return Error::Closed;
        }
        let text = error.to_string();
        // Most wrappers repeat what they wrap.
        if words.last().is_none_or(|last| !last.contains(&text)) {
            words.push(text);
        }
    }
    Error::Unreachable(words.join(": "))
}

/// A refused key ends the connection with an alert, which may be lost with it.
fn is_closed(error: &(dyn StdError + 'static)) -> bool {
    let kind = error.downcast_ref().map(io::Error::kind);
    // An alert that comes after the handshake ends an HTTP/2 connection, which keeps no more of its cause than the text.
    matches!(error.downcast_ref(), Some(rustls::Error::AlertReceived(_)))
        || error.to_string().contains("received fatal alert")
        || matches!(
            kind,
            Some(io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe)
        )
}

/// An I/O error hides the one it was made of behind that one's own source.
fn source<'e>(error: &'e (dyn StdError + 'static)) -> Option<&'e (dyn StdError + 'static)> {
    match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
        Some(inner) => Some(inner),
        None => error.source(),
    }
}

/// What a call failed with; without an answer it is the connection that failed.
fn told(status: &Status) -> Error {
    match status.source() {
        Some(source) => failure(source),
        None if status.code() == Code::Unimplemented => {
            Error::Refused("its version is older than the server's; use a newer image".into())
        }
        None => Error::Refused(status.message().to_owned()),
    }
}
