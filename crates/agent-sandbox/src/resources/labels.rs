//! Keys of labels and annotations that controller and clients agree on, and the hash their values use.

/// Label of pod, Service and PVC: [`hash8`] of the sandbox's name.
pub const SANDBOX_NAME_HASH: &str = "agents.x-k8s.io/sandbox-name-hash";
/// Label of a Sandbox and its pod while a pool owns them: [`hash8`] of the pool's name.
pub const WARM_POOL_SANDBOX: &str = "agents.x-k8s.io/warm-pool-sandbox";
/// Label of template, Sandbox and pod: [`hash8`] of the template's name.
pub const SANDBOX_TEMPLATE_REF_HASH: &str = "agents.x-k8s.io/sandbox-template-ref-hash";
/// Label of an unclaimed Sandbox: hash of the blueprint it was made from.
pub const SANDBOX_TEMPLATE_HASH: &str = "agents.x-k8s.io/sandbox-template-hash";
/// Label of a Sandbox: UID of the claim that has it.
pub const CLAIM_UID: &str = "agents.x-k8s.io/claim-uid";
/// Label of a Sandbox: [`WARM`] or [`COLD`].
pub const LAUNCH_TYPE: &str = "agents.x-k8s.io/launch-type";
/// Label of claim, Sandbox and pod: which client made the claim.
pub const CREATED_BY: &str = "agents.x-k8s.io/created-by";
/// Label of an unowned pod, Service or PVC: `"true"` permits adoption.
pub const ADOPTABLE: &str = "agents.x-k8s.io/adoptable";

/// Annotation of a Sandbox: the name of its pod.
pub const POD_NAME: &str = "agents.x-k8s.io/pod-name";
/// Annotation of a Sandbox: the name of its template.
pub const SANDBOX_TEMPLATE_REF: &str = "agents.x-k8s.io/sandbox-template-ref";
/// Annotation of a claim: the Sandbox that was assigned to it.
pub const SANDBOX_NAME: &str = "agents.x-k8s.io/sandbox-name";
/// Annotation of a claim: when its client first asked, ISO 8601.
pub const CLIENT_FIRST_REQUESTED_AT: &str = "agents.x-k8s.io/client-first-requested-at";
/// Annotation of a claim: when the controller first saw it.
pub const CONTROLLER_FIRST_OBSERVED_AT: &str = "agents.x-k8s.io/controller-first-observed-at";
/// Annotation of a claim: when it first became ready.
pub const CLAIM_FIRST_READY_AT: &str = "agents.x-k8s.io/claim-first-ready-at";
/// Annotation of a pod: sorted, comma-separated label keys that came from the user.
pub const PROPAGATED_LABELS: &str = "agents.x-k8s.io/propagated-labels";
/// Annotation of a pod: sorted, comma-separated annotation keys that came from the user.
pub const PROPAGATED_ANNOTATIONS: &str = "agents.x-k8s.io/propagated-annotations";
/// Annotation of a claim: JSON of the W3C trace context headers.
pub const TRACE_CONTEXT: &str = "opentelemetry.io/trace-context";

/// Value of [`LAUNCH_TYPE`]: taken from a pool.
pub const WARM: &str = "warm";
/// Value of [`LAUNCH_TYPE`]: made for the claim.
pub const COLD: &str = "cold";

/// FNV-1a (32 bit) of the bytes of `name` as eight lower-case hexadecimal digits.
///
/// ```
/// assert_eq!(agent_sandbox::labels::hash8("my-sandbox"), "374de8f5");
/// ```
pub fn hash8(name: &str) -> String {
    let hash = name.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    format!("{hash:08x}")
}

/// The label selector that finds the pod of the Sandbox called `name`.
pub fn pod_selector(name: &str) -> String {
    format!("{SANDBOX_NAME_HASH}={}", hash8(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash8_matches_the_published_vectors() {
        for (name, hash) in [("my-sandbox", "374de8f5"), ("python-sandbox-pool", "00375482"), ("", "811c9dc5")] {
            assert_eq!(hash8(name), hash, "{name}");
        }
        assert_eq!(pod_selector("my-sandbox"), "agents.x-k8s.io/sandbox-name-hash=374de8f5");
    }
}
