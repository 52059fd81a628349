//! Which hosts and ports a rule is about.

use std::{collections::BTreeSet, fmt, net::IpAddr};

use crate::{Host, host::read_port};

/// What a rule without ports is about.
const DEFAULT_PORTS: [u16; 2] = [80, 443];

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Hosts {
    /// Any name, but no IP address: reaching one without a name has to be meant.
    AnyName,
    /// Names at any depth below this one, not itself.
    Below(String),
    Exactly(Host),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Ports {
    Any,
    Listed(BTreeSet<u16>),
}

impl Hosts {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        if text == "*" {
            return Ok(Self::AnyName);
        }
        if let Some(parent) = text.strip_prefix("*.") {
            return match Host::parse(parent).map_err(|bad| star_or(text, bad.cause))? {
                Host::Name(name) => Ok(Self::Below(name)),
                Host::Ip(_) => Err("there is nothing below an IP address: leave out `*.`".into()),
            };
        }
        if let Some(parent) = text.strip_prefix('.') {
            return Err(format!("for all names below it write `*.{parent}`"));
        }
        Host::parse(text).map(Self::Exactly).map_err(|bad| star_or(text, bad.cause))
    }

    pub(crate) fn matches(&self, host: &Host) -> bool {
        match (self, host) {
            (Self::AnyName, Host::Name(_)) => true,
            (Self::Below(parent), Host::Name(name)) => is_below(name, parent),
            (Self::Exactly(wanted), host) => wanted == host,
            (_, Host::Ip(_)) => false,
        }
    }

    pub(crate) fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (_, Self::Exactly(host)) => self.matches(host),
            (Self::AnyName, _) => true,
            (Self::Below(parent), Self::Below(name)) => parent == name || is_below(name, parent),
            _ => false,
        }
    }
}

fn is_below(name: &str, parent: &str) -> bool {
    name.strip_suffix(parent).is_some_and(|rest| rest.len() > 1 && rest.ends_with('.'))
}

/// What is wrong with a `*`, if there is one, else the cause.
fn star_or(text: &str, cause: &'static str) -> String {
    match text.strip_prefix("*.").unwrap_or(text).split_once('*') {
        Some(("", rest)) if !text.starts_with("*.") && !rest.contains('*') => {
            format!("`*` stands for whole labels: write `*.{}`", rest.trim_start_matches('.'))
        }
        Some(_) => "`*` stands for whole labels at the start of a name only: write `*.example.org`".into(),
        None => cause.into(),
    }
}

impl Ports {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        if text == "*" {
            return Ok(Self::Any);
        }
        let port = |port: &str| match port {
            "*" => Err("`*` is every port already: leave out the others".to_owned()),
            port if port.contains('-') => {
                Err("ranges of ports are not known: list them, `8080,8081`, or write `*`".into())
            }
            port => read_port(port).map_err(|cause| format!("`{}`: {cause}", port.escape_debug())),
        };
        text.split(',').map(port).collect::<Result<_, _>>().map(Self::Listed)
    }

    pub(crate) fn only(port: u16) -> Self {
        Self::Listed([port].into())
    }

    pub(crate) fn matches(&self, port: u16) -> bool {
        match self {
            Self::Any => true,
            Self::Listed(ports) => ports.contains(&port),
        }
    }

    pub(crate) fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Any, _) => true,
            (Self::Listed(ports), Self::Listed(others)) => ports.is_superset(others),
            (Self::Listed(_), Self::Any) => false,
        }
    }
}

impl Default for Ports {
    fn default() -> Self {
        Self::Listed(DEFAULT_PORTS.into())
    }
}

impl fmt::Display for Hosts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AnyName => f.write_str("*"),
            Self::Below(parent) => write!(f, "*.{parent}"),
            Self::Exactly(Host::Ip(IpAddr::V6(ip))) => write!(f, "[{ip}]"),
            Self::Exactly(host) => write!(f, "{host}"),
        }
    }
}

/// As it follows the host: nothing where the ports are those of a rule without any.
impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str(":*"),
            ports if *ports == Self::default() => Ok(()),
            Self::Listed(ports) => {
                for (at, port) in ports.iter().enumerate() {
                    write!(f, "{}{port}", if at == 0 { ':' } else { ',' })?;
                }
                Ok(())
            }
        }
    }
}
