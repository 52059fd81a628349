//! Which paths are asked for, and which are left out unless they are named.

use std::{ffi::OsStr, os::unix::ffi::OsStrExt, path::Path};

use globset::{GlobBuilder, GlobSet};

use super::bad;
use crate::error::{Code, Fault};

/// Nothing that a person wrote is in them, and much else is.
const GENERATED: [&str; 4] = ["node_modules", "target", ".venv", "__pycache__"];
/// The kernel's own: without end, and reading them does things.
const KERNEL: [&str; 3] = ["proc", "sys", "dev"];
/// As long as a path can be; also keeps the nesting of braces from the end of the stack.
const LONGEST: usize = 4096;

pub(super) struct Names {
    /// None: all.
    glob: Option<GlobSet>,
    /// Over whole paths, not last parts alone.
    whole: bool,
    /// Parts of the pattern that name something which is otherwise left out.
    named: Vec<GlobSet>,
    all: bool,
    from_root: bool,
}

impl Names {
    pub(super) fn new(base: &Path, pattern: &str, ignore_case: bool, all: bool) -> Result<Self, Fault> {
        if pattern.len() > LONGEST {
            let message = format!("The pattern of names has {} bytes, {LONGEST} is the most.", pattern.len());
            return Err(Fault::new(Code::BadRequest, message));
        }
        let from_root = base == Path::new("/");
        let relative = relative(base, pattern);
        let whole = relative.contains('/') || pattern.starts_with('/');
        let relative = if relative.ends_with('/') { format!("{relative}**") } else { relative.to_owned() };
        let build = |text: &str| {
            let glob = GlobBuilder::new(text)
                .literal_separator(true)
                .empty_alternates(true)
                .case_insensitive(ignore_case)
                .build();
            // A set of one, because only of sets can it be told that they are too complex.
            glob.and_then(|glob| GlobSet::new([glob])).map_err(|error| error.kind().to_string())
        };
        let glob = if relative.is_empty() {
            None
        } else {
            let wrong = |reason: String| bad(&format!("`{}` is no pattern of names", pattern.escape_debug()), &reason);
            Some(build(&relative).map_err(wrong)?)
        };
        let named = relative.split('/').filter(|part| part.starts_with('.') || GENERATED.contains(part));
        // A part that is half of a group in braces names nothing.
        let named = named.filter_map(|part| build(part).ok()).collect();
        Ok(Self { glob, whole, named, all, from_root })
    }

    pub(super) fn matches(&self, parent: &Path, name: &OsStr) -> bool {
        match &self.glob {
            None => true,
            Some(glob) if self.whole => glob.is_match(parent.join(name)),
            Some(glob) => glob.is_match(name),
        }
    }

    /// Whether neither it nor anything in it is looked at.
    pub(super) fn leaves_out(&self, parent: &Path, name: &OsStr, is_directory: bool) -> bool {
        let is_one_of = |list: &[&str]| list.iter().any(|one| OsStr::new(one) == name);
        if self.from_root && parent.as_os_str().is_empty() && is_one_of(&KERNEL) {
            return true;
        }
        let unusual = name.as_bytes().starts_with(b".") || (is_directory && is_one_of(&GENERATED));
        unusual && !self.all && !self.named.iter().any(|part| part.is_match(name))
    }
}

/// The pattern from the searched directory on, also where it was written from the root on.
fn relative<'a>(base: &Path, pattern: &'a str) -> &'a str {
    let pattern = pattern.strip_prefix("./").unwrap_or(pattern);
    let Some(absolute) = pattern.strip_prefix('/') else { return pattern };
    let base = base.to_string_lossy();
    let inside = pattern.strip_prefix(base.trim_end_matches('/')).and_then(|rest| rest.strip_prefix('/'));
    inside.unwrap_or(absolute)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(pattern: &str) -> Result<Names, Fault> {
        Names::new(Path::new("/workspace"), pattern, false, false)
    }

    fn matches(pattern: &str, path: &str) -> Result<bool, Fault> {
        let path = Path::new(path);
        let parent = path.parent().unwrap_or(Path::new(""));
        Ok(names(pattern)?.matches(parent, path.file_name().unwrap_or_default()))
    }

    #[test]
    fn a_pattern_without_a_slash_is_of_names_at_any_depth() -> Result<(), Fault> {
        for (pattern, path, expected) in [
            ("", "a/b.rs", true),
            ("*.rs", "b.rs", true),
            ("*.rs", "a/b.rs", true),
            ("*.rs", "a/b.rsx", false),
            ("**/*.rs", "b.rs", true),
            ("**/*.rs", "a/b/c.rs", true),
            ("src/**", "src/a/b.rs", true),
            ("src/**", "a/src/b.rs", false),
            ("src/", "src/a/b.rs", true),
            ("src/*.rs", "src/a/b.rs", false),
            ("./src/*.rs", "src/b.rs", true),
            ("/*.rs", "b.rs", true),
            ("/*.rs", "a/b.rs", false),
            ("/workspace/src/*.rs", "src/b.rs", true),
            ("*.{rs,toml}", "a/Cargo.toml", true),
            ("[ab].rs", "b.rs", true),
            ("*.RS", "b.rs", false),
            ("a?c", "a/c", false),
        ] {
            assert_eq!(matches(pattern, path)?, expected, "{pattern} {path}");
        }
        let any_case = Names::new(Path::new("/"), "*.RS", true, false)?;
        assert!(any_case.matches(Path::new("a"), OsStr::new("b.rs")));
        Ok(())
    }

    #[test]
    fn what_nobody_looks_into_is_left_out_unless_named() -> Result<(), Fault> {
        let out = |pattern: &str, name: &str, is_directory| {
            names(pattern).map(|names| names.leaves_out(Path::new(""), OsStr::new(name), is_directory))
        };
        for (pattern, name, is_directory, expected) in [
            ("", ".git", true, true),
            ("", ".env", false, true),
            ("", "target", true, true),
            ("", "target", false, false),
            ("", "node_modules", true, true),
            ("", "src", true, false),
            (".env*", ".env.local", false, false),
            (".github/**", ".github", true, false),
            (".github/**", ".git", true, true),
            ("target/doc/*.html", "target", true, false),
            ("", "proc", true, false),
        ] {
            assert_eq!(out(pattern, name, is_directory)?, expected, "{pattern} {name}");
        }
        let all = Names::new(Path::new("/"), "", false, true)?;
        assert!(!all.leaves_out(Path::new(""), OsStr::new(".git"), true));
        assert!(all.leaves_out(Path::new(""), OsStr::new("proc"), true));
        assert!(!all.leaves_out(Path::new("home"), OsStr::new("proc"), true));
        Ok(())
    }

    #[test]
    fn a_bad_pattern_is_refused_with_its_reason() {
        for pattern in ["{a", "a}", "[a", "[z-a]", "a\\"] {
            let fault = names(pattern).map(|_| ()).map_err(|fault| (fault.code, fault.message));
            let (code, message) = fault.err().unwrap_or((Code::Internal, String::new()));
            assert_eq!(code, Code::BadRequest, "{pattern}");
            assert!(message.contains("is no pattern of names: ") && !message.contains('\n'), "{message}");
        }
        assert!(
            names(&"{".repeat(4096)).is_err() && names(&format!("{}{}", "{".repeat(2048), "}".repeat(2048))).is_err()
        );
        assert!(names(&"a".repeat(4097)).is_err());
    }
}
