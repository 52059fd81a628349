//! Which keys leave an attached terminal: `ctrl-a,d`, as Docker writes them. All but the last are the prefix, after which
//! other keys are commands too.

use std::{fmt, str::FromStr};

/// Longer ones nobody types.
const LONGEST: usize = 8;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Chord {
    /// Nothing typed is for us.
    None,
    Keys {
        prefix: Vec<u8>,
        detach: u8,
    },
}

impl Default for Chord {
    fn default() -> Self {
        Self::Keys { prefix: vec![0x01], detach: b'd' }
    }
}

impl FromStr for Chord {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.eq_ignore_ascii_case("none") {
            return Ok(Self::None);
        }
        let mut prefix = text.split(',').map(key).collect::<Result<Vec<_>, _>>()?;
        match prefix.pop() {
            Some(_) if prefix.len() >= LONGEST => Err(format!("more than {LONGEST} keys; write for example ctrl-a,d")),
            Some(detach) => Ok(Self::Keys { prefix, detach }),
            None => Err(FORMS.to_owned()),
        }
    }
}

const FORMS: &str = "write for example ctrl-a,d: letters, digits, or ctrl- and one of a-z @ [ \\ ] ^ _; or `none`";

fn key(text: &str) -> Result<u8, String> {
    let bad = || format!("`{}` is no key; {FORMS}", text.escape_default());
    let one = |text: &str| match text.as_bytes() {
        [byte] => Some(*byte),
        _ => None,
    };
    match text.get(..5).filter(|start| start.eq_ignore_ascii_case("ctrl-")) {
        Some(_) => {
            let letter = text.get(5..).and_then(one).ok_or_else(bad)?.to_ascii_uppercase();
            if letter.is_ascii_uppercase() || b"@[\\]^_".contains(&letter) { Ok(letter & 0x1f) } else { Err(bad()) }
        }
        None => one(text).filter(u8::is_ascii_alphanumeric).ok_or_else(bad),
    }
}

/// As people read keys: `Ctrl-A`.
pub(super) fn named(byte: u8) -> String {
    match byte {
        0..0x20 => format!("Ctrl-{}", char::from(byte | 0x40)),
        byte => char::from(byte).to_string(),
    }
}

impl Chord {
    /// How to give a command, for people; `None` when there is no way.
    pub(super) fn of(&self, command: char) -> Option<String> {
        match self {
            Self::None => None,
            Self::Keys { prefix, .. } if prefix.is_empty() => None,
            Self::Keys { prefix, .. } => {
                let keys: Vec<_> = prefix.iter().map(|byte| named(*byte)).collect();
                Some(format!("{} {command}", keys.join(" ")))
            }
        }
    }
}

impl fmt::Display for Chord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Keys { prefix, detach } => {
                let keys: Vec<_> = prefix.iter().chain([detach]).map(|byte| named(*byte)).collect();
                f.write_str(&keys.join(" "))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_written_as_docker_writes_them() {
        let keys = |prefix: &[u8], detach| Ok(Chord::Keys { prefix: prefix.to_vec(), detach });
        for (text, expected) in [
            ("ctrl-a,d", keys(&[1], b'd')),
            ("CTRL-A,D", keys(&[1], b'D')),
            ("ctrl-p,ctrl-q", keys(&[16], 17)),
            ("ctrl-]", keys(&[], 29)),
            ("ctrl-\\,x,1", keys(&[28, b'x'], b'1')),
            ("ctrl-@,ctrl-_", keys(&[0], 31)),
            ("none", Ok(Chord::None)),
        ] {
            assert_eq!(text.parse::<Chord>(), expected, "{text}");
        }
        for bad in [
            "",
            ",",
            "ctrl-",
            "ctrl-a,",
            "ctrl-1",
            "ctrl-aa,d",
            "alt-a",
            "é",
            "ctrl-é",
            "ctrl-a;d",
            "a,b,c,d,e,f,g,h,i",
        ] {
            assert!(bad.parse::<Chord>().is_err(), "{bad}");
        }
        assert!("ctrl-ä".parse::<Chord>().is_err_and(|text| text.contains("ctrl-a,d")));
    }

    #[test]
    fn people_are_told_the_keys_they_chose() -> Result<(), String> {
        assert_eq!(Chord::default().to_string(), "Ctrl-A d");
        assert_eq!(Chord::default().of('t').as_deref(), Some("Ctrl-A t"));
        assert_eq!("ctrl-]".parse::<Chord>()?.of('t'), None);
        assert_eq!("ctrl-]".parse::<Chord>()?.to_string(), "Ctrl-]");
        assert_eq!(Chord::None.of('t'), None);
        Ok(())
    }
}
