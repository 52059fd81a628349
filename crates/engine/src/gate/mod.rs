//! The gate of each sandbox as the engine keeps it: what its rules are, which secrets it may use, what it may spend; and
//! the answers the gateway gets about them.

pub(crate) mod config;
mod door;
mod env;
mod facts;
mod ledger;
mod network;
mod secrets;
mod vault;
mod warden;

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use sandbar_api::{Code, Problem, SandboxId, SessionId, Template};
use sandbar_gateway::{Authority, Gateway};

pub(crate) use config::{Config, Loaded, unknown};
pub(crate) use door::{Door, open, take, trust};
pub(crate) use env::{environment, environment_at};
pub(crate) use facts::{Facts, Share};
pub(crate) use ledger::{Known, Ledger};
pub(crate) use network::{Rules, approval_rule};
pub(crate) use secrets::Secrets;
pub(crate) use vault::Vault;

use crate::{
    OpenError,
    approvals::Approvals,
    store::{Store, gate::GateRow},
};

/// Shared by all gates. In `Inner`.
pub(crate) struct Gates {
    pub(crate) vault: Vault,
    pub(crate) secrets: Secrets,
    pub(crate) config: Config,
    pub(crate) facts: Facts,
    pub(crate) ledger: Ledger,
    pub(crate) approvals: Approvals,
    pub(crate) gateway: Gateway,
    /// Whether there is somebody to ask.
    pub(crate) asks: bool,
    /// The configuration that the gateway was told last.
    told: AtomicU64,
}

/// What a sandbox's handle keeps of its gate.
pub(crate) struct Furnished {
    pub(crate) rules: Rules,
    pub(crate) authority: Arc<Authority>,
}

impl Gates {
    pub(crate) async fn open(home: &Path, store: &Arc<dyn Store>, asks: bool) -> Result<Self, OpenError> {
        let config = Config::open(home)?;
        let loaded = config.current();
        let gateway = Gateway::new(loaded.settings.clone()).map_err(OpenError::Gateway)?;
        Ok(Self {
            vault: Vault::open(home)?,
            secrets: Secrets::load(&**store).await.map_err(OpenError::Store)?,
            config,
            facts: Facts::start(store.clone()),
            ledger: Ledger::open(store.clone()).await.map_err(OpenError::Store)?,
            approvals: Approvals::load(&**store).await.map_err(OpenError::Store)?,
            gateway,
            asks,
            told: AtomicU64::new(loaded.generation),
        })
    }

    /// The configuration as it is now, which the gateway then follows too.
    pub(crate) fn loaded(&self) -> Arc<Loaded> {
        let loaded = self.config.current();
        if self.told.fetch_max(loaded.generation, Ordering::Relaxed) < loaded.generation
            && let Err(error) = self.gateway.configure(loaded.settings.clone())
        {
            tracing::error!(error = &error as &dyn std::error::Error, "the gateway stays as it was configured before");
        }
        loaded
    }

    /// Gives a sandbox that is being made its certificate authority. Named after its session: its id may yet change to
    /// that of a warm sandbox.
    pub(crate) fn furnish(
        &self,
        gate: &mut GateRow,
        session: &SessionId,
        template: &Template,
    ) -> Result<Furnished, Problem> {
        let authority = Authority::generate(session.as_str()).map_err(|error| {
            tracing::error!(%error, "a gate's certificate authority cannot be made");
            Problem::new(Code::Internal, "The gate's certificates cannot be made.", "Look at the server's log.")
        })?;
        gate.certificate = authority.certificate_pem().to_owned();
        gate.key = self.vault.seal(&context(&gate.certificate), &authority.key_pkcs8())?;
        let rules = Rules::new(template, gate.rules.clone(), gate.secrets.clone());
        Ok(Furnished { rules, authority: Arc::new(authority) })
    }

    /// The gate of a sandbox that an earlier server made. One that has none, or whose key cannot be read any more, gets a
    /// new authority: programs inside are told of it when the gate is opened.
    pub(crate) async fn restore(
        &self,
        store: &dyn Store,
        sandbox: &SandboxId,
        session: &SessionId,
        template: &Template,
    ) -> Result<Furnished, OpenError> {
        let known = store.gate(sandbox).await.map_err(OpenError::Store)?;
        if let Some(row) = &known {
            let restored = self.vault.unseal(&context(&row.certificate), &row.key).map_err(|problem| problem.detail);
            let restored =
                restored.and_then(|key| Authority::restore(&row.certificate, &key).map_err(|error| error.to_string()));
            match restored {
                Ok(authority) => {
                    let rules = Rules::new(template, row.rules.clone(), row.secrets.clone());
                    return Ok(Furnished { rules, authority: Arc::new(authority) });
                }
                Err(cause) => {
                    tracing::error!(%sandbox, cause, "a gate's key cannot be read: it gets another");
                }
            }
        }
        let none = || GateRow { rules: Vec::new(), secrets: Vec::new(), certificate: String::new(), key: Vec::new() };
        let mut row = known.unwrap_or_else(none);
        let furnished = self.furnish(&mut row, session, template).map_err(OpenError::Furnish)?;
        store.add_gate(sandbox, &row).await.map_err(OpenError::Store)?;
        Ok(furnished)
    }
}

/// What an authority's key is sealed for: its own certificate.
fn context(certificate: &str) -> String {
    format!("authority:{certificate}")
}
