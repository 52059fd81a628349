//! A sandbox's own certificate authority: mints the certificates that terminated connections show. Its key never leaves
//! the server, and no other sandbox trusts it.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, SanType, SerialNumber,
};
use rustls::{
    RootCertStore, ServerConfig,
    pki_types::{CertificateDer, PrivatePkcs8KeyDer, pem::PemObject as _},
};
use sandbar_policy::Host;
use time::OffsetDateTime;
use zeroize::Zeroizing;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);
/// Configurations kept for hosts that were terminated; beyond that all are made anew.
const KEPT: usize = 256;
/// What a subject begins with; the sandbox follows.
const SUBJECT: &str = "Sandbar ";
/// A common name has at most 64 characters.
const SUBJECT_ROOM: usize = 64 - SUBJECT.len();

#[derive(Debug, thiserror::Error)]
#[error("the certificate authority cannot be {verb}: {cause}")]
pub struct BadAuthority {
    pub verb: &'static str,
    pub cause: String,
}

pub struct Authority {
    certificate_pem: String,
    issuer: Issuer<'static, KeyPair>,
    minted: Mutex<HashMap<Host, (SystemTime, Arc<ServerConfig>)>>,
}

impl Authority {
    /// A new one, P-256, whose subject names the sandbox; valid for ten years (a sandbox's clock may differ).
    pub fn generate(sandbox: &str) -> Result<Self, BadAuthority> {
        let sandbox: String = sandbox.chars().filter(char::is_ascii_graphic).take(SUBJECT_ROOM).collect();
        let failed = |error: rcgen::Error| BadAuthority { verb: "made", cause: error.to_string() };
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(failed)?;
        let mut params = params(&sandbox);
        params.serial_number = Some(serial().map_err(|cause| BadAuthority { verb: "made", cause })?);
        (params.not_before, params.not_after) = validity(SystemTime::now(), YEAR * 10);
        let certificate_pem = params.self_signed(&key).map_err(failed)?.pem();
        Ok(Self { certificate_pem, issuer: Issuer::new(params, key), minted: Mutex::default() })
    }

    /// As it was stored.
    pub fn restore(certificate_pem: &str, key_pkcs8: &[u8]) -> Result<Self, BadAuthority> {
        let failed = |cause: String| BadAuthority { verb: "restored", cause };
        let der =
            CertificateDer::from_pem_slice(certificate_pem.as_bytes()).map_err(|error| failed(error.to_string()))?;
        let mut store = RootCertStore::empty();
        store.add(der).map_err(|error| failed(error.to_string()))?;
        let anchor = store.roots.first().ok_or_else(|| failed("there is no certificate".into()))?;
        let sandbox = common_name(&anchor.subject)
            .and_then(|name| name.strip_prefix(SUBJECT))
            .ok_or_else(|| failed("its certificate was not made here".into()))?
            .to_owned();
        let key = PrivatePkcs8KeyDer::from(key_pkcs8);
        let key = KeyPair::from_pkcs8_der_and_sign_algo(&key, &PKCS_ECDSA_P256_SHA256)
            .map_err(|error| failed(error.to_string()))?;
        if !anchor.subject_public_key_info.ends_with(key.public_key_raw()) {
            return Err(failed("its key belongs to another certificate".into()));
        }
        let issuer = Issuer::new(params(&sandbox), key);
        Ok(Self { certificate_pem: certificate_pem.to_owned(), issuer, minted: Mutex::default() })
    }

    pub fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }

    /// PKCS #8, to be sealed and stored.
    pub fn key_pkcs8(&self) -> Zeroizing<Vec<u8>> {
        Zeroizing::new(self.issuer.key().serialized_der().to_vec())
    }

    /// To terminate connections to exactly this host; kept for a day.
    pub(crate) fn server(&self, host: &Host) -> Result<Arc<ServerConfig>, BadAuthority> {
        let now = SystemTime::now();
        let mut minted = self.minted.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((when, config)) = minted.get(host)
            && now.duration_since(*when).is_ok_and(|age| age < DAY)
        {
            return Ok(Arc::clone(config));
        }
        let config = Arc::new(self.mint(host, now).map_err(|cause| BadAuthority { verb: "used", cause })?);
        if minted.len() >= KEPT {
            minted.clear();
        }
        minted.insert(host.clone(), (now, Arc::clone(&config)));
        Ok(config)
    }

    fn mint(&self, host: &Host, now: SystemTime) -> Result<ServerConfig, String> {
        let text = |error: rcgen::Error| error.to_string();
        let mut params = CertificateParams::default();
        params.distinguished_name = named("Sandbar");
        params.subject_alt_names = vec![match host {
            Host::Name(name) => SanType::DnsName(name.as_str().try_into().map_err(text)?),
            Host::Ip(ip) => SanType::IpAddress(*ip),
        }];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        params.serial_number = Some(serial()?);
        (params.not_before, params.not_after) = validity(now, YEAR);
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(text)?;
        let leaf = params.signed_by(&key, &self.issuer).map_err(text)?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_no_client_auth()
            .with_single_cert(vec![leaf.der().clone()], PrivatePkcs8KeyDer::from(key.serialize_der()).into())
            .map_err(|error| error.to_string())?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        // a resumed session would cost memory per client and save a signature
        config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(config)
    }
}

fn named(name: &str) -> DistinguishedName {
    let mut subject = DistinguishedName::new();
    subject.push(DnType::CommonName, name);
    subject
}

/// Everything of the authority's certificate that its leafs depend on.
fn params(sandbox: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = named(&format!("{SUBJECT}{sandbox}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

/// Back-dated by a day, for clocks that run late.
fn validity(now: SystemTime, length: Duration) -> (OffsetDateTime, OffsetDateTime) {
    let at = |time: SystemTime| {
        let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        OffsetDateTime::from_unix_timestamp(i64::try_from(seconds).unwrap_or(0)).unwrap_or(OffsetDateTime::UNIX_EPOCH)
    };
    (at(now - DAY), at(now + length))
}

/// Random, because clients refuse two certificates of one issuer with the same number.
fn serial() -> Result<SerialNumber, String> {
    let mut bytes = [0_u8; 16];
    aws_lc_rs::rand::fill(&mut bytes).map_err(|_| "there is no randomness".to_owned())?;
    bytes[0] = (bytes[0] & 0x7f) | 0x40;
    Ok(SerialNumber::from_slice(&bytes))
}

/// Of a subject that is one common name in UTF-8, which is how they are made here.
fn common_name(subject: &[u8]) -> Option<&str> {
    let set = element(subject, 0x31)?;
    let pair = element(set, 0x30)?;
    let value = pair.strip_prefix(&[0x06, 0x03, 0x55, 0x04, 0x03])?;
    std::str::from_utf8(element(value, 0x0c)?).ok()
}

/// The content of the one DER element that this is; short lengths only.
fn element(bytes: &[u8], tag: u8) -> Option<&[u8]> {
    let [found, length, content @ ..] = bytes else { return None };
    (*found == tag && *length < 0x80 && usize::from(*length) == content.len()).then_some(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restored_is_the_same_authority() {
        let made = Authority::generate("sbx-0123456789abcdefghjkmnpqrs").expect("generate");
        let back = Authority::restore(made.certificate_pem(), &made.key_pkcs8()).expect("restore");
        assert_eq!(back.certificate_pem(), made.certificate_pem());
        assert_eq!(*back.key_pkcs8(), *made.key_pkcs8());
        back.server(&Host::Name("example.org".into())).expect("mint");
        back.server(&Host::Ip([192, 0, 2, 1].into())).expect("mint for an address");
    }

    #[test]
    fn what_does_not_belong_together_is_refused() {
        let one = Authority::generate("one").expect("generate");
        let two = Authority::generate("two").expect("generate");
        assert!(Authority::restore(one.certificate_pem(), &two.key_pkcs8()).is_err());
        assert!(Authority::restore("", &one.key_pkcs8()).is_err());
        assert!(Authority::restore(one.certificate_pem(), b"no key").is_err());
    }

    #[test]
    fn a_long_name_fits_the_subject() {
        let made = Authority::generate(&"x".repeat(300)).expect("generate");
        Authority::restore(made.certificate_pem(), &made.key_pkcs8()).expect("restore");
    }

    #[test]
    fn hosts_are_minted_once_and_bounded() {
        let made = Authority::generate("one").expect("generate");
        let host = Host::Name("example.org".into());
        let first = made.server(&host).expect("mint");
        assert!(Arc::ptr_eq(&first, &made.server(&host).expect("mint again")));
        for number in 0..KEPT {
            made.server(&Host::Name(format!("h{number}.example.org"))).expect("mint");
        }
        assert!(made.minted.lock().expect("lock").len() <= KEPT);
    }
}
