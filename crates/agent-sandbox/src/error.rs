//! Everything that can go wrong, a variant a cause: what failed, why, and what to do about it.

mod status;

use std::path::PathBuf;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::core::Status;

use crate::build::BuildError;
use crate::resources::Version;

/// The result of everything here that asks a cluster.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why something failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no kubeconfig, and this is no pod either.
    #[error("no kubeconfig{}: set KUBECONFIG, or name one that can be read", at(path))]
    NoKubeconfig {
        /// The one that was named.
        path: Option<PathBuf>,
        /// Why it could not be read.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The kubeconfig cannot be used.
    #[error("the kubeconfig cannot be used: {source}")]
    BadKubeconfig {
        /// What is wrong with it.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The kubeconfig has no such context.
    #[error("the kubeconfig has no context {context:?}: `kubectl config get-contexts` lists those it has")]
    ContextNotFound {
        /// The one that was asked for.
        context: String,
    },
    /// The proxy on the way to the cluster cannot be used.
    #[error("the proxy that is named by {from} cannot be used: {why}")]
    BadProxy {
        /// Where it is named. Not how: a password may be in it.
        from: String,
        /// What is wrong with it.
        why: String,
    },
    /// The program does not run in a pod with a service account.
    #[error("not in a cluster: {source}; the pod needs a service account token")]
    NotInCluster {
        /// What is missing.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },

    /// No answer from the apiserver.
    #[error("the apiserver cannot be reached: {}", chain(source))]
    Unreachable {
        /// What the connection said.
        #[source]
        source: Box<kube::Error>,
    },
    /// 401: the credentials are unknown or expired.
    #[error("the apiserver does not accept these credentials ({message}): they are wrong or expired, log in again")]
    Unauthorized {
        /// What the apiserver said.
        message: String,
    },
    /// 403: a permission is missing.
    #[error("not permitted to {verb} {resource}: {message}; grant it with a Role and a RoleBinding")]
    Forbidden {
        /// The verb, empty when the apiserver did not say.
        verb: String,
        /// The resource, empty when the apiserver did not say.
        resource: String,
        /// What the apiserver said.
        message: String,
    },
    /// 403: a ResourceQuota is used up.
    #[error("a quota is used up: {message}; free something or raise the ResourceQuota")]
    QuotaExceeded {
        /// Which one, and by what.
        message: String,
    },
    /// 404: there is no such object.
    #[error("{kind} {name:?} does not exist")]
    NotFound {
        /// Its resource.
        kind: String,
        /// Its name.
        name: String,
    },
    /// 409: the name is taken.
    #[error("{kind} {name:?} exists already")]
    AlreadyExists {
        /// Its resource.
        kind: String,
        /// Its name.
        name: String,
    },
    /// 409: the object is not what the request took it for.
    #[error("the object has changed meanwhile: {message}; read it again and repeat")]
    Conflict {
        /// What the apiserver said.
        message: String,
    },
    /// 422: the apiserver refuses the object.
    #[error("the apiserver refuses the object: {message}")]
    Invalid {
        /// What is wrong with it.
        message: String,
    },
    /// Any other refusal of the apiserver.
    #[error("the apiserver answered {}: {}", .0.code, .0.message)]
    Api(Box<Status>),
    /// Anything else the client library reports.
    #[error("{}", chain(.0))]
    Kube(Box<kube::Error>),

    /// The cluster does not serve agent-sandbox.
    #[error(
        "the cluster does not serve {} in {version}: install agent-sandbox 1.0 or later with its extensions (manifest.yaml and extensions.yaml of a release)",
        missing.join(", ")
    )]
    CrdsMissing {
        /// Full names of the resources.
        missing: Vec<&'static str>,
        /// The version that was asked for, or of which most is there.
        version: Version,
    },
    /// The cluster's version of the API cannot say this.
    #[error(
        "{field} cannot be said in {version}, which is all this cluster serves: upgrade agent-sandbox to 1.0 or later"
    )]
    NotInVersion {
        /// The field.
        field: &'static str,
        /// What the cluster serves.
        version: Version,
    },
    /// An object could not be built.
    #[error(transparent)]
    Build(#[from] BuildError),

    /// The claim's template does not exist.
    #[error("claim {claim}: {message}; create the SandboxTemplate")]
    TemplateNotFound {
        /// The claim.
        claim: String,
        /// What the controller said.
        message: String,
    },
    /// The claim's pool does not exist.
    #[error("claim {claim}: {message}; create the SandboxWarmPool or claim from another")]
    WarmPoolNotFound {
        /// The claim.
        claim: String,
        /// What the controller said.
        message: String,
    },
    /// The controller refuses the metadata for the pod.
    #[error("claim {claim}: {message}")]
    InvalidMetadata {
        /// The claim.
        claim: String,
        /// What the controller said.
        message: String,
    },
    /// The template does not let claims set these variables.
    #[error("claim {claim}: {message}; see envVarsInjectionPolicy of the template")]
    EnvVarsInjectionRejected {
        /// The claim.
        claim: String,
        /// What the controller said.
        message: String,
    },
    /// The template does not let claims have these volumes.
    #[error("claim {claim}: {message}; see volumeClaimTemplatesPolicy of the template")]
    VolumeClaimTemplatesError {
        /// The claim.
        claim: String,
        /// What the controller said.
        message: String,
    },
    /// The claim's time is over.
    #[error("claim {claim} has expired: {message}")]
    ClaimExpired {
        /// The claim.
        claim: String,
        /// What the controller said.
        message: String,
    },
    /// The sandbox's time is over.
    #[error("the sandbox of {claim} has expired: {message}")]
    SandboxExpired {
        /// The claim or sandbox.
        claim: String,
        /// What the controller said.
        message: String,
    },
    /// The controller cannot make this sandbox, ever.
    #[error("the sandbox of {claim} cannot be made: {message}; correct its template")]
    InvalidConfiguration {
        /// The claim or sandbox.
        claim: String,
        /// What the controller said.
        message: String,
    },
    /// The pod ended with an error.
    #[error("the pod of {claim} has failed: {message}")]
    PodFailed {
        /// The claim or sandbox.
        claim: String,
        /// What is known.
        message: String,
    },
    /// The pod ended.
    #[error("the pod of {claim} has ended: {message}")]
    PodSucceeded {
        /// The claim or sandbox.
        claim: String,
        /// What is known.
        message: String,
    },
    /// Several pods say they are this sandbox's.
    #[error("the sandbox of {claim} has several pods: {message}; delete those that do not belong to it")]
    MultiplePods {
        /// The claim or sandbox.
        claim: String,
        /// What the controller said.
        message: String,
    },
    /// Somebody deleted the object while it was waited for.
    #[error("{kind} {name} was deleted meanwhile")]
    Deleted {
        /// Its kind.
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// A claim of this name exists and is not what was asked for.
    #[error("claim {claim} exists and cannot be adopted: {why}")]
    NotAdoptable {
        /// The claim.
        claim: String,
        /// What differs.
        why: String,
    },

    /// An image cannot be had.
    #[error("pod {pod}: {reason}: {message}; check the image's name and the pull secret")]
    ImagePull {
        /// The pod.
        pod: String,
        /// `ImagePullBackOff`, `ErrImagePull`, `ErrImageNeverPull` or `InvalidImageName`.
        reason: String,
        /// What the kubelet said.
        message: String,
    },
    /// No node takes the pod.
    #[error("pod {pod} fits on no node: {message}")]
    Unschedulable {
        /// The pod.
        pod: String,
        /// What the scheduler said.
        message: String,
    },
    /// A container ends again and again.
    #[error("pod {pod}: container {container} keeps ending: {message}; see its logs")]
    CrashLoop {
        /// The pod.
        pod: String,
        /// The container.
        container: String,
        /// What the kubelet said.
        message: String,
    },
    /// A container cannot be made from its description.
    #[error("pod {pod}: container {container} cannot be made: {message}")]
    ContainerConfig {
        /// The pod.
        pod: String,
        /// The container.
        container: String,
        /// What the kubelet said.
        message: String,
    },

    /// Time ran out, and nothing is known to be wrong.
    #[error("{what} took longer than {}s{}; is the agent-sandbox controller running?", after.as_secs_f32(), seen(last))]
    Timeout {
        /// What was waited for.
        what: String,
        /// For how long.
        after: Duration,
        /// The last condition that was seen.
        last: Option<Box<Condition>>,
    },
}

impl Error {
    /// Whether the object is not there.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound { .. })
    }

    /// Whether the same request may succeed later without anybody changing it.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::Timeout { .. } | Self::Conflict { .. } => true,
            Self::Api(status) => status.code == 429 || status.code >= 500 || status.code == 410,
            _ => false,
        }
    }

    /// Whether a watch's place in history is lost.
    pub(crate) fn is_gone(&self) -> bool {
        matches!(self, Self::Api(status) if status.code == 410)
    }
}

/// An error and its causes, without those that only repeat.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}

fn at(path: &Option<PathBuf>) -> String {
    path.as_ref().map(|path| format!(" at {}", path.display())).unwrap_or_default()
}

fn seen(last: &Option<Box<Condition>>) -> String {
    match last {
        Some(last) => format!(" (last seen: {}={} {}: {})", last.type_, last.status, last.reason, last.message),
        None => " (no condition was seen)".to_owned(),
    }
}
