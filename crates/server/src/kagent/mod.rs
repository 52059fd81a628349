//! Sessions and their sandboxes in the words of kagent, for its clients as they are: the same engine verbs as the native
//! routes, other paths, other shapes. Nothing is decided here but who a caller acts for.

mod fault;
mod sandbox;
mod sessions;
mod user;

use crate::registry::Routes;

pub(crate) use self::fault::answer;

pub(crate) fn routes() -> Routes {
    sessions::routes().merge(sandbox::routes())
}

/// Whether a path is one of these.
pub(crate) fn serves(path: &str) -> bool {
    path.starts_with("/api/")
}

const SESSION_NOT_FOUND: &str = "Session not found";
/// Where a conversation's display name is kept.
const TITLE: &str = "title";
