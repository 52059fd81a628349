//! Whom connections to servers trust: the host's roots, and what the operator added. There is no way to skip verifying.

use std::sync::Arc;

use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, pem::PemObject as _},
};

use crate::GatewayError;

/// What is offered to a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Alpn {
    /// HTTP/2 where the server has it, else HTTP/1.1.
    Any,
    /// HTTP/1.1 alone, for upgrades.
    Http1,
}

/// The two ways to connect over TLS. Both verify by the same roots.
pub(crate) struct Roots {
    any: Arc<ClientConfig>,
    http1: Arc<ClientConfig>,
}

impl Roots {
    pub(crate) fn load(extra: &[u8]) -> Result<Self, GatewayError> {
        let mut store = RootCertStore::empty();
        let host = rustls_native_certs::load_native_certs();
        for error in &host.errors {
            tracing::warn!(%error, "a trusted certificate of the host cannot be read");
        }
        store.add_parsable_certificates(host.certs);
        let mut found = 0_usize;
        for certificate in CertificateDer::pem_slice_iter(extra) {
            let certificate = certificate.map_err(|error| GatewayError::Roots(error.to_string()))?;
            store.add(certificate).map_err(|error| GatewayError::Roots(error.to_string()))?;
            found += 1;
        }
        if found == 0 && !extra.trim_ascii().is_empty() {
            return Err(GatewayError::Roots("there is no PEM certificate in them".into()));
        }
        if store.is_empty() {
            tracing::warn!(
                "no certificate authority is trusted: every server whose TLS is verified here will be refused; \
                 install ca-certificates, or name a file as roots in [network] of gateway.toml"
            );
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut any = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| GatewayError::Roots(error.to_string()))?
            .with_root_certificates(store)
            .with_no_client_auth();
        any.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let mut http1 = any.clone();
        http1.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self { any: Arc::new(any), http1: Arc::new(http1) })
    }

    pub(crate) fn config(&self, alpn: Alpn) -> Arc<ClientConfig> {
        match alpn {
            Alpn::Any => Arc::clone(&self.any),
            Alpn::Http1 => Arc::clone(&self.http1),
        }
    }
}
