//! Whatever text arrives, parsing answers: it never panics, and what it accepts keeps the promises made of it.

use std::collections::BTreeMap;

use bolero::check;

use crate::{HumanDuration, HumanSize, ProcessId, SandboxId, check as rules, template};

/// Each byte picks a word, so that random bytes become text that is nearly right.
fn speak(words: &[&str], bytes: &[u8]) -> String {
    bytes.iter().map(|byte| words[usize::from(*byte) % words.len()]).collect()
}

#[test]
fn fuzz_size() {
    let words = ["0", "1", "9", "18446744073709551615", "K", "M", "gib", "TiB", "B", "i", "", " ", "-", ".", "ü", "٣"];
    check!().with_max_len(8).for_each(|bytes| {
        for text in [speak(&words, bytes), String::from_utf8_lossy(bytes).into_owned()] {
            if let Ok(size) = text.parse::<HumanSize>() {
                assert_eq!(size.to_string().parse(), Ok(size), "{text}");
            }
        }
    });
}

#[test]
fn fuzz_duration() {
    let words = ["0", "1", "36500", "18446744073709551615", "ms", "s", "m", "h", "d", "", " ", "-", ".", "ü", "٣"];
    check!().with_max_len(8).for_each(|bytes| {
        for text in [speak(&words, bytes), String::from_utf8_lossy(bytes).into_owned()] {
            if let Ok(duration) = text.parse::<HumanDuration>() {
                assert_eq!(duration.to_string().parse(), Ok(duration), "{text}");
                let ends =
                    chrono::TimeDelta::from_std(duration.0).map(|ttl| chrono::Utc::now().checked_add_signed(ttl));
                assert!(matches!(ends, Ok(Some(_))), "{text} cannot be added to a date");
            }
        }
    });
}

#[test]
fn fuzz_id() {
    check!().with_type::<(u64, [u8; 10])>().cloned().for_each(|(millis, random)| {
        let id = SandboxId::from_parts(millis, random);
        assert_eq!(id.as_str().parse(), Ok(id.clone()));
        assert!(id.as_str().parse::<ProcessId>().is_err());
    });
    let words = ["sbx-", "prc-", "0", "z", "abcdefghjk", "i", "A", "-", ".", "/", "\0", "ü"];
    check!().with_max_len(32).for_each(|bytes| {
        if let Ok(id) = speak(&words, bytes).parse::<SandboxId>() {
            let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
            assert!(id.as_str().len() == 30 && id.as_str().bytes().all(plain), "{id} is no DNS label");
        }
    });
}

#[test]
fn fuzz_path() {
    let long = "x".repeat(500);
    let words = ["a", "/", "/", "..", ".", "//", "workspace", "\0", "ü", " ", "\n", &long];
    check!().with_max_len(64).for_each(|bytes| {
        for text in [speak(&words, bytes), String::from_utf8_lossy(bytes).into_owned()] {
            let Ok(path) = rules::path(&text) else { continue };
            assert!(path.starts_with('/') && path.len() <= 4095 && !path.contains('\0'), "{text:?}: {path:?}");
            let odd = |part: &str| matches!(part, "" | "." | "..");
            assert!(path == "/" || !path[1..].split('/').any(odd), "{text:?}: {path:?}");
            assert_eq!(rules::path(&path).as_ref(), Ok(&path), "{text:?}");
        }
    });
}

#[test]
fn fuzz_names() {
    let words = ["a", "z9", "-", "sbx-", ".", "/", "_", "=", "A", "\0", "\u{1b}", "ü", "\u{85}"];
    check!().with_max_len(70).for_each(|bytes| {
        let text = speak(&words, bytes);
        if rules::name(&text).is_ok() {
            let label = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
            assert!(text.len() <= 63 && text.bytes().all(label) && text.parse::<SandboxId>().is_err(), "{text}");
        }
        let (key, value) = text.split_at(text.floor_char_boundary(text.len() / 2));
        let pair = BTreeMap::from([(key.to_owned(), value.to_owned())]);
        if rules::labels(&pair).is_ok() {
            assert!(!value.chars().any(char::is_control), "{value:?}");
        }
        if rules::env(&pair).is_ok() {
            assert!(!key.contains(['=', '\0']) && !value.contains('\0'), "{key:?}={value:?}");
        }
        if rules::argv(&[key.to_owned(), value.to_owned()]).is_ok() {
            assert!(!key.is_empty() && !text.contains('\0'), "{text:?}");
        }
    });
}

/// The lines of a template, right and wrong; one byte each.
const LINES: &[&str] = &[
    "",
    "# a comment",
    "description = \"x\"",
    "provider = \"local\"",
    "root = { kind = \"host\" }",
    "root = { kind = \"image\", path = \"/images/x\" }",
    "root = { kind = \"image\", path = \"../x\" }",
    "profile = \"hardened\"",
    "profile = \"tight\"",
    "user = \"root\"",
    "user = 0",
    "ttl = \"1h\"",
    "ttl = \"1 h\"",
    "output_retention = 1",
    "output_retention = -1",
    "max_file = 18446744073709551615",
    "max_file = 9223372036854775807",
    "[limits]",
    "memory = \"512MiB\"",
    "memory = 0",
    "cpu = 1.5",
    "cpu = nan",
    "cpu = inf",
    "cpu = -1.0",
    "cpu = 1",
    "processes = 0",
    "processes = 4294967296",
    "open_files = 64",
    "tmpfs = \"1T\"",
    "disk = \"0\"",
    "output = \"1G\"",
    "wall_time = \"0s\"",
    "[idle]",
    "pause_after = \"5m\"",
    "stop_after = \"1m\"",
    "delete_after = \"7d\"",
    "[layers]",
    "seccomp = \"optional\"",
    "seccomp = \"off\"",
    "users = \"optional\"",
    "memory = \"required\"",
    "network = \"required\"",
    "[env]",
    "PATH = \"/bin\"",
    "\"A=B\" = \"x\"",
    "A = \"\\u0000\"",
    "[[limits]]",
    "nonsense",
    "name = \"other\"",
    "x = [[[[[[[[",
    "ü = \"ü\"",
];

/// Lines that go together, each at most once.
const GOOD: &[&str] = &[
    "description = \"\\u0001 \\\"ü\"",
    "profile = \"open\"",
    "user = \"root\"",
    "root = { kind = \"image\", path = \"/images/x\" }",
    "ttl = \"1h30m\"",
    "max_file = 0",
    "limits.memory = \"512MiB\"",
    "limits.cpus = 0.1",
    "limits.processes = 100",
    "limits.tmpfs = 1048577",
    "limits.wall_time = \"250ms\"",
    "idle.pause_after = \"5m\"",
    "idle.stop_after = \"1h\"",
    "layers.seccomp = \"required\"",
    "layers.landlock = \"optional\"",
    "env.A = \"line\\nline\"",
];

#[test]
fn fuzz_template() {
    check!().with_max_len(24).for_each(|bytes| {
        let lines: Vec<_> = bytes.iter().map(|byte| LINES[usize::from(*byte) % LINES.len()]).collect();
        let good: Vec<_> = GOOD.iter().zip(bytes).filter(|(_, byte)| *byte % 2 == 1).map(|(line, _)| *line).collect();
        for text in [lines.join("\n"), good.join("\n"), String::from_utf8_lossy(bytes).into_owned()] {
            match template::parse("fuzz", &text) {
                Ok(template) => {
                    assert_eq!(template::parse("fuzz", &template.to_toml()).as_ref(), Ok(&template), "{text}");
                    let json = serde_json::to_string(&template).unwrap_or_default();
                    assert_eq!(serde_json::from_str(&json).ok(), Some(template), "{text}\n{json}");
                }
                Err(bad) => {
                    let lines = text.lines().count().max(1);
                    assert!(bad.line.is_none_or(|line| (1..=lines).contains(&line)), "{bad:?} is not in\n{text}");
                }
            }
        }
    });
}
