//! How a runtime inside a sandbox can refuse, or not be there.

use std::time::Duration;

/// Why a runtime did not do it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RuntimeError {
    /// The address is none.
    #[error("{url:?} is no address of a runtime: {why}")]
    BadUrl {
        /// What was given.
        url: String,
        /// What is wrong with it.
        why: String,
    },
    /// The token cannot be sent.
    #[error("the token cannot be sent in a header: it has characters that are not printable")]
    BadToken,
    /// The router's token takes the place of the runtime's.
    #[error("a router does not pass on a token for the runtime: connect another way")]
    TokenNotRouted,
    /// The path is refused before it is sent.
    #[error("{path:?} is no path in a sandbox: {why}")]
    BadPath {
        /// What was given.
        path: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The command is refused before it is sent.
    #[error("a command needs at least the name of a program")]
    NoCommand,
    /// The sandbox has no Service.
    #[error("sandbox {0:?} has no Service: set `service: true` in its template, or connect by the pod's address")]
    NoService(String),
    /// The sandbox has no pod with an address.
    #[error("sandbox {0:?} has no pod with an address: wait until it is ready")]
    NoAddress(String),
    /// There is no way to the gRPC port.
    #[error("sandboxd's gRPC is not reached this way: routers do not pass it on, and an address needs `grpc_at`")]
    NoGrpc,
    /// Nothing answered.
    #[error("the runtime cannot be reached")]
    Unreachable {
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// No answer in time.
    #[error("no answer within {0:?}")]
    TimedOut(Duration),
    /// The answer leads elsewhere.
    #[error("the runtime answered {status} and wants to lead elsewhere, which is refused")]
    Redirected {
        /// The status.
        status: u16,
    },
    /// 404, or `NOT_FOUND`.
    #[error("not found: {0}")]
    NotFound(String),
    /// 401 or `UNAUTHENTICATED`.
    #[error("the token is missing or not valid: {0}")]
    Unauthenticated(String),
    /// 403, or `PERMISSION_DENIED`.
    #[error("refused: {0}")]
    Denied(String),
    /// 400, or `INVALID_ARGUMENT`.
    #[error("not understood: {0}")]
    Invalid(String),
    /// 409: a directory that is not empty.
    #[error("in conflict with what is there: {0}")]
    Conflict(String),
    /// `FAILED_PRECONDITION`: no input, no terminal, or the process has ended.
    #[error("not possible for this process: {0}")]
    Precondition(String),
    /// `RESOURCE_EXHAUSTED`: too many, or too much output.
    #[error("a limit of the runtime is reached: {0}")]
    Exhausted(String),
    /// Any other refusal.
    #[error("the runtime answered {status}: {message}")]
    Refused {
        /// The status of HTTP, or the name of a gRPC code.
        status: String,
        /// What it said.
        message: String,
    },
    /// It is a directory.
    #[error("{0:?} is a directory")]
    IsDirectory(String),
    /// It is not a directory.
    #[error("{0:?} is not a directory")]
    NotDirectory(String),
    /// More than fits.
    #[error("more than {0} bytes: read it to a file or a stream")]
    TooLarge(u64),
    /// The answer makes no sense, or broke off.
    #[error("the answer of the runtime cannot be used: {0}")]
    BadAnswer(String),
    /// What should be sent, or written, failed on this side.
    #[error("failed to copy: {0}")]
    Copy(#[from] std::io::Error),
}

impl RuntimeError {
    pub(super) fn unreachable(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Unreachable { source: source.into() }
    }
}

impl From<tonic::Status> for RuntimeError {
    fn from(status: tonic::Status) -> Self {
        use tonic::Code;
        let message = status.message().to_owned();
        match status.code() {
            Code::NotFound => Self::NotFound(message),
            Code::Unauthenticated => Self::Unauthenticated(message),
            Code::PermissionDenied => Self::Denied(message),
            Code::InvalidArgument => Self::Invalid(message),
            Code::FailedPrecondition => Self::Precondition(message),
            Code::ResourceExhausted => Self::Exhausted(message),
            Code::Unavailable => Self::unreachable(status),
            code => Self::Refused { status: format!("{code:?}"), message },
        }
    }
}
