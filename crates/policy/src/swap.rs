//! Replacing one text by others in a stream, whatever the boundaries of its chunks.

/// Replaces every occurrence of needles (none a prefix of another, none empty) by their values. Output lags behind input by
/// less than the longest needle.
pub struct Swap {
    // Private.
}

impl Swap {
    pub fn new(pairs: Vec<(Vec<u8>, Vec<u8>)>) -> Self {
        let _ = pairs;
        Self {}
    }

    /// What can be said of the output after this chunk.
    pub fn push(&mut self, chunk: &[u8]) -> Vec<u8> {
        chunk.to_vec()
    }

    /// The rest; the stream is over.
    pub fn finish(&mut self) -> Vec<u8> {
        Vec::new()
    }

    /// How many occurrences were replaced so far.
    pub fn count(&self) -> u64 {
        0
    }
}
