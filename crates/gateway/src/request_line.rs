//! Finds the first line of an HTTP request in bytes that pass, wherever it begins: by how such a line ends, since what stands
//! before it may be anything. It is told at the end of that line, before a server could act on it.

/// What all versions of HTTP begin with, in capitals.
const NAME: &[u8] = b"HTTP/";

/// How much of such an ending was seen, over all bytes so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum RequestLine {
    #[default]
    Nothing,
    /// A blank, and so many letters of `HTTP/`.
    Name(u8),
    /// `HTTP/1`, and more of a number.
    Version,
    /// A version, and blanks.
    Blank,
}

impl RequestLine {
    /// Whether a line ends in these bytes whose last word is a version of HTTP. Nothing more is to be told afterwards.
    pub(crate) fn ends_in(&mut self, bytes: &[u8]) -> bool {
        for byte in bytes {
            *self = match (*self, *byte) {
                (Self::Version | Self::Blank, b'\r' | b'\n') => return true,
                (Self::Version | Self::Blank, byte) if is_blank(byte) => Self::Blank,
                (Self::Version, b'0'..=b'9' | b'.') => Self::Version,
                // some servers take a bare CR for a blank
                (_, byte) if is_blank(byte) || byte == b'\r' => Self::Name(0),
                // what follows blanks may be another version
                (Self::Blank, b'H' | b'h') => Self::Name(1),
                (Self::Name(seen), byte) => match NAME.get(usize::from(seen)) {
                    Some(letter) if byte.eq_ignore_ascii_case(letter) => Self::Name(seen + 1),
                    None if byte.is_ascii_digit() => Self::Version,
                    _ => Self::Nothing,
                },
                _ => Self::Nothing,
            };
        }
        false
    }
}

fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | 0x0b | 0x0c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_found_wherever_it_begins_and_however_it_is_cut() {
        for bytes in [
            &b"junk\r\nGET / HTTP/1.1\r\n"[..],
            b"junk GET / HTTP/1.1\n",
            b"PROXY TCP4 192.0.2.1 192.0.2.2 1 80\r\nGET / HTTP/1.0\r\n",
            b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\x7f\0\0\x01GET / HTTP/1.1\r",
            b"\0\0\nget / http/1.1 \t\n",
            b"x\nGET /\rHTTP/1.1\r\n",
            b"x\nGET / HTTP/ HTTP/1.1 HTTP/1.1\n",
            b"x\nPRI * HTTP/2.0\r\n",
            b"x\nGET /  HTTP/1.1\x0b\x0c\r\n",
        ] {
            let end = bytes.len() - usize::from(bytes.ends_with(b"\r\n"));
            for cut in 0..end {
                let mut line = RequestLine::default();
                assert!(!line.ends_in(&bytes[..cut]), "{} cut at {cut}", bytes.escape_ascii());
                assert!(line.ends_in(&bytes[cut..]), "{} cut at {cut}", bytes.escape_ascii());
            }
        }
    }

    #[test]
    fn other_text_passes() {
        for bytes in [
            &b"SSH-2.0-OpenSSH_9.9\r\n"[..],
            b"EHLO example.org\r\nMAIL FROM:<a@b>\r\n",
            b"\0\0\0\x08\x04\xd2\x16\x2f",
            b"GET / HTTP/1.1 200 12\n",
            b"\x08http/1.1\r\n",
            b"see the http/server.go\nHTTP/1.1\n",
            b"x HTTP/\r\n",
            b"x HTTP/1.1",
            b"xHTTP/1.1\r\n",
        ] {
            assert!(!RequestLine::default().ends_in(bytes), "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn fuzz_request_line() {
        bolero::check!().with_type::<(Vec<u8>, Vec<u8>)>().for_each(|(one, two)| {
            let (mut cut, mut whole) = (RequestLine::default(), RequestLine::default());
            let in_two = cut.ends_in(one) || cut.ends_in(two);
            assert_eq!(in_two, whole.ends_in(&[&one[..], two].concat()));
        });
    }
}
