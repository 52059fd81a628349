//! Which page a request comes from, as browsers tell it. A preview's cookie goes with whatever request a browser makes to
//! its host, so those that another site's page makes are refused, navigation aside.

use axum::http::{HeaderMap, HeaderValue, Method, header};

use super::{Page, pass};
use crate::{App, access::PreviewHost};

pub(super) fn judge(app: &App, preview: &PreviewHost, method: &Method, headers: &HeaderMap) -> Result<(), Page> {
    let own = |origin: &HeaderValue| app.site.is_preview_origin(origin, preview);
    let has_token = pass::token(headers).is_some();
    if is_own(method, headers, own, has_token) { Ok(()) } else { Err(Page::from_elsewhere()) }
}

fn is_own(method: &Method, headers: &HeaderMap, own: impl Fn(&HeaderValue) -> bool, has_token: bool) -> bool {
    let told = |name: &str| headers.get(name).map(HeaderValue::as_bytes);
    let upgrades = headers.contains_key(header::UPGRADE);
    let site = told("sec-fetch-site");
    let same = site == Some(b"same-origin");
    let mut origins = headers.get_all(header::ORIGIN).iter();
    let origin_is_own = match (origins.next(), origins.next()) {
        (None, _) => None,
        // A page that hides where it comes from also hides it from its own server.
        (Some(origin), None) if origin == "null" && same && !upgrades => Some(true),
        (Some(origin), None) => Some(own(origin)),
        (Some(_), Some(_)) => Some(false),
    };
    if origin_is_own == Some(false) {
        return false;
    }
    let navigates = method.is_safe()
        && !upgrades
        && told("sec-fetch-mode") == Some(b"navigate")
        && told("sec-fetch-dest") == Some(b"document");
    if !matches!(site, None | Some(b"same-origin" | b"none")) && !navigates {
        return false;
    }
    // A token is put there by a program; a cookie by a browser, which must say for whom when something may change.
    has_token || (method.is_safe() && !upgrades) || origin_is_own == Some(true) || (same && !upgrades)
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderName;

    use super::*;

    type List = &'static [(&'static str, &'static str)];

    #[test]
    fn only_pages_of_the_preview_and_people_act_there() {
        const OWN: (&str, &str) = ("origin", "http://web-80.localhost:7227");
        const FOREIGN: (&str, &str) = ("origin", "http://localhost:7227");
        const SAME: (&str, &str) = ("sec-fetch-site", "same-origin");
        const CROSS: (&str, &str) = ("sec-fetch-site", "cross-site");
        const SITE: (&str, &str) = ("sec-fetch-site", "same-site");
        const NAVIGATE: (&str, &str) = ("sec-fetch-mode", "navigate");
        const DOCUMENT: (&str, &str) = ("sec-fetch-dest", "document");
        const FRAME: (&str, &str) = ("sec-fetch-dest", "iframe");
        const SOCKET: (&str, &str) = ("upgrade", "websocket");
        let table: &[(Method, List, bool)] = &[
            (Method::GET, &[], true),
            (Method::GET, &[SAME], true),
            (Method::GET, &[("sec-fetch-site", "none"), NAVIGATE, DOCUMENT], true),
            (Method::GET, &[CROSS, NAVIGATE, DOCUMENT], true),
            (Method::GET, &[CROSS, NAVIGATE, FRAME], false),
            (Method::GET, &[CROSS, ("sec-fetch-mode", "no-cors")], false),
            (Method::GET, &[SITE, ("sec-fetch-mode", "no-cors")], false),
            (Method::GET, &[CROSS, NAVIGATE, DOCUMENT, FOREIGN], false),
            (Method::GET, &[FOREIGN], false),
            (Method::GET, &[OWN, OWN], false),
            (Method::POST, &[], false),
            (Method::POST, &[OWN], true),
            (Method::POST, &[SAME], true),
            (Method::POST, &[SAME, ("origin", "null")], true),
            (Method::POST, &[("origin", "null")], false),
            (Method::POST, &[CROSS, ("origin", "null")], false),
            (Method::POST, &[CROSS, NAVIGATE, DOCUMENT], false),
            (Method::GET, &[SOCKET], false),
            (Method::GET, &[SOCKET, SAME], false),
            (Method::GET, &[SOCKET, OWN], true),
            (Method::GET, &[SOCKET, FOREIGN], false),
            (Method::GET, &[SOCKET, OWN, CROSS], false),
        ];
        for (method, list, want) in table {
            let mut headers = HeaderMap::new();
            for (name, value) in *list {
                headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
            }
            let own = |origin: &HeaderValue| origin == OWN.1;
            assert_eq!(is_own(method, &headers, own, false), *want, "{method} {list:?}");
        }
        let own = |_: &HeaderValue| false;
        assert!(is_own(&Method::POST, &HeaderMap::new(), own, true));
        assert!(is_own(
            &Method::GET,
            &HeaderMap::from_iter([(header::UPGRADE, "websocket".parse().unwrap_or_else(|error| panic!("{error}")))]),
            own,
            true
        ));
        let foreign = HeaderMap::from_iter([(header::ORIGIN, HeaderValue::from_static("http://evil.example"))]);
        assert!(!is_own(&Method::POST, &foreign, own, true));
    }
}
