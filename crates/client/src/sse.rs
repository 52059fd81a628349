//! Server-sent events, parsed byte by byte: how the bytes were split on the way never changes what comes out.

use std::collections::VecDeque;

/// More than any event of ours; a server that sends a longer line is not one.
const MAX_EVENT: usize = 16 * 1024 * 1024;

/// One dispatched event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// `message` when the server named none.
    pub event: String,
    pub data: String,
    /// The last id seen, as the standard says: it stays until another comes.
    pub id: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadStream {
    #[error("an event is larger than {MAX_EVENT} bytes")]
    TooLarge,
    #[error("an event is not UTF-8")]
    NotText,
}

#[derive(Debug, Default)]
pub struct Parser {
    line: Vec<u8>,
    event: Vec<u8>,
    data: Vec<u8>,
    has_data: bool,
    id: Option<String>,
    /// A CR ended the line; an LF right after it belongs to it, even if it comes in the next piece.
    after_cr: bool,
    /// A byte order mark may only come first.
    started: bool,
    ready: VecDeque<Frame>,
}

impl Parser {
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next piece of the stream.
    pub fn feed(&mut self, mut bytes: &[u8]) -> Result<(), BadStream> {
        while let Some(&first) = bytes.first() {
            if std::mem::take(&mut self.after_cr) && first == b'\n' {
                bytes = &bytes[1..];
                continue;
            }
            let end = bytes.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
            self.line.extend_from_slice(&bytes[..end.unwrap_or(bytes.len())]);
            if self.line.len() + self.data.len() > MAX_EVENT {
                return Err(BadStream::TooLarge);
            }
            let Some(end) = end else { return Ok(()) };
            self.after_cr = bytes[end] == b'\r';
            bytes = &bytes[end + 1..];
            let line = std::mem::take(&mut self.line);
            self.take_line(&line)?;
            // The allocation goes on to the next line: output events come by the thousand.
            self.line = line;
            self.line.clear();
        }
        Ok(())
    }

    /// The next complete event. What is incomplete when the stream ends never comes: it is asked for again.
    pub fn next_frame(&mut self) -> Option<Frame> {
        self.ready.pop_front()
    }

    fn take_line(&mut self, mut line: &[u8]) -> Result<(), BadStream> {
        if !std::mem::replace(&mut self.started, true) {
            line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
        }
        if line.is_empty() {
            return self.dispatch();
        }
        let (field, value) = match line.iter().position(|byte| *byte == b':') {
            Some(colon) => (&line[..colon], &line[colon + 1..]),
            None => (line, &[][..]),
        };
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match field {
            b"event" => {
                self.event.clear();
                self.event.extend_from_slice(value);
            }
            b"data" => {
                if std::mem::replace(&mut self.has_data, true) {
                    self.data.push(b'\n');
                }
                self.data.extend_from_slice(value);
            }
            b"id" if !value.contains(&0) => self.id = Some(text(value.to_vec())?),
            // Comments (an empty field name), `retry` and what a newer server may add.
            _ => {}
        }
        Ok(())
    }

    fn dispatch(&mut self) -> Result<(), BadStream> {
        let event = std::mem::take(&mut self.event);
        let data = std::mem::take(&mut self.data);
        if std::mem::take(&mut self.has_data) {
            let event = if event.is_empty() { "message".to_owned() } else { text(event)? };
            self.ready.push_back(Frame { event, data: text(data)?, id: self.id.clone() });
        }
        Ok(())
    }
}

fn text(bytes: Vec<u8>) -> Result<String, BadStream> {
    String::from_utf8(bytes).map_err(|_| BadStream::NotText)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(event: &str, data: &str, id: Option<&str>) -> Frame {
        Frame { event: event.into(), data: data.into(), id: id.map(Into::into) }
    }

    fn parse<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Result<Vec<Frame>, BadStream> {
        let mut parser = Parser::new();
        for piece in pieces {
            parser.feed(piece)?;
        }
        Ok(std::iter::from_fn(|| parser.next_frame()).collect())
    }

    /// Every line ending, comments, a mark, empty data, several data lines, unknown fields, text beyond ASCII.
    const STREAM: &[u8] = "\u{feff}event: output\r\nid: 3\r\ndata: {\"a\":1}\r\n\r\n\
        : heartbeat\n\n\
        data:ü€𐍈\rdata: second\r\r\
        event: nothing\n\nretry: 5\nfoo: bar\nid\ndata\n\n\
        event: exit\nid: 9\ndata:  two spaces\n\n\
        data: cut off"
        .as_bytes();

    fn expected() -> Vec<Frame> {
        vec![
            frame("output", "{\"a\":1}", Some("3")),
            frame("message", "ü€𐍈\nsecond", Some("3")),
            frame("message", "", Some("")),
            frame("exit", " two spaces", Some("9")),
        ]
    }

    #[test]
    fn every_split_in_two_and_in_single_bytes_gives_the_same() {
        assert_eq!(parse([STREAM]), Ok(expected()));
        assert_eq!(parse(STREAM.chunks(1)), Ok(expected()));
        for cut in 0..=STREAM.len() {
            let (left, right) = STREAM.split_at(cut);
            assert_eq!(parse([left, right]), Ok(expected()), "cut at {cut}");
            assert_eq!(parse([left, &[], right]), Ok(expected()), "cut at {cut} with an empty piece");
        }
    }

    #[test]
    fn random_splits_of_random_streams_give_the_same() {
        const LETTERS: &[u8] = b"data: evntid\n\n\r\r:x \n";
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        for round in 0..300 {
            let stream: Vec<u8> =
                (0..random.below(400)).map(|_| LETTERS[random.below(LETTERS.len() as u64) as usize]).collect();
            let whole = parse([&stream[..]]);
            for _ in 0..10 {
                let mut rest = &stream[..];
                let mut pieces = Vec::new();
                while !rest.is_empty() {
                    let (piece, tail) = rest.split_at(1 + random.below(rest.len() as u64) as usize);
                    pieces.push(piece);
                    rest = tail;
                }
                assert_eq!(parse(pieces), whole, "round {round}");
            }
        }
    }

    #[test]
    fn endless_lines_and_bad_text_are_refused() {
        let mut parser = Parser::new();
        let piece = vec![b'x'; 1024 * 1024];
        let fed = (0..17).try_for_each(|_| parser.feed(&piece));
        assert_eq!(fed, Err(BadStream::TooLarge));
        assert_eq!(parse([&b"data: \xff\n\n"[..]]), Err(BadStream::NotText));
    }

    /// xorshift: reproducible, and no dependency for a test.
    struct Random(u64);
    impl Random {
        fn below(&mut self, limit: u64) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0 % limit
        }
    }
}
