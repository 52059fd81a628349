//! What lets a visitor in: a cookie that is good for one sandbox, one port and half a day, and ends with the token it came
//! from; or a token itself, for programs.

use std::time::Duration;

use axum::http::{HeaderMap, HeaderValue};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use chrono::Utc;
use sandbar_api::Role;
use sandbar_engine::{Caller, Engine};
use subtle::ConstantTimeEq as _;

use super::{Page, Place, Visitor};
use crate::{App, access, proxy};

/// Without and with TLS. The second one's prefix keeps other hosts of a shared domain from setting it.
const COOKIES: [&str; 2] = ["sandbar-preview", "__Host-sandbar-preview"];
/// None of these goes inside, or comes from there.
pub(crate) const OURS: [&str; 4] = [access::COOKIES[0], access::COOKIES[1], COOKIES[0], COOKIES[1]];
const LIFETIME: Duration = Duration::from_secs(12 * 60 * 60);
const TOKEN: &str = "sbt_";
const PURPOSE: &str = "preview cookie 1";

fn name(app: &App) -> &'static str {
    COOKIES[usize::from(app.site.is_https())]
}

/// Lax, so that a link in a mail leads to the preview; what other sites' pages request is refused by its headers.
pub(super) fn cookie(app: &App, place: &Place, owner: &str) -> String {
    let expires = Utc::now().timestamp().saturating_add(LIFETIME.as_secs().cast_signed());
    let secure = if app.site.is_https() { "; Secure" } else { "" };
    let value = value(&app.engine, place, owner, expires);
    format!("{}={value}; Path=/; Max-Age={}; HttpOnly; SameSite=Lax{secure}", name(app), LIFETIME.as_secs())
}

fn value(engine: &Engine, place: &Place, owner: &str, expires: i64) -> String {
    let mac = engine.mac(PURPOSE, format!("{}\n{}\n{expires}\n{owner}", place.sandbox, place.port).as_bytes());
    format!("{expires}.{owner}.{}", URL_SAFE_NO_PAD.encode(mac))
}

/// Who a cookie of this very place is from, and for how long it is good. Other hosts of a shared domain may have put more
/// cookies of the name beside ours.
fn opened(engine: &Engine, name: &str, place: &Place, headers: &HeaderMap) -> Option<(String, Duration)> {
    proxy::cookies(headers).filter(|(given, _)| *given == name).find_map(|(_, given)| {
        let (expires, rest) = given.split_once('.')?;
        let (owner, _) = rest.rsplit_once('.')?;
        let expires: i64 = expires.parse().ok()?;
        let left = u64::try_from(expires.saturating_sub(Utc::now().timestamp())).ok().filter(|left| *left > 0)?;
        let right = bool::from(value(engine, place, owner, expires).as_bytes().ct_eq(given.as_bytes()));
        right.then(|| (owner.to_owned(), Duration::from_secs(left)))
    })
}

pub(super) async fn by_cookie(app: &App, place: Option<Place>, headers: &HeaderMap) -> Result<Visitor, Page> {
    let opened = place.as_ref().and_then(|place| opened(&app.engine, name(app), place, headers));
    let (owner, left) = opened.ok_or_else(Page::not_let_in)?;
    if !app.engine.is_valid(&owner).await.map_err(|problem| Page::problem(&problem))? {
        return Err(Page::not_let_in());
    }
    let caller = Caller { owner, role: Role::Operator, session: None };
    Ok(Visitor { caller, left: Some(left) })
}

/// A token of ours. Any other Authorization is between the page and its server.
pub(super) fn token(headers: &HeaderMap) -> Option<&str> {
    access::bearer(headers).filter(|secret| secret.starts_with(TOKEN))
}

/// Whether an Authorization holds a token of ours, by whatever scheme.
pub(super) fn is_ours(value: &HeaderValue) -> bool {
    value.to_str().is_ok_and(|text| text.split(' ').any(|part| part.starts_with(TOKEN)))
}

pub(super) async fn by_token(app: &App, secret: &str) -> Result<Visitor, Page> {
    let caller = app.engine.authenticate(secret).await.map_err(|problem| Page::problem(&problem))?;
    let caller = caller.ok_or_else(Page::not_let_in)?;
    match caller.role {
        Role::Operator | Role::Admin => Ok(Visitor { caller, left: None }),
        Role::Agent | Role::Viewer => Err(Page::may_not()),
    }
}

/// A cookie from inside, for its own host alone; none that would stand in for one of ours.
pub(super) fn host_only(cookie: &HeaderValue) -> Option<HeaderValue> {
    let text = cookie.to_str().ok()?;
    let name = text.split(['=', ';']).next()?.trim();
    if OURS.contains(&name) {
        return None;
    }
    let is_domain = |part: &&str| part.split('=').next().is_some_and(|key| key.trim().eq_ignore_ascii_case("domain"));
    let mut parts = text.split(';');
    let pair = parts.next()?;
    let kept: Vec<_> = std::iter::once(pair).chain(parts.filter(|part| !is_domain(part))).collect();
    HeaderValue::from_str(&kept.join(";")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookies_from_inside_stay_with_their_host() {
        for (given, want) in [
            ("a=b", Some("a=b")),
            ("a=b; Path=/; Secure", Some("a=b; Path=/; Secure")),
            ("a=b; Domain=localhost; Path=/", Some("a=b; Path=/")),
            ("a=b;DOMAIN = .example.com;HttpOnly", Some("a=b;HttpOnly")),
            ("a=b; domain", Some("a=b")),
            ("domain=b; Path=/", Some("domain=b; Path=/")),
            ("sandbar=x", None),
            ("__Host-sandbar=x; Path=/", None),
            ("sandbar-preview=x; Path=/", None),
            ("__Host-sandbar-preview =x", None),
        ] {
            let got = host_only(&HeaderValue::from_static(given));
            assert_eq!(got, want.map(HeaderValue::from_static), "{given}");
        }
    }
}
