//! What the guest's probe saw, by key.

use std::collections::HashMap;

pub(crate) struct Facts(pub(crate) HashMap<String, String>);

impl Facts {
    pub(crate) fn get(&self, key: &str) -> &str {
        self.0.get(key).map_or("not seen", String::as_str)
    }

    /// An attempt that came to nothing. One that was never made counts as one that went through.
    pub(crate) fn refused(&self, name: &str) -> bool {
        self.0.get(&format!("try.{name}")).is_some_and(|outcome| outcome != "ok")
    }

    pub(crate) fn tried(&self, name: &str) -> &str {
        self.get(&format!("try.{name}"))
    }

    /// The last number of a fact; where there are two, the harder bound.
    pub(crate) fn number(&self, key: &str) -> Option<u64> {
        self.0.get(key)?.split_whitespace().last()?.parse().ok()
    }

    pub(crate) fn set(&self, field: &str) -> Option<u64> {
        u64::from_str_radix(self.0.get(&format!("status.{field}"))?, 16).ok()
    }

    /// Addresses that were tried, with what came of it.
    pub(crate) fn reached(&self) -> Vec<(&str, &str)> {
        let mut all: Vec<_> = self
            .0
            .iter()
            .filter_map(|(key, value)| key.strip_prefix("reach.").map(|address| (address, value.as_str())))
            .collect();
        all.sort_unstable();
        all
    }
}
