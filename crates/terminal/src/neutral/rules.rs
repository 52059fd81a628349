//! The lists: which escape and control sequences only draw, each with its reason where it is not plain.

use std::borrow::Cow;

use super::InputModes;
use crate::scan::numbers;

/// Longer numbers only serve to keep a terminal busy (repeat, scroll).
const LONGEST_NUMBER: usize = 5;

/// Modes that only change what is drawn: origin, wrap, cursor blink and visibility, alternate screen, synchronised output.
const DRAWING_MODES: &[u16] = &[6, 7, 12, 25, 47, 1047, 1048, 1049, 2026];

/// Cursor keys, keypad, mouse (1015 and 1005 are encodings), focus, bracketed paste.
const INPUT_MODES: &[u16] = &[1, 9, 66, 1000, 1002, 1003, 1004, 1005, 1006, 1015, 2004];

pub(super) fn escape(intermediates: &[u8], last: u8, input: InputModes) -> bool {
    match intermediates {
        // Save and restore the cursor, index, next line, reverse index.
        [] => {
            matches!(last, b'7' | b'8' | b'D' | b'E' | b'M')
                || (matches!(last, b'=' | b'>') && input == InputModes::Pass)
        }
        // Line drawing and back; other character sets would leave the operator's letters wrong.
        [b'(' | b')'] => matches!(last, b'0' | b'B'),
        _ => false,
    }
}

/// The parameters to send with a sequence that passes, or `None`.
pub(super) fn csi<'a>(params: &'a [u8], intermediates: &[u8], last: u8, input: InputModes) -> Option<Cow<'a, [u8]>> {
    let number_fits = |digits: &[u8]| digits.len() <= LONGEST_NUMBER;
    if !params.split(|byte| !byte.is_ascii_digit()).all(number_fits) {
        return None;
    }
    let (marker, rest) = match params.split_first() {
        Some((marker @ b'<'..=b'?', rest)) => (Some(*marker), rest),
        _ => (None, params),
    };
    if rest.iter().any(|byte| matches!(byte, b'<'..=b'?')) {
        return None;
    }
    let passes = match (marker, intermediates, last) {
        (Some(b'?'), [], b'h' | b'l') => return modes(rest, input),
        // Selective erase.
        (Some(b'?'), [], b'J' | b'K') => !numbers(rest).any(|number| number == Some(3)),
        // 3 would erase the scrollback, which is the operator's own.
        (None, [], b'J') => !numbers(rest).any(|number| number == Some(3)),
        // Insert mode only: 2 locks the keyboard, 20 changes what Enter sends.
        (None, [], b'h' | b'l') => rest == b"4",
        // With more than one number this is highlight tracking, which waits for an answer.
        (None, [], b'T') => numbers(rest).count() <= 1,
        // With numbers these set margins or speak a keyboard protocol.
        (None, [], b's' | b'u') => rest.is_empty(),
        (None, [], b'@' | b'A'..=b'M' | b'P' | b'S' | b'X' | b'Z' | b'`' | b'a' | b'b' | b'd'..=b'f' | b'm' | b'r') => {
            true
        }
        // The cursor's shape.
        (None, [b' '], b'q') => true,
        // Soft reset.
        (None, [b'!'], b'p') => rest.is_empty(),
        _ => false,
    };
    passes.then_some(Cow::Borrowed(params))
}

/// The modes of one sequence that are on a list, the others taken out.
fn modes(params: &[u8], input: InputModes) -> Option<Cow<'static, [u8]>> {
    let listed = |mode: &u16| DRAWING_MODES.contains(mode) || (input == InputModes::Pass && INPUT_MODES.contains(mode));
    let kept: Vec<String> = numbers(params).flatten().filter(listed).map(|mode| mode.to_string()).collect();
    (!kept.is_empty()).then(|| Cow::Owned(format!("?{}", kept.join(";")).into_bytes()))
}
