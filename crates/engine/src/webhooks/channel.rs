//! The seam between what is told and how: whoever reads the log hands notices to a channel, one at a time.

use std::time::Duration;

use async_trait::async_trait;

use super::notice::Notice;

/// A way to somebody outside. The same notice may come twice, with the same id.
#[async_trait]
pub(crate) trait Channel: Send + Sync + 'static {
    /// Ok when the other side has taken it. Bounded in time by itself; may be dropped at any moment.
    async fn deliver(&self, notice: &Notice) -> Result<(), Undelivered>;
}

/// Why a notice was not taken, in words for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Undelivered {
    Later {
        cause: String,
        /// How long the other side asked to be left alone.
        after: Option<Duration>,
    },
    /// The other side wants nothing, ever again.
    Gone { cause: String },
}

impl Undelivered {
    pub(crate) fn later(cause: impl Into<String>) -> Self {
        Self::Later { cause: cause.into(), after: None }
    }

    pub(crate) fn cause(&self) -> &str {
        match self {
            Self::Later { cause, .. } | Self::Gone { cause } => cause,
        }
    }
}
