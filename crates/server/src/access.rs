//! Who may call: the channel a request came through, the names we answer to, and the token it carries.
//!
//! The Unix socket belongs to its owner. Over TCP a web page in the user's browser can reach us too, so the order
//! matters: Host (DNS rebinding) and Origin (cross-site requests) are judged before any token is looked at.

use std::net::SocketAddr;

use axum::{
    extract::{FromRequestParts, MatchedPath, Request, State},
    http::{HeaderMap, HeaderValue, Method, Uri, header, request::Parts, uri::Authority},
    middleware::Next,
    response::Response,
};
use sandbar_api::{Code, Problem, Role};
use sandbar_engine::Caller;

use crate::{
    App,
    problem::{Refused, Result},
    roles,
};

pub(crate) const COOKIE: &str = "sandbar";

/// How a request reached us; set by the accept loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Channel {
    /// The peer's uid was checked when it connected.
    Socket,
    Tcp,
}

impl Channel {
    /// A request without the mark is treated like one from the network.
    pub(crate) fn of(request: &Request) -> Self {
        request.extensions().get().copied().unwrap_or(Self::Tcp)
    }
}

/// What we are called over TCP.
#[derive(Debug, Clone)]
pub(crate) struct Site {
    scheme: &'static str,
    port: u16,
    /// `None` behind TLS on a public address: its certificate decides which names are ours.
    hosts: Option<Vec<String>>,
}

impl Site {
    pub(crate) fn new(address: SocketAddr, tls: bool) -> Self {
        let host = |ip: std::net::IpAddr| if ip.is_ipv6() { format!("[{ip}]") } else { ip.to_string() };
        let loopback = ["127.0.0.1", "localhost", "[::1]"].map(str::to_owned);
        let hosts = address.ip().is_loopback().then(|| loopback.into_iter().chain([host(address.ip())]).collect());
        Self { scheme: if tls { "https" } else { "http" }, port: address.port(), hosts }
    }

    /// Of a server without TCP: no name is ours.
    pub(crate) fn nowhere() -> Self {
        Self { scheme: "http", port: 0, hosts: Some(Vec::new()) }
    }

    pub(crate) fn is_https(&self) -> bool {
        self.scheme == "https"
    }

    fn split(&self, authority: &str) -> Option<(String, u16)> {
        let authority: Authority = authority.parse().ok().filter(|_| !authority.contains('@'))?;
        let default = if self.is_https() { 443 } else { 80 };
        Some((authority.host().to_ascii_lowercase(), authority.port_u16().unwrap_or(default)))
    }

    /// Judges Host and Origin.
    pub(crate) fn check(&self, uri: &Uri, headers: &HeaderMap) -> std::result::Result<(), Problem> {
        let host = self.host(uri, headers).ok_or_else(|| {
            Problem::new(
                Code::ForeignHost,
                "The Host header does not name this server.",
                "Call it by the address it listens on, 127.0.0.1 or localhost, with its port.",
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

    /// The host and port that were called, if they are ours. HTTP/2 and absolute URIs carry them outside the header;
    /// where both are there they must agree, or a proxy and we could understand different things.
    fn host(&self, uri: &Uri, headers: &HeaderMap) -> Option<(String, u16)> {
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
        let (host, port) = first.or(target)?;
        match &self.hosts {
            Some(hosts) => (port == self.port && hosts.contains(&host)).then_some((host, port)),
            None => Some((host, port)),
        }
    }

    fn is_own(&self, origin: &HeaderValue, host: &(String, u16)) -> bool {
        let authority = origin.to_str().ok().and_then(|text| text.strip_prefix(self.scheme)?.strip_prefix("://"));
        authority.and_then(|authority| self.split(authority)).is_some_and(|own| own == *host)
    }
}

fn foreign_origin(detail: &str) -> Problem {
    Problem::new(
        Code::ForeignOrigin,
        detail,
        "Use the pages this server serves, or a token in the Authorization header from a program.",
    )
}

pub(crate) fn unauthenticated(detail: &str) -> Problem {
    Problem::new(
        Code::Unauthenticated,
        detail,
        "Make a token with `sandbar token create` and send it as `Authorization: Bearer sbt_…`, or sign in with the link that `sandbar up` prints.",
    )
}

/// The secret a TCP request carries. Never taken from the URL, which ends up in logs and Referer headers.
fn secret<'a>(method: &Method, headers: &'a HeaderMap) -> std::result::Result<&'a str, Problem> {
    // A wrong Authorization header is not healed by a cookie: the caller meant the header.
    if let Some(value) = headers.get(header::AUTHORIZATION) {
        let parts = value.to_str().ok().and_then(|text| text.split_once(' '));
        return match parts {
            Some((scheme, secret)) if scheme.eq_ignore_ascii_case("bearer") => Ok(secret.trim()),
            _ => Err(unauthenticated("The Authorization header holds no bearer token.")),
        };
    }
    let cookie = headers
        .get_all(header::COOKIE)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|list| list.split(';'))
        .find_map(|pair| pair.trim().strip_prefix(COOKIE)?.strip_prefix('='))
        .ok_or_else(|| unauthenticated("The request carries no token."))?;
    // Browsers attach cookies by host, whatever the port: a page on another local port is "same-site". It must not
    // act for its visitor.
    let fetch_site = headers.get("sec-fetch-site").map(HeaderValue::as_bytes);
    if !matches!(fetch_site, None | Some(b"same-origin" | b"none")) {
        return Err(foreign_origin("The request comes from a page of another site."));
    }
    // A WebSocket acts, though it begins with a GET, and nothing else keeps foreign pages from opening one.
    let must_tell = headers.contains_key(header::UPGRADE) || (!method.is_safe() && fetch_site != Some(b"same-origin"));
    if must_tell && !headers.contains_key(header::ORIGIN) {
        return Err(foreign_origin("A request with a cookie must say which page it comes from."));
    }
    Ok(cookie)
}

/// On every route: refuses foreign hosts and origins.
pub(crate) async fn site(State(app): State<App>, request: Request, next: Next) -> Result<Response> {
    if Channel::of(&request) == Channel::Tcp {
        app.site.check(request.uri(), request.headers())?;
    }
    Ok(next.run(request).await)
}

/// On every route that is not open: finds the caller and checks the role.
pub(crate) async fn authenticate(State(app): State<App>, mut request: Request, next: Next) -> Result<Response> {
    let caller = match Channel::of(&request) {
        Channel::Socket => Caller { owner: "socket".to_owned(), role: Role::Admin, session: None },
        Channel::Tcp => {
            let secret = secret(request.method(), request.headers())?;
            let caller = app.engine.authenticate(secret).await?;
            caller.ok_or_else(|| unauthenticated("The token is unknown, expired or revoked."))?
        }
    };
    let route = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
    roles::permit(caller.role, request.method(), route)?;
    request.extensions_mut().insert(caller);
    Ok(next.run(request).await)
}

/// The caller that [`authenticate`] found.
pub(crate) struct Calling(pub(crate) Caller);

impl<S: Sync> FromRequestParts<S> for Calling {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self> {
        // Absent only where a route was mounted outside `authenticate`: refuse rather than act for nobody.
        let caller = parts.extensions.get::<Caller>().cloned();
        caller.map(Self).ok_or_else(|| Refused(unauthenticated("The request carries no token.")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type List = &'static [(&'static str, &'static str)];

    fn headers(list: List) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &'static str)| {
            (header::HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        let mut headers = HeaderMap::new();
        list.iter().map(pair).for_each(|(name, value)| _ = headers.append(name, value));
        headers
    }

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
    fn secrets_come_from_the_header_or_a_same_origin_cookie() {
        const COOKIE: (&str, &str) = ("cookie", "a=b; sandbar=sbt_c");
        let (none, origin) = (Err(Code::Unauthenticated), Err(Code::ForeignOrigin));
        let table: &[(Method, List, std::result::Result<&str, Code>)] = &[
            (Method::POST, &[("authorization", "Bearer sbt_x")], Ok("sbt_x")),
            (Method::GET, &[("authorization", "bearer sbt_x"), COOKIE], Ok("sbt_x")),
            (Method::GET, &[("authorization", "Basic eDp5"), COOKIE], none),
            (Method::GET, &[], none),
            (Method::GET, &[("cookie", "sandbarx=sbt_c; other=1")], none),
            (Method::GET, &[COOKIE], Ok("sbt_c")),
            (Method::GET, &[COOKIE, ("sec-fetch-site", "same-origin")], Ok("sbt_c")),
            (Method::GET, &[COOKIE, ("sec-fetch-site", "none")], Ok("sbt_c")),
            (Method::GET, &[COOKIE, ("sec-fetch-site", "same-site")], origin),
            (Method::GET, &[COOKIE, ("sec-fetch-site", "cross-site")], origin),
            (Method::POST, &[COOKIE], origin),
            (Method::POST, &[COOKIE, ("sec-fetch-site", "none")], origin),
            (Method::POST, &[COOKIE, ("sec-fetch-site", "same-origin")], Ok("sbt_c")),
            (Method::GET, &[COOKIE, ("upgrade", "websocket")], origin),
            (Method::GET, &[COOKIE, ("upgrade", "websocket"), ("sec-fetch-site", "same-origin")], origin),
            (Method::GET, &[COOKIE, ("upgrade", "websocket"), ("origin", "http://localhost:7227")], Ok("sbt_c")),
            (Method::GET, &[("authorization", "Bearer sbt_x"), ("upgrade", "websocket")], Ok("sbt_x")),
            // Whether the Origin is ours was checked before.
            (Method::DELETE, &[COOKIE, ("origin", "http://localhost:7227")], Ok("sbt_c")),
        ];
        for (method, list, want) in table {
            let headers = headers(list);
            assert_eq!(secret(method, &headers).map_err(|problem| problem.code), *want, "{method} {list:?}");
        }
    }
}
