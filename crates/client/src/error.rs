//! What can go wrong between a caller and the server, each with the sentence that helps.

use sandbar_api::{Code, Problem};

pub type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The server understood and said no.
    #[error("{}", .0.detail)]
    Problem(Box<Problem>),
    #[error("no server answers at {server}")]
    Unreachable { server: String, source: reqwest::Error },
    #[error("the certificate of {server} is not trusted: {cause}")]
    Untrusted { server: String, cause: String },
    #[error("the connection to {server} broke")]
    Transport { server: String, source: reqwest::Error },
    /// The same where it was no longer HTTP.
    #[error("the connection to {server} broke")]
    Broken { server: String, source: std::io::Error },
    /// Something answered that does not speak our language.
    #[error("the answer of {server} ({status}) is not one of a Sandbar server: {cause}")]
    Foreign { server: String, status: u16, cause: String },
    /// Bytes between two pieces are missing: shown rather than hidden.
    #[error("the stream jumped from {expected} to {got}: what lies between was dropped while reading")]
    Gap { expected: u64, got: u64 },
    #[error("failed to read what was to be sent")]
    Read(#[source] std::io::Error),
    #[error("`{address}` is not the address of a server: {cause}")]
    BadAddress { address: String, cause: String },
    #[error("`{address}` would carry the token unencrypted over the network")]
    Insecure { address: String },
    #[error("the client cannot be set up")]
    Setup(#[source] reqwest::Error),
}

impl Error {
    /// The stable code, when the server gave one.
    pub fn code(&self) -> Option<Code> {
        match self {
            Self::Problem(problem) => Some(problem.code),
            _ => None,
        }
    }

    /// What to do about it.
    pub fn fix(&self) -> Option<String> {
        Some(match self {
            Self::Problem(problem) => problem.fix.clone(),
            Self::Unreachable { .. } => "Start one with `sandbar up`, or name another with --server.".into(),
            Self::Untrusted { .. } => {
                "Call it by a name of its certificate; if the system does not know who signed that, put the path of the \
                 signer's PEM file into SSL_CERT_FILE."
                    .into()
            }
            Self::Transport { .. } | Self::Broken { .. } => "Look into the server's log, then try again.".into(),
            Self::Foreign { .. } => "Check the address; client and server should be of the same version.".into(),
            Self::Gap { got, .. } => format!("Read again from {got}, or raise the template's `output_retention`."),
            Self::BadAddress { .. } => {
                "Use https://HOST:PORT, http://127.0.0.1:PORT or the path of the server's Unix socket.".into()
            }
            Self::Insecure { .. } => "Use https://, or a tunnel to a loopback address.".into(),
            Self::Read(_) | Self::Setup(_) => return None,
        })
    }

    /// Whether the same call may succeed shortly, because the server is being restarted.
    pub(crate) fn is_passing(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::Transport { .. } | Self::Broken { .. } => true,
            Self::Problem(problem) => matches!(problem.code, Code::ShuttingDown | Code::GuestUnreachable),
            _ => false,
        }
    }
}

impl From<Problem> for Error {
    fn from(problem: Problem) -> Self {
        Self::Problem(Box::new(problem))
    }
}
