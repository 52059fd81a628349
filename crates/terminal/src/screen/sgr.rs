//! Colours as `vt100` reads them: it misreads underline colours and does not know the long form with a colour space.

use std::borrow::Cow;

/// The parameters of an SGR, rewritten where `vt100` would take them for something else.
pub(super) fn rewrite(params: &[u8]) -> Cow<'_, [u8]> {
    let plain = !params.contains(&b':') && !params.windows(2).any(|pair| pair == b"58");
    if plain {
        return Cow::Borrowed(params);
    }
    let mut out: Vec<Vec<u8>> = Vec::new();
    let mut groups = params.split(|byte| *byte == b';');
    while let Some(group) = groups.next() {
        let parts: Vec<&[u8]> = group.split(|byte| *byte == b':').collect();
        match parts.as_slice() {
            // Underline colour in the old form takes the following numbers with it.
            [b"58"] => match groups.next() {
                Some(b"5") => drop(groups.next()),
                Some(b"2") => drop((groups.next(), groups.next(), groups.next())),
                _ => {}
            },
            [b"58", ..] => {}
            [b"4", b"0"] => out.push(b"24".to_vec()),
            [b"4", _] => out.push(b"4".to_vec()),
            [what @ (b"38" | b"48"), b"2", _space, red, green, blue, ..] => {
                out.push([what, b"2".as_slice(), red, green, blue].join(&b';'));
            }
            [what @ (b"38" | b"48"), rest @ ..] if !rest.is_empty() => {
                out.push([&[*what], rest].concat().join(&b';'));
            }
            [_] => out.push(group.to_vec()),
            _ => {}
        }
    }
    // Nothing left must not become a reset, which an empty list is.
    if out.is_empty() { Cow::Borrowed(b"10") } else { Cow::Owned(out.join(&b';')) }
}
