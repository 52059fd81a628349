//! Clients inside the sandbox, as far as the gateway can tell.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::{
    HeaderMap, Request, Response,
    body::{Body as HttpBody, Incoming},
    client::conn::{http1, http2},
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, ServerName, pem::PemObject as _},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use crate::egress::world::World;

const PATIENCE: Duration = Duration::from_secs(300);

#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Reply {
    pub(crate) async fn read(response: Response<Incoming>) -> Self {
        let (parts, body) = response.into_parts();
        let body = tokio::time::timeout(PATIENCE, body.collect()).await.expect("in time").expect("a body").to_bytes();
        Self { status: parts.status.as_u16(), headers: parts.headers, body }
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// Writes bytes and reads an answer's head and what came with it.
pub(crate) async fn raw(stream: &mut TcpStream, bytes: &[u8]) -> String {
    stream.write_all(bytes).await.expect("written");
    head(stream).await
}

pub(crate) async fn head(stream: &mut TcpStream) -> String {
    let mut got = Vec::new();
    let read = async {
        let mut buffer = [0; 4096];
        loop {
            let count = stream.read(&mut buffer).await.unwrap_or(0);
            got.extend_from_slice(&buffer[..count]);
            let text = String::from_utf8_lossy(&got);
            let length =
                text.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
            let whole = text.split_once("\r\n\r\n").is_some_and(|(_, body)| body.len() >= length.unwrap_or(0_usize));
            if count == 0 || whole {
                return;
            }
        }
    };
    tokio::time::timeout(PATIENCE, read).await.expect("an answer in time");
    String::from_utf8_lossy(&got).into_owned()
}

impl World {
    pub(crate) async fn dial(&self) -> TcpStream {
        TcpStream::connect(self.proxy).await.expect("the gateway accepts")
    }

    /// What CONNECT is answered with.
    pub(crate) async fn connect_raw(&self, target: &str) -> (TcpStream, String) {
        let mut stream = self.dial().await;
        let answer = raw(&mut stream, format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n").as_bytes()).await;
        (stream, answer)
    }

    /// A tunnel that has to be given.
    pub(crate) async fn connect(&self, target: &str) -> TcpStream {
        let (stream, answer) = self.connect_raw(target).await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        stream
    }

    /// A tunnel with TLS in it, asking for `sni`.
    pub(crate) async fn tls_as(
        &self,
        target: &str,
        sni: &str,
        protocols: &[&str],
    ) -> std::io::Result<TlsStream<TcpStream>> {
        let stream = self.connect(target).await;
        self.greet(stream, sni, protocols).await
    }

    pub(crate) async fn greet(
        &self,
        io: TcpStream,
        sni: &str,
        protocols: &[&str],
    ) -> std::io::Result<TlsStream<TcpStream>> {
        let name = ServerName::try_from(sni.to_owned()).expect("a name");
        TlsConnector::from(self.trusting(protocols)).connect(name, io).await
    }

    pub(crate) async fn tls(&self, host: &str, port: u16, protocols: &[&str]) -> TlsStream<TcpStream> {
        self.tls_as(&format!("{host}:{port}"), host, protocols).await.expect("TLS")
    }

    fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        for pem in [self.authority.certificate_pem(), &crate::egress::server::authority().pem()] {
            roots.add(CertificateDer::from_pem_slice(pem.as_bytes()).expect("PEM")).expect("a root");
        }
        roots
    }

    /// Greets as browsers do, with an encrypted part that is made up.
    pub(crate) fn trusting_with_ech(&self) -> Arc<ClientConfig> {
        let suite = rustls::crypto::aws_lc_rs::hpke::ALL_SUPPORTED_SUITES[0];
        let (key, _) = suite.generate_key_pair().expect("a key");
        let mode = rustls::client::EchMode::Grease(rustls::client::EchGreaseConfig::new(suite, key));
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider).with_ech(mode).expect("ECH");
        Arc::new(config.with_root_certificates(self.roots()).with_no_client_auth())
    }

    fn trusting(&self, protocols: &[&str]) -> Arc<ClientConfig> {
        let mut config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(self.roots())
            .with_no_client_auth();
        config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        Arc::new(config)
    }

    /// HTTP/1.1 through CONNECT and TLS.
    pub(crate) async fn http1<B>(&self, host: &str, port: u16) -> http1::SendRequest<B>
    where
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let stream = self.tls(host, port, &["http/1.1"]).await;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.expect("HTTP/1.1");
        tokio::spawn(connection.with_upgrades());
        sender
    }

    /// HTTP/2 through CONNECT and TLS.
    pub(crate) async fn http2<B>(&self, host: &str, port: u16) -> http2::SendRequest<B>
    where
        B: HttpBody<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let stream = self.tls(host, port, &["h2"]).await;
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
        let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.expect("HTTP/2");
        tokio::spawn(connection);
        sender
    }

    /// One request over HTTP/1.1 through CONNECT and TLS; Host is set.
    pub(crate) async fn get(&self, host: &str, port: u16, path: &str, headers: &[(&str, &str)]) -> Reply {
        self.send(host, port, request("GET", path, headers, "")).await
    }

    pub(crate) async fn send(&self, host: &str, port: u16, mut request: Request<Full<Bytes>>) -> Reply {
        let mut sender = self.http1(host, port).await;
        let authority = if port == 443 { host.to_owned() } else { format!("{host}:{port}") };
        request.headers_mut().insert("host", authority.parse().expect("a header"));
        Reply::read(sender.send_request(request).await.expect("an answer")).await
    }

    /// A plain request in absolute form.
    pub(crate) async fn plain(&self, url: &str, headers: &[(&str, &str)]) -> Reply {
        let mut sender = self.plain_sender().await;
        let host = url.parse::<hyper::Uri>().expect("a URL").authority().expect("a host").to_string();
        let mut request = request("GET", url, headers, "");
        request.headers_mut().insert("host", host.parse().expect("a header"));
        Reply::read(sender.send_request(request).await.expect("an answer")).await
    }

    pub(crate) async fn plain_sender(&self) -> http1::SendRequest<Full<Bytes>> {
        let (sender, connection) = http1::handshake(TokioIo::new(self.dial().await)).await.expect("HTTP/1.1");
        tokio::spawn(connection.with_upgrades());
        sender
    }
}

pub(crate) fn request(method: &str, target: &str, headers: &[(&str, &str)], body: &str) -> Request<Full<Bytes>> {
    let mut request = Request::builder().method(method).uri(target);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(Full::new(Bytes::from(body.to_owned()))).expect("a request")
}

/// Whether the other side is done with us.
pub(crate) async fn ends(stream: &mut (impl tokio::io::AsyncRead + Unpin)) -> bool {
    let mut rest = Vec::new();
    tokio::time::timeout(PATIENCE, stream.read_to_end(&mut rest)).await.is_ok()
}
