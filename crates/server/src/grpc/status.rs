//! The one place where a problem becomes a gRPC status, whoever found it.

use axum::{
    body::Body,
    extract::Request,
    http::{HeaderMap, header},
    middleware::Next,
    response::Response,
};
use sandbar_api::{Code, Problem};
use tonic::{
    Status,
    metadata::{MetadataMap, MetadataValue},
};

/// The stable code of the problem.
const CODE: &str = "sandbar-code";
/// With `output_dropped`: the first offset still kept.
const FIRST_KEPT: &str = "sandbar-first-kept";
/// Bytes of a detail. A status travels in a header, in which each byte may take three; common clients take 8 KiB of headers.
const LONGEST: usize = 2000;

pub(super) fn of(problem: Problem) -> Status {
    if problem.status >= 500 {
        tracing::warn!(code = problem.code.as_str(), detail = problem.detail, "call failed");
    }
    let mut metadata = MetadataMap::new();
    metadata.insert(CODE, MetadataValue::from_static(problem.code.as_str()));
    if let Some(first) = problem.first_kept {
        metadata.insert(FIRST_KEPT, first.into());
    }
    let cut = problem.detail.floor_char_boundary(LONGEST);
    let more = if cut < problem.detail.len() { "…" } else { "" };
    let message = format!("{}{more} {}", &problem.detail[..cut], problem.fix);
    Status::with_metadata(code(problem.code), message, metadata)
}

fn code(code: Code) -> tonic::Code {
    match code {
        Code::UnknownRoute | Code::MethodNotAllowed => tonic::Code::Unimplemented,
        Code::NameTaken => tonic::Code::AlreadyExists,
        Code::SandboxGone | Code::SessionEnded => tonic::Code::NotFound,
        Code::OutputDropped | Code::EventsDropped | Code::OffsetBeyond => tonic::Code::OutOfRange,
        code => match code.status() {
            400 | 406 | 415 => tonic::Code::InvalidArgument,
            401 => tonic::Code::Unauthenticated,
            403 => tonic::Code::PermissionDenied,
            404 => tonic::Code::NotFound,
            // 422: what is asked for is understood, and cannot be had in this sandbox or on this host.
            409 | 410 | 422 => tonic::Code::FailedPrecondition,
            413 | 429 | 507 => tonic::Code::ResourceExhausted,
            502 | 503 => tonic::Code::Unavailable,
            _ => tonic::Code::Internal,
        },
    }
}

/// What tonic refuses by itself, with our code: it has none, and calls a message that is too large out of range.
pub(super) fn coded(response: Response) -> Response {
    let told = response.headers();
    if told.contains_key(CODE) {
        return response;
    }
    match told.get("grpc-status").map(|status| tonic::Code::from_bytes(status.as_bytes())) {
        Some(tonic::Code::OutOfRange) => refusal(&of(too_large()), response.headers()),
        // Beside `grpc-accept-encoding`, by which clients know what would do.
        Some(tonic::Code::Unimplemented) if told.contains_key("grpc-accept-encoding") => {
            let problem = of(Problem::new(
                Code::UnsupportedMedia,
                "The message is compressed, and this server takes none that is.",
                "Call without compression, `grpc-encoding: identity`.",
            ));
            let metadata = problem.metadata().clone();
            let status = Status::with_metadata(tonic::Code::Unimplemented, problem.message(), metadata);
            refusal(&status, response.headers())
        }
        _ => response,
    }
}

/// What a message of a stream was not read for.
pub(super) fn unread(status: Status) -> Status {
    if is_too_large(&status) { of(too_large()) } else { status }
}

/// As tonic says it; a status of ours has a code.
pub(super) fn is_too_large(status: &Status) -> bool {
    status.code() == tonic::Code::OutOfRange && status.metadata().get(CODE).is_none()
}

pub(super) fn too_large() -> Problem {
    Problem::new(
        Code::TooLarge,
        "The message is larger than 4 MiB.",
        "Send less in one message: a file in more pieces, a long text as a file.",
    )
}

/// Whether the caller speaks gRPC. What browsers speak instead, `application/grpc-web`, is another protocol.
pub(super) fn is_spoken(headers: &HeaderMap) -> bool {
    let declared = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let rest = declared.and_then(|text| text.strip_prefix("application/grpc"));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['+', ';']))
}

/// What an answer of gRPC that is a refusal would be called in HTTP, where it is a 200: for those who count failures.
pub(crate) fn counts_as(headers: &HeaderMap) -> Option<u16> {
    use tonic::Code::{DataLoss, DeadlineExceeded, Internal, Ok, Unavailable, Unknown};
    match tonic::Code::from_bytes(headers.get("grpc-status")?.as_bytes()) {
        Ok => None,
        Internal | Unknown | DataLoss | Unavailable | DeadlineExceeded => Some(500),
        _ => Some(400),
    }
}

/// Around everything: who speaks gRPC is refused in gRPC, also by what stands in front of the routes.
pub(crate) async fn answer(request: Request, next: Next) -> Response {
    let spoken = is_spoken(request.headers());
    let mut response = next.run(request).await;
    match response.extensions_mut().remove::<Problem>() {
        Some(problem) if spoken => refusal(&of(problem), response.headers()),
        _ => response,
    }
}

/// An answer that is a status alone, with the headers that every answer has.
pub(super) fn refusal(status: &Status, common: &HeaderMap) -> Response {
    let mut response = status.clone().into_http::<Body>();
    for (name, value) in common {
        // Where the answer was a status before, this one stands in its place.
        let replaced = [header::CONTENT_TYPE, header::CONTENT_LENGTH].contains(name)
            || ["grpc-status", "grpc-message", "grpc-status-details-bin"].contains(&name.as_str());
        if !replaced {
            response.headers_mut().insert(name, value.clone());
        }
    }
    response
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn every_code_is_told_with_its_name() {
        for known in Code::ALL {
            let status = of(Problem::new(*known, "What.", "Fix."));
            assert_eq!(status.metadata().get(CODE).map(MetadataValue::as_bytes), Some(known.as_str().as_bytes()));
            assert_eq!(status.message(), "What. Fix.");
            assert!(!matches!(status.code(), tonic::Code::Ok | tonic::Code::Unknown), "{}", known.as_str());
            assert_eq!(status.code() == tonic::Code::Internal, known.status() == 500, "{}", known.as_str());
        }
        for (known, want) in [
            (Code::BadCommand, tonic::Code::InvalidArgument),
            (Code::Unauthenticated, tonic::Code::Unauthenticated),
            (Code::ForeignHost, tonic::Code::PermissionDenied),
            (Code::UnknownSandbox, tonic::Code::NotFound),
            (Code::WrongState, tonic::Code::FailedPrecondition),
            (Code::CommandNotFound, tonic::Code::FailedPrecondition),
            (Code::TooLarge, tonic::Code::ResourceExhausted),
            (Code::DiskFull, tonic::Code::ResourceExhausted),
            (Code::GuestUnreachable, tonic::Code::Unavailable),
            (Code::ShuttingDown, tonic::Code::Unavailable),
        ] {
            assert_eq!(code(known), want, "{}", known.as_str());
        }
    }

    #[test]
    fn a_long_detail_is_cut_and_the_fix_is_not() {
        let status = of(Problem::new(Code::BadPath, "ü".repeat(5000), "Fix.").with_first_kept(7));
        assert!(status.message().len() < LONGEST + 20 && status.message().ends_with("ü… Fix."));
        assert_eq!(status.metadata().get(FIRST_KEPT).map(MetadataValue::as_bytes), Some(&b"7"[..]));
    }

    #[test]
    fn who_speaks_grpc() {
        for (declared, want) in [
            ("application/grpc", true),
            ("application/grpc+proto", true),
            ("application/grpc;charset=utf-8", true),
            ("application/grpc-web", false),
            ("application/json", false),
        ] {
            let headers = HeaderMap::from_iter([(header::CONTENT_TYPE, HeaderValue::from_static(declared))]);
            assert_eq!(is_spoken(&headers), want, "{declared}");
        }
        assert!(!is_spoken(&HeaderMap::new()));
    }
}
