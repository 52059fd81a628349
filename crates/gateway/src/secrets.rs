//! Putting secrets in: the placeholder is swapped only in the agreed place, only towards the secret's hosts, only in what
//! goes out over verified TLS. Everywhere else a placeholder is just a word.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use hyper::{
    HeaderMap, Response, StatusCode, Uri,
    body::{Body as HttpBody, Frame, Incoming},
    header::{CONTENT_LENGTH, HeaderValue},
    http::request::Parts,
};
use sandbar_policy::{Host, Placement, Swap};

use crate::{
    Grant, Secret, Warden,
    body::{Body, BoxError, stream},
    mask::mask,
    refusal::{Refusal, place},
};

/// Secrets that were put in: their names for the record, and what must not come back.
#[derive(Clone, Default)]
pub(crate) struct Used(Arc<Mutex<Put>>);

#[derive(Default)]
struct Put {
    names: Vec<String>,
    /// Each with what stood in its place.
    values: Vec<(Secret, String)>,
}

impl Used {
    fn add(&self, name: &str) {
        let mut put = self.lock();
        if !put.names.iter().any(|used| used == name) {
            put.names.push(name.to_owned());
        }
    }

    fn hide(&self, secret: Secret, instead: &str) {
        self.lock().values.push((secret, instead.to_owned()));
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.lock().names.clone()
    }

    /// Takes out of an answer's head what was put into the request.
    pub(crate) fn mask<B>(&self, response: &mut Response<B>) {
        let put = self.lock();
        for (secret, instead) in &put.values {
            mask(response.headers_mut(), secret.expose(), instead);
            // the server's own words beside its status
            response.extensions_mut().remove::<hyper::ext::ReasonPhrase>();
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Put> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Swaps what this request to this host may carry. `tls`: the request goes out over verified TLS; otherwise a placeholder
/// of this host's secrets refuses it. Nothing is sent when this fails.
pub(crate) fn inject(
    warden: &dyn Warden,
    host: &Host,
    port: u16,
    tls: bool,
    parts: &mut Parts,
    body: Incoming,
    used: &Used,
) -> Result<Body, Refusal> {
    let grants = warden.grants();
    let mut swaps = Vec::new();
    for grant in grants.iter().filter(|grant| grant.hosts.contains(host)) {
        if !tls {
            refuse_plain(grant, host, port, parts)?;
            continue;
        }
        match &grant.placement {
            Placement::Header { .. } | Placement::Basic { .. } => {
                swap_headers(warden, grant, &mut parts.headers, used)?
            }
            Placement::Query { .. } => swap_query(warden, grant, parts, used)?,
            Placement::Body if body.is_end_stream() => {}
            Placement::Body => {
                let secret = reveal(warden, grant)?;
                let pair = (grant.placeholder.clone().into_bytes(), secret.expose().as_bytes().to_vec());
                swaps.push((grant.name.clone(), Swap::new(vec![pair])));
                used.hide(secret, &grant.placeholder);
            }
        }
    }
    if swaps.is_empty() {
        return Ok(stream(body));
    }
    // it may become longer or shorter, and nothing is gathered to find out
    parts.headers.remove(CONTENT_LENGTH);
    Ok(stream(Swapped { inner: body, swaps, used: used.clone(), trailers: None, ended: false }))
}

fn reveal(warden: &dyn Warden, grant: &Grant) -> Result<Secret, Refusal> {
    warden.reveal(&grant.name).ok_or_else(|| {
        Refusal::new(
            StatusCode::FORBIDDEN,
            "secret_removed",
            format!("The secret `{}` was removed; nothing was sent.", grant.name),
            format!("The operator can set it again with `sandbar secret set {}`.", grant.name),
        )
    })
}

fn unusable(grant: &Grant) -> Refusal {
    Refusal::new(
        StatusCode::FORBIDDEN,
        "secret_unusable",
        format!("The secret `{}` cannot stand where it was asked for; nothing was sent.", grant.name),
        "Its value has to be without line breaks and other control characters.",
    )
}

fn swap_headers(warden: &dyn Warden, grant: &Grant, headers: &mut HeaderMap, used: &Used) -> Result<(), Refusal> {
    for (name, value) in headers.iter_mut() {
        let Ok(text) = value.to_str() else { continue };
        let swap = |secret: &str| grant.placement.swap_header(name.as_str(), text, &grant.placeholder, secret);
        // the value is not even looked up where nothing asks for it
        if swap("").is_none() {
            continue;
        }
        let secret = reveal(warden, grant)?;
        let swapped = swap(secret.expose()).ok_or_else(|| unusable(grant))?;
        if let (Some(encoded), Some(instead)) = (basic(&swapped), basic(text)) {
            used.hide(Secret::new(encoded.to_owned()), instead);
        }
        let mut swapped = HeaderValue::from_str(&swapped).map_err(|_| unusable(grant))?;
        // never shown by Debug, never kept in HTTP/2's table
        swapped.set_sensitive(true);
        *value = swapped;
        used.add(&grant.name);
        used.hide(secret, &grant.placeholder);
    }
    Ok(())
}

/// What stands encoded in a header of the scheme `Basic`.
fn basic(header: &str) -> Option<&str> {
    header.split_once(' ').filter(|(scheme, _)| scheme.eq_ignore_ascii_case("basic")).map(|(_, encoded)| encoded.trim())
}

fn swap_query(warden: &dyn Warden, grant: &Grant, parts: &mut Parts, used: &Used) -> Result<(), Refusal> {
    let Some(query) = parts.uri.query() else { return Ok(()) };
    if grant.placement.swap_query(query, &grant.placeholder, "").is_none() {
        return Ok(());
    }
    let secret = reveal(warden, grant)?;
    let swapped =
        grant.placement.swap_query(query, &grant.placeholder, secret.expose()).ok_or_else(|| unusable(grant))?;
    let mut uri = std::mem::take(&mut parts.uri).into_parts();
    let path = uri.path_and_query.as_ref().map_or("/", |path| path.path());
    uri.path_and_query = Some(format!("{path}?{swapped}").parse().map_err(|_| unusable(grant))?);
    parts.uri = Uri::from_parts(uri).map_err(|_| unusable(grant))?;
    used.add(&grant.name);
    used.hide(secret, &grant.placeholder);
    Ok(())
}

/// A placeholder that went out in plain would teach a client that plain works.
fn refuse_plain(grant: &Grant, host: &Host, port: u16, parts: &Parts) -> Result<(), Refusal> {
    let in_header = |(name, value): (&hyper::header::HeaderName, &HeaderValue)| {
        let contains = value.as_bytes().windows(grant.placeholder.len()).any(|w| w == grant.placeholder.as_bytes());
        let encoded = || {
            value
                .to_str()
                .is_ok_and(|text| grant.placement.swap_header(name.as_str(), text, &grant.placeholder, "").is_some())
        };
        contains || encoded()
    };
    let found = grant.placement == Placement::Body
        || parts.headers.iter().any(in_header)
        || parts.uri.path_and_query().is_some_and(|path| path.as_str().contains(&grant.placeholder));
    if !found {
        return Ok(());
    }
    Err(Refusal::new(
        StatusCode::FORBIDDEN,
        "secret_in_plain",
        format!(
            "The secret `{}` only goes to {} over TLS, and this request is in plain; nothing was sent.",
            grant.name,
            place(host, port)
        ),
        "Use https://.",
    ))
}

/// A body with placeholders replaced as it passes, whatever the boundaries of its chunks.
struct Swapped<B> {
    inner: B,
    /// One for each secret, one after the other, so that it is known which were put in.
    swaps: Vec<(String, Swap)>,
    used: Used,
    trailers: Option<Frame<Bytes>>,
    ended: bool,
}

impl<B> Swapped<B> {
    fn push(&mut self, chunk: &[u8], last: bool) -> Vec<u8> {
        let mut bytes = chunk.to_vec();
        for (name, swap) in &mut self.swaps {
            bytes = swap.push(&bytes);
            if last {
                bytes.extend(swap.finish());
            }
            if swap.count() > 0 {
                self.used.add(name);
            }
        }
        bytes
    }
}

impl<B> HttpBody for Swapped<B>
where
    B: HttpBody<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        loop {
            if self.ended {
                return Poll::Ready(self.trailers.take().map(Ok));
            }
            let chunk = match ready!(Pin::new(&mut self.inner).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.push(&data, false),
                    Err(trailers) => {
                        self.ended = true;
                        self.trailers = Some(trailers);
                        self.push(&[], true)
                    }
                },
                None => {
                    self.ended = true;
                    self.push(&[], true)
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
            };
            if !chunk.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(chunk.into()))));
            }
        }
    }
}
