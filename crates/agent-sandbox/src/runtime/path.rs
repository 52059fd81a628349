//! Paths inside a sandbox: what is sent is what was meant, or nothing is.

use std::fmt::Write as _;

use super::RuntimeError;

/// The segments of a path, none of which leads up.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Path(Vec<String>);

impl Path {
    /// A file or directory below the root.
    pub(super) fn of(path: &str) -> Result<Self, RuntimeError> {
        let parsed = Self::or_root(path)?;
        if parsed.0.is_empty() {
            return Err(RuntimeError::BadPath { path: path.to_owned(), why: "it is empty" });
        }
        Ok(parsed)
    }

    /// Also the root itself, which is `/`, `.` or nothing.
    pub(super) fn or_root(path: &str) -> Result<Self, RuntimeError> {
        let bad = |why| RuntimeError::BadPath { path: path.to_owned(), why };
        if path.chars().any(char::is_control) {
            return Err(bad("it has control characters"));
        }
        let segments: Vec<_> = path.split('/').filter(|segment| !segment.is_empty() && *segment != ".").collect();
        if segments.contains(&"..") {
            return Err(bad("it leads up"));
        }
        Ok(Self(segments.into_iter().map(str::to_owned).collect()))
    }

    /// Segment by segment, as sandboxd has it in its addresses.
    pub(super) fn segments(&self) -> String {
        self.0.iter().map(|segment| encoded(segment)).collect::<Vec<_>>().join("/")
    }

    /// In one piece, as the older API has it.
    pub(super) fn one_piece(&self) -> String {
        encoded(&self.plain())
    }

    pub(super) fn plain(&self) -> String {
        self.0.join("/")
    }
}

/// Everything but the unreserved characters of RFC 3986 as `%XX`.
fn encoded(text: &str) -> String {
    text.bytes().fold(String::with_capacity(text.len()), |mut sent, byte| {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            sent.push(char::from(byte));
        } else {
            let _written = write!(sent, "%{byte:02X}");
        }
        sent
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_cleaned_and_encoded() -> Result<(), RuntimeError> {
        let path = Path::of("//a/./b c/50%/\u{e9}?#")?;
        assert_eq!(path.segments(), "a/b%20c/50%25/%C3%A9%3F%23");
        assert_eq!(path.one_piece(), "a%2Fb%20c%2F50%25%2F%C3%A9%3F%23");
        assert_eq!(path.plain(), "a/b c/50%/\u{e9}?#");
        assert_eq!(Path::or_root("/")?.segments(), "");
        assert_eq!(Path::of("..hidden/...")?.segments(), "..hidden/...");
        Ok(())
    }

    #[test]
    fn what_leads_elsewhere_is_not_sent() {
        for bad in ["", ".", "/", "./.", "..", "a/../b", "a/..", "a\nb", "a\0", "\u{85}"] {
            assert!(matches!(Path::of(bad), Err(RuntimeError::BadPath { .. })), "{bad:?}");
        }
    }
}
