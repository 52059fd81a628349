//! One request of the server's own, to a place that an admin chose: a POST, dialled like a sandbox's connection, so that
//! every address is vetted and the vetted one is dialled. No redirect is followed, no proxy asked, nothing kept open.

use std::{fmt, pin::pin, str::FromStr, time::Duration};

use bytes::Bytes;
use futures_util::future::{Either, select};
use http_body_util::{BodyExt as _, Full};
use hyper::{
    Method, Request, Response, StatusCode, Uri,
    body::Incoming,
    client::conn::http1,
    header::{CONNECTION, CONTENT_TYPE, HOST, HeaderName, HeaderValue, RETRY_AFTER, USER_AGENT},
    http::uri::PathAndQuery,
};
use hyper_util::rt::TokioIo;
use sandbar_policy::Host;
use tokio::time::{Instant, timeout, timeout_at};

use crate::{
    Gateway,
    dial::{Alpn, Chosen, Connected, DialError, Towards},
    refusal::place,
};

/// To resolve, connect and agree on TLS.
const CONNECT: Duration = Duration::from_secs(10);
/// Everything, from the first lookup to the answer's head.
const WHOLE: Duration = Duration::from_secs(30);
/// What is read of an answer's body, and thrown away, and how long: some servers take a reader that goes for a failure.
const DRAINED: usize = 64 * 1024;
const DRAIN: Duration = Duration::from_secs(2);
/// Of an answer's head.
const HEAD: usize = 64 * 1024;
const LONGEST: usize = 2048;
const AGENT: HeaderValue = HeaderValue::from_static("Sandbar");

/// An http or https URL, parsed once: what was checked is what is dialled.
#[derive(Clone, PartialEq, Eq)]
pub struct Target {
    host: Host,
    port: u16,
    tls: bool,
    path: PathAndQuery,
}

/// Reads on after "The URL is not usable: ".
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadTarget(String);

/// What the server said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answered {
    pub status: u16,
    /// As it was sent.
    pub retry_after: Option<String>,
}

/// Why there is no answer. Names host and port, never the path.
#[derive(Debug, thiserror::Error)]
pub enum NotPosted {
    #[error("{place} cannot be reached: {cause}")]
    Unreached { place: String, cause: String },
    #[error("{place} did not answer within {} s", WHOLE.as_secs())]
    Slow { place: String },
    #[error("{place} broke the connection off: {cause}")]
    Broken { place: String, cause: String },
    #[error("a header cannot be sent: {0}")]
    Header(&'static str),
}

impl Target {
    /// Host, and port if it is an odd one: all that may be told.
    pub fn place(&self) -> String {
        place(&self.host, self.port)
    }
}

/// Without the path, which may hold a credential.
impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Target").field(&self.place()).finish()
    }
}

impl FromStr for Target {
    type Err = BadTarget;

    fn from_str(text: &str) -> Result<Self, BadTarget> {
        let bad = |cause: &str| BadTarget(cause.to_owned());
        if text.len() > LONGEST {
            return Err(BadTarget(format!("it is longer than {LONGEST} bytes")));
        }
        let odd = |letter: char| !letter.is_ascii_graphic() || matches!(letter, '\\' | '"' | '<' | '>');
        if text.contains(odd) {
            return Err(bad("it has a character in it that has to be percent-encoded"));
        }
        let (scheme, rest) = text.split_once("://").ok_or_else(|| bad("it does not begin with https://"))?;
        let tls = match scheme.to_ascii_lowercase().as_str() {
            "https" => true,
            "http" => false,
            _ => return Err(bad("it does not begin with https://")),
        };
        if rest.contains('#') {
            return Err(bad("it has a fragment, which is never sent"));
        }
        let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        if authority.contains('@') {
            return Err(bad("it has a user name or a password in it"));
        }
        let (host, port) = Host::parse_authority(authority, if tls { 443 } else { 80 })
            .map_err(|error| BadTarget(error.to_string()))?;
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        let path = PathAndQuery::try_from(path).map_err(|error| BadTarget(error.to_string()))?;
        Ok(Self { host, port, tls, path })
    }
}

impl Gateway {
    /// Sends it once. In plain only to addresses that the operator lists as private.
    pub async fn post(
        &self,
        target: &Target,
        headers: &[(&'static str, String)],
        body: Bytes,
    ) -> Result<Answered, NotPosted> {
        let deadline = Instant::now() + WHOLE;
        let request = request(target, headers, body)?;
        let (tls, towards) = if target.tls { (Some(Alpn::Http1), Towards::Anywhere) } else { (None, Towards::Listed) };
        let dialled = self.dial(&target.host, target.port, tls, Chosen::OverApi(towards));
        let dialled = timeout(CONNECT, dialled).await.unwrap_or(Err(DialError::Timeout));
        let unreached = |error: DialError| NotPosted::Unreached { place: target.place(), cause: error.to_string() };
        let Connected { stream, .. } = dialled.map_err(unreached)?;
        let broken = |error: hyper::Error| NotPosted::Broken { place: target.place(), cause: cause(&error) };
        let opened = http1::Builder::new().max_buf_size(HEAD).handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = opened.map_err(broken)?;
        // Both here and no task of its own: whoever gives up takes the connection along.
        let exchange = pin!(async {
            let response = timeout_at(deadline, sender.send_request(request)).await;
            let response = response.map_err(|_| NotPosted::Slow { place: target.place() })?.map_err(broken)?;
            let answered = Answered { status: response.status().as_u16(), retry_after: retry_after(&response) };
            // What it says beside its status counts for nothing, nor how that ends.
            let _ = timeout(DRAIN, drain(response.into_body())).await;
            Ok(answered)
        });
        match select(exchange, pin!(connection)).await {
            Either::Left((answered, _)) => answered,
            Either::Right((_, exchange)) => exchange.await,
        }
    }
}

fn request(
    target: &Target,
    headers: &[(&'static str, String)],
    body: Bytes,
) -> Result<Request<Full<Bytes>>, NotPosted> {
    let mut request = Request::new(Full::new(body));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = Uri::from(target.path.clone());
    let default = if target.tls { 443 } else { 80 };
    let host = match &target.host {
        Host::Ip(std::net::IpAddr::V6(ip)) => format!("[{ip}]"),
        host => host.to_string(),
    };
    let host = if target.port == default { host } else { format!("{host}:{}", target.port) };
    let all = request.headers_mut();
    all.insert(HOST, HeaderValue::try_from(host).map_err(|_| NotPosted::Header("host"))?);
    all.insert(CONNECTION, HeaderValue::from_static("close"));
    all.insert(USER_AGENT, AGENT);
    all.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    for (name, value) in headers {
        let value = HeaderValue::try_from(value).map_err(|_| NotPosted::Header(name))?;
        all.insert(HeaderName::from_static(name), value);
    }
    Ok(request)
}

fn retry_after(response: &Response<Incoming>) -> Option<String> {
    let asked = matches!(response.status(), StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
    let value = response.headers().get(RETRY_AFTER).filter(|_| asked)?;
    value.to_str().ok().map(str::to_owned)
}

async fn drain(mut body: Incoming) {
    let mut left = DRAINED;
    while let Some(Ok(frame)) = body.frame().await {
        left = left.saturating_sub(frame.data_ref().map_or(0, Bytes::len));
        if left == 0 {
            return;
        }
    }
}

/// Hyper keeps the cause below its own words.
fn cause(error: &hyper::Error) -> String {
    if error.is_incomplete_message() {
        return "it closed without an answer".into();
    }
    if error.is_parse() {
        return "its answer is not HTTP".into();
    }
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read_in_one_way_or_refused() {
        for (text, place, tls, path) in [
            ("https://hooks.example.org/x?y=1", "hooks.example.org", true, "/x?y=1"),
            ("HTTPS://Hooks.Example.ORG", "hooks.example.org", true, "/"),
            ("https://a.example:8443?q", "a.example:8443", true, "/?q"),
            ("http://10.1.2.3:8080/a", "10.1.2.3:8080", false, "/a"),
            ("https://[::1]:9/a", "[::1]:9", true, "/a"),
            ("https://[::ffff:127.0.0.1]/", "127.0.0.1", true, "/"),
        ] {
            let target: Target = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!((target.place().as_str(), target.tls, target.path.as_str()), (place, tls, path), "{text}");
        }
        let long = format!("https://a.example/{}", "x".repeat(LONGEST));
        for (text, says) in [
            ("", "https://"),
            ("a.example/x", "https://"),
            ("ftp://a.example/", "https://"),
            ("https:/a.example/", "https://"),
            ("https://", "empty"),
            ("https://user:pass@a.example/", "password"),
            ("https://a.example@b.example/", "password"),
            ("https://a.example/#x", "fragment"),
            ("https://a.example/ x", "percent-encoded"),
            ("https://a.example/\r\nx: y", "percent-encoded"),
            ("https://a.example\\@b.example/", "percent-encoded"),
            ("https://2130706433/", "ends in a number"),
            ("https://0x7f000001/", "ends in a number"),
            ("https://0177.0.0.1/", "ends in a number"),
            ("https://127.1/", "ends in a number"),
            ("https://a.example:0/", "port"),
            ("https://a.example:99999/", "port"),
            ("https://[fe80::1%25lo]/", "zone"),
            (&long, "longer"),
        ] {
            let refused = text.parse::<Target>().map_err(|error| error.to_string());
            assert!(refused.as_ref().is_err_and(|told| told.contains(says)), "{text}: {refused:?}");
        }
    }

    #[test]
    fn the_path_is_never_shown() {
        let target: Target = "https://a.example/services/s3cret".parse().unwrap_or_else(|error| panic!("{error}"));
        assert!(!format!("{target:?} {}", target.place()).contains("s3cret"));
    }
}
