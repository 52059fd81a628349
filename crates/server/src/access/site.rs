//! What we are called over TCP: the API's names, and those of previews, which are never the same.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use axum::http::{HeaderMap, HeaderValue, Uri, header, uri::Authority};
use sandbar_api::{Code, Problem};

use super::{Channel, foreign_origin};

/// What we are called over TCP.
#[derive(Debug, Clone)]
pub(crate) struct Site {
    scheme: &'static str,
    port: u16,
    /// `None` behind TLS on a public address: its certificate decides which names are ours.
    hosts: Option<Vec<String>>,
    /// Every name below it is a preview's and none of the API's.
    previews: String,
    /// For those who did not call it by any name; absent without TCP.
    own: Option<String>,
    /// Where browsers sign in when nobody says where they reach us; absent without TCP.
    sign_in: Option<String>,
    /// Whether we are called by the ports of others too, who pass their connections on to us.
    any_port: bool,
}

/// A name below the domain of previews that was called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PreviewHost {
    /// What stands before the domain.
    pub(crate) label: String,
    /// As it was called.
    host: (String, u16),
}

/// Where browsers find themselves without any DNS.
pub(crate) const PREVIEWS: &str = "localhost";
/// Where a browser on this machine signs in. Cookies know no ports: one of 127.0.0.1 would go to every server that listens
/// there, those of sandboxes that `sandbar forward` shows included. Nobody else is called by this name.
const SIGN_IN: &str = "sandbar.localhost";

impl Site {
    pub(crate) fn new(address: SocketAddr, tls: bool) -> Self {
        let host = |ip: IpAddr| if ip.is_ipv6() { format!("[{ip}]") } else { ip.to_string() };
        let loopback = ["127.0.0.1", "localhost", "[::1]", SIGN_IN].map(str::to_owned);
        let hosts = address.ip().is_loopback().then(|| loopback.into_iter().chain([host(address.ip())]).collect());
        let scheme = if tls { "https" } else { "http" };
        let own = match address.ip() {
            ip if !ip.is_unspecified() => host(ip),
            ip => host(if ip.is_ipv6() { Ipv6Addr::LOCALHOST.into() } else { Ipv4Addr::LOCALHOST.into() }),
        };
        let beyond = !address.ip().is_loopback() && !address.ip().is_unspecified();
        let sign_in = Some(if beyond { own.clone() } else { SIGN_IN.to_owned() });
        let (port, previews) = (address.port(), PREVIEWS.to_owned());
        Self { scheme, port, hosts, previews, own: Some(own), sign_in, any_port: false }
    }

    /// With other servers before it. What a name leads to is what keeps foreign pages out, not the port.
    pub(crate) fn shared(self) -> Self {
        Self { any_port: true, ..self }
    }

    /// With previews below this domain instead of `localhost`, unless it cannot be one.
    pub(crate) fn with_previews(self, domain: &str) -> Option<Self> {
        let ours = |label: &str| sandbar_api::check::name(label).is_ok();
        let good = domain.len() <= 200 && domain.split('.').all(ours) && domain.parse::<IpAddr>().is_err();
        good.then(|| Self { previews: domain.to_owned(), ..self })
    }

    /// Of a server without TCP: no name is ours.
    pub(crate) fn nowhere() -> Self {
        Self {
            scheme: "http",
            port: 0,
            hosts: Some(Vec::new()),
            previews: PREVIEWS.to_owned(),
            own: None,
            sign_in: None,
            any_port: false,
        }
    }

    /// Where a preview with this label is, for a server that can be reached there.
    pub(crate) fn preview_url(&self, label: &str) -> Option<String> {
        (self.port != 0).then(|| self.url(&format!("{label}.{}", self.previews), self.port))
    }

    /// Where a browser signs in, for a server that can be reached there.
    pub(crate) fn sign_in_url(&self) -> Option<String> {
        Some(self.url(self.sign_in.as_deref()?, self.port))
    }

    /// The origin that was called, if a browser may be signed in there: no other server answers to its name.
    pub(crate) fn sign_in_origin(&self, uri: &Uri, headers: &HeaderMap) -> Option<String> {
        let (host, port) = self.host(uri, headers)?;
        (host == SIGN_IN || !is_loopback(&host)).then(|| self.url(&host, port))
    }

    /// The preview that was called, if it was one.
    pub(crate) fn preview(&self, uri: &Uri, headers: &HeaderMap) -> Option<PreviewHost> {
        let host = self.called(uri, headers)?;
        let label = self.label(&host.0)?.to_owned();
        (self.any_port || self.hosts.is_none() || host.1 == self.port).then_some(PreviewHost { label, host })
    }

    fn label<'a>(&self, host: &'a str) -> Option<&'a str> {
        let label = host.trim_end_matches('.').strip_suffix(self.previews.as_str())?.strip_suffix('.')?;
        (host != SIGN_IN).then_some(label)
    }

    /// Whether the page that sent this is the preview's own.
    pub(crate) fn is_preview_origin(&self, origin: &HeaderValue, preview: &PreviewHost) -> bool {
        self.is_own(origin, &preview.host)
    }

    /// As browsers write it, without a port that goes without saying.
    pub(crate) fn called_as(&self, preview: &PreviewHost) -> String {
        let (host, port) = &preview.host;
        self.authority(host, *port)
    }

    pub(crate) fn scheme(&self) -> &'static str {
        self.scheme
    }

    /// The URL it was called by; of the Unix socket's callers the one it listens on, if it does.
    pub(crate) fn base(&self, channel: Channel, uri: &Uri, headers: &HeaderMap) -> Option<String> {
        let (host, port) = match channel {
            Channel::Tcp => self.host(uri, headers)?,
            Channel::Socket => (self.own.clone()?, self.port),
        };
        Some(self.url(&host, port))
    }

    fn url(&self, host: &str, port: u16) -> String {
        format!("{}://{}", self.scheme, self.authority(host, port))
    }

    fn authority(&self, host: &str, port: u16) -> String {
        if port == self.default_port() { host.to_owned() } else { format!("{host}:{port}") }
    }

    fn default_port(&self) -> u16 {
        if self.is_https() { 443 } else { 80 }
    }

    pub(crate) fn is_https(&self) -> bool {
        self.scheme == "https"
    }

    fn split(&self, authority: &str) -> Option<(String, u16)> {
        let authority: Authority = authority.parse().ok().filter(|_| !authority.contains('@'))?;
        Some((authority.host().to_ascii_lowercase(), authority.port_u16().unwrap_or(self.default_port())))
    }

    /// Judges Host and Origin.
    pub(crate) fn check(&self, uri: &Uri, headers: &HeaderMap) -> std::result::Result<(), Problem> {
        let host = self.host(uri, headers).ok_or_else(|| {
            Problem::new(
                Code::ForeignHost,
                "The Host header does not name this server.",
                "Call it by the address it listens on, 127.0.0.1, localhost or sandbar.localhost, with its port.",
            )
        })?;
        let mut origins = headers.get_all(header::ORIGIN).iter();
        let ours = match (origins.next(), origins.next()) {
            (None, _) => true,
            (Some(origin), None) => self.is_own(origin, &host),
            (Some(_), Some(_)) => false,
        };
        if ours { Ok(()) } else { Err(foreign_origin("The request comes from a page of another origin.")) }
    }

    /// The host and port that were called, if they are the API's.
    fn host(&self, uri: &Uri, headers: &HeaderMap) -> Option<(String, u16)> {
        let (host, port) = self.called(uri, headers)?;
        match &self.hosts {
            Some(hosts) => ((self.any_port || port == self.port) && hosts.contains(&host)).then_some((host, port)),
            None => self.label(&host).is_none().then_some((host, port)),
        }
    }

    /// HTTP/2 and absolute URIs carry the host outside the header; where both are there they must agree, or a proxy and we
    /// could understand different things.
    fn called(&self, uri: &Uri, headers: &HeaderMap) -> Option<(String, u16)> {
        let mut named = headers.get_all(header::HOST).iter().map(|value| value.to_str().ok());
        let first = match named.next() {
            Some(value) => Some(self.split(value?)?),
            None => None,
        };
        let target = match uri.authority() {
            Some(authority) => Some(self.split(authority.as_str())?),
            None => None,
        };
        if named.next().is_some() || (first.is_some() && target.is_some() && first != target) {
            return None;
        }
        first.or(target)
    }

    fn is_own(&self, origin: &HeaderValue, host: &(String, u16)) -> bool {
        let authority = origin.to_str().ok().and_then(|text| text.strip_prefix(self.scheme)?.strip_prefix("://"));
        authority.and_then(|authority| self.split(authority)).is_some_and(|own| own == *host)
    }
}

/// Whether other servers of the machine that calls may have this name too.
fn is_loopback(host: &str) -> bool {
    let host = host.trim_end_matches('.');
    let address: Option<IpAddr> = host.trim_start_matches('[').trim_end_matches(']').parse().ok();
    let own = |ip: IpAddr| ip.to_canonical().is_loopback() || ip.is_unspecified();
    address.is_some_and(own) || host == "localhost" || host.ends_with(".localhost")
}

#[cfg(test)]
mod tests {
    use super::{
        super::tests::{List, headers},
        *,
    };

    fn site(address: &str, tls: bool) -> Site {
        Site::new(address.parse().unwrap_or_else(|error| panic!("{error}")), tls)
    }

    #[test]
    fn hosts_and_origins() {
        let plain = site("127.0.0.1:7227", false);
        let v6 = site("[::1]:80", false);
        let public = site("0.0.0.0:443", true);
        let (host, origin) = (Some(Code::ForeignHost), Some(Code::ForeignOrigin));
        let table: &[(&Site, &str, List, Option<Code>)] = &[
            (&plain, "/", &[("host", "127.0.0.1:7227")], None),
            (&plain, "/", &[("host", "LOCALHOST:7227")], None),
            (&plain, "/", &[("host", "[::1]:7227")], None),
            (&plain, "/", &[("host", "sandbar.localhost:7227")], None),
            (&plain, "/", &[("host", "sandbar.localhost:7228")], host),
            (&plain, "/", &[("host", "sandbar.localhost.:7227")], host),
            (&plain, "/", &[("host", "x.sandbar.localhost:7227")], host),
            (&plain, "http://localhost:7227/", &[], None),
            (&plain, "http://localhost:7227/", &[("host", "localhost:7227")], None),
            (&v6, "/", &[("host", "[::1]")], None),
            (&public, "/", &[("host", "box.example")], None),
            (&plain, "/", &[], host),
            (&plain, "/", &[("host", "127.0.0.1")], host),
            (&plain, "/", &[("host", "127.0.0.1:7228")], host),
            (&plain, "/", &[("host", "evil.example:7227")], host),
            (&plain, "/", &[("host", "localhost.evil.example:7227")], host),
            (&plain, "/", &[("host", "x@localhost:7227")], host),
            (&plain, "/", &[("host", "localhost:7227"), ("host", "evil.example")], host),
            (&plain, "http://evil.example/", &[("host", "localhost:7227")], host),
            (&plain, "/", &[("host", "localhost:7227"), ("origin", "http://localhost:7227")], None),
            (&public, "/", &[("host", "box.example"), ("origin", "https://box.example")], None),
            (&public, "/", &[("host", "box.example"), ("origin", "https://box.example:443")], None),
            (&plain, "/", &[("host", "localhost:7227"), ("origin", "http://127.0.0.1:7227")], origin),
            (&plain, "/", &[("host", "localhost:7227"), ("origin", "http://localhost:3000")], origin),
            (&plain, "/", &[("host", "localhost:7227"), ("origin", "https://localhost:7227")], origin),
            (&plain, "/", &[("host", "localhost:7227"), ("origin", "null")], origin),
            (&plain, "/", &[("host", "localhost:7227"), ("origin", "http://evil.example")], origin),
            (&public, "/", &[("host", "box.example"), ("origin", "https://evil.example")], origin),
            (&public, "/", &[("host", "box.example"), ("origin", "http://box.example")], origin),
        ];
        for (site, uri, list, want) in table {
            let uri: Uri = uri.parse().unwrap_or_else(|error| panic!("{error}"));
            let got = site.check(&uri, &headers(list)).err().map(|problem| problem.code);
            assert_eq!(got, *want, "{uri} {list:?}");
        }
    }

    #[test]
    fn a_caller_is_told_the_address_it_used() {
        let plain = site("127.0.0.1:7227", false);
        let public = site("0.0.0.0:443", true);
        let uri = Uri::from_static("/");
        for (site, channel, list, want) in [
            (&plain, Channel::Tcp, &[("host", "LocalHost:7227")][..], Some("http://localhost:7227")),
            (&plain, Channel::Tcp, &[("host", "evil.example:7227")], None),
            (&plain, Channel::Socket, &[("host", "evil.example")], Some("http://127.0.0.1:7227")),
            (&public, Channel::Tcp, &[("host", "box.example")], Some("https://box.example")),
            (&public, Channel::Socket, &[], Some("https://127.0.0.1")),
            (&Site::nowhere(), Channel::Socket, &[], None),
        ] {
            assert_eq!(site.base(channel, &uri, &headers(list)).as_deref(), want, "{channel:?} {list:?}");
        }
    }

    #[test]
    fn browsers_sign_in_where_nobody_else_answers() {
        let plain = site("127.0.0.1:7227", false);
        let local = site("[::1]:443", true);
        let public = site("0.0.0.0:443", true);
        let named = site("192.0.2.7:7227", true);
        let wild = site("0.0.0.0:443", true).with_previews("p.example").unwrap_or_else(|| panic!("a domain"));
        let shared = site("127.0.0.1:7227", false).shared();
        let table: &[(&Site, &'static str, Option<&str>)] = &[
            (&plain, "sandbar.localhost:7227", Some("http://sandbar.localhost:7227")),
            (&plain, "SandBar.LocalHost:7227", Some("http://sandbar.localhost:7227")),
            (&plain, "sandbar.localhost:7228", None),
            (&plain, "sandbar.localhost.:7227", None),
            (&plain, "127.0.0.1:7227", None),
            (&plain, "localhost:7227", None),
            (&plain, "[::1]:7227", None),
            (&plain, "evil.example:7227", None),
            (&local, "sandbar.localhost", Some("https://sandbar.localhost")),
            (&local, "localhost", None),
            (&public, "box.example", Some("https://box.example")),
            (&public, "box.example:8443", Some("https://box.example:8443")),
            (&public, "sandbar.localhost:7227", Some("https://sandbar.localhost:7227")),
            (&public, "localhost", None),
            (&public, "localhost.", None),
            (&public, "127.0.0.1", None),
            (&public, "127.1.2.3:9", None),
            (&public, "0.0.0.0", None),
            (&public, "[::]", None),
            (&public, "[::1]", None),
            (&public, "[::ffff:127.0.0.1]", None),
            (&named, "192.0.2.7:7227", Some("https://192.0.2.7:7227")),
            (&wild, "web-80.p.example", None),
            (&wild, "web.localhost", None),
            (&shared, "sandbar.localhost:7228", Some("http://sandbar.localhost:7228")),
            (&shared, "localhost:7228", None),
        ];
        for (site, host, want) in table {
            let headers = HeaderMap::from_iter([(header::HOST, HeaderValue::from_static(host))]);
            assert_eq!(site.sign_in_origin(&Uri::from_static("/"), &headers).as_deref(), *want, "{host}");
        }
        for (site, want) in [
            (&plain, Some("http://sandbar.localhost:7227")),
            (&local, Some("https://sandbar.localhost")),
            (&public, Some("https://sandbar.localhost")),
            (&named, Some("https://192.0.2.7:7227")),
            (&Site::nowhere(), None),
        ] {
            assert_eq!(site.sign_in_url().as_deref(), want);
        }
    }

    #[test]
    fn previews_have_names_of_their_own() {
        let plain = site("127.0.0.1:7227", false);
        let wild = site("0.0.0.0:443", true).with_previews("p.example").unwrap_or_else(|| panic!("a domain"));
        let table: &[(&Site, List, Option<&str>)] = &[
            (&plain, &[("host", "web-80.localhost:7227")], Some("web-80")),
            (&plain, &[("host", "WEB-80.LocalHost.:7227")], Some("web-80")),
            (&plain, &[("host", "a.b.localhost:7227")], Some("a.b")),
            (&wild, &[("host", "web-80.p.example")], Some("web-80")),
            (&wild, &[("host", "web-80.p.example.")], Some("web-80")),
            (&wild, &[("host", "web-80.p.example..")], Some("web-80")),
            (&plain, &[("host", "localhost:7227")], None),
            (&plain, &[("host", "web-80.localhost")], None),
            (&plain, &[("host", "web-80.localhost:7228")], None),
            (&plain, &[("host", "web-80localhost:7227")], None),
            (&plain, &[("host", "web-80.localhost.evil.example:7227")], None),
            (&plain, &[("host", "web-80.localhost:7227"), ("host", "localhost:7227")], None),
            (&plain, &[("host", "sandbar.localhost:7227")], None),
            (&plain, &[("host", "x.sandbar.localhost:7227")], Some("x.sandbar")),
            (&wild, &[("host", "p.example")], None),
            (&wild, &[("host", "xp.example")], None),
        ];
        let uri = Uri::from_static("/");
        for (site, list, want) in table {
            let headers = headers(list);
            let got = site.preview(&uri, &headers).map(|preview| preview.label);
            assert_eq!(got.as_deref(), *want, "{list:?}");
            if want.is_some() {
                let api = site.check(&uri, &headers).err().map(|problem| problem.code);
                assert_eq!(api, Some(Code::ForeignHost), "{list:?}");
            }
        }
        let both = "http://web-80.localhost:7227/".parse().unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(plain.preview(&both, &headers(&[("host", "localhost:7227")])), None);
        for domain in ["", "*.example", "a..b", "127.0.0.1", "a_b.example", "A.example", "x.example:80", ".localhost"] {
            assert!(plain.clone().with_previews(domain).is_none(), "{domain}");
        }
        assert_eq!(wild.preview_url("web-80").as_deref(), Some("https://web-80.p.example"));
        assert_eq!(plain.preview_url("web-80").as_deref(), Some("http://web-80.localhost:7227"));
        assert_eq!(Site::nowhere().preview_url("web-80"), None);
    }
}
