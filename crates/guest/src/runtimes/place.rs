//! What a request's path means below a root, before anybody looks. Pure.

use std::{
    ffi::OsString,
    os::unix::ffi::{OsStrExt as _, OsStringExt as _},
    path::{Component, Path, PathBuf},
};

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Misplaced {
    /// It leads out by its own words.
    Escapes,
    /// No path at all.
    Nonsense,
}

/// As it stands in a URL, where a slash may be written `%2F` and dots `%2E`.
pub(super) fn from_url(text: &str) -> Result<PathBuf, Misplaced> {
    below(&decode(text).ok_or(Misplaced::Nonsense)?)
}

/// Relative to the root, whatever it begins with; without `.` and `..`.
pub(super) fn below(path: &[u8]) -> Result<PathBuf, Misplaced> {
    if path.contains(&0) {
        return Err(Misplaced::Nonsense);
    }
    let mut place = PathBuf::new();
    for component in Path::new(std::ffi::OsStr::from_bytes(path)).components() {
        match component {
            Component::Normal(name) => place.push(name),
            Component::ParentDir if !place.pop() => return Err(Misplaced::Escapes),
            Component::ParentDir | Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
        }
    }
    Ok(place)
}

/// As a listing names it: absolute, the root being all there is.
pub(super) fn shown(place: &Path) -> String {
    format!("/{}", place.display())
}

pub(super) fn decode(text: &str) -> Option<Vec<u8>> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => {
                let mut digit = || char::from(bytes.next()?).to_digit(16);
                u8::try_from(digit()? * 16 + digit()?).ok()?
            }
            byte => byte,
        });
    }
    Some(decoded)
}

/// As text, for who shows it.
pub(super) fn text(bytes: Vec<u8>) -> String {
    OsString::from_vec(bytes).to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_stays_below_by_its_own_words() {
        for (text, wanted) in [
            ("", Ok("")),
            ("a/b", Ok("a/b")),
            ("a%2Fb", Ok("a/b")),
            ("%2Fetc%2fpasswd", Ok("etc/passwd")),
            ("//a//b/", Ok("a/b")),
            ("./a/%2E/b", Ok("a/b")),
            ("a/../b", Ok("b")),
            ("a%20b+c", Ok("a b+c")),
            ("..", Err(Misplaced::Escapes)),
            ("%2E%2E", Err(Misplaced::Escapes)),
            ("%2e%2e%2fx", Err(Misplaced::Escapes)),
            ("a/../../b", Err(Misplaced::Escapes)),
            ("a/%2E%2E/%2E%2E/b", Err(Misplaced::Escapes)),
            ("...", Ok("...")),
            ("a%00b", Err(Misplaced::Nonsense)),
            ("a%2", Err(Misplaced::Nonsense)),
            ("a%zz", Err(Misplaced::Nonsense)),
            ("%+1", Err(Misplaced::Nonsense)),
        ] {
            assert_eq!(from_url(text), wanted.map(PathBuf::from), "{text}");
        }
        assert_eq!(shown(&PathBuf::new()), "/");
        assert_eq!(shown(Path::new("a/b")), "/a/b");
    }
}
