//! An entrance that anybody may reach: mutual TLS 1.3. Who the caller is depends on its key alone, so what else its
//! certificate says (names, dates, issuers) means nothing. The guest's own key is made at start and never leaves its
//! memory, and its certificate says nothing. Nobody is remembered: each connection proves itself anew.

use std::{collections::VecDeque, io, net::TcpListener as StdListener, os::fd::OwnedFd, sync::Arc, time::Duration};

use futures_util::stream;
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, ServerConfig, SignatureScheme,
    client::danger::HandshakeSignatureValid,
    crypto::{CryptoProvider, WebPkiSupportedAlgorithms, aws_lc_rs, verify_tls13_signature},
    pki_types::{CertificateDer, PrivatePkcs8KeyDer, UnixTime},
    server::{
        NoServerSessionStorage, ParsedCertificate,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::mpsc,
    task::JoinHandle,
    time::{sleep, timeout},
};
use tokio_rustls::TlsAcceptor;

use crate::entrance::{ACCEPT_PAUSE, Connection};

/// A server on the other side of the world needs a second.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// When so many are at it, the oldest gives way: idlers keep nobody out.
const HANDSHAKES: usize = 128;
/// Connections that wait to be served; more finish their handshake later.
const WAITING: usize = 16;
const PROTOCOL: &[u8] = b"h2";

pub(crate) fn connections(
    listener: OwnedFd,
    server_keys: Vec<Vec<u8>>,
) -> io::Result<impl stream::Stream<Item = io::Result<Connection>> + Send + use<>> {
    let acceptor = TlsAcceptor::from(Arc::new(config(server_keys).map_err(io::Error::other)?));
    let listener = StdListener::from(listener);
    listener.set_nonblocking(true)?;
    let listener = TcpListener::from_std(listener)?;
    let (sender, mut connections) = mpsc::channel(WAITING);
    tokio::spawn(accept(listener, acceptor, sender));
    Ok(stream::poll_fn(move |context| connections.poll_recv(context).map(|next| next.map(Ok))))
}

async fn accept(listener: TcpListener, acceptor: TlsAcceptor, connections: mpsc::Sender<Connection>) {
    let mut handshakes: VecDeque<JoinHandle<()>> = VecDeque::new();
    while !connections.is_closed() {
        let Ok((stream, _)) = listener.accept().await else {
            sleep(ACCEPT_PAUSE).await;
            continue;
        };
        handshakes.retain(|handshake| !handshake.is_finished());
        if handshakes.len() >= HANDSHAKES
            && let Some(oldest) = handshakes.pop_front()
        {
            oldest.abort();
        }
        handshakes.push_back(tokio::spawn(greet(stream, acceptor.clone(), connections.clone())));
    }
}

/// Whoever fails is closed, and nobody is told: strangers come by in every network.
async fn greet(stream: TcpStream, acceptor: TlsAcceptor, connections: mpsc::Sender<Connection>) {
    // Only speed depends on it.
    let _sooner = stream.set_nodelay(true);
    if let Ok(Ok(stream)) = timeout(HANDSHAKE, acceptor.accept(stream)).await
        && stream.get_ref().1.alpn_protocol() == Some(PROTOCOL)
    {
        // Without a receiver the guest has ended.
        let _served = connections.send(Connection::Tls(Box::new(stream))).await;
    }
}

fn config(server_keys: Vec<Vec<u8>>) -> Result<ServerConfig, Box<dyn std::error::Error + Send + Sync>> {
    if server_keys.is_empty() {
        return Err("no key is known that the server could prove to have".into());
    }
    let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519)?;
    let mut parameters = rcgen::CertificateParams::new(Vec::new())?;
    parameters.distinguished_name = rcgen::DistinguishedName::new();
    let certificate = parameters.self_signed(&key)?;
    let provider = Arc::new(aws_lc_rs::default_provider());
    let verifier = Keys::new(server_keys, &provider);
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_client_cert_verifier(Arc::new(verifier))
        .with_single_cert(vec![certificate.der().clone()], PrivatePkcs8KeyDer::from(key.serialize_der()).into())?;
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    // A resumed session would prove nothing.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

/// The callers that are let in.
#[derive(Debug)]
struct Keys {
    keys: Vec<Vec<u8>>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Keys {
    fn new(keys: Vec<Vec<u8>>, provider: &CryptoProvider) -> Self {
        Self { keys, algorithms: provider.signature_verification_algorithms }
    }
}

impl ClientCertVerifier for Keys {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    /// That it has the private part as well is what the signature below says.
    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let shown = ParsedCertificate::try_from(end_entity)?.subject_public_key_info();
        if self.keys.iter().any(|key| key == shown.as_ref()) {
            Ok(ClientCertVerified::assertion())
        } else {
            Err(CertificateError::ApplicationVerificationFailure.into())
        }
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("TLS 1.3 is required".into()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
