//! Where something is copied from or to, as it is written on the command line.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    Local(PathBuf),
    Sandbox {
        sandbox: String,
        path: String,
    },
    /// `-`: standard input or output.
    Stdio,
}

/// `SANDBOX:PATH` only when the front can be a name or id; local files with a colon are written `./a:b`.
pub(crate) fn place(text: &str) -> Result<Place, String> {
    if text == "-" {
        return Ok(Place::Stdio);
    }
    let is_name = |front: &str| {
        !front.is_empty() && front.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
    };
    match text.split_once(':') {
        _ if text.is_empty() => Err("there is no path".into()),
        Some((front, path)) if is_name(front) => Ok(Place::Sandbox { sandbox: front.into(), path: path.into() }),
        _ => Ok(Place::Local(text.into())),
    }
}

/// `dir/.` means what is in the directory, not the directory.
pub(crate) fn contents_only(path: &str) -> bool {
    path == "." || path.ends_with("/.") || path.ends_with("/./")
}

/// The name under which a local directory is copied into another; `None` for its contents alone.
pub(crate) fn last_name(path: &Path) -> Option<OsString> {
    // Read as text: `Path` drops a trailing dot by itself.
    if path.to_str().is_some_and(contents_only) {
        return None;
    }
    path.file_name().map(Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_told_apart() {
        let sandbox = |sandbox: &str, path: &str| Ok(Place::Sandbox { sandbox: sandbox.into(), path: path.into() });
        let local = |path: &str| Ok(Place::Local(path.into()));
        assert_eq!(place("agent:/workspace/a:b"), sandbox("agent", "/workspace/a:b"));
        assert_eq!(place("agent:"), sandbox("agent", ""));
        assert_eq!(place("agent:src"), sandbox("agent", "src"));
        assert_eq!(place("./agent:/x"), local("./agent:/x"));
        assert_eq!(place("/a:b"), local("/a:b"));
        assert_eq!(place("Agent:x"), local("Agent:x"));
        assert_eq!(place(":x"), local(":x"));
        assert_eq!(place("file"), local("file"));
        assert_eq!(place("-"), Ok(Place::Stdio));
        assert!(place("").is_err());
    }

    #[test]
    fn a_dot_means_the_contents() {
        for (path, name) in
            [("a/b", Some("b")), ("a/b/", Some("b")), ("a/b/.", None), (".", None), ("..", None), ("/", None)]
        {
            assert_eq!(last_name(Path::new(path)), name.map(OsString::from), "{path}");
        }
        assert!(contents_only("/workspace/.") && !contents_only("/workspace/.git"));
    }
}
