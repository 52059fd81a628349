//! Path patterns: `*` within a segment, `**` for any number of whole segments (none too: `/a/**` matches `/a`); and which
//! paths can be judged at all. Letters' case counts, the query does not.
//!
//! Pattern and path are compared in one normal form: what is percent-encoded needlessly is decoded, the rest is `%XX`.

use std::{fmt, iter};

/// One byte of a path, or in patterns any number of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Piece {
    Star,
    Byte(u8),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Segment {
    Across,
    Part(Vec<Piece>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PathPattern(Vec<Segment>);

/// A request's path that every server reads alike.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Plain(Vec<Segment>);

impl Plain {
    /// Nothing if two parsers could read it differently.
    pub(crate) fn read(path: &str) -> Option<Self> {
        let path = path.split_once('?').map_or(path, |(path, _)| path);
        segments(path, |part| pieces(part, false).map(Segment::Part)).ok().map(Self)
    }

    /// The same path with a slash at its end, or without the one it has; `/` is only itself.
    pub(crate) fn other_end(&self) -> Self {
        let mut parts = self.0.clone();
        let slash = Segment::Part(Vec::new());
        match parts.pop() {
            Some(last) if last != slash => parts.extend([last, slash]),
            Some(last) if parts.is_empty() => parts.push(last),
            _ => {}
        }
        Self(parts)
    }
}

impl PathPattern {
    pub(crate) fn parse(text: &str) -> Result<Self, &'static str> {
        if text.contains('?') {
            return Err("the query is not matched: leave it out, from `?` on");
        }
        let mut parts = segments(text, |part| match part {
            "**" => Ok(Segment::Across),
            part if part.contains("**") => Err("`**` stands alone between slashes: write `*` within a segment"),
            part => pieces(part, true).map(Segment::Part),
        })?;
        parts.dedup_by(|next, last| (next, last) == (&mut Segment::Across, &mut Segment::Across));
        Ok(Self(parts))
    }

    pub(crate) fn matches(&self, path: &Plain) -> bool {
        path_glob(&self.0, &path.0)
    }

    /// Whether all that the other matches is matched by this. May say no where it is so, never yes where it is not.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        path_glob(&self.0, &other.0)
    }

    /// `/**`
    pub(crate) fn is_everything(&self) -> bool {
        self.0 == [Segment::Across]
    }
}

fn segments<E: From<&'static str>>(path: &str, read: impl Fn(&str) -> Result<Segment, E>) -> Result<Vec<Segment>, E> {
    let inner = path.strip_prefix('/').ok_or("a path starts with `/`")?;
    let last = inner.split('/').count() - 1;
    let whole = |(at, part): (usize, &str)| match part {
        "" if at < last => Err("servers differ about `//`, so no such path is matched".into()),
        "." | ".." => Err("servers differ about `.` and `..` in a path, so no such path is matched".into()),
        part => read(part),
    };
    inner.split('/').enumerate().map(whole).collect()
}

/// One segment in normal form. With `stars`, `*` is a wildcard and `%2A` the character.
fn pieces(part: &str, stars: bool) -> Result<Vec<Piece>, &'static str> {
    let (mut found, mut decoded, mut rest) = (Vec::new(), Vec::new(), part.as_bytes());
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        let value = match byte {
            b'%' => {
                let value = hex(rest).ok_or("`%` is followed by two hexadecimal digits")?;
                rest = &rest[2..];
                value
            }
            b'*' if stars => {
                found.push(Piece::Star);
                decoded.push(byte);
                continue;
            }
            0x21..=0x7e => byte,
            _ => return Err("blanks, control characters and letters beyond ASCII are percent-encoded in a path"),
        };
        match value {
            // Some decode before they split or clean up, others after, Java's cut at `;`, Windows' take `\` for `/`.
            b'/' | b'\\' | b';' | 0..=0x1f | 0x7f => {
                return Err(
                    "servers differ about `;`, `\\`, encoded `/` and control characters, so no such path is matched",
                );
            }
            b'.' if byte == b'%' => return Err("servers differ about `%2E`: write `.`"),
            b'?' | b'#' if byte != b'%' => return Err("`?` and `#` end a path"),
            0x21..=0x7e if !matches!(value, b'%' | b'?' | b'#') => found.push(Piece::Byte(value)),
            _ => found.extend(format!("%{value:02X}").bytes().map(Piece::Byte)),
        }
        decoded.push(value);
    }
    if decoded.windows(3).any(|three| three[0] == b'%' && hex(&three[1..]).is_some()) {
        return Err("some servers decode twice, so no such path is matched");
    }
    // Overlong forms of `/` and `.` are not UTF-8, yet some decode them.
    std::str::from_utf8(&decoded).map_err(|_| "what it encodes is not UTF-8")?;
    Ok(found)
}

fn hex(text: &[u8]) -> Option<u8> {
    let digit = |at: usize| text.get(at).and_then(|byte| char::from(*byte).to_digit(16));
    u8::try_from(digit(0)? * 16 + digit(1)?).ok()
}

fn path_glob(pattern: &[Segment], text: &[Segment]) -> bool {
    let same = |wanted: &Segment, found: &Segment| match (wanted, found) {
        (Segment::Part(wanted), Segment::Part(found)) => glob(wanted, found, |p| *p == Piece::Star, |p, t| p == t),
        _ => false,
    };
    glob(pattern, text, |segment| *segment == Segment::Across, same)
}

/// Wildcards of the text, when patterns are compared, are only taken up by wildcards of the pattern. Going back to the
/// last wildcard alone suffices, so it takes no more than pattern times text.
fn glob<T>(pattern: &[T], text: &[T], wild: impl Fn(&T) -> bool, same: impl Fn(&T, &T) -> bool) -> bool {
    let (mut at, mut next, mut back) = (0, 0, None);
    while next < text.len() {
        match pattern.get(at) {
            Some(piece) if wild(piece) => {
                at += 1;
                back = Some((at, next));
            }
            Some(piece) if same(piece, &text[next]) => (at, next) = (at + 1, next + 1),
            _ => {
                let Some((after, taken)) = back else { return false };
                (at, next) = (after, taken + 1);
                back = Some((after, taken + 1));
            }
        }
    }
    pattern[at..].iter().all(wild)
}

/// The normal form: equal patterns have equal texts.
impl fmt::Display for PathPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for segment in &self.0 {
            f.write_str("/")?;
            match segment {
                Segment::Across => f.write_str("**")?,
                Segment::Part(pieces) => {
                    for piece in pieces {
                        match piece {
                            Piece::Star => f.write_str("*")?,
                            Piece::Byte(b'*') => f.write_str("%2A")?,
                            Piece::Byte(byte) => write!(f, "{}", char::from(*byte))?,
                        }
                    }
                }
            }
        }
        Ok(())
    }
}

/// The text of a pattern for exactly this path.
pub(crate) fn literal(path: &str) -> String {
    let path = path.split_once('?').map_or(path, |(path, _)| path);
    path.split('*').flat_map(|part| iter::once("%2A").chain(iter::once(part))).skip(1).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(pattern: &str, path: &str) -> Option<bool> {
        let pattern = PathPattern::parse(pattern).unwrap_or_else(|cause| panic!("{pattern}: {cause}"));
        Plain::read(path).map(|path| pattern.matches(&path))
    }

    #[test]
    fn patterns() {
        let table = [
            ("/", "/", true),
            ("/", "/a", false),
            ("/a", "/a", true),
            ("/a", "/a?b=/../c", true),
            ("/a", "/A", false),
            ("/a", "/a/", false),
            ("/a", "/ab", false),
            ("/*", "/a", true),
            ("/*", "/", true),
            ("/*", "/a/b", false),
            ("/a*c", "/abc", true),
            ("/a*c", "/ac", true),
            ("/a*c", "/ab/c", false),
            ("/*.git/*", "/x.y.git/info", true),
            ("/a/**", "/a", true),
            ("/a/**", "/a/", true),
            ("/a/**", "/a/b/c", true),
            ("/a/**", "/ab", false),
            ("/**", "/", true),
            ("/**", "/a/b", true),
            ("/**/x", "/x", true),
            ("/**/x", "/a/b/x", true),
            ("/**/x", "/a/bx", false),
            ("/a/**/b/*/c", "/a/b/b/x/c", true),
            ("/a/**/b/*/c", "/a/b/x/c/c", false),
            ("/~me", "/%7Eme", true),
            ("/%7eme", "/~me", true),
            ("/@x:y", "/%40x%3ay", true),
            ("/a%20b", "/a%20b", true),
            ("/%c3%bc", "/%C3%BC", true),
            ("/a%2Ab", "/a*b", true),
            ("/a%2Ab", "/axb", false),
            ("/a...b", "/a...b", true),
            ("/100%25", "/100%25", true),
        ];
        for (pattern, path, wanted) in table {
            assert_eq!(judged(pattern, path), Some(wanted), "{pattern} and {path}");
        }
    }

    #[test]
    fn the_other_end() {
        for (path, wanted) in [("/a", "/a/"), ("/a/", "/a"), ("/a/b?c", "/a/b/"), ("/", "/")] {
            let other = Plain::read(path).map(|path| path.other_end());
            assert!(other.is_some() && other == Plain::read(wanted), "{path}: {other:?}");
        }
    }

    #[test]
    fn ambiguous_paths() {
        let table = [
            "",
            "*",
            "a",
            "/..",
            "/.",
            "/a/../b",
            "/a/./b",
            "//",
            "//a",
            "/a//b",
            "/%2e%2e/a",
            "/a%2fb",
            "/a%2Fb",
            "/a%00",
            "/a%0a",
            "/a\0",
            "/a\\b",
            "/a%5cb",
            "/a b",
            "/\u{e4}",
            "/a;b",
            "/a%3bb",
            "/..;/a",
            "/%252e%252e/",
            "/%25%32%65",
            "/%",
            "/%2",
            "/%zz",
            "/%u002e",
            "/a#b",
            "/%c0%ae%c0%ae/",
            "/%ff",
            "http://x/",
        ];
        for path in table {
            assert_eq!(Plain::read(path), None, "{path:?}");
        }
    }

    #[test]
    fn bad_patterns() {
        let table = [
            ("a", "starts with"),
            ("/a?b", "query"),
            ("/a**", "stands alone"),
            ("/***", "stands alone"),
            ("/a//b", "`//`"),
            ("/../a", "`..`"),
            ("/a%2fb", "encoded"),
            ("/%2e", "write `.`"),
            ("/\u{e4}", "percent-encoded"),
            ("/%x", "two hex"),
            ("/%252e", "twice"),
            ("/#", "end a path"),
        ];
        for (pattern, cause) in table {
            let told = PathPattern::parse(pattern).map(|pattern| pattern.to_string());
            assert!(told.as_ref().is_err_and(|told| told.contains(cause)), "{pattern}: {told:?}");
        }
    }

    #[test]
    fn normal_form_and_cover() {
        for (text, wanted) in
            [("/%7e/%c3%bc", "/~/%C3%BC"), ("/**/**/x", "/**/x"), ("/%2a*", "/%2A*"), ("/%40", "/@"), ("/", "/")]
        {
            assert_eq!(PathPattern::parse(text).map(|pattern| pattern.to_string()).as_deref(), Ok(wanted));
        }
        let covers = |a: &str, b: &str| match (PathPattern::parse(a), PathPattern::parse(b)) {
            (Ok(a), Ok(b)) => a.covers(&b),
            _ => panic!("{a} or {b} is no pattern"),
        };
        assert!(covers("/**", "/a/*/**") && covers("/a/**", "/a/b*") && covers("/*", "/a*b") && covers("/a", "/a"));
        assert!(!covers("/*", "/**") && !covers("/a/**", "/**") && !covers("/a*", "/*") && !covers("/a/*", "/a/**"));
        assert_eq!(judged(&literal("/a*b?c"), "/a*b"), Some(true));
        assert_eq!(judged(&literal("/a*b?c"), "/aab"), Some(false));
    }
}
