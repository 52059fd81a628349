//! Who may call: the channel a request came through, the names we answer to, and the token it carries.
//!
//! The Unix socket belongs to its owner. Over TCP a web page in the user's browser can reach us too, so the order
//! matters: Host (DNS rebinding) and Origin (cross-site requests) are judged before any token is looked at.

mod site;

use axum::{
    extract::{FromRequestParts, MatchedPath, Request, State},
    http::{HeaderMap, HeaderValue, Method, header, request::Parts},
    middleware::Next,
    response::Response,
};
use sandbar_api::{Code, Problem, Role};
use sandbar_engine::{Caller, Engine};

use crate::{
    App, grpc,
    problem::{Refused, Result},
    proxy, roles, slots,
};
pub(crate) use site::{PreviewHost, Site};

/// Of a browser that is signed in; without and with TLS. The second one's prefix has browsers keep it to this very host.
pub(crate) const COOKIES: [&str; 2] = ["sandbar", "__Host-sandbar"];
/// Who owns what was made over the Unix socket.
const SOCKET: &str = "socket";

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
        "Make a token with `sandbar token create` and send it as `Authorization: Bearer sbt_…`, or sign a browser in with the link that `sandbar open` prints.",
    )
}

/// The bearer token of the Authorization header.
pub(crate) fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, secret) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| secret.trim())
}

/// What a TCP request shows. One is never taken for the other.
#[derive(Debug, PartialEq, Eq)]
enum Shown<'a> {
    /// In the Authorization header.
    Token(&'a str),
    Cookie(&'a str),
}

pub(crate) fn cookie_name(site: &Site) -> &'static str {
    COOKIES[usize::from(site.is_https())]
}

/// Never taken from the URL, which ends up in logs and Referer headers.
fn shown<'a>(method: &Method, headers: &'a HeaderMap, cookie: &str) -> std::result::Result<Shown<'a>, Problem> {
    // A wrong Authorization header is not healed by a cookie: the caller meant the header.
    if headers.contains_key(header::AUTHORIZATION) {
        let token =
            bearer(headers).ok_or_else(|| unauthenticated("The Authorization header holds no bearer token."))?;
        return Ok(Shown::Token(token));
    }
    let (_, cookie) = proxy::cookies(headers)
        .find(|(name, _)| *name == cookie)
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
    Ok(Shown::Cookie(cookie))
}

/// On requests of a browser that is signed in.
#[derive(Clone, Copy)]
pub(crate) struct ByBrowser;

async fn caller(app: &App, request: &mut Request) -> Result<Caller> {
    let found = match shown(request.method(), request.headers(), cookie_name(&app.site))? {
        Shown::Token(secret) => app.engine.authenticate(secret).await?,
        Shown::Cookie(secret) => {
            let origin = app.site.sign_in_origin(request.uri(), request.headers());
            let origin = origin.ok_or_else(|| unauthenticated("No browser is signed in under this host name."))?;
            let found = app.engine.authenticate_browser(&origin, secret).await?;
            request.extensions_mut().insert(ByBrowser);
            found
        }
    };
    Ok(found.ok_or_else(|| unauthenticated("The token is unknown, expired or revoked."))?)
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
        Channel::Socket => owner_of_the_socket(),
        Channel::Tcp => caller(&app, &mut request).await?,
    };
    if let Err(problem) = slots::claim(request.extensions(), &caller) {
        return Ok(slots::turned_away(problem));
    }
    let route = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
    match route {
        Some(method) if grpc::serves(method) => grpc::permit(caller.role, method)?,
        route => roles::permit(caller.role, request.method(), route)?,
    }
    request.extensions_mut().insert(caller);
    Ok(next.run(request).await)
}

pub(crate) fn owner_of_the_socket() -> Caller {
    Caller { owner: SOCKET.to_owned(), role: Role::Admin, session: None }
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

/// The engine as the caller may use it, on routes that viewers reach and that look into a sandbox.
pub(crate) struct Looking(pub(crate) Engine);

impl FromRequestParts<App> for Looking {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self> {
        let Calling(caller) = Calling::from_request_parts(parts, app).await?;
        Ok(Self(app.engine.of(&caller)))
    }
}

/// Where a browser is being signed in.
pub(crate) struct SignInOrigin(pub(crate) String);

impl FromRequestParts<App> for SignInOrigin {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self> {
        // Over the Unix socket nobody has looked at the Host.
        let over_tcp = parts.extensions.get::<Channel>() != Some(&Channel::Socket);
        let origin = app.site.sign_in_origin(&parts.uri, &parts.headers).filter(|_| over_tcp);
        origin.map(Self).ok_or_else(|| {
            let detail = "No browser is signed in under this host name: other servers may have it too.";
            let fix = match app.site.sign_in_url() {
                Some(url) => format!("Open the link at {url}, or under another name that leads to this server alone."),
                None => "Use a server that was started with `sandbar up`.".to_owned(),
            };
            Refused(Problem::new(Code::ForeignHost, detail, fix))
        })
    }
}

/// A call over the Unix socket, which is its owner's.
pub(crate) struct OverSocket;

impl<S: Sync> FromRequestParts<S> for OverSocket {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self> {
        if parts.extensions.get::<Channel>() == Some(&Channel::Socket) {
            return Ok(Self);
        }
        let detail = "This is for the owner of the server's Unix socket alone.";
        Err(Refused(Problem::new(
            Code::Forbidden,
            detail,
            "Run `sandbar open` on the server's machine, or in its pod.",
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) type List = &'static [(&'static str, &'static str)];

    pub(super) fn headers(list: List) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &'static str)| {
            (header::HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        let mut headers = HeaderMap::new();
        list.iter().map(pair).for_each(|(name, value)| _ = headers.append(name, value));
        headers
    }

    #[test]
    fn secrets_come_from_the_header_or_a_same_origin_cookie() {
        const COOKIE: (&str, &str) = ("cookie", "a=b; sandbar=sbw_c");
        let (none, origin) = (Err(Code::Unauthenticated), Err(Code::ForeignOrigin));
        let (token, cookie) = (Ok(Shown::Token("sbt_x")), Ok(Shown::Cookie("sbw_c")));
        let table: &[(Method, List, &std::result::Result<Shown<'_>, Code>)] = &[
            (Method::POST, &[("authorization", "Bearer sbt_x")], &token),
            (Method::GET, &[("authorization", "bearer sbt_x"), COOKIE], &token),
            (Method::GET, &[("authorization", "Basic eDp5"), COOKIE], &none),
            (Method::GET, &[], &none),
            (Method::GET, &[("cookie", "sandbarx=sbw_c; __Host-sandbar=sbw_c; other=1")], &none),
            (Method::GET, &[COOKIE], &cookie),
            (Method::GET, &[COOKIE, ("sec-fetch-site", "same-origin")], &cookie),
            (Method::GET, &[COOKIE, ("sec-fetch-site", "none")], &cookie),
            (Method::GET, &[COOKIE, ("sec-fetch-site", "same-site")], &origin),
            (Method::GET, &[COOKIE, ("sec-fetch-site", "cross-site")], &origin),
            (Method::POST, &[COOKIE], &origin),
            (Method::POST, &[COOKIE, ("sec-fetch-site", "none")], &origin),
            (Method::POST, &[COOKIE, ("sec-fetch-site", "same-origin")], &cookie),
            (Method::GET, &[COOKIE, ("upgrade", "websocket")], &origin),
            (Method::GET, &[COOKIE, ("upgrade", "websocket"), ("sec-fetch-site", "same-origin")], &origin),
            (Method::GET, &[COOKIE, ("upgrade", "websocket"), ("origin", "http://localhost:7227")], &cookie),
            (Method::GET, &[("authorization", "Bearer sbt_x"), ("upgrade", "websocket")], &token),
            // Whether the Origin is ours was checked before.
            (Method::DELETE, &[COOKIE, ("origin", "http://localhost:7227")], &cookie),
        ];
        for (method, list, want) in table {
            let headers = headers(list);
            let got = shown(method, &headers, COOKIES[0]).map_err(|problem| problem.code);
            assert_eq!(got, **want, "{method} {list:?}");
        }
    }
}
