//! Characters that a tokenizer may take apart before it reads them. Some bring text into Unicode's composed form (NFC, NFKC)
//! first, and a few characters are longer then: a ligature of Arabic stands for eighteen letters. There a token is still at
//! least a byte, but of the longer text.

use super::tree::Node;

/// First and last character, and how many times its bytes the longest of them becomes (by NFC or NFKC, in UTF-8, Unicode 14).
/// Ranges are rounded up to whole blocks where those are rare in text, so that later versions of Unicode fit in.
const WIDE: &[(char, char, u64)] = &[
    // spacing accents and fractions of Latin-1, `ŉ`, digraphs, accents
    ('\u{a8}', '\u{be}', 3),
    ('\u{13f}', '\u{149}', 2),
    ('\u{1c4}', '\u{1cc}', 2),
    ('\u{2d8}', '\u{2dd}', 2),
    ('\u{344}', '\u{344}', 2),
    ('\u{37a}', '\u{385}', 3),
    // Armenian and Arabic digraphs
    ('\u{587}', '\u{587}', 2),
    ('\u{675}', '\u{678}', 2),
    // letters of Indic scripts that are never composed; vowels of Thai, Lao and Tibetan
    ('\u{958}', '\u{95f}', 2),
    ('\u{9dc}', '\u{9df}', 2),
    ('\u{a33}', '\u{a5e}', 2),
    ('\u{b5c}', '\u{b5d}', 2),
    ('\u{e33}', '\u{e33}', 2),
    ('\u{eb3}', '\u{edd}', 2),
    ('\u{f43}', '\u{fb9}', 3),
    // Greek with accents apart
    ('\u{1fbd}', '\u{1ffe}', 2),
    // primes, letter-like symbols, fractions, integrals
    ('\u{2033}', '\u{2057}', 4),
    ('\u{2100}', '\u{218f}', 2),
    ('\u{222c}', '\u{2230}', 3),
    // what stands in brackets or circles
    ('\u{2474}', '\u{24b5}', 2),
    ('\u{2a0c}', '\u{2a0c}', 4),
    ('\u{2a74}', '\u{2a76}', 2),
    ('\u{2adc}', '\u{2adc}', 2),
    ('\u{309b}', '\u{309f}', 2),
    ('\u{30ff}', '\u{30ff}', 2),
    ('\u{3200}', '\u{32ff}', 3),
    // units and words in a square
    ('\u{3300}', '\u{33ff}', 6),
    // Han characters beyond the basic plane, Latin, Armenian, Hebrew and Arabic ligatures
    ('\u{fa6c}', '\u{fad7}', 2),
    ('\u{fb00}', '\u{fbdc}', 2),
    ('\u{fbdd}', '\u{fdf9}', 4),
    ('\u{fdfa}', '\u{fdfa}', 11),
    ('\u{fdfb}', '\u{fdff}', 5),
    ('\u{fe70}', '\u{feff}', 2),
    // musical signs, what is enclosed or in a square
    ('\u{1d15e}', '\u{1d164}', 3),
    ('\u{1d1bb}', '\u{1d1c0}', 3),
    ('\u{1f100}', '\u{1f2ff}', 3),
];

/// How many bytes all texts below a node may grow by.
pub(super) fn growth(node: &Node<'_>) -> u64 {
    match node {
        Node::Text(text) => of_text(text),
        Node::List(items) => items.iter().map(growth).fold(0, u64::saturating_add),
        Node::Map(members) => {
            members.iter().fold(0, |sum, (key, value)| sum.saturating_add(of_text(key)).saturating_add(growth(value)))
        }
        Node::Null | Node::Bool(_) | Node::Count(_) | Node::Number(_) => 0,
    }
}

fn of_text(text: &str) -> u64 {
    // most text, and every inline image
    if text.is_ascii() {
        return 0;
    }
    text.chars().filter(|char| !char.is_ascii()).map(of_char).fold(0, u64::saturating_add)
}

fn of_char(char: char) -> u64 {
    let at = WIDE.partition_point(|(_, last, _)| *last < char);
    match WIDE.get(at) {
        Some((first, _, times)) if *first <= char => (times - 1) * char.len_utf8() as u64,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::llm::tree;

    #[test]
    fn ligatures_grow_wherever_and_however_they_are_written() {
        for (text, grows) in [
            ("\"plain\"", 0),
            ("\"日本語 한국어 Ünïcödé emoji 🦀\"", 0),
            ("\"\u{fdfa}\"", 30),
            (r#""\ufdfa""#, 30),
            (r#"{"\ufdfa":["\u3316",{"x":"㌖"}]}"#, 30 + 2 * 15),
        ] {
            assert_eq!(growth(&tree::parse(text.as_bytes()).expect("JSON")), grows, "{text}");
        }
    }

    #[test]
    fn the_table_is_in_order() {
        assert!(WIDE.iter().all(|(first, last, times)| first <= last && *times > 1));
        assert!(WIDE.windows(2).all(|pair| pair[0].1 < pair[1].0));
    }
}
