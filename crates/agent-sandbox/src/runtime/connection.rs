//! The ways to a runtime inside a sandbox.

use std::{fmt, net::IpAddr};

use kube::ResourceExt as _;

use super::RuntimeError;
use crate::{AgentSandbox, Sandbox, pods::Target};

/// How a runtime is reached.
#[derive(Clone)]
#[non_exhaustive]
pub enum Connection {
    /// At an address: `http://127.0.0.1:8888`. Whatever listens there is taken for the runtime.
    Direct(String),
    /// At the pod's address, from inside the cluster.
    PodIp(IpAddr),
    /// By the name of the sandbox's Service, from inside the cluster.
    Service(String),
    /// Through agent-sandbox's router.
    Router(Router),
    /// Through the API server, one forwarded stream a connection and no socket on this side.
    PortForward {
        /// The cluster.
        cluster: Box<AgentSandbox>,
        /// The pod.
        pod: Target,
    },
}

impl Connection {
    /// At an address: `http://127.0.0.1:8888`.
    pub fn direct(url: impl Into<String>) -> Self {
        Self::Direct(url.into())
    }

    /// At the address of a sandbox's pod, IPv4 first.
    pub fn pod_ip(sandbox: &Sandbox) -> Result<Self, RuntimeError> {
        let told = sandbox.status.iter().flat_map(|status| &status.pod_ips);
        let addresses: Vec<IpAddr> = told.filter_map(|address| address.parse().ok()).collect();
        let chosen = addresses.iter().find(|address| address.is_ipv4()).or_else(|| addresses.first());
        chosen.copied().map(Self::PodIp).ok_or_else(|| RuntimeError::NoAddress(sandbox.name_any()))
    }

    /// By a sandbox's Service.
    pub fn service(sandbox: &Sandbox) -> Result<Self, RuntimeError> {
        let name = sandbox.status.as_ref().and_then(|status| status.service_fqdn.clone());
        let name = name.filter(|name| !name.is_empty());
        name.map(Self::Service).ok_or_else(|| RuntimeError::NoService(sandbox.name_any()))
    }

    /// Through the API server.
    pub fn port_forward(cluster: &AgentSandbox, pod: impl Into<Target>) -> Self {
        Self::PortForward { cluster: Box::new(cluster.clone()), pod: pod.into() }
    }

    /// Where `port` of the sandbox begins.
    pub(super) fn base(&self, port: u16) -> String {
        match self {
            Self::Direct(url) | Self::Router(Router { url, .. }) => url.trim_end_matches('/').to_owned(),
            Self::PodIp(IpAddr::V4(address)) => format!("http://{address}:{port}"),
            Self::PodIp(IpAddr::V6(address)) => format!("http://[{address}]:{port}"),
            Self::Service(name) => format!("http://{name}:{port}"),
            Self::PortForward { .. } => format!("http://localhost:{port}"),
        }
    }
}

/// Agent-sandbox's router, and whom to ask it for.
#[derive(Clone, Debug)]
pub struct Router {
    /// Where it is, with a path where it has one.
    pub url: String,
    /// The name of the sandbox, not of its claim.
    pub sandbox: String,
    /// The sandbox's namespace.
    pub namespace: String,
    /// For the router; it is not passed on to the sandbox.
    pub token: Option<Token>,
}

impl From<Router> for Connection {
    fn from(router: Router) -> Self {
        Self::Router(router)
    }
}

/// A bearer token, which never shows when printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    pub(super) fn bearer(&self) -> String {
        format!("Bearer {}", self.0)
    }
}

impl<T: Into<String>> From<T> for Token {
    fn from(token: T) -> Self {
        Self(token.into())
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Token(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{SandboxSpec, SandboxStatus};

    #[test]
    fn addresses_of_a_sandbox() -> Result<(), RuntimeError> {
        let mut sandbox = Sandbox::new("box", SandboxSpec::default());
        assert!(matches!(Connection::pod_ip(&sandbox), Err(RuntimeError::NoAddress(name)) if name == "box"));
        assert!(matches!(Connection::service(&sandbox), Err(RuntimeError::NoService(name)) if name == "box"));
        let addresses = vec!["fd00::1".to_owned(), "10.0.0.7".to_owned()];
        let fqdn = Some("box.ns.svc.cluster.local".to_owned());
        sandbox.status = Some(SandboxStatus { pod_ips: addresses, service_fqdn: fqdn, ..SandboxStatus::default() });
        assert_eq!(Connection::pod_ip(&sandbox)?.base(8888), "http://10.0.0.7:8888");
        assert_eq!(Connection::service(&sandbox)?.base(8080), "http://box.ns.svc.cluster.local:8080");
        if let Some(status) = &mut sandbox.status {
            status.pod_ips.truncate(1);
        }
        assert_eq!(Connection::pod_ip(&sandbox)?.base(9090), "http://[fd00::1]:9090");
        assert_eq!(Connection::direct("http://x/router/").base(1), "http://x/router");
        Ok(())
    }

    #[test]
    fn a_token_does_not_show() {
        assert!(!format!("{:?}", Token::from("secret")).contains("secret"));
    }
}
