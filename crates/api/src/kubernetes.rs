//! What a cluster was found to be good for, line by line.

use serde::{Deserialize, Serialize};

/// What is wanted of a look at a cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct ClusterCheck {
    /// Make nothing in the cluster, and so leave unobserved what only a pod can show.
    pub look_only: bool,
    /// A RuntimeClass that has to be there and in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runtime_class: Option<String>,
    /// A StorageClass that has to be there; the cluster's default otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage_class: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ClusterReport {
    /// The namespace of the sandboxes.
    pub namespace: String,
    pub findings: Vec<ClusterFinding>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ClusterFinding {
    /// What was looked at, for example `network policy`.
    pub check: String,
    pub verdict: Verdict,
    /// Whether sandboxes cannot be made, or are not held, without it.
    pub required: bool,
    /// What was seen.
    pub evidence: String,
    /// What to do when it is not green.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Seen to be as it has to be.
    Green,
    /// Seen to be otherwise.
    Red,
    /// Not seen.
    Grey,
}

impl ClusterReport {
    /// Nothing that is required was seen to be wrong. What was not seen is not held against the cluster, and not called good.
    pub fn usable(&self) -> bool {
        !self.findings.iter().any(|finding| finding.required && finding.verdict == Verdict::Red)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_required_and_red_decides() {
        let report = |verdict, required| ClusterReport {
            namespace: "n".into(),
            findings: vec![ClusterFinding { check: "api".into(), verdict, required, evidence: "e".into(), fix: None }],
        };
        assert!(!report(Verdict::Red, true).usable());
        assert!(report(Verdict::Red, false).usable());
        assert!(report(Verdict::Grey, true).usable());
        assert!(report(Verdict::Green, true).usable());
    }
}
