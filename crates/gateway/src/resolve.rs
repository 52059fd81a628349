//! Names to addresses: the operator's own first, then DNS. Only ever asked for names that the policy has allowed.

use std::{
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
    time::SystemTime,
};

use hickory_resolver::{
    TokioResolver,
    config::{
        ConnectionConfig, LookupIpStrategy, NameServerConfig, ProtocolConfig, ResolveHosts, ResolverConfig,
        ResolverOpts,
    },
    net::{NetError, runtime::TokioRuntimeProvider},
    proto::rr::Name,
    system_conf::read_system_conf,
};

use crate::GatewayError;

/// Where the host keeps its resolvers; read anew when it changes, as it does when a laptop changes its network.
const SYSTEM: &str = "/etc/resolv.conf";

pub(crate) struct Names {
    servers: Servers,
}

enum Servers {
    Given(Box<TokioResolver>),
    System(Mutex<Option<(Option<SystemTime>, Arc<TokioResolver>)>>),
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum Unresolved {
    #[error("the name does not exist")]
    NoName,
    #[error("the name has no address")]
    NoAddress,
    #[error("the name servers did not answer in time")]
    Timeout,
    #[error("the name cannot be resolved: {0}")]
    Other(String),
}

impl Names {
    pub(crate) fn new(dns: &[SocketAddr]) -> Result<Self, GatewayError> {
        if dns.is_empty() {
            return Ok(Self { servers: Servers::System(Mutex::new(None)) });
        }
        let servers = dns
            .iter()
            .map(|server| {
                let connections = [ProtocolConfig::Udp, ProtocolConfig::Tcp]
                    .into_iter()
                    .map(|protocol| {
                        let mut connection = ConnectionConfig::new(protocol);
                        connection.port = server.port();
                        connection
                    })
                    .collect();
                NameServerConfig::new(server.ip(), true, connections)
            })
            .collect();
        let mut options = ResolverOpts::default();
        options.use_hosts_file = ResolveHosts::Never;
        let resolver = build(ResolverConfig::from_name_servers(servers), options)
            .map_err(|error| GatewayError::Resolver(error.into()))?;
        Ok(Self { servers: Servers::Given(Box::new(resolver)) })
    }

    /// Every address of the name, in the order to try them.
    pub(crate) async fn addresses(&self, name: &str) -> Result<Vec<IpAddr>, Unresolved> {
        // fully qualified: a search domain would make it another name than the one that was judged
        let mut query = Name::from_ascii(name).map_err(|error| Unresolved::Other(error.to_string()))?;
        query.set_fqdn(true);
        let found = match &self.servers {
            Servers::Given(resolver) => resolver.lookup_ip(query).await,
            Servers::System(made) => system(made)?.lookup_ip(query).await,
        };
        let found = found.map_err(|error| match error {
            error if error.is_nx_domain() => Unresolved::NoName,
            error if error.is_no_records_found() => Unresolved::NoAddress,
            NetError::Timeout => Unresolved::Timeout,
            error => Unresolved::Other(error.to_string()),
        })?;
        let mut addresses: Vec<IpAddr> = found.iter().collect();
        addresses.sort_by_key(IpAddr::is_ipv6);
        addresses.dedup();
        if addresses.is_empty() {
            return Err(Unresolved::NoAddress);
        }
        Ok(addresses)
    }
}

fn system(made: &Mutex<Option<(Option<SystemTime>, Arc<TokioResolver>)>>) -> Result<Arc<TokioResolver>, Unresolved> {
    let changed = std::fs::metadata(SYSTEM).and_then(|file| file.modified()).ok();
    let mut made = made.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((stamp, resolver)) = &*made
        && *stamp == changed
    {
        return Ok(Arc::clone(resolver));
    }
    let (config, options) =
        read_system_conf().map_err(|error| Unresolved::Other(format!("{SYSTEM} cannot be used: {error}")))?;
    let resolver = build(ResolverConfig::from_name_servers(config.name_servers().to_vec()), options)
        .map(Arc::new)
        .map_err(|error| Unresolved::Other(error.to_string()))?;
    *made = Some((changed, Arc::clone(&resolver)));
    Ok(resolver)
}

fn build(config: ResolverConfig, mut options: ResolverOpts) -> Result<TokioResolver, NetError> {
    // both families, so that every answer a dialler could get is vetted
    options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
    options.case_randomization = false;
    TokioResolver::builder_with_config(config, TokioRuntimeProvider::default()).with_options(options).build()
}
