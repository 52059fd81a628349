//! Signals by name, as the API takes them.

use sandbar_api::{Code, Problem};

pub(crate) const TERM: i32 = 15;
pub(crate) const KILL: i32 = 9;

/// Numbers of Linux on every architecture we run on (x86-64 and arm64 agree).
const TABLE: [(&str, i32); 16] = [
    ("HUP", 1),
    ("INT", 2),
    ("QUIT", 3),
    ("ABRT", 6),
    ("KILL", KILL),
    ("USR1", 10),
    ("USR2", 12),
    ("PIPE", 13),
    ("ALRM", 14),
    ("TERM", TERM),
    ("CONT", 18),
    ("STOP", 19),
    ("TSTP", 20),
    ("TTIN", 21),
    ("TTOU", 22),
    ("WINCH", 28),
];

/// `TERM`, `SIGTERM` or `15`.
pub(crate) fn number(text: &str) -> Result<i32, Problem> {
    let name = text.strip_prefix("SIG").unwrap_or(text);
    let by_name = TABLE.iter().find(|(known, _)| *known == name).map(|(_, number)| *number);
    let digits = !text.is_empty() && text.len() <= 2 && text.bytes().all(|byte| byte.is_ascii_digit());
    let by_number = || text.parse().ok().filter(|number| digits && (1..=31).contains(number));
    by_name.or_else(by_number).ok_or_else(|| {
        Problem::new(
            Code::BadRequest,
            format!("`{}` is not a signal.", text.escape_debug()),
            "Use a name such as TERM, INT, KILL, HUP, QUIT, USR1, USR2, STOP or CONT, or a number from 1 to 31.",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_and_without_prefix_and_numbers() {
        for (text, want) in
            [("TERM", 15), ("SIGTERM", 15), ("15", 15), ("KILL", 9), ("1", 1), ("31", 31), ("WINCH", 28)]
        {
            assert_eq!(number(text), Ok(want), "{text}");
        }
    }

    #[test]
    fn everything_else_is_refused() {
        for text in ["", "SIG", "term", "0", "32", "-9", "+9", "009", "9 ", "SIG9", "RTMIN", "KILL\n"] {
            assert_eq!(number(text).map_err(|problem| problem.code), Err(Code::BadRequest), "{text:?}");
        }
    }
}
