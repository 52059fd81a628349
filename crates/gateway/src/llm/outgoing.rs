//! What is sent to an upstream: of the client's headers those that mean something to the vendor, and the upstream's own
//! key in its place. Whatever key the client holds is a placeholder and stays here.

use base64::{
    Engine as _,
    prelude::{BASE64_STANDARD, BASE64_STANDARD_NO_PAD},
};
use bytes::Bytes;
use http_body_util::Full;
use hyper::{
    HeaderMap, Method, Request, Uri,
    header::{self, HeaderName, HeaderValue},
};
use sandbar_policy::{Host, Placement};

use super::{refusal::Refusal, route::Endpoint, select::Selected};
use crate::{Secret, Warden};

const PASSED: &[&str] =
    &["content-type", "accept", "user-agent", "anthropic-version", "anthropic-beta", "openai-beta", "idempotency-key"];
/// What the vendors' own libraries say of themselves.
const LIBRARIES: &str = "x-stainless-";

pub(super) struct Outgoing {
    authority: String,
    scheme: &'static str,
    path: String,
    headers: HeaderMap,
    body: Bytes,
    /// The key, and what it looks like where it was put.
    key: Vec<Secret>,
}

impl Outgoing {
    pub(super) fn new(
        endpoint: Endpoint,
        query: Option<&str>,
        client: &HeaderMap,
        selected: &Selected,
        warden: &dyn Warden,
        body: Bytes,
    ) -> Result<Self, Refusal> {
        let upstream = &selected.upstream;
        let host = match &upstream.host {
            Host::Ip(std::net::IpAddr::V6(ip)) => format!("[{ip}]"),
            host => host.to_string(),
        };
        let (scheme, usual) = if upstream.tls { ("https", 443) } else { ("http", 80) };
        let authority = if upstream.port == usual { host } else { format!("{host}:{}", upstream.port) };
        let mut path = format!("{}{}", upstream.path, endpoint.path());
        if let Some(query) = query {
            path = format!("{path}?{query}");
        }
        let mut headers = HeaderMap::new();
        for (name, value) in client {
            if PASSED.contains(&name.as_str()) || name.as_str().starts_with(LIBRARIES) {
                headers.append(name, value.clone());
            }
        }
        headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        let mut outgoing = Self { authority, scheme, path, headers, body, key: Vec::new() };
        if upstream.secret.is_some() {
            outgoing.put_key(selected, warden)?;
        }
        Ok(outgoing)
    }

    fn put_key(&mut self, selected: &Selected, warden: &dyn Warden) -> Result<(), Refusal> {
        let (name, upstream) = (&selected.upstream_name, &selected.upstream);
        let secret = upstream.secret.as_deref().unwrap_or_default();
        let refuse = |cause: &str| Err(Refusal::upstream(format!("the upstream `{name}` cannot be used: {cause}")));
        if !upstream.tls {
            return refuse("it has a key and no TLS, and keys are sent over verified TLS only");
        }
        let Some((key, placement)) = warden.upstream_secret(name) else {
            return refuse(&format!("its key, the secret `{secret}`, is not set or not for its host"));
        };
        // servers repeat what they were sent, with or without the padding at its end
        self.key = vec![key.clone(), encoded(key.expose())];
        let (header, value) = match &placement {
            Placement::Header { name, format } => (name.as_str(), format.replace("{}", key.expose())),
            Placement::Basic { user } => {
                let credentials = format!("{user}:{}", key.expose());
                self.key.push(encoded(&credentials));
                ("authorization", format!("Basic {}", BASE64_STANDARD.encode(credentials)))
            }
            Placement::Query { name } => {
                let join = if self.path.contains('?') { '&' } else { '?' };
                let value = escaped(key.expose());
                self.path = format!("{}{join}{}={value}", self.path, escaped(name));
                self.key.push(Secret::new(value));
                return Ok(());
            }
            Placement::Body => {
                return refuse(&format!("the secret `{secret}` belongs into a body, and a call has no place for it"));
            }
        };
        let (Ok(header), Ok(mut value)) = (HeaderName::try_from(header), HeaderValue::try_from(value)) else {
            return refuse(&format!("the secret `{secret}` cannot stand in a header"));
        };
        value.set_sensitive(true);
        self.headers.insert(header, value);
        Ok(())
    }

    /// What must not come back, in any form.
    pub(super) fn key(&self) -> &[Secret] {
        &self.key
    }

    /// Gives up the body, which may be large.
    pub(super) fn sent(&mut self) {
        self.body = Bytes::new();
    }

    /// In the form of the connection's protocol.
    pub(super) fn request(&self, h2: bool) -> Result<Request<Full<Bytes>>, hyper::http::Error> {
        let uri = if h2 {
            Uri::builder().scheme(self.scheme).authority(&*self.authority).path_and_query(&*self.path).build()?
        } else {
            Uri::builder().path_and_query(&*self.path).build()?
        };
        let mut request = Request::builder().method(Method::POST).uri(uri).body(Full::new(self.body.clone()))?;
        *request.headers_mut() = self.headers.clone();
        if !h2 {
            request.headers_mut().insert(header::HOST, HeaderValue::try_from(&*self.authority)?);
        }
        Ok(request)
    }
}

fn encoded(text: &str) -> Secret {
    Secret::new(BASE64_STANDARD_NO_PAD.encode(text))
}

/// For a query; everything but letters and digits.
fn escaped(text: &str) -> String {
    text.bytes()
        .map(|byte| if byte.is_ascii_alphanumeric() { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}
