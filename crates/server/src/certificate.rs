//! The server's certificate, as its files hold it now: one that was renewed is shown from the next connection on.

use std::{
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use rustls::{
    ServerConfig,
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};
use tokio_rustls::TlsAcceptor;

use crate::BindError;

/// PEM files.
#[derive(Debug, Clone)]
pub struct Tls {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

/// Shared by all connections.
pub(crate) struct Certificate {
    files: Tls,
    held: Mutex<Held>,
}

struct Held {
    config: Arc<ServerConfig>,
    /// What the files were when they were last read, of use or not.
    seen: [Seen; 2],
}

/// Enough to tell that a file is another one, or was written to: `None` if it cannot be looked at.
type Seen = Option<(u64, u64, u64, i64, i64, i64, i64)>;

impl Certificate {
    pub(crate) fn open(files: Tls) -> Result<Self, BindError> {
        // Before they are read: what is written meanwhile is another state.
        let seen = files.seen();
        let config = files.read()?;
        Ok(Self { files, held: Mutex::new(Held { config, seen }) })
    }

    /// For the next connection. Files that cannot be used leave what was there before in force.
    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        // Nothing in here panics half-way; a poisoned lock still holds a whole value.
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = self.files.seen();
        if held.seen != seen {
            held.seen = seen;
            match self.files.read() {
                Ok(config) => {
                    held.config = config;
                    tracing::info!("the TLS certificate has changed, and is shown from now on");
                }
                // Certificate and key are two files: between the two writes they do not match.
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(error, "the TLS files have changed and cannot be used; the certificate stays");
                }
            }
        }
        TlsAcceptor::from(held.config.clone())
    }
}

impl Tls {
    fn seen(&self) -> [Seen; 2] {
        [&self.certificate, &self.key].map(|path| look(path).ok())
    }

    fn read(&self) -> Result<Arc<ServerConfig>, BindError> {
        let unreadable = |what, path: &Path| {
            let path = path.to_owned();
            move |source| BindError::Pem { what, path, source }
        };
        let chain: Vec<_> = CertificateDer::pem_file_iter(&self.certificate)
            .and_then(Iterator::collect)
            .map_err(unreadable("certificate", &self.certificate))?;
        if chain.is_empty() {
            return Err(BindError::NoCertificate(self.certificate.clone()));
        }
        let key = PrivateKeyDer::from_pem_file(&self.key).map_err(unreadable("key", &self.key))?;
        let mut config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key))
            .map_err(BindError::Tls)?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }
}

/// Through links: a cluster puts new files of a Secret into place by changing one.
fn look(path: &Path) -> io::Result<(u64, u64, u64, i64, i64, i64, i64)> {
    let found = fs::metadata(path)?;
    let (written, changed) = ((found.mtime(), found.mtime_nsec()), (found.ctime(), found.ctime_nsec()));
    Ok((found.dev(), found.ino(), found.size(), written.0, written.1, changed.0, changed.1))
}
