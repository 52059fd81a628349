//! What a caller may call things: names, labels and environment variables.

use std::collections::BTreeMap;

use crate::{Code, Problem};

pub const MAX_LABELS: usize = 64;
pub const MAX_LABEL_VALUE: usize = 256;
pub const MAX_ENV: usize = 1024;
/// The kernel refuses larger single strings at exec (`MAX_ARG_STRLEN`).
pub const MAX_STRING: usize = 128 * 1024 - 1;
/// Environment strings together.
pub const MAX_STRINGS: usize = 1024 * 1024;
/// Arguments together. The kernel takes a quarter of the stack's limit, usually 8 MiB, for arguments, environment and eight
/// bytes for each of them; it has the last word.
pub const MAX_ARGV: usize = 2 * 1024 * 1024;
/// The kernel's `PATH_MAX` counts the NUL at the end.
pub const MAX_PATH: usize = 4095;

/// A DNS label: usable as host name and Kubernetes name, and never mistaken for a flag, path or terminal escape.
pub fn name(text: &str) -> Result<(), Problem> {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    let good = (1..=63).contains(&text.len())
        && text.bytes().all(inner)
        && !text.starts_with('-')
        && !text.ends_with('-')
        && !text.starts_with("sbx-");
    if good {
        return Ok(());
    }
    Err(Problem::new(
        Code::BadName,
        format!("`{}` cannot be the name of a sandbox.", text.escape_debug()),
        "Use 1 to 63 of a-z, 0-9 and `-`, not starting or ending with `-`, not starting with `sbx-`.",
    ))
}

/// Like a sandbox's, which the first of a session shares; and never mistaken for a session's id.
pub fn session_name(text: &str) -> Result<(), Problem> {
    if name(text).is_ok() && !text.starts_with("ses-") {
        return Ok(());
    }
    Err(Problem::new(
        Code::BadName,
        format!("`{}` cannot be the name of a session.", text.escape_debug()),
        "Use 1 to 63 of a-z, 0-9 and `-`, not starting or ending with `-`, not starting with `sbx-` or `ses-`.",
    ))
}

pub fn labels(labels: &BTreeMap<String, String>) -> Result<(), Problem> {
    let key_ok = |key: &str| {
        (1..=63).contains(&key.len())
            && key.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_./".contains(&b))
            && key.as_bytes()[0].is_ascii_alphanumeric()
    };
    let value_ok = |value: &str| value.len() <= MAX_LABEL_VALUE && !value.chars().any(char::is_control);
    for (key, value) in labels {
        if !key_ok(key) || !value_ok(value) {
            return Err(Problem::new(
                Code::BadLabel,
                format!("`{}={}` is not a label.", key.escape_debug(), value.escape_debug()),
                format!(
                    "Keys are 1 to 63 of a-z A-Z 0-9 - _ . / and start with a letter or digit; values have at most {MAX_LABEL_VALUE} bytes and no control characters."
                ),
            ));
        }
    }
    if labels.len() > MAX_LABELS {
        return Err(Problem::new(
            Code::BadLabel,
            format!("{} labels are too many.", labels.len()),
            format!("Use at most {MAX_LABELS}."),
        ));
    }
    Ok(())
}

pub fn env(env: &BTreeMap<String, String>) -> Result<(), Problem> {
    let mut total = 0;
    for (key, value) in env {
        total += key.len() + value.len() + 2;
        let key_ok = !key.is_empty()
            && key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
            && !key.as_bytes()[0].is_ascii_digit();
        if !key_ok || value.contains('\0') || key.len() + value.len() + 2 > MAX_STRING {
            return Err(Problem::new(
                Code::BadEnv,
                format!("`{}` cannot be set as an environment variable.", key.escape_debug()),
                "Names are letters, digits and `_`, not starting with a digit; values have no NUL and fewer than 128 KiB.",
            ));
        }
    }
    if env.len() > MAX_ENV || total > MAX_STRINGS {
        return Err(Problem::new(
            Code::BadEnv,
            format!("{} environment variables with {total} bytes are too many.", env.len()),
            format!("Use at most {MAX_ENV} variables and {MAX_STRINGS} bytes; put more into a file."),
        ));
    }
    Ok(())
}

/// A command: at least a program, no NUL, within what the kernel takes.
pub fn argv(argv: &[String]) -> Result<(), Problem> {
    let bad = |detail: String, fix: &str| Err(Problem::new(Code::BadCommand, detail, fix));
    if argv.first().is_none_or(String::is_empty) {
        return bad(
            "There is no command to run.".into(),
            "Give the program and its arguments as `argv`, for example [\"ls\",\"-l\"].",
        );
    }
    if argv.iter().any(|arg| arg.contains('\0') || arg.len() > MAX_STRING) {
        return bad(
            "An argument contains NUL or is larger than 128 KiB.".into(),
            "Pass large or binary data on standard input or in a file.",
        );
    }
    let total = argv.iter().map(|arg| arg.len() + 1).sum::<usize>();
    if total > MAX_ARGV {
        return bad(
            format!("The arguments have {total} bytes together."),
            "Keep them below 2 MiB, with the environment; pass more on standard input or in a file.",
        );
    }
    Ok(())
}

/// A path inside a sandbox, made absolute (relative ones start at `/workspace`) and free of `.`, `..` and `//`.
/// What the path then means is decided by the guest inside, as the workload's user; this only refuses what nobody can mean.
pub fn path(text: &str) -> Result<String, Problem> {
    if text.contains('\0') {
        return Err(Problem::new(Code::BadPath, "The path contains a NUL byte.", "Remove it."));
    }
    let mut parts: Vec<&str> = if text.starts_with('/') { vec![] } else { vec!["workspace"] };
    for part in text.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                if parts.pop().is_none() {
                    return Err(Problem::new(
                        Code::PathOutside,
                        format!("`{}` leads outside the sandbox.", text.escape_debug()),
                        "Give a path inside the sandbox, for example /workspace/file.",
                    ));
                }
            }
            part => parts.push(part),
        }
    }
    let path = format!("/{}", parts.join("/"));
    if path.len() > MAX_PATH {
        return Err(Problem::new(
            Code::BadPath,
            format!("The path is longer than {MAX_PATH} bytes."),
            "Use a shorter one.",
        ));
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_normalised_and_stay_inside() {
        for (text, want) in [
            ("a/b", "/workspace/a/b"),
            ("/a//b/./c", "/a/b/c"),
            ("", "/workspace"),
            ("/", "/"),
            ("/a/../b", "/b"),
            ("..", "/"),
        ] {
            assert_eq!(path(text).as_deref(), Ok(want));
        }
        // Not too long by itself, but below `/workspace` it is.
        let long = "a/".repeat(2045);
        for (text, code) in [
            ("/..", Code::PathOutside),
            ("../../x", Code::PathOutside),
            ("/a\0b", Code::BadPath),
            (&long, Code::BadPath),
        ] {
            assert_eq!(path(text).map_err(|p| p.code), Err(code), "{text:?}");
        }
        assert!(path(&format!("/{long}")).is_ok());
    }

    #[test]
    fn names_labels_env_and_commands_that_are_refused() {
        for text in ["", "-a", "a-", "A", "a b", "sbx-x", "a/b", "ü", "\u{1b}[31m", &"a".repeat(64)] {
            assert_eq!(name(text).map_err(|p| p.code), Err(Code::BadName), "{text}");
        }
        assert_eq!(name("a1-b"), Ok(()));
        let one = |k: &str, v: &str| BTreeMap::from([(k.to_owned(), v.to_owned())]);
        for (key, value) in [("", "x"), ("a b", "x"), ("a", "x\u{1b}"), ("-a", "x")] {
            assert_eq!(labels(&one(key, value)).map_err(|p| p.code), Err(Code::BadLabel), "{key}");
        }
        for (key, value) in [("", "x"), ("1A", "x"), ("A=B", "x"), ("A", "x\0")] {
            assert_eq!(env(&one(key, value)).map_err(|p| p.code), Err(Code::BadEnv), "{key}");
        }
        assert_eq!(argv(&[]).map_err(|p| p.code), Err(Code::BadCommand));
        assert_eq!(argv(&["a\0".into()]).map_err(|p| p.code), Err(Code::BadCommand));
        let long = |count: usize| vec!["x".repeat(MAX_STRING); count];
        assert_eq!(argv(&long(16)), Ok(()), "as much as the kernel takes");
        assert_eq!(argv(&long(17)).map_err(|p| p.code), Err(Code::BadCommand));
    }
}
