//! Text for people: foreign text made inert, times and amounts as people say them.

use std::{borrow::Cow, fmt::Write as _, time::Duration};

use chrono::{DateTime, Utc};

/// Text of others must not drive the terminal: control characters, and those that reorder or hide what is shown, are
/// written out instead.
pub(crate) fn inert(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_active) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 8);
    for letter in text.chars() {
        match letter {
            '\n' => shown.push_str("\\n"),
            '\r' => shown.push_str("\\r"),
            '\t' => shown.push_str("\\t"),
            letter if is_active(letter) && (letter as u32) < 0x100 => {
                let _ = write!(shown, "\\x{:02x}", letter as u32);
            }
            letter if is_active(letter) => {
                let _ = write!(shown, "\\u{{{:x}}}", letter as u32);
            }
            letter => shown.push(letter),
        }
    }
    Cow::Owned(shown)
}

fn is_active(letter: char) -> bool {
    letter.is_control()
        || matches!(letter,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// JSON says the same with such letters escaped; serde_json leaves those above ASCII as they are.
pub(crate) fn inert_json(json: &str) -> Cow<'_, str> {
    if !json.chars().any(|letter| is_active(letter) && letter != '\n') {
        return Cow::Borrowed(json);
    }
    let mut shown = String::with_capacity(json.len() + 8);
    for letter in json.chars() {
        if is_active(letter) && letter != '\n' {
            let mut units = [0; 2];
            for unit in letter.encode_utf16(&mut units) {
                let _ = write!(shown, "\\u{unit:04x}");
            }
        } else {
            shown.push(letter);
        }
    }
    Cow::Owned(shown)
}

/// A command as one would type it.
pub(crate) fn command(argv: &[String]) -> String {
    let plain = |arg: &str| {
        !arg.is_empty() && arg.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_./=:,@%+".contains(&byte))
    };
    let quoted = |arg: &String| if plain(arg) { arg.clone() } else { format!("'{}'", arg.replace('\'', "'\\''")) };
    inert(&argv.iter().map(quoted).collect::<Vec<_>>().join(" ")).into_owned()
}

/// At most `limit` letters.
pub(crate) fn shortened(text: &str, limit: usize) -> String {
    match text.char_indices().nth(limit) {
        None => text.to_owned(),
        Some(_) => text.chars().take(limit - 1).chain(['…']).collect(),
    }
}

/// The largest unit that fits: `45s`, `3m`, `2h`, `9d`.
pub(crate) fn span(duration: chrono::Duration) -> String {
    let seconds = duration.num_seconds().max(0);
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86400),
    }
}

pub(crate) fn ago(then: DateTime<Utc>, now: DateTime<Utc>) -> String {
    span(now - then)
}

pub(crate) fn took(duration: Duration) -> String {
    match duration.as_millis() {
        0 => "<1 ms".into(),
        millis @ 1..1000 => format!("{millis} ms"),
        _ => format!("{:.1} s", duration.as_secs_f64()),
    }
}

pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut amount = bytes as f64 / 1024.0;
    let mut unit = UNITS[0];
    for next in &UNITS[1..] {
        if amount >= 1024.0 {
            amount /= 1024.0;
            unit = next;
        }
    }
    format!("{amount:.1} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminal_attacks_are_shown_not_done() {
        for (attack, shown) in [
            ("\u{1b}[31mred\u{1b}[0m", "\\x1b[31mred\\x1b[0m"),
            ("\u{1b}]52;c;ZXZpbA==\u{7}", "\\x1b]52;c;ZXZpbA==\\x07"),
            ("\u{9b}2J", "\\x9b2J"),
            ("a\rb\nc\td", "a\\rb\\nc\\td"),
            ("\u{202e}gpj.exe", "\\u{202e}gpj.exe"),
            ("a\u{200b}b\u{feff}", "a\\u{200b}b\\u{feff}"),
            ("\u{7f}\u{0}", "\\x7f\\x00"),
        ] {
            assert_eq!(inert(attack), shown);
            assert!(!inert(attack).chars().any(char::is_control));
        }
        assert!(matches!(inert("plain, ümläut, 日本語, 🦀"), Cow::Borrowed(_)));
    }

    #[test]
    fn json_stays_the_same_value() {
        let value = serde_json::json!({"name": "\u{9b}31m\u{202e}\u{e0041}\u{7f}ü🦀", "list": ["\u{1b}"]});
        for json in [value.to_string(), format!("{value:#}")] {
            let shown = inert_json(&json);
            assert!(!shown.chars().any(|letter| is_active(letter) && letter != '\n'), "{shown}");
            assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).ok(), Some(value.clone()));
        }
    }

    #[test]
    fn amounts_read_well() {
        assert_eq!(took(Duration::from_micros(300)), "<1 ms");
        assert_eq!(took(Duration::from_millis(6)), "6 ms");
        assert_eq!(took(Duration::from_millis(2340)), "2.3 s");
        assert_eq!((size(17), size(1536), size(5 << 30)), ("17 B".into(), "1.5 KiB".into(), "5.0 GiB".into()));
        assert_eq!(span(chrono::Duration::seconds(-5)), "0s");
        assert_eq!((span(chrono::Duration::minutes(90)), span(chrono::Duration::days(9))), ("1h".into(), "9d".into()));
        assert_eq!(shortened("abcdef", 4), "abc…");
        assert_eq!(shortened("äöü", 3), "äöü");
        assert_eq!(command(&["sh".into(), "-c".into(), "echo 'x'\u{1b}".into()]), r"sh -c 'echo '\''x'\''\x1b'");
    }
}
