//! A command line taken apart into words as Python's `shlex.split` does, which the older API promises: quotes and
//! backslashes mean something, and no other character does. Pure.

/// A kernel takes hardly twice as many, and each takes many times its length in memory.
const MOST: usize = 100_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Wrong {
    #[error("No closing quotation")]
    Quote,
    #[error("No escaped character")]
    Escape,
    #[error("[Errno 7] Argument list too long")]
    Long,
}

pub(super) fn split(line: &str) -> Result<Vec<String>, Wrong> {
    let mut words = Vec::new();
    // None between words: an empty pair of quotes is a word, nothing is none.
    let mut word: Option<String> = None;
    let mut letters = line.chars();
    while let Some(letter) = letters.next() {
        match letter {
            ' ' | '\t' | '\r' | '\n' => {
                words.extend(word.take());
                if words.len() > MOST {
                    return Err(Wrong::Long);
                }
            }
            '\'' => {
                let word = word.get_or_insert_default();
                loop {
                    match letters.next().ok_or(Wrong::Quote)? {
                        '\'' => break,
                        letter => word.push(letter),
                    }
                }
            }
            '"' => {
                let word = word.get_or_insert_default();
                loop {
                    match letters.next().ok_or(Wrong::Quote)? {
                        '"' => break,
                        '\\' => match letters.next().ok_or(Wrong::Escape)? {
                            letter @ ('"' | '\\') => word.push(letter),
                            // A shell would also take these for escaped: `$`, a backquote, the end of a line.
                            letter => word.extend(['\\', letter]),
                        },
                        letter => word.push(letter),
                    }
                }
            }
            '\\' => word.get_or_insert_default().push(letters.next().ok_or(Wrong::Escape)?),
            letter => word.get_or_insert_default().push(letter),
        }
    }
    words.extend(word);
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each pair as Python's `shlex.split` answers.
    #[test]
    fn words_are_those_of_python() {
        for (line, wanted) in [
            ("", &[][..]),
            ("  \t\r\n ", &[]),
            ("echo hello  world", &["echo", "hello", "world"]),
            ("echo 'a b' \"c d\"", &["echo", "a b", "c d"]),
            ("echo '' \"\"", &["echo", "", ""]),
            ("a'b c'd\"e f\"", &["ab cde f"]),
            ("echo $HOME `id` $(id) *", &["echo", "$HOME", "`id`", "$(id)", "*"]),
            ("a; b && c | d > e &", &["a;", "b", "&&", "c", "|", "d", ">", "e", "&"]),
            ("echo # no comment", &["echo", "#", "no", "comment"]),
            ("echo a#b", &["echo", "a#b"]),
            (r"a\ b \\ \n", &["a b", r"\", "n"]),
            ("a\\\nb", &["a\nb"]),
            (r#""a\"b" "a\\b" "a\nb" "a\$b""#, &["a\"b", r"a\b", r"a\nb", r"a\$b"]),
            (r"'a\b' 'a\'", &[r"a\b", r"a\"]),
            ("\"a'b\" 'a\"b'", &["a'b", "a\"b"]),
            ("sh -c 'echo $((1+1))'", &["sh", "-c", "echo $((1+1))"]),
            ("naïve ünïcode\u{a0}x", &["naïve", "ünïcode\u{a0}x"]),
        ] {
            let words = split(line).unwrap_or_else(|error| vec![error.to_string()]);
            assert_eq!(words, wanted, "{line:?}");
        }
        for (line, wanted) in [
            ("echo 'a", Wrong::Quote),
            ("echo \"a", Wrong::Quote),
            ("echo a\\", Wrong::Escape),
            ("echo \"a\\", Wrong::Escape),
            ("'", Wrong::Quote),
            ("a ".repeat(MOST + 1).as_str(), Wrong::Long),
        ] {
            assert_eq!(split(line), Err(wanted), "{line:?}");
        }
    }
}
