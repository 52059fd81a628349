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
use sandbar_engine::Caller;

use crate::{
    App, grpc,
    problem::{Refused, Result},
    roles, slots,
};
pub(crate) use site::{PreviewHost, Site};

pub(crate) const COOKIE: &str = "sandbar";
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
        "Make a token with `sandbar token create` and send it as `Authorization: Bearer sbt_…`, or sign in with the link that `sandbar up` prints.",
    )
}

/// The bearer token of the Authorization header.
pub(crate) fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, secret) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| secret.trim())
}

/// The secret a TCP request carries. Never taken from the URL, which ends up in logs and Referer headers.
fn secret<'a>(method: &Method, headers: &'a HeaderMap) -> std::result::Result<&'a str, Problem> {
    // A wrong Authorization header is not healed by a cookie: the caller meant the header.
    if headers.contains_key(header::AUTHORIZATION) {
        return bearer(headers).ok_or_else(|| unauthenticated("The Authorization header holds no bearer token."));
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
        Channel::Socket => owner_of_the_socket(),
        Channel::Tcp => {
            let secret = secret(request.method(), request.headers())?;
            let caller = app.engine.authenticate(secret).await?;
            caller.ok_or_else(|| unauthenticated("The token is unknown, expired or revoked."))?
        }
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
