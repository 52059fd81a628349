//! Whether this server runs in a pod of Kubernetes.

use std::{ffi::OsString, path::Path};

/// Every pod has it, whatever its manifest says of service links.
const SERVICE: &str = "KUBERNETES_SERVICE_HOST";
/// Not in pods that have no account's token.
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io";

/// Either sign is enough: to be taken for a pod costs a person one command, and not to be would tell a secret.
pub(super) fn is_ours() -> bool {
    seems(std::env::var_os(SERVICE), Path::new(ACCOUNT))
}

fn seems(service: Option<OsString>, account: &Path) -> bool {
    service.is_some_and(|host| !host.is_empty()) || account.exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn either_sign_of_a_pod_is_enough() -> std::io::Result<()> {
        let there = tempfile::tempdir()?;
        let missing = there.path().join("none");
        assert!(!seems(None, &missing));
        assert!(!seems(Some("".into()), &missing));
        assert!(seems(Some("10.96.0.1".into()), &missing));
        assert!(seems(None, there.path()));
        Ok(())
    }
}
