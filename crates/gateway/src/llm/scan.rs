//! Finds the members of a JSON object's top level, byte by byte and without keeping anything: where they stand is what
//! edits need of a request, and the one named `usage` is what is read of an answer of any size.

use std::ops::Range;

/// What a byte is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mark {
    /// The object's first.
    Open,
    /// The opening quote of a member's name.
    Key,
    /// The closing one.
    KeyEnd,
    /// The first of a member's value.
    Value,
    /// Between two members.
    Comma,
    /// The object's last.
    Close,
    Other,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Before,
    BeforeKey,
    Key,
    AfterKey,
    BeforeValue,
    Value,
    /// After the object, or in something that is none.
    Over,
}

/// Trusts what it reads to be JSON; of anything else it only says something useless, in bounded memory.
#[derive(Debug)]
pub(super) struct Scan {
    place: Place,
    depth: usize,
    quoted: bool,
    escaped: bool,
}

impl Scan {
    pub(super) fn new() -> Self {
        Self { place: Place::Before, depth: 0, quoted: false, escaped: false }
    }

    pub(super) fn feed(&mut self, byte: u8) -> Mark {
        if self.quoted {
            return self.quoted(byte);
        }
        if byte.is_ascii_whitespace() {
            return Mark::Other;
        }
        match (self.place, byte) {
            (Place::Before, b'{') => self.turn(Place::BeforeKey, Mark::Open),
            (Place::BeforeKey, b'"') => {
                self.quoted = true;
                self.turn(Place::Key, Mark::Key)
            }
            (Place::AfterKey, b':') => self.turn(Place::BeforeValue, Mark::Other),
            (Place::BeforeKey, b'}') => self.turn(Place::Over, Mark::Close),
            (Place::BeforeValue, _) => {
                self.nest(byte);
                self.turn(Place::Value, Mark::Value)
            }
            (Place::Value, b',') if self.depth == 0 => self.turn(Place::BeforeKey, Mark::Comma),
            (Place::Value, b'}') if self.depth == 0 => self.turn(Place::Over, Mark::Close),
            (Place::Value, _) => {
                self.nest(byte);
                Mark::Other
            }
            _ => self.turn(Place::Over, Mark::Other),
        }
    }

    fn quoted(&mut self, byte: u8) -> Mark {
        match byte {
            _ if self.escaped => self.escaped = false,
            b'\\' => self.escaped = true,
            b'"' => {
                self.quoted = false;
                if self.place == Place::Key {
                    return self.turn(Place::AfterKey, Mark::KeyEnd);
                }
            }
            _ => {}
        }
        Mark::Other
    }

    fn nest(&mut self, byte: u8) {
        match byte {
            b'"' => self.quoted = true,
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
    }

    fn turn(&mut self, place: Place, mark: Mark) -> Mark {
        self.place = place;
        mark
    }
}

/// Where a member stands: its name with the quotes, its value without the space around it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Member {
    pub(super) name: String,
    pub(super) key: Range<usize>,
    pub(super) value: Range<usize>,
}

/// Where an object begins and what is in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Object {
    pub(super) open: usize,
    pub(super) members: Vec<Member>,
}

/// The members of an object that is known to be one; nothing if it is not.
pub(super) fn members(bytes: &[u8]) -> Option<Object> {
    let mut scan = Scan::new();
    let (mut open, mut members) = (None, Vec::new());
    let (mut key, mut value) = (0..0, None);
    for (at, byte) in bytes.iter().enumerate() {
        match scan.feed(*byte) {
            Mark::Open => open = Some(at),
            Mark::Key => key = at..at,
            Mark::KeyEnd => key.end = at + 1,
            Mark::Value => value = Some(at),
            Mark::Comma | Mark::Close => {
                if let Some(start) = value.take() {
                    let end = start + bytes.get(start..at)?.trim_ascii_end().len();
                    // names may be written with escapes
                    let name = serde_json::from_slice(bytes.get(key.clone())?).ok()?;
                    members.push(Member { name, key: key.clone(), value: start..end });
                }
            }
            Mark::Other => {}
        }
    }
    (scan.place == Place::Over).then_some(Object { open: open?, members })
}

/// More of a value is not kept, and then nothing of it.
const KEPT: usize = 64 << 10;

/// Keeps the value of one member while an object passes by.
#[derive(Debug)]
pub(super) struct Capture {
    wanted: &'static str,
    scan: Scan,
    key: Vec<u8>,
    value: Vec<u8>,
    taking: Taking,
    found: Option<Vec<u8>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Taking {
    Nothing,
    Key,
    Value,
}

impl Capture {
    pub(super) fn new(wanted: &'static str) -> Self {
        let (key, value) = (Vec::new(), Vec::new());
        Self { wanted, scan: Scan::new(), key, value, taking: Taking::Nothing, found: None }
    }

    pub(super) fn feed(&mut self, bytes: &[u8]) {
        for byte in bytes {
            match self.scan.feed(*byte) {
                Mark::Key => {
                    self.key.clear();
                    self.taking = Taking::Key;
                    continue;
                }
                Mark::KeyEnd => self.taking = Taking::Nothing,
                Mark::Value if self.key == self.wanted.as_bytes() => {
                    self.value.clear();
                    self.taking = Taking::Value;
                }
                Mark::Comma | Mark::Close if self.taking == Taking::Value => {
                    self.taking = Taking::Nothing;
                    self.found = Some(std::mem::take(&mut self.value));
                }
                _ => {}
            }
            match self.taking {
                Taking::Key if self.key.len() <= self.wanted.len() => self.key.push(*byte),
                Taking::Value if self.value.len() < KEPT => self.value.push(*byte),
                Taking::Value => self.taking = Taking::Nothing,
                _ => {}
            }
        }
    }

    /// Its text, when the member has passed.
    pub(super) fn found(&self) -> Option<&[u8]> {
        self.found.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_found_where_they_stand() {
        let text = br#" { "a" : [1, {"b": "}"}] , "mod\u0065l":"x\"," ,"n":-1.5e3}"#;
        let object = members(text).expect("an object");
        let found: Vec<_> = object.members.iter().map(|m| (m.name.as_str(), &text[m.value.clone()])).collect();
        assert_eq!(found, [("a", &br#"[1, {"b": "}"}]"#[..]), ("model", &br#""x\",""#[..]), ("n", &b"-1.5e3"[..])]);
        assert_eq!(object.open, 1);
        assert_eq!(members(b"{}").map(|object| object.members.len()), Some(0));
        for none in [&b"[1]"[..], b"", b"3", b"{\"a\":1"] {
            assert_eq!(members(none), None);
        }
    }

    #[test]
    fn a_member_is_kept_however_it_is_cut_and_not_from_deeper_down() {
        let text = br#"{"data":[{"usage":{"x":1}}],"other":"\"usage\":","usage" : {"y":[2]} ,"z":3}"#;
        for size in 1..text.len() {
            let mut capture = Capture::new("usage");
            text.chunks(size).for_each(|chunk| capture.feed(chunk));
            assert_eq!(capture.found().map(<[u8]>::trim_ascii), Some(&br#"{"y":[2]}"#[..]));
        }
        let mut capture = Capture::new("usage");
        capture.feed(br#"{"usage":""#);
        capture.feed(&vec![b'x'; 2 * KEPT]);
        capture.feed(br#""}"#);
        assert_eq!(capture.found(), None);
        assert!(capture.value.len() <= KEPT);
    }
}
