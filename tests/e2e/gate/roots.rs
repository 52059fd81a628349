//! A certificate authority of the tests' own, which signs for made-up names.

use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivatePkcs8KeyDer},
};

use crate::support::Outcome;

pub(crate) struct Roots {
    pub(crate) pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Roots {
    pub(crate) fn new() -> Outcome<Self> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "the tests' root");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate()?;
        let pem = params.self_signed(&key)?.pem();
        Ok(Self { pem, issuer: Issuer::new(params, key) })
    }

    /// What a server of this name shows; HTTP/2 and 1.1.
    pub(crate) fn server(&self, name: &str) -> Outcome<Arc<ServerConfig>> {
        let mut params = CertificateParams::new([name.to_owned()])?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let key = KeyPair::generate()?;
        let certificate = CertificateDer::from(params.signed_by(&key, &self.issuer)?);
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![certificate], PrivatePkcs8KeyDer::from(key.serialize_der()).into())?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }
}
