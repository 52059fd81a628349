//! The lines of a report.

use sandbar_api::{ClusterFinding, Verdict};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Line {
    Api,
    Credentials,
    Permissions,
    AgentSandbox,
    Namespace,
    PodSecurity,
    Storage,
    RuntimeClass,
    Pools,
    Controller,
    Image,
    SandboxImage,
    Pod,
    NetworkPolicy,
    Promptness,
    RuntimeInForce,
    CleanUp,
}

impl Line {
    /// What only pods show.
    pub(super) const OBSERVED: [Self; 5] =
        [Self::Controller, Self::Image, Self::SandboxImage, Self::Pod, Self::NetworkPolicy];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Api => "API server",
            Self::Credentials => "credentials",
            Self::Permissions => "permissions",
            Self::AgentSandbox => "agent-sandbox",
            Self::Namespace => "namespace",
            Self::PodSecurity => "pod security",
            Self::Storage => "storage class",
            Self::RuntimeClass => "runtime class",
            Self::Pools => "pools",
            Self::Controller => "controller",
            Self::Image => "guest image",
            Self::SandboxImage => "sandbox image",
            Self::Pod => "pods",
            Self::NetworkPolicy => "network policy",
            Self::Promptness => "network policy at once",
            Self::RuntimeInForce => "runtime class in force",
            Self::CleanUp => "clean up",
        }
    }

    /// Whether no sandbox can be made without it: what templates may say otherwise is not.
    fn required(self) -> bool {
        !matches!(
            self,
            Self::PodSecurity | Self::Storage | Self::Pools | Self::SandboxImage | Self::Promptness | Self::CleanUp
        )
    }
}

pub(super) fn green(line: Line, evidence: impl Into<String>) -> ClusterFinding {
    finding(line, Verdict::Green, evidence, None)
}

pub(super) fn red(line: Line, evidence: impl Into<String>, fix: impl Into<String>) -> ClusterFinding {
    finding(line, Verdict::Red, evidence, Some(fix.into()))
}

pub(super) fn grey(line: Line, evidence: impl Into<String>, fix: Option<&str>) -> ClusterFinding {
    finding(line, Verdict::Grey, evidence, fix.map(Into::into))
}

/// What was seen on the way to another line.
pub(super) fn instead(line: Line, seen: ClusterFinding) -> ClusterFinding {
    ClusterFinding { check: line.name().into(), required: line.required(), ..seen }
}

fn finding(line: Line, verdict: Verdict, evidence: impl Into<String>, fix: Option<String>) -> ClusterFinding {
    ClusterFinding { check: line.name().into(), verdict, required: line.required(), evidence: evidence.into(), fix }
}

/// The whole story of an error on one line; what its parts repeat is told once.
pub(super) fn told(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text.replace('\n', " ")
}

/// What the API server said, without what the library says around it.
pub(super) fn answer(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if !status.message.is_empty() => status.message.clone(),
        kube::Error::Api(status) => format!("HTTP {} {}", status.code, status.reason),
        other => told(other),
    }
}

pub(super) fn code(error: &kube::Error) -> Option<u16> {
    match error {
        kube::Error::Api(status) => Some(status.code),
        _ => None,
    }
}
