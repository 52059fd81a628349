//! Claims: made once however often they are asked for, renewed, given back.

use jiff::Timestamp;
use kube::ResourceExt;
use serde_json::json;

use crate::build::{ClaimBuilder, whole_seconds};
use crate::client::AgentSandbox;
use crate::collection::{Collection, Target};
use crate::error::{Error, Result};
use crate::resources::{SandboxClaim, labels};

/// A claim may be deleted between our POST and our GET; more often than this it is somebody's loop.
const ATTEMPTS: u32 = 4;

/// A claim that exists, pinned by its UID.
#[derive(Clone, Debug)]
pub struct Claimed {
    /// Its name.
    pub name: String,
    /// Its UID: another claim under the same name is not this one.
    pub uid: String,
    /// Whether it was there before.
    pub adopted: bool,
    /// As the apiserver answered.
    pub claim: SandboxClaim,
}

impl Claimed {
    pub(crate) fn target(&self) -> Target {
        let from = self.claim.metadata.resource_version.clone();
        Target { name: self.name.clone(), uid: Some(self.uid.clone()), from }
    }

    fn new(claim: SandboxClaim, adopted: bool) -> Result<Self> {
        let name = claim.name_any();
        match claim.metadata.uid.clone() {
            Some(uid) => Ok(Self { name, uid, adopted, claim }),
            None => Err(Error::NotAdoptable { claim: name, why: "it has no UID".into() }),
        }
    }
}

impl AgentSandbox {
    /// Creates a claim, or adopts the one that has its name: one that goes to the same pool and is not being deleted.
    /// Repeating it is safe, also when an answer was lost.
    ///
    /// ```no_run
    /// # async fn f(client: agent_sandbox::AgentSandbox) -> agent_sandbox::Result<()> {
    /// use agent_sandbox::ClaimBuilder;
    ///
    /// let claimed = client.claim(ClaimBuilder::new("build-42", "python")).await?;
    /// let again = client.claim(ClaimBuilder::new("build-42", "python")).await?;
    /// assert!(again.adopted && again.uid == claimed.uid);
    /// # Ok(()) }
    /// ```
    pub async fn claim(&self, mut builder: ClaimBuilder) -> Result<Claimed> {
        let claims = self.claims();
        let mut attempt = 0;
        loop {
            attempt += 1;
            let wanted = builder.clone().build()?;
            let error = match claims.create(wanted.clone()).await {
                Ok(claim) => return Claimed::new(claim, false),
                Err(error @ Error::AlreadyExists { .. }) => error,
                Err(error) => return Err(error),
            };
            match claims.get_opt(&wanted.name_any()).await? {
                // A random name that is taken is somebody else's.
                Some(_) if builder.is_generated() => builder = builder.regenerated(),
                Some(found) => return adopt(&wanted, found),
                None => {}
            }
            if attempt == ATTEMPTS {
                return Err(error);
            }
        }
    }
}

impl Collection<SandboxClaim> {
    /// Lets a claim live until this time. With a UID, only that very claim.
    pub async fn renew(&self, name: &str, uid: Option<&str>, until: Timestamp) -> Result<SandboxClaim> {
        let mut patch = json!({"spec": {"lifecycle": {"shutdownTime": whole_seconds(until).to_string()}}});
        if let Some(uid) = uid {
            // The apiserver refuses a patch whose UID is not that of the object.
            patch["metadata"] = json!({"uid": uid});
        }
        match self.patch(name, &patch).await {
            Err(Error::Invalid { message }) if message.contains("metadata.uid") => Err(Error::Conflict { message }),
            result => result,
        }
    }
}

fn adopt(wanted: &SandboxClaim, found: SandboxClaim) -> Result<Claimed> {
    let why = if found.metadata.deletion_timestamp.is_some() {
        "it is being deleted, wait until it is gone".to_owned()
    } else if !same_pool(wanted, &found) {
        format!("it goes to pool {:?}, not {:?}", found.spec.warm_pool_ref.name, wanted.spec.warm_pool_ref.name)
    } else {
        return Claimed::new(found, true);
    };
    Err(Error::NotAdoptable { claim: found.name_any(), why })
}

fn same_pool(wanted: &SandboxClaim, found: &SandboxClaim) -> bool {
    wanted.spec.warm_pool_ref == found.spec.warm_pool_ref
}

/// What the sandbox of a claim is called, as far as can be known: the cold path gives it the claim's name.
pub(crate) fn sandbox_name(claim: &SandboxClaim) -> String {
    let assigned = claim.sandbox().map(|sandbox| sandbox.name.clone());
    // Old controllers record it as a label.
    let recorded =
        || claim.annotations().get(labels::SANDBOX_NAME).or(claim.labels().get(labels::SANDBOX_NAME)).cloned();
    assigned.or_else(recorded).unwrap_or_else(|| claim.name_any())
}
