//! Terminal output as lines of text to read and search: sequences are gone, what a line overwrote is gone too.
//!
//! A line is what was written in one row before the cursor left it. Full-screen programs jump between rows, so each piece
//! they paint is a line; the screen at a moment is for [`Screen`](crate::Screen) to tell.

use crate::scan::{Scanner, Token, numbers};

/// A longer line is cut into several.
pub const LONGEST_LINE: usize = 4096;

/// A line, where it begins in the output, and what was said of the bytes it begins with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line<T> {
    pub offset: u64,
    pub tag: T,
    pub text: String,
}

/// Makes lines out of output that comes in pieces.
#[derive(Debug)]
pub struct Lines<T> {
    scanner: Scanner,
    row: Row<T>,
    /// One past the last byte taken.
    offset: u64,
    /// Where reading could have begun last.
    rest: u64,
}

impl<T: Copy> Lines<T> {
    /// `offset` is that of the first byte that will come.
    pub fn new(offset: u64) -> Self {
        Self { scanner: Scanner::default(), row: Row::default(), offset, rest: offset }
    }

    /// Takes in the next output; `tag` goes with the lines that begin in it.
    pub fn feed(&mut self, mut bytes: &[u8], tag: T, out: &mut Vec<Line<T>>) {
        while let Some(first) = bytes.first() {
            // A piece ends with a line or before a sequence, so that a line's offset is that of its piece.
            let end = match first {
                b'\n' => 1,
                _ => match bytes[1..].iter().position(|byte| matches!(byte, b'\n' | 0x1b)) {
                    Some(at) if bytes[at + 1] == b'\n' => at + 2,
                    Some(at) => at + 1,
                    None => bytes.len(),
                },
            };
            let (piece, rest) = bytes.split_at(end);
            let (row, place) = (&mut self.row, (self.offset, tag));
            self.scanner.feed(piece, &mut |token| row.take(token, place, out));
            self.offset += piece.len() as u64;
            if self.scanner.at_rest() {
                self.rest = self.offset;
            }
            bytes = rest;
        }
    }

    /// Where the line that is not finished begins: reading on from there misses nothing.
    pub fn place(&self) -> u64 {
        self.row.began.map_or(self.rest, |(offset, _)| offset)
    }

    /// The line that is not finished, if there is anything in it.
    pub fn unfinished(&self) -> Option<Line<T>> {
        let (offset, tag) = self.row.began?;
        let text = self.row.text();
        (!text.is_empty()).then_some(Line { offset, tag, text })
    }
}

#[derive(Debug)]
struct Row<T> {
    cells: Vec<char>,
    column: usize,
    began: Option<(u64, T)>,
}

impl<T> Default for Row<T> {
    fn default() -> Self {
        Self { cells: Vec::new(), column: 0, began: None }
    }
}

/// How a line ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// By a line feed: an empty line is one too.
    Fed,
    /// The cursor went elsewhere.
    Left,
}

impl<T: Copy> Row<T> {
    fn take(&mut self, token: Token<'_>, place: (u64, T), out: &mut Vec<Line<T>>) {
        match token {
            Token::Text(text) => {
                for letter in text.chars() {
                    if self.column >= LONGEST_LINE {
                        self.finish(End::Left, place, out);
                    }
                    self.put(letter, place);
                }
            }
            Token::Control(b'\n' | 0x0b | 0x0c) => self.finish(End::Fed, place, out),
            Token::Control(b'\r') => self.column = 0,
            Token::Control(0x08) => self.column = self.column.saturating_sub(1),
            Token::Control(b'\t') => self.column = (self.column / 8 + 1) * 8,
            Token::Escape { intermediates: [], last: b'D' | b'E' | b'M' | b'c' } => self.finish(End::Left, place, out),
            Token::Csi { params, intermediates: [], last } => self.sequence(params, last, place, out),
            Token::Control(_) | Token::Escape { .. } | Token::Csi { .. } | Token::Osc { .. } | Token::Dcs(_) => {}
        }
    }

    fn sequence(&mut self, params: &[u8], last: u8, place: (u64, T), out: &mut Vec<Line<T>>) {
        if let Some(modes) = params.strip_prefix(b"?") {
            let alternate = |mode: Option<u16>| matches!(mode, Some(47 | 1047 | 1049));
            if matches!(last, b'h' | b'l') && numbers(modes).any(alternate) {
                self.finish(End::Left, place, out);
            }
            return;
        }
        let first = usize::from(numbers(params).next().flatten().unwrap_or(0));
        let count = first.clamp(1, LONGEST_LINE);
        let within = self.column.min(self.cells.len());
        match (last, first) {
            (b'K' | b'J', 0) => self.cells.truncate(self.column),
            (b'K', 1) => self.cells[..within].fill(' '),
            (b'K', 2) => self.cells.clear(),
            (b'X', _) => {
                let end = (within + count).min(self.cells.len());
                self.cells[within..end].fill(' ');
            }
            (b'P', _) => drop(self.cells.drain(within..(within + count).min(self.cells.len()))),
            (b'G' | b'`', _) => self.column = count - 1,
            (b'C' | b'a', _) => self.column = (self.column + count).min(LONGEST_LINE),
            (b'D', _) => self.column = self.column.saturating_sub(count),
            (b'A' | b'B' | b'E' | b'F' | b'H' | b'f' | b'd' | b'J' | b'L' | b'M' | b'S' | b'T' | b'r', _) => {
                self.finish(End::Left, place, out);
            }
            _ => {}
        }
    }

    fn put(&mut self, letter: char, place: (u64, T)) {
        self.began.get_or_insert(place);
        if self.column > self.cells.len() {
            self.cells.resize(self.column, ' ');
        }
        match self.cells.get_mut(self.column) {
            Some(cell) => *cell = letter,
            None => self.cells.push(letter),
        }
        self.column += 1;
    }

    fn finish(&mut self, end: End, place: (u64, T), out: &mut Vec<Line<T>>) {
        let (offset, tag) = self.began.take().unwrap_or(place);
        let text = self.text();
        self.cells.clear();
        self.column = 0;
        if end == End::Fed || !text.is_empty() {
            out.push(Line { offset, tag, text });
        }
    }

    fn text(&self) -> String {
        self.cells.iter().collect::<String>().trim_end().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pieces: &[&[u8]]) -> (Vec<(u64, String)>, Lines<()>) {
        let (mut lines, mut out) = (Lines::new(0), vec![]);
        for piece in pieces {
            lines.feed(piece, (), &mut out);
        }
        (out.into_iter().map(|line| (line.offset, line.text)).collect(), lines)
    }

    fn texts(output: &[u8]) -> Vec<String> {
        read(&[output]).0.into_iter().map(|(_, text)| text).collect()
    }

    #[test]
    fn sequences_go_and_overwritten_text_goes() {
        for (output, want) in [
            ("plain\r\n\r\nlast\r\n", vec!["plain", "", "last"]),
            ("\x1b[1;31mred\x1b[m \x1b]0;title\x07x\n", vec!["red x"]),
            ("10%\r50%\r100%\n", vec!["100%"]),
            ("long text\rab\x1b[K\n", vec!["ab"]),
            ("abc\x08\x08X\n", vec!["aXc"]),
            ("a\tb\n", vec!["a       b"]),
            ("one\x1b[5;1Htwo\x1b[6;1Hthree\n", vec!["one", "two", "three"]),
            ("shell\x1b[?1049h\x1b[H\x1b[2Jvim\x1b[?1049lback\n", vec!["shell", "vim", "back"]),
            ("abcdef\x1b[3D\x1b[PX\n", vec!["abcXf"]),
            ("\x1b[4Gx\x1b[2Ky\n", vec!["    y"]),
            ("caf\u{e9} \u{4e16}\n", vec!["caf\u{e9} \u{4e16}"]),
        ] {
            assert_eq!(texts(output.as_bytes()), want, "{output:?}");
        }
    }

    #[test]
    fn each_line_has_its_offset_wherever_the_pieces_end() {
        let output = "one\r\n\x1b[1mtwo\x1b[m\r\n\x1b[7;1Hthr\u{e9}e\x1b[8;1Hfour\r\n\nfive".as_bytes();
        let (whole, lines) = read(&[output]);
        let texts: Vec<&str> = whole.iter().map(|(_, text)| text.as_str()).collect();
        assert_eq!(texts, ["one", "two", "thr\u{e9}e", "four", "", "five"][..5]);
        assert_eq!(lines.unfinished().map(|line| line.text).as_deref(), Some("five"));
        assert_eq!(lines.place(), output.len() as u64 - 4);
        for split in 0..output.len() {
            let (pieces, lines) = read(&[&output[..split], &output[split..]]);
            assert_eq!(pieces.iter().map(|(_, text)| text.as_str()).collect::<Vec<_>>(), texts, "at {split}");
            assert_eq!(lines.unfinished().map(|line| line.text).as_deref(), Some("five"));
        }
        // Reading on from a line's offset gives that line and those after it.
        for (at, (offset, _)) in whole.iter().enumerate() {
            let rest = read(&[&output[*offset as usize..]]).0;
            assert_eq!(rest.iter().map(|(_, text)| text.as_str()).collect::<Vec<_>>(), texts[at..], "from {offset}");
        }
    }

    #[test]
    fn reading_never_goes_on_inside_a_sequence() {
        let (lines, reader) = read(&[b"a\n\x1b]52;c;", b"ZXZpbA=="]);
        assert_eq!((lines.len(), reader.place()), (1, 2));
    }

    #[test]
    fn a_line_without_end_is_cut() {
        let lines = texts(&vec![b'x'; 3 * LONGEST_LINE + 10]);
        assert_eq!(lines.iter().map(String::len).collect::<Vec<_>>(), [LONGEST_LINE; 3]);
        assert_eq!(texts(b"\x1b[9999C\x1b[9999Cx\ny\n"), ["x", "y"]);
    }

    #[test]
    fn it_never_panics() {
        bolero::check!().for_each(|input: &[u8]| {
            let (mut lines, mut out) = (Lines::new(0), vec![]);
            for piece in input.chunks(7) {
                lines.feed(piece, (), &mut out);
            }
            assert!(lines.place() <= input.len() as u64);
            assert!(out.iter().all(|line| !line.text.chars().any(char::is_control)));
        });
    }
}
