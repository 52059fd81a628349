//! Which skills a client was told of. One that lists the tools once, as those with a handshake do, is sent word when
//! there are others; it is looked for after calls that may have changed files, and never in their way.

use std::{
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use rmcp::{Peer, RoleServer};
use tokio::time::sleep;

use super::{Place, skills};

/// Calls come in bursts: one look is for all of them.
const LATER: Duration = Duration::from_millis(500);
/// A sandbox that does not tell is looked at again, each time twice as late, and after this no more.
const LATEST: Duration = Duration::from_secs(16);

/// Of one MCP session; of no use without.
#[derive(Clone, Default)]
pub(super) struct Told {
    /// The digest of what was said; 0 before anything was.
    said: Arc<AtomicU64>,
    looking: Arc<AtomicBool>,
    /// Counts the looks; the newest is for all before it.
    looks: Arc<AtomicU64>,
}

impl Told {
    pub(super) fn is(&self, skills: &str) {
        self.said.store(digest(skills), Ordering::Relaxed);
    }

    /// Whether that is news; it is so once.
    fn is_news(&self, skills: &str) -> bool {
        let said = digest(skills);
        self.said.swap(said, Ordering::Relaxed) != said
    }

    pub(super) fn look_later(&self, place: Place, peer: Peer<RoleServer>) {
        if self.said.load(Ordering::Relaxed) == 0 || self.looking.swap(true, Ordering::Relaxed) {
            return;
        }
        let (told, look) = (self.clone(), self.looks.fetch_add(1, Ordering::Relaxed) + 1);
        tokio::spawn(async move {
            let mut later = LATER;
            let skills = loop {
                tokio::select! {
                    () = place.app.closing.cancelled() => return,
                    () = sleep(later) => {}
                }
                if peer.is_transport_closed() || told.looks.load(Ordering::Relaxed) != look {
                    return;
                }
                // Before the look: what changes while it lasts is for the next.
                told.looking.store(false, Ordering::Relaxed);
                if let Some(skills) = skills::known(&place).await {
                    break skills;
                }
                later *= 2;
                if later > LATEST {
                    return;
                }
            };
            if told.is_news(&skills)
                && let Err(error) = peer.notify_tool_list_changed().await
            {
                tracing::debug!(%error, "a client is not told that its skills have changed");
            }
        });
    }
}

/// Never 0.
fn digest(skills: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    skills.hash(&mut hasher);
    hasher.finish().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn news_are_told_once() {
        let told = Told::default();
        told.is("a");
        assert!(!told.is_news("a"));
        assert!(told.is_news("b") && !told.is_news("b"));
        assert!(told.is_news(""));
    }
}
