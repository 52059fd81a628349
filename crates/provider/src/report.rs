//! What a host can enforce, as found by trying.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// The layer, for example `user namespaces`.
    pub layer: String,
    pub works: bool,
    /// Whether sandboxes are refused without it.
    pub required: bool,
    /// What was seen.
    pub evidence: String,
    /// What to do when it does not work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostReport {
    pub provider: String,
    pub findings: Vec<Finding>,
}

impl HostReport {
    /// Whether sandboxes can be made here at all.
    pub fn usable(&self) -> bool {
        self.findings.iter().all(|finding| finding.works || !finding.required)
    }
}
