//! How requests travel: as with kube's own client, but for its log lines and the word on when a certificate of an exec plugin
//! ends, over connections of ours. Its own wait for the acknowledgement of the TLS handshake before they send the first
//! request, which takes some 40 ms, and go to a proxy of the environment whatever `NO_PROXY` says.

use hyper::Uri;
use hyper::rt::{Read, Write};
use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::proxy::{SocksV5, Tunnel};
use hyper_util::client::legacy::connect::{Connection, HttpConnector};
use hyper_util::rt::TokioExecutor;
use kube::client::ConfigExt;
use kube::client::retry::RetryPolicy;
use kube::{Client, Config};
use tower::retry::RetryLayer;
use tower::{BoxError, Service, ServiceBuilder};

use crate::proxy::Proxy;

/// A client for what is configured.
pub(crate) fn client(config: &Config, proxy: Option<Proxy>) -> Result<Client, kube::Error> {
    let mut direct = HttpConnector::new();
    direct.enforce_http(false);
    direct.set_nodelay(true);
    match proxy {
        None => over(direct, config),
        Some(Proxy::Http { uri, authorization }) => {
            let tunnel = Tunnel::new(uri, direct);
            over(authorization.into_iter().fold(tunnel, Tunnel::with_auth), config)
        }
        Some(Proxy::Socks { uri, login }) => {
            let socks = SocksV5::new(uri, direct);
            over(login.into_iter().fold(socks, |socks, (name, password)| socks.with_auth(name, password)), config)
        }
    }
}

fn over<C>(connector: C, config: &Config) -> Result<Client, kube::Error>
where
    C: Service<Uri> + Clone + Send + Sync + 'static,
    C::Response: Connection + Read + Write + Send + Unpin + 'static,
    C::Future: Send + 'static,
    C::Error: std::error::Error + Send + Sync + 'static,
{
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // Whoever was faster has installed one, which is as good.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    }
    let mut connector = TimeoutConnector::new(config.rustls_https_connector_with_connector(connector)?);
    connector.set_connect_timeout(config.connect_timeout);
    connector.set_read_timeout(config.read_timeout);
    connector.set_write_timeout(config.write_timeout);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.default_retry.then(|| RetryLayer::new(RetryPolicy::server_retry())))
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(legacy::Client::builder(TokioExecutor::new()).build(connector));
    Ok(Client::new(service, config.default_namespace.clone()))
}
