//! What a vendor reports that a call used.

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// All input, cached or not.
    pub input: u64,
    /// Of the input, what came from the vendor's cache.
    pub cached_input: u64,
    /// Of the input, what was written to the vendor's cache.
    pub cache_write: u64,
    pub output: u64,
}
