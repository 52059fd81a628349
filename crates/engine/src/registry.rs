//! All sandboxes that are not deleted, by id and by name, in memory.

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError, RwLock},
};

use sandbar_api::{Problem, Sandbox, SandboxId, SandboxState, SessionId};

use crate::{Inner, handle::Handle, problem};

#[derive(Default)]
pub(crate) struct Registry {
    maps: RwLock<Maps>,
}

#[derive(Default)]
struct Maps {
    by_id: HashMap<SandboxId, Arc<Handle>>,
    by_name: HashMap<String, SandboxId>,
}

impl Registry {
    fn read<T>(&self, look: impl FnOnce(&Maps) -> T) -> T {
        look(&self.maps.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn write(&self, change: impl FnOnce(&mut Maps)) {
        change(&mut self.maps.write().unwrap_or_else(PoisonError::into_inner));
    }

    /// By id only: a sandbox that is not committed yet must not answer to its name.
    pub(crate) fn insert(&self, handle: &Arc<Handle>) {
        self.write(|maps| {
            maps.by_id.insert(handle.id.clone(), handle.clone());
        });
    }

    pub(crate) fn insert_name(&self, handle: &Handle) {
        self.write(|maps| {
            maps.by_name.insert(handle.name(), handle.id.clone());
        });
    }

    pub(crate) fn remove(&self, handle: &Handle) {
        self.write(|maps| {
            maps.by_id.remove(&handle.id);
            // The name may have been given again already.
            let name = handle.name();
            if maps.by_name.get(&name) == Some(&handle.id) {
                maps.by_name.remove(&name);
            }
        });
    }

    pub(crate) fn by_id(&self, id: &SandboxId) -> Option<Arc<Handle>> {
        self.read(|maps| maps.by_id.get(id).cloned())
    }

    pub(crate) fn has_name(&self, name: &str) -> bool {
        self.read(|maps| maps.by_name.contains_key(name))
    }

    fn by_text(&self, text: &str) -> Option<Arc<Handle>> {
        // No name looks like an id (`check::name`).
        self.read(|maps| match maps.by_name.get(text) {
            Some(id) => maps.by_id.get(id).cloned(),
            None => text.parse().ok().and_then(|id: SandboxId| maps.by_id.get(&id).cloned()),
        })
    }

    pub(crate) fn all(&self) -> Vec<Arc<Handle>> {
        self.read(|maps| maps.by_id.values().cloned().collect())
    }

    /// The newest sandbox of a session, unless it is not there for others yet.
    pub(crate) fn newest_of(&self, session: &SessionId) -> Option<SandboxId> {
        let newest = self.read(|maps| {
            let of_it = maps.by_id.values().filter(|handle| handle.is_of(session));
            // Not by id alone: one out of a pool has an id of before.
            of_it.max_by_key(|handle| (handle.record.borrow().created_at, handle.id.clone())).cloned()
        });
        newest.filter(|handle| handle.state() != SandboxState::Creating).map(|handle| handle.id.clone())
    }

    pub(crate) fn count(&self) -> HashMap<SandboxState, u64> {
        let mut counts = HashMap::new();
        for handle in self.all() {
            *counts.entry(handle.state()).or_default() += 1;
        }
        counts
    }
}

/// What an id or name stands for.
pub(crate) enum Known {
    Live(Arc<Handle>),
    /// Deleted, and not pruned yet.
    Gone(Box<Sandbox>),
}

impl Inner {
    pub(crate) async fn find(&self, text: &str) -> Result<Known, Problem> {
        if let Some(handle) = self.registry.by_text(text) {
            return Ok(Known::Live(handle));
        }
        let gone = match text.parse() {
            Ok(id) => self.store.sandbox(&id).await?.map(|row| row.sandbox),
            Err(_) => self.deleted_named(text).await?,
        };
        gone.map(|sandbox| Known::Gone(Box::new(sandbox))).ok_or_else(|| problem::unknown_sandbox(text))
    }

    /// One that still exists, in whatever state.
    pub(crate) async fn handle(&self, text: &str) -> Result<Arc<Handle>, Problem> {
        if self.closing.is_cancelled() {
            return Err(problem::shutting_down());
        }
        match self.find(text).await? {
            Known::Live(handle) => Ok(handle),
            Known::Gone(_) => Err(problem::gone(text)),
        }
    }

    /// The last sandbox of that name, so that repeating a delete by name is no error.
    async fn deleted_named(&self, name: &str) -> Result<Option<Sandbox>, Problem> {
        if sandbar_api::check::name(name).is_err() {
            return Ok(None);
        }
        Ok(self.store.sandbox_last_named(name).await?.map(|row| row.sandbox))
    }
}
