//! The one place that connects: resolve, vet every answer, dial a vetted address, verify TLS. Nothing else in the gateway
//! opens a connection, so nothing goes around the vetting.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::{Arc, OnceLock},
    time::Duration,
};

use hyper::StatusCode;
use rustls::{CertificateError, pki_types::ServerName};
use sandbar_policy::{AddressRefusal, Host, vet};
use tokio::{
    net::TcpStream,
    time::{Instant, timeout_at},
};
use tokio_rustls::TlsConnector;

use crate::{
    GatewayError, Settings,
    gate::Gate,
    happy_eyeballs,
    local::is_local,
    resolve::{Names, Unresolved},
    roots::Roots,
    sockets::{Busy, Socket},
};
pub(crate) use crate::{roots::Alpn, stream::Stream};

/// More addresses of one name are vetted, but not tried.
const TRIED: usize = 8;

/// Who chose the host.
#[derive(Clone, Copy)]
pub(crate) enum Chosen<'g> {
    /// The sandbox of this gate: every address is vetted, and asked of its deny rules.
    BySandbox(&'g Gate),
    /// The operator, who may well mean a private address.
    ByOperator,
    /// An admin, who need not be the one that keeps the host: every address is vetted.
    OverApi(Towards),
}

/// What may be dialled of all that is vetted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Towards {
    Anywhere,
    /// Nothing but what the operator listed as private.
    Listed,
}

/// A connection that stands; `h2` as the server chose it, never in plain.
pub(crate) struct Connected {
    pub(crate) stream: Stream,
    pub(crate) h2: bool,
}

/// Why a server was not reached. Its text reads on after "HOST cannot be reached: ".
#[derive(Debug, thiserror::Error)]
pub(crate) enum DialError {
    #[error("{0}")]
    Unresolved(#[from] Unresolved),
    #[error("{0}, and such addresses are not dialled, private ones only where the operator lists them")]
    Refused(#[from] AddressRefusal),
    #[error("{0} is not listed as private by the operator, and elsewhere only https is spoken")]
    Unlisted(IpAddr),
    #[error("{address} is refused by the rule `{rule}`")]
    Denied { address: IpAddr, rule: String },
    #[error("it is this server itself, which nothing reaches through the gateway")]
    Own,
    #[error("as many connections are open as there may be")]
    Busy,
    #[error("connection refused")]
    ConnectionRefused,
    #[error("timed out")]
    Timeout,
    #[error("{0}")]
    Io(io::Error),
    #[error("TLS: {0}")]
    Tls(String),
}

impl DialError {
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::Refused(_) | Self::Unlisted(_) | Self::Denied { .. } | Self::Own => StatusCode::FORBIDDEN,
            Self::Busy => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::BAD_GATEWAY,
        }
    }
}

/// Settings and what is made of them, replaced as a whole.
pub(crate) struct Reach {
    pub(crate) settings: Settings,
    names: Names,
    roots: Roots,
    own: Arc<OnceLock<SocketAddr>>,
}

impl Reach {
    pub(crate) fn new(settings: Settings, own: &Arc<OnceLock<SocketAddr>>) -> Result<Self, GatewayError> {
        let names = Names::new(&settings.dns)?;
        let roots = Roots::load(&settings.extra_roots)?;
        Ok(Self { settings, names, roots, own: Arc::clone(own) })
    }

    /// Connects to a host that the policy has allowed; with `tls`, verified for exactly that host.
    pub(crate) async fn dial(
        &self,
        host: &Host,
        port: u16,
        tls: Option<Alpn>,
        chosen: Chosen<'_>,
        place: Socket,
    ) -> Result<Connected, DialError> {
        let deadline = Instant::now() + self.settings.connect_timeout;
        let addresses = timeout_at(deadline, self.addresses(host, port, chosen))
            .await
            .map_err(|_| DialError::Unresolved(Unresolved::Timeout))??;
        let mut addresses = happy_eyeballs::in_turn(&addresses);
        addresses.truncate(TRIED);
        let connect = |address| TcpStream::connect(SocketAddr::new(address, port));
        let (tcp, place) = happy_eyeballs::first(addresses, deadline, place, connect).await.map_err(unconnected)?;
        // small writes of interactive protocols must not wait for acknowledgements
        tcp.set_nodelay(true).map_err(DialError::Io)?;
        let Some(alpn) = tls else { return Ok(Connected { stream: Stream::plain(tcp, place), h2: false }) };
        let name = match host {
            Host::Name(name) => ServerName::try_from(name.clone())
                .map_err(|_| DialError::Tls("the name cannot stand in a certificate".into()))?,
            Host::Ip(ip) => ServerName::IpAddress((*ip).into()),
        };
        let connector = TlsConnector::from(self.roots.config(alpn));
        let handshake = Duration::max(self.settings.head_timeout, Duration::from_millis(1));
        let stream = tokio::time::timeout(handshake, connector.connect(name, tcp))
            .await
            .map_err(|_| DialError::Tls("the handshake timed out".into()))?
            .map_err(|error| DialError::Tls(tls_cause(&error)))?;
        let h2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        Ok(Connected { stream: Stream::tls(stream, place), h2 })
    }

    async fn addresses(&self, host: &Host, port: u16, chosen: Chosen<'_>) -> Result<Vec<IpAddr>, DialError> {
        let addresses = match host {
            Host::Ip(ip) => vec![*ip],
            Host::Name(name) => match self.settings.hosts.get(name) {
                Some(given) if given.is_empty() => return Err(Unresolved::NoAddress.into()),
                Some(given) => given.clone(),
                None => self.names.addresses(name).await?,
            },
        };
        let policy = match chosen {
            Chosen::ByOperator => return Ok(addresses),
            Chosen::BySandbox(gate) => Some(gate.warden.policy()),
            Chosen::OverApi(_) => None,
        };
        let (mut told, mut untold) = (Vec::with_capacity(addresses.len()), None);
        for address in addresses {
            vet(address, &self.settings.private)?;
            if let Some(rule) = policy.as_ref().and_then(|policy| policy.denies_address(address, port)) {
                return Err(DialError::Denied { address, rule });
            }
            if matches!(chosen, Chosen::OverApi(Towards::Listed)) && !self.lists(address) {
                return Err(DialError::Unlisted(address));
            }
            // what cannot be told, as where there is no IPv6 at all, is not tried
            match is_local(address) {
                Ok(local) => {
                    self.vet_local(address, port, local)?;
                    told.push(address);
                }
                Err(error) => untold = Some(error),
            }
        }
        if let (true, Some(error)) = (told.is_empty(), untold) {
            return Err(DialError::Io(error));
        }
        Ok(told)
    }

    fn lists(&self, address: IpAddr) -> bool {
        self.settings.private.iter().any(|net| net.contains(&address.to_canonical()))
    }

    /// An address of this host is dialled where the operator lists it, and this server's own port nowhere.
    fn vet_local(&self, address: IpAddr, port: u16, local: bool) -> Result<(), DialError> {
        if self.own.get().is_some_and(|own| is_own(*own, address, port, local)) {
            return Err(DialError::Own);
        }
        if local && !self.lists(address) {
            return Err(AddressRefusal { address, kind: "an address of the host itself" }.into());
        }
        Ok(())
    }
}

/// A listener on every address is at each one of this host.
fn is_own(own: SocketAddr, address: IpAddr, port: u16, local: bool) -> bool {
    let same = own.ip().to_canonical() == address.to_canonical();
    port == own.port() && (same || own.ip().is_unspecified() && local)
}

fn unconnected(error: io::Error) -> DialError {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => DialError::ConnectionRefused,
        io::ErrorKind::TimedOut => DialError::Timeout,
        _ => DialError::Io(error),
    }
}

/// The cause in words; rustls puts its own error into the I/O error.
fn tls_cause(error: &io::Error) -> String {
    let Some(error) = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) else {
        return match error.kind() {
            io::ErrorKind::UnexpectedEof => "the server closed the connection during the handshake".into(),
            _ => error.to_string(),
        };
    };
    match error {
        rustls::Error::InvalidCertificate(cause) => match cause {
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                "the server's certificate has expired".into()
            }
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                "the server's certificate is not valid yet".into()
            }
            CertificateError::UnknownIssuer => "the server's certificate is from an unknown issuer".into(),
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                "the server's certificate is for another name".into()
            }
            cause => format!("the server's certificate cannot be trusted: {cause}"),
        },
        rustls::Error::InvalidMessage(_) => "the server does not speak TLS".into(),
        error => error.to_string(),
    }
}

impl crate::Gateway {
    /// As of now; a connection keeps what it began with.
    pub(crate) fn reach(&self) -> Arc<Reach> {
        Arc::clone(&self.reach.read().unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    pub(crate) async fn dial(
        &self,
        host: &Host,
        port: u16,
        tls: Option<Alpn>,
        chosen: Chosen<'_>,
    ) -> Result<Connected, DialError> {
        let place = self.sockets.server().await.map_err(|Busy| DialError::Busy)?;
        self.reach().dial(host, port, tls, chosen, place).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_servers_own_listener_is_known_however_it_is_reached() {
        let is_own = |own: &str, address: &str, port| {
            let address = address.parse().expect("an address");
            super::is_own(own.parse().expect("a place"), address, port, is_local(address).expect("an answer"))
        };
        assert!(is_own("127.0.0.1:7227", "127.0.0.1", 7227));
        assert!(is_own("127.0.0.1:7227", "::ffff:127.0.0.1", 7227));
        assert!(is_own("0.0.0.0:7227", "127.0.0.1", 7227) && is_own("[::]:7227", "127.0.0.9", 7227));
        assert!(!is_own("127.0.0.1:7227", "127.0.0.1", 7228));
        assert!(!is_own("127.0.0.1:7227", "127.0.0.2", 7227));
        assert!(!is_own("0.0.0.0:7227", "192.0.2.1", 7227), "it is not this host's");
    }

    #[test]
    fn an_address_of_this_host_is_private_whatever_its_range() {
        let vetted = |private: &[&str], address: &str, local| {
            let private = private.iter().map(|net| net.parse().expect("a range")).collect();
            let reach = Reach::new(Settings { private, ..Settings::default() }, &Arc::default()).expect("settings");
            reach.vet_local(address.parse().expect("an address"), 443, local).map_err(|error| error.to_string())
        };
        for address in ["8.8.8.8", "::ffff:8.8.8.8", "2606:4700::1111"] {
            assert_eq!(vetted(&[], address, false), Ok(()));
            let told = vetted(&[], address, true);
            assert!(told.as_ref().is_err_and(|told| told.contains("the host itself")), "{told:?}");
            assert_eq!(vetted(&["8.8.8.8/32", "2606:4700::/32"], address, true), Ok(()), "it is listed");
        }
    }
}
