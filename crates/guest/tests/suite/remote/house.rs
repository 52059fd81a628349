//! A guest with an entrance of this kind, and a server's side of it.

use std::{
    fs, io,
    net::TcpListener,
    path::Path,
    process::{Child, Command, Stdio},
    sync::Arc,
};

use hyper_util::rt::TokioIo;
use rcgen::{CertificateParams, KeyPair, PublicKeyData as _};
use rustls::{
    ClientConfig, DigitallySignedStruct, SignatureScheme, SupportedProtocolVersion,
    client::{
        ResolvesClientCert,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, UnixTime},
    sign::CertifiedKey,
};
use sandbar_guest::{Entrance, Gate, Setup, protocol::guest_client::GuestClient};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};
use tonic::transport::{Channel, Endpoint};

use crate::support::{Outcome, until};

const KEYS: &str = "SANDBAR_TEST_GUEST_KEYS";
const PORTS: &str = "SANDBAR_TEST_GUEST_PORTS";

pub(crate) fn is_remote() -> bool {
    std::env::var_os(KEYS).is_some()
}

/// This program as such a guest; tells its ports in a file.
pub(crate) fn be_remote() -> ! {
    let setup = || -> Outcome<Setup> {
        let keys = std::env::var(KEYS)?;
        let server_keys = keys.split(',').filter(|key| !key.is_empty()).map(from_hex).collect();
        let (entrance, gate) = (TcpListener::bind("127.0.0.1:0")?, TcpListener::bind("127.0.0.1:0")?);
        let ports = format!("{} {}", entrance.local_addr()?.port(), gate.local_addr()?.port());
        let file = std::env::var(PORTS)?;
        fs::write(format!("{file}.draft"), ports)?;
        fs::rename(format!("{file}.draft"), file)?;
        Ok(Setup {
            sandbox_id: None,
            version: "0.0.0-test".into(),
            entrance: Some(Entrance::Tls { listener: entrance.into(), server_keys }),
            uid: rustix::process::getuid().as_raw(),
            gid: rustix::process::getgid().as_raw(),
            home: "/".into(),
            user: "test".into(),
            env: [("OF_THE_IMAGE".to_owned(), "yes".to_owned())].into(),
            confine: Box::new(|| Ok(())),
            group: None,
            oom: None,
            gate: Some(Gate::Carried { listener: gate.into() }),
            trust: None,
            runtimes: None,
            ends: true,
        })
    };
    match setup() {
        Ok(setup) => sandbar_guest::run(setup),
        Err(error) => {
            eprintln!("cannot start: {error}");
            std::process::exit(2)
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Vec<u8> {
    (0..text.len() / 2).filter_map(|at| u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok()).collect()
}

pub(crate) struct Remote {
    pub(crate) port: u16,
    pub(crate) gate: u16,
    pub(crate) directory: TempDir,
    pub(crate) process: Child,
}

impl Drop for Remote {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Remote {
    pub(crate) async fn start(keys: &[&Identity]) -> Outcome<Self> {
        Self::start_in(&[], keys).await
    }

    /// As an argument of this.
    pub(crate) async fn start_in(wrapper: &[&str], keys: &[&Identity]) -> Outcome<Self> {
        let directory = tempfile::tempdir()?;
        let file = directory.path().join("ports");
        let own = std::env::current_exe()?;
        let mut command = match wrapper {
            [] => Command::new(own),
            [first, rest @ ..] => {
                let mut command = Command::new(first);
                command.args(rest).arg(own);
                command
            }
        };
        let keys: Vec<String> = keys.iter().map(|key| hex(&key.key.subject_public_key_info())).collect();
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.env(KEYS, keys.join(",")).env(PORTS, &file);
        let process = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn()?;
        // Dropped on every way out.
        let mut remote = Self { port: 0, gate: 0, directory, process };
        until("its ports", || file.exists()).await?;
        let text = fs::read_to_string(&file)?;
        let (port, gate) = text.split_once(' ').ok_or("no ports")?;
        (remote.port, remote.gate) = (port.parse()?, gate.parse()?);
        Ok(remote)
    }

    pub(crate) async fn connect(&self, identity: &Identity) -> Outcome<GuestClient<Channel>> {
        self.connect_with(identity.config()?).await
    }

    pub(crate) async fn connect_with(&self, config: ClientConfig) -> Outcome<GuestClient<Channel>> {
        let (port, config) = (self.port, Arc::new(config));
        let connector = tower::service_fn(move |_: axum::http::Uri| {
            let config = Arc::clone(&config);
            async move { Ok::<_, io::Error>(TokioIo::new(handshake(port, config).await?)) }
        });
        let endpoint = Endpoint::from_static("http://guest").initial_connection_window_size(1 << 20);
        Ok(GuestClient::new(endpoint.connect_with_connector(connector).await?))
    }

    pub(crate) fn path(&self, name: &str) -> std::path::PathBuf {
        Path::new(self.directory.path()).join(name)
    }
}

pub(crate) async fn handshake(port: u16, config: Arc<ClientConfig>) -> io::Result<TlsStream<TcpStream>> {
    let stream = TcpStream::connect(("127.0.0.1", port)).await?;
    let name = ServerName::try_from("guest").map_err(io::Error::other)?;
    TlsConnector::from(config).connect(name, stream).await
}

/// Who somebody is: a key and what a certificate says about it.
pub(crate) struct Identity {
    pub(crate) key: KeyPair,
    pub(crate) certificate: CertificateDer<'static>,
}

impl Identity {
    pub(crate) fn new() -> Outcome<Self> {
        Self::with(KeyPair::generate_for(&rcgen::PKCS_ED25519)?, |_| {})
    }

    pub(crate) fn with(key: KeyPair, change: impl FnOnce(&mut CertificateParams)) -> Outcome<Self> {
        let mut parameters = CertificateParams::new(Vec::new())?;
        change(&mut parameters);
        let certificate = parameters.self_signed(&key)?.der().clone();
        Ok(Self { key, certificate })
    }

    pub(crate) fn config(&self) -> Outcome<ClientConfig> {
        config(Some(self.certificate.clone()), &self.key, &rustls::version::TLS13)
    }

    /// The same key in another certificate.
    pub(crate) fn again(&self, change: impl FnOnce(&mut CertificateParams)) -> Outcome<Self> {
        Self::with(KeyPair::try_from(self.key.serialize_der())?, change)
    }
}

/// Shows a certificate, if there is one, and signs with the key, whether or not it is that certificate's.
pub(crate) fn config(
    certificate: Option<CertificateDer<'static>>,
    key: &KeyPair,
    version: &'static SupportedProtocolVersion,
) -> Outcome<ClientConfig> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let key = provider.key_provider.load_private_key(PrivatePkcs8KeyDer::from(key.serialize_der()).into())?;
    let shown = certificate.map(|certificate| Arc::new(CertifiedKey::new(vec![certificate], key)));
    let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(&[version])?;
    let builder = builder.dangerous().with_custom_certificate_verifier(Arc::new(Anybody));
    let mut config = builder.with_client_cert_resolver(Arc::new(Shown(shown)));
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}

#[derive(Debug)]
struct Shown(Option<Arc<CertifiedKey>>);

impl ResolvesClientCert for Shown {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.0.clone()
    }

    fn has_certs(&self) -> bool {
        self.0.is_some()
    }
}

/// Whoever it is, the signature must be right.
#[derive(Debug)]
struct Anybody;

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = aws_lc_rs::default_provider().signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signed, &algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = aws_lc_rs::default_provider().signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signed, &algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        aws_lc_rs::default_provider().signature_verification_algorithms.supported_schemes()
    }
}
