//! Extractors that refuse with a problem document: JSON bodies, query strings, path parameters and a few headers.

use std::time::Duration;

use axum::{
    body::Body,
    extract::{
        FromRequest, FromRequestParts, Request,
        path::{ErrorKind, FailedToDeserializePathParams},
        rejection::PathRejection,
    },
    http::{HeaderMap, header, request::Parts},
};
use futures_util::StreamExt as _;
use sandbar_api::{Code, Problem};
use serde::de::DeserializeOwned;

use crate::{
    problem::{Refused, bad_request},
    upload,
};

/// Larger requests are files, and those have their own route.
const MAX_JSON: usize = 4 * 1024 * 1024;
const MAX_BRIEF: usize = 4 * 1024;
const MAX_SECRET: usize = 64 * 1024;
const BRIEF_TIME: Duration = Duration::from_secs(10);

pub(crate) struct Json<T>(pub(crate) T);

impl<S: Sync, T: DeserializeOwned> FromRequest<S> for Json<T> {
    type Rejection = Refused;

    async fn from_request(request: Request, _: &S) -> Result<Self, Refused> {
        Ok(Self(read(request, MAX_JSON).await?))
    }
}

/// JSON with a secret in it: small, and what is wrong with it is told by its place, never by quoting it.
pub(crate) struct SecretJson<T>(pub(crate) T);

impl<S: Sync, T: DeserializeOwned> FromRequest<S> for SecretJson<T> {
    type Rejection = Refused;

    async fn from_request(request: Request, _: &S) -> Result<Self, Refused> {
        let body = object(request, MAX_SECRET).await?;
        serde_json::from_slice(&body).map(Self).map_err(|error| {
            let (line, column) = (error.line(), error.column());
            let detail = format!("The body was not understood: something is wrong at line {line}, column {column}.");
            Refused(Problem::new(Code::BadJson, detail, "Compare it with the schema in /docs."))
        })
    }
}

/// JSON of callers that nobody knows yet: small, and soon.
pub(crate) struct BriefJson<T>(pub(crate) T);

impl<S: Sync, T: DeserializeOwned> FromRequest<S> for BriefJson<T> {
    type Rejection = Refused;

    async fn from_request(request: Request, _: &S) -> Result<Self, Refused> {
        let read = tokio::time::timeout(BRIEF_TIME, read(request, MAX_BRIEF)).await.map_err(|_| {
            let detail = format!("The body did not arrive within {} s.", BRIEF_TIME.as_secs());
            bad_request(detail, "Send it again, at once.")
        })?;
        Ok(Self(read?))
    }
}

async fn read<T: DeserializeOwned>(request: Request, most: usize) -> Result<T, Problem> {
    serde_json::from_slice(&object(request, most).await?).map_err(|error| bad_json(&error))
}

async fn object(request: Request, most: usize) -> Result<Vec<u8>, Problem> {
    if !is_json(request.headers()) {
        return Err(Problem::new(
            Code::UnsupportedMedia,
            "The body is not declared as JSON.",
            "Send the header `Content-Type: application/json`.",
        ));
    }
    let body = collect(request.into_body(), most).await?;
    if !is_object(&body) {
        return Err(Problem::new(
            Code::BadJson,
            "The body is not a JSON object.",
            "Send an object, `{…}`; compare it with the schema in /docs.",
        ));
    }
    Ok(body)
}

/// Serde would also take the fields of a struct from an array, by their order.
fn is_object(body: &[u8]) -> bool {
    body.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'{')
}

fn is_json(headers: &HeaderMap) -> bool {
    let Some(Ok(text)) = headers.get(header::CONTENT_TYPE).map(|value| value.to_str()) else { return false };
    let essence = text.split(';').next().unwrap_or(text).trim();
    essence.eq_ignore_ascii_case("application/json")
}

async fn collect(body: Body, most: usize) -> Result<Vec<u8>, Problem> {
    let mut collected = Vec::new();
    let mut pieces = body.into_data_stream();
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(upload::broke_off)?;
        if collected.len() + piece.len() > most {
            upload::drain(&mut pieces).await;
            return Err(Problem::new(
                Code::TooLarge,
                format!("The JSON body is larger than {most} bytes."),
                "Upload large data as a file and name it in the request.",
            ));
        }
        collected.extend_from_slice(&piece);
    }
    Ok(collected)
}

fn bad_json(error: &serde_json::Error) -> Problem {
    let text = error.to_string();
    // What a duration's own parser says reaches us only as text.
    if text.contains("is not a duration") {
        return Problem::new(Code::BadDuration, format!("{text}."), "Write it with a unit, for example 90s or 1h30m.");
    }
    Problem::new(Code::BadJson, format!("The body was not understood: {text}."), "Compare it with the schema in /docs.")
}

pub(crate) struct Query<T>(pub(crate) T);

impl<S: Sync + Send, T: DeserializeOwned> FromRequestParts<S> for Query<T> {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refused> {
        match axum::extract::Query::from_request_parts(parts, state).await {
            Ok(axum::extract::Query(query)) => Ok(Self(query)),
            Err(rejection) => {
                let text = rejection.body_text();
                let cause = text.strip_prefix("Failed to deserialize query string: ").unwrap_or(&text);
                let detail = format!("The query string was not understood: {cause}.");
                Err(Refused(bad_request(detail, "See the route's parameters in /docs.")))
            }
        }
    }
}

pub(crate) struct Path<T>(pub(crate) T);

impl<S: Sync + Send, T: DeserializeOwned + Send> FromRequestParts<S> for Path<T> {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refused> {
        match axum::extract::Path::from_request_parts(parts, state).await {
            Ok(axum::extract::Path(path)) => Ok(Self(path)),
            Err(PathRejection::FailedToDeserializePathParams(error)) => Err(Refused(bad_path(&error))),
            Err(rejection) => Err(Refused(Problem::new(Code::Internal, rejection.body_text(), "Report it."))),
        }
    }
}

fn bad_path(error: &FailedToDeserializePathParams) -> Problem {
    match error.kind() {
        ErrorKind::InvalidUtf8InPathParam { .. } => {
            Problem::new(Code::BadPath, "The path is not UTF-8.", "Percent-encode the path as UTF-8.")
        }
        kind => bad_request(format!("The path was not understood: {kind}."), "See the route's parameters in /docs."),
    }
}

/// The number of the last event the caller saw, as browsers send it when they connect again.
pub(crate) fn last_event_id(headers: &HeaderMap) -> Result<Option<u64>, Problem> {
    let Some(value) = headers.get("last-event-id") else { return Ok(None) };
    value.to_str().ok().and_then(|text| text.parse().ok()).map(Some).ok_or_else(|| {
        bad_request("The Last-Event-ID header is not a number.", "Send the `id` of the last event you saw, or none.")
    })
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;
    use sandbar_api::CreateSandbox;

    use super::*;

    fn request(body: impl Into<Body>) -> Request {
        let mut request = Request::new(body.into());
        request.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json; charset=utf-8"));
        request
    }

    async fn refusal(request: Request) -> Option<Problem> {
        Json::<CreateSandbox>::from_request(request, &()).await.err().map(|Refused(problem)| problem)
    }

    #[tokio::test]
    async fn json_is_taken_or_refused_with_the_reason() {
        assert_eq!(refusal(request("{}")).await, None);
        for (body, code, says) in [
            ("{\"name\":\n 7}", Code::BadJson, "line 2 column 2"),
            ("{\"colour\":1}", Code::BadJson, "unknown field `colour`"),
            ("", Code::BadJson, "not a JSON object"),
            ("[]", Code::BadJson, "not a JSON object"),
            (" [\"name\"]", Code::BadJson, "not a JSON object"),
            ("null", Code::BadJson, "not a JSON object"),
            ("{", Code::BadJson, "line 1 column 1"),
            ("{\"ttl\":\"soon\"}", Code::BadDuration, "`soon` is not a duration"),
        ] {
            let problem = refusal(request(body)).await;
            assert!(problem.as_ref().is_some_and(|p| p.code == code && p.detail.contains(says)), "{body}: {problem:?}");
        }
        let large = refusal(request(vec![b' '; MAX_JSON + 1])).await;
        assert_eq!(large.map(|problem| problem.code), Some(Code::TooLarge));
        let untyped = refusal(Request::new("{}".into())).await;
        assert_eq!(untyped.map(|problem| problem.code), Some(Code::UnsupportedMedia));
    }

    #[tokio::test(start_paused = true)]
    async fn strangers_are_brief() {
        let brief = async |body: Body| {
            let taken = BriefJson::<CreateSandbox>::from_request(request(body), &()).await;
            taken.err().map(|Refused(problem)| problem.code)
        };
        assert_eq!(brief("{}".into()).await, None);
        assert_eq!(brief(vec![b' '; MAX_BRIEF + 1].into()).await, Some(Code::TooLarge));
        let stalled = futures_util::stream::pending::<Result<bytes::Bytes, std::io::Error>>();
        assert_eq!(brief(Body::from_stream(stalled)).await, Some(Code::BadRequest));
    }

    #[tokio::test]
    async fn a_secret_is_never_quoted() {
        let refused = async |body: Body| {
            let taken = SecretJson::<sandbar_api::SetSecret>::from_request(request(body), &()).await;
            taken.err().map(|Refused(problem)| problem)
        };
        let good = r#"{"hosts": ["a.example"], "as": "body", "value": "s3cret"}"#;
        assert_eq!(refused(good.into()).await, None);
        for bad in [
            r#"{"hosts": "s3cret"}"#,
            r#"{"hosts": [], "as": "body", "value": "s3cret""#,
            r#"{"hosts": [], "as": "body", "s3cret": 1}"#,
        ] {
            let problem = refused(bad.into()).await;
            assert!(problem.as_ref().is_some_and(|p| p.code == Code::BadJson && !p.detail.contains("s3cret")), "{bad}");
        }
        let large = refused(vec![b' '; MAX_SECRET + 1].into()).await;
        assert_eq!(large.map(|problem| problem.code), Some(Code::TooLarge));
    }

    #[test]
    fn a_last_event_id_is_a_number() {
        let mut headers = HeaderMap::new();
        assert_eq!(last_event_id(&headers), Ok(None));
        headers.insert("last-event-id", HeaderValue::from_static("17"));
        assert_eq!(last_event_id(&headers), Ok(Some(17)));
        headers.insert("last-event-id", HeaderValue::from_static("x"));
        assert!(last_event_id(&headers).is_err());
    }
}
