//! Replacing one text by others in a stream, whatever the boundaries of its chunks.
//!
//! A trie of the needles, walked from the leftmost place where one could still begin. Where the walk ends without a
//! match, what the bytes walked so far become is known beforehand, so no byte is looked at twice.

/// A piece of output; the value by its place in the list.
#[derive(Clone, Copy)]
enum Piece {
    Byte(u8),
    Value(usize),
}

#[derive(Default)]
struct Node {
    children: Vec<(u8, usize)>,
    /// The value of the needle that ends here.
    value: Option<usize>,
    /// When no needle that begins with this node's text follows: what is certain of the output, and the node that stands
    /// for the rest, which is always nearer to the root.
    settled: Vec<Piece>,
    fallback: usize,
}

const ROOT: usize = 0;

/// Replaces every occurrence of needles (none a prefix of another, none empty) by their values. Output lags behind input by
/// less than the longest needle.
pub struct Swap {
    nodes: Vec<Node>,
    values: Vec<Vec<u8>>,
    /// The text of this node was read and not yet put out.
    at: usize,
    count: u64,
}

impl Swap {
    /// The first of equal needles counts, the shorter one of those that begin alike; empty ones are left out.
    pub fn new(pairs: Vec<(Vec<u8>, Vec<u8>)>) -> Self {
        let mut swap = Self { nodes: vec![Node::default()], values: Vec::new(), at: ROOT, count: 0 };
        for (needle, value) in pairs.into_iter().filter(|(needle, _)| !needle.is_empty()) {
            let mut at = ROOT;
            for byte in needle {
                at = swap.child(at, byte).unwrap_or_else(|| swap.grow(at, byte));
            }
            swap.nodes[at].value.get_or_insert(swap.values.len());
            swap.values.push(value);
        }
        swap.settle();
        swap
    }

    fn child(&self, at: usize, byte: u8) -> Option<usize> {
        self.nodes[at].children.iter().find(|(other, _)| *other == byte).map(|(_, child)| *child)
    }

    fn grow(&mut self, at: usize, byte: u8) -> usize {
        let child = self.nodes.len();
        self.nodes.push(Node::default());
        self.nodes[at].children.push((byte, child));
        child
    }

    /// Level by level: a fallback is nearer to the root, so it is known when it is needed.
    fn settle(&mut self) {
        let mut level: Vec<_> = self.nodes[ROOT].children.clone();
        for (byte, node) in &level {
            self.nodes[*node].settled = vec![Piece::Byte(*byte)];
        }
        while !level.is_empty() {
            let mut below = Vec::new();
            for (_, parent) in level {
                for (byte, child) in self.nodes[parent].children.clone() {
                    let (mut settled, mut at) = (self.nodes[parent].settled.clone(), self.nodes[parent].fallback);
                    self.step(&mut at, byte, &mut settled);
                    (self.nodes[child].settled, self.nodes[child].fallback) = (settled, at);
                    below.push((byte, child));
                }
            }
            level = below;
        }
    }

    /// Every fall is paid for by the byte that led one node deeper.
    fn step(&self, at: &mut usize, byte: u8, out: &mut Vec<Piece>) {
        loop {
            if let Some(child) = self.child(*at, byte) {
                *at = child;
                if let Some(value) = self.nodes[child].value {
                    out.push(Piece::Value(value));
                    *at = ROOT;
                }
                return;
            }
            if *at == ROOT {
                return out.push(Piece::Byte(byte));
            }
            out.extend(&self.nodes[*at].settled);
            *at = self.nodes[*at].fallback;
        }
    }

    fn write(&mut self, pieces: &mut Vec<Piece>, out: &mut Vec<u8>) {
        for piece in pieces.drain(..) {
            match piece {
                Piece::Byte(byte) => out.push(byte),
                Piece::Value(value) => {
                    out.extend_from_slice(&self.values[value]);
                    self.count += 1;
                }
            }
        }
    }

    /// What can be said of the output after this chunk.
    pub fn push(&mut self, chunk: &[u8]) -> Vec<u8> {
        let (mut out, mut pieces, mut rest) = (Vec::with_capacity(chunk.len()), Vec::new(), chunk);
        loop {
            if self.at == ROOT {
                let plain = rest.iter().position(|byte| self.child(ROOT, *byte).is_some()).unwrap_or(rest.len());
                out.extend_from_slice(&rest[..plain]);
                rest = &rest[plain..];
            }
            let Some((byte, after)) = rest.split_first() else { return out };
            let mut at = self.at;
            self.step(&mut at, *byte, &mut pieces);
            self.at = at;
            self.write(&mut pieces, &mut out);
            rest = after;
        }
    }

    /// The rest; the stream is over.
    pub fn finish(&mut self) -> Vec<u8> {
        let (mut out, mut pieces) = (Vec::new(), Vec::new());
        while self.at != ROOT {
            pieces.extend(&self.nodes[self.at].settled);
            self.at = self.nodes[self.at].fallback;
            self.write(&mut pieces, &mut out);
        }
        out
    }

    /// How many occurrences were replaced so far.
    pub fn count(&self) -> u64 {
        self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn swapped(pairs: &[(&str, &str)], chunks: &[&str]) -> (String, u64) {
        let mut swap = Swap::new(pairs.iter().map(|(needle, value)| ((*needle).into(), (*value).into())).collect());
        let mut out: Vec<u8> = chunks.iter().flat_map(|chunk| swap.push(chunk.as_bytes())).collect();
        out.extend(swap.finish());
        (String::from_utf8_lossy(&out).into_owned(), swap.count())
    }

    #[test]
    fn across_chunks() {
        let (one, two) = (&[("needle", "X")][..], &[("abcd", "1"), ("bc", "22")][..]);
        for (pairs, chunks, wanted, count) in [
            (one, &["a needle", " here"][..], "a X here", 1),
            (one, &["a nee", "dle here"], "a X here", 1),
            (one, &["n", "e", "e", "d", "l", "e"], "X", 1),
            (one, &["need", "", "ed", "needle", "needl"], "neededXneedl", 1),
            (one, &["neneedle"], "neX", 1),
            (one, &["needleneedle"], "XX", 2),
            (one, &[], "", 0),
            (&[("aa", "b")], &["aaa", "aa"], "bba", 2),
            (&[("aab", "x")], &["aaaab"], "aax", 1),
            (two, &["abcd"], "1", 1),
            (two, &["abc", "e"], "a22e", 1),
            (two, &["abc"], "a22", 1),
            (two, &["abbcab", "cd"], "ab221", 2),
            (&[("x", "")], &["axbx"], "ab", 2),
            (&[("x", "xx")], &["xx"], "xxxx", 2),
            (&[("", "boom"), ("b", "c")], &["abc"], "acc", 1),
            (&[("ab", "1"), ("abc", "2"), ("ab", "3")], &["abc"], "1c", 1),
            (&[], &["plain"], "plain", 0),
        ] {
            let got = swapped(pairs, chunks);
            assert_eq!(got, (wanted.to_owned(), count), "{pairs:?} {chunks:?}");
        }
    }

    #[test]
    fn output_lags_less_than_a_needle() {
        let mut swap = Swap::new(vec![(b"aaaaaaab".to_vec(), b"x".to_vec())]);
        let (mut read, mut written) = (0, 0);
        for chunk in [1, 2, 3, 5, 8, 13, 21, 1000] {
            read += chunk;
            written += swap.push(&vec![b'a'; chunk]).len();
            assert!(read - written < 8, "{read} in, {written} out");
        }
        assert_eq!(swap.finish().len(), read - written);
    }
}
