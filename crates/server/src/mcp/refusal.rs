//! What rmcp refuses below the protocol, in plain words without a content type, becomes a problem document like every other
//! refusal of the API. Its status stays: that is what clients of MCP look at.

use axum::{
    body::to_bytes,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse as _, Response},
};
use sandbar_api::{Code, Problem};

use crate::problem::Refused;

/// More than any of its sentences has.
const LONGEST: usize = 16 * 1024;

pub(super) async fn told(answer: Response) -> Response {
    let kind = answer.headers().get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
    let plain = kind.is_none_or(|kind| kind.starts_with(b"text/plain"));
    let Some((code, fix)) = meant(answer.status()).filter(|_| plain) else { return answer };
    let (head, body) = answer.into_parts();
    let said = to_bytes(body, LONGEST).await.unwrap_or_default();
    let said = String::from_utf8_lossy(&said);
    let said = said.trim_end_matches('.');
    let detail = if said.is_empty() { format!("{}.", code.title()) } else { format!("{said}.") };
    let mut refused = Refused(Problem::new(code, detail, fix)).into_response();
    for (name, value) in &head.headers {
        if name != header::CONTENT_TYPE && name != header::CONTENT_LENGTH {
            refused.headers_mut().insert(name, value.clone());
        }
    }
    refused
}

fn meant(status: StatusCode) -> Option<(Code, &'static str)> {
    Some(match status.as_u16() {
        400 => (Code::BadRequest, "Send what the revision of MCP in use says; most clients' libraries do."),
        404 => (Code::UnknownSession, "Open the MCP session again, with `initialize`."),
        405 => (Code::MethodNotAllowed, "Use a method of the Allow header."),
        406 => (Code::NotAcceptable, "Send `Accept: application/json, text/event-stream`."),
        413 => (Code::TooLarge, "Send less in one message: a long file in parts, or through the files API."),
        415 => (Code::UnsupportedMedia, "Send one message of JSON-RPC, with `Content-Type: application/json`."),
        500 => (Code::Internal, "Look at the server's log; if it happens again, report it."),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    fn answer(status: u16, kind: Option<&'static str>, body: &'static str) -> Response {
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = StatusCode::from_u16(status).unwrap_or_default();
        response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("POST"));
        kind.map(|kind| response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind)));
        response
    }

    #[tokio::test]
    async fn a_refusal_in_plain_words_becomes_a_problem_of_the_same_status() {
        for status in [400, 404, 405, 406, 413, 415, 500] {
            for kind in [None, Some("text/plain; charset=utf-8")] {
                let told = told(answer(status, kind, "What was wrong")).await;
                assert_eq!(told.status().as_u16(), status);
                assert_eq!(told.headers()[header::CONTENT_TYPE], crate::problem::CONTENT_TYPE);
                assert_eq!(told.headers()[header::ALLOW], "POST");
                let body = to_bytes(told.into_body(), LONGEST).await.unwrap_or_default();
                let problem: Result<Problem, _> = serde_json::from_slice(&body);
                let detail = problem.ok().filter(|problem| problem.status == status).map(|problem| problem.detail);
                assert_eq!(detail.as_deref(), Some("What was wrong."), "{status}");
            }
        }
    }

    #[tokio::test]
    async fn what_says_what_it_is_stays() {
        for (status, kind) in [(400, Some("application/json")), (200, Some("text/event-stream")), (202, None)] {
            let told = told(answer(status, kind, "{}")).await;
            assert_eq!(
                (told.status().as_u16(), told.headers().get(header::CONTENT_TYPE).is_some()),
                (status, kind.is_some())
            );
        }
    }
}
