//! What a visitor reads when there is nothing to pass on: what is wrong, and what to do about it.

use axum::{
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse as _, Response},
};
use sandbar_api::{Code, Problem};

use crate::headers::{PAGE_POLICY, harden_answer};

#[derive(Debug)]
pub(super) struct Page {
    status: StatusCode,
    what: String,
    fix: String,
}

const PAGE: &str = include_str!("../pages/refused.html");
const LINK: &str = "Run `sandbar preview SANDBOX PORT` and open the link it prints.";

impl Page {
    fn new(status: StatusCode, what: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { status, what: what.into(), fix: fix.into() }
    }

    pub(super) fn problem(problem: &Problem) -> Self {
        let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        // The status is about a request to us; of a preview's it would be taken for the server's inside.
        let status =
            if problem.code == Code::TooMany || status.is_server_error() { status } else { StatusCode::BAD_GATEWAY };
        Self::new(status, &problem.detail, &problem.fix)
    }

    pub(super) fn no_such_name() -> Self {
        Self::new(StatusCode::NOT_FOUND, "This is no preview: its name is not of the form SANDBOX-PORT.", LINK)
    }

    pub(super) fn no_such_sandbox(named: &str) -> Self {
        let what = format!("There is no sandbox `{}`.", named.escape_debug());
        Self::new(StatusCode::NOT_FOUND, what, "`sandbar ls` shows those there are.")
    }

    pub(super) fn nothing_here() -> Self {
        Self::new(StatusCode::NOT_FOUND, "There is nothing here: /.sandbar is Sandbar's own on every preview.", LINK)
    }

    pub(super) fn not_let_in() -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "This preview is not open in this browser, or not any more.", LINK)
    }

    pub(super) fn wrong_code() -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "The link's code is wrong, used or expired.", LINK)
    }

    pub(super) fn may_not() -> Self {
        let fix = "Use a token with the role operator or admin.";
        Self::new(StatusCode::FORBIDDEN, "Previews are not for this token's role.", fix)
    }

    pub(super) fn from_elsewhere() -> Self {
        let what = "The request comes from a page of another origin, or does not say from which.";
        Self::new(StatusCode::FORBIDDEN, what, "Open the preview itself; its own pages may do all they like there.")
    }

    pub(super) fn nothing_listens(port: u16) -> Self {
        let what = format!("Nothing listens on port {port} yet.");
        let fix = "Start a server on it inside, on 127.0.0.1 or on all addresses, then load this page again.";
        Self::new(StatusCode::BAD_GATEWAY, what, fix)
    }

    pub(super) fn slow(port: u16) -> Self {
        let what = format!("The server on port {port} does not answer.");
        Self::new(StatusCode::GATEWAY_TIMEOUT, what, "See what it does with `sandbar ps` and `sandbar logs`.")
    }

    pub(super) fn broken(port: u16) -> Self {
        let what = format!("What listens on port {port} broke off, or speaks no HTTP.");
        Self::new(StatusCode::BAD_GATEWAY, what, "For other protocols there is `sandbar forward`.")
    }

    pub(super) fn no_connect() -> Self {
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "A preview is no proxy.", "Use another method than CONNECT.")
    }

    /// Hardened like all that is ours.
    pub(super) fn show(self, as_html: bool) -> Response {
        let Self { status, what, fix } = self;
        let (kind, text) = match as_html {
            true => ("text/html; charset=utf-8", html(&what, &fix)),
            false => ("text/plain; charset=utf-8", format!("{what}\n{fix}\n")),
        };
        let mut response = (status, text).into_response();
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
        response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(PAGE_POLICY));
        harden_answer(&mut response);
        response
    }
}

pub(super) fn asks_html(headers: &HeaderMap) -> bool {
    headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).is_some_and(|text| text.contains("text/html"))
}

fn html(what: &str, fix: &str) -> String {
    // The later place first, so that neither text is taken for the other's place.
    PAGE.replace("{fix}", &marked(fix)).replacen("{what}", &marked(what), 1)
}

/// Commands stand between backticks.
fn marked(text: &str) -> String {
    let part = |(at, part): (usize, &str)| {
        let part = escaped(part);
        if at % 2 == 0 { part } else { format!("<code>{part}</code>") }
    };
    text.split('`').enumerate().map(part).collect()
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;").replace('\'', "&#39;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_is_inert() {
        let page = html("There is no `<script>\"&'`.", "`a`");
        assert!(
            page.contains("<code>&lt;script&gt;&quot;&amp;&#39;</code>.") && page.contains("<p><code>a</code></p>")
        );
        assert!(!page.contains("<script"));
        let page = html("{fix}", "{what}");
        assert!(page.contains("<h1>{fix}</h1>") && page.contains("<p>{what}</p>"), "{page}");
    }
}
