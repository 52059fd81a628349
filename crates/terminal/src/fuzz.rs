//! Whatever bytes arrive, in whatever pieces: nothing panics, nothing forbidden passes, and a restored screen goes on as
//! the one it was taken from.

use bolero::check;

use crate::{
    Neutral, Screen, Titles,
    neutral::InputModes,
    prompt::{Look, Tty, detect},
    scan::{Scanner, Token},
};

/// Each byte picks a word, so that random bytes become output that is nearly right.
fn speak(words: &[&str], bytes: &[u8]) -> Vec<u8> {
    bytes.iter().flat_map(|byte| words[usize::from(*byte) % words.len()].bytes()).collect()
}

#[rustfmt::skip]
const DRAWING: &[&str] = &[
    "a", "bc def", " ", "日本", "é", "e\u{301}", "\u{2764}\u{fe0f}", "\r", "\n", "\r\n", "\t", "\x08", "x0123456789y",
    "\x1b[H", "\x1b[3;3H", "\x1b[99;99H", "\x1b[2;4r", "\x1b[r", "\x1b[3;9r", "\x1b[?6h", "\x1b[?6l", "\x1b7", "\x1b8",
    "\x1b[A", "\x1b[2B", "\x1b[C", "\x1b[3D", "\x1b[J", "\x1b[1J", "\x1b[2J", "\x1b[K", "\x1b[1K", "\x1b[2K", "\x1b[L", "\x1b[M",
    "\x1b[@", "\x1b[3P", "\x1b[S", "\x1b[T", "\x1b[4X", "\x1bM", "\x1bD", "\x1bE", "\x1b[1;31m", "\x1b[m", "\x1b[48;5;9m",
    "\x1b[38:2::1:2:3m", "\x1b[7m", "\x1b[?1049h", "\x1b[?1049l", "\x1b[?47h", "\x1b[?47l", "\x1b[?7l", "\x1b[?7h", "\x1b[4h",
    "\x1b[4l", "\x1b(0", "\x1b(B", "\x0e", "\x0f", "\x1b)0", "lqqk", "\x1b[?25l", "\x1b[?25h", "\x1b[?2004h", "\x1b[?1002h",
    "\x1b[?1006h", "\x1b[?1004h", "\x1b=", "\x1b[?1h", "\x1b]2;t\x07", "\x1b]0;", "\x1b[22t", "\x1b[23t", "\x1b[5b", "\x1b[3Z",
    "\x1b[2I", "\x1b[s", "\x1b[u", "\x1bc", "\x1b[!p", "\x1b[3 q", "\x1b[6n", "\x1b[2", "\x1b", "\x1bP", "\x1b[3d", "\x1b[9G",
];

#[rustfmt::skip]
const ACTING: &[&str] = &[
    "\x1b]52;c;AAAA\x07", "\x1b]8;;http://x\x1b\\", "\x1b]9;hello\x07", "\x1b]777;notify;a;b\x07", "\x1b]11;?\x07", "\x1b]4;1;?\x1b\\",
    "\x1b[c", "\x1b[>c", "\x1b[=c", "\x1b[6n", "\x1b[?6n", "\x1b[?2026$p", "\x1b[>q", "\x1b[18t", "\x1b[8;1;1t", "\x1b[x", "\x05",
    "\x1b[>1u", "\x1b[<u", "\x1b[?u", "\x1b[>4;2m", "\x1bP$qm\x1b\\", "\x1bP+q544e\x1b\\", "\x1bP1;1|17/414243\x1b\\", "\x1b[i",
    "\x1b[5i", "\x1b_Gq=1\x1b\\", "\x1b^pm\x1b\\", "\x1bXsos\x1b\\", "\x1bZ", "\u{9b}c", "\u{9d}52;c;AA\u{9c}", "\x1bktitle\x1b\\",
    "\x1b[?1001h", "\x1b[?3h", "\x1b[?5n", "\x1b[3J", "\x1b[99999999b", "\x18", "\x1a", "\x7f", "\x07", "\x1bPtmux;\x1b\x1b]52;c;A\x07",
    "\x1b[20h", "\x1b[2h", "\x1b[1;2;3;4;5T", "\x1b[1;2s", "\x1b[?1;25;1001;2048h", "\x1b]", "\x1b[?", "\x1b[>", "\x1b[1$", "\\", ";",
];

fn size(bytes: &[u8]) -> (u16, u16) {
    let at = |index: usize| u16::from(bytes.get(index).copied().unwrap_or(7));
    (at(0) % 23, at(1) % 9)
}

fn pieces<'a>(bytes: &'a [u8], cuts: &[u8]) -> Vec<&'a [u8]> {
    let (mut left, mut out) = (bytes, Vec::new());
    for cut in cuts.iter().cycle().take(bytes.len()) {
        let (piece, rest) = left.split_at(usize::from(*cut % 9).min(left.len()));
        out.push(piece);
        left = rest;
    }
    out.push(left);
    out
}

fn same(left: &Screen, right: &Screen, when: &str) {
    assert_eq!(left.view(), right.view(), "{when}");
    assert_eq!(left.cells(), right.cells(), "{when}");
    assert_eq!(left.scrollback(), right.scrollback(), "{when}");
}

#[test]
fn fuzz_screen() {
    let words = [DRAWING, ACTING].concat();
    check!().for_each(|bytes| {
        let (cols, rows) = size(bytes);
        for output in [bytes.to_vec(), speak(&words, bytes)] {
            let mut screen = Screen::new(cols, rows, 20);
            for (index, piece) in pieces(&output, bytes).into_iter().enumerate() {
                screen.feed(piece);
                if index % 5 == 4 {
                    let (cols, rows) = size(&bytes[index % bytes.len().max(1)..]);
                    screen.resize(cols, rows);
                }
            }
            let (row, col) = screen.cursor();
            assert!(row < screen.size().1 && col <= screen.size().0);
            assert_eq!(screen.lines().len(), usize::from(screen.size().1));
            screen.snapshot_with_scrollback();
        }
    });
}

#[test]
fn fuzz_restored_screen_goes_on_alike() {
    check!().for_each(|bytes| {
        let (cols, rows) = size(bytes);
        let output = speak(DRAWING, bytes);
        let (before, after) = output.split_at(output.len() / 2);
        let mut screen = Screen::new(cols, rows, 1000);
        screen.feed(before);
        let kept = screen.checkpoint(before.len() as u64).unwrap_or_default();
        let Ok((mut restored, offset)) = Screen::restore(&kept) else { panic!("{:?}", String::from_utf8_lossy(&kept)) };
        assert_eq!(offset, before.len() as u64);
        let said = format!("{:?} | {:?}", String::from_utf8_lossy(before), String::from_utf8_lossy(after));
        same(&screen, &restored, &said);
        assert_eq!(screen.feed(after), restored.feed(after), "{said}");
        same(&screen, &restored, &said);
    });
}

#[test]
fn fuzz_chunks_do_not_matter() {
    let words = [DRAWING, ACTING].concat();
    check!().for_each(|bytes| {
        for output in [bytes.to_vec(), speak(&words, bytes)] {
            let (mut whole, mut cut) = (Screen::new(20, 6, 100), Screen::new(20, 6, 100));
            let mut replies = Vec::new();
            for piece in pieces(&output, bytes) {
                replies.extend(cut.feed(piece));
            }
            assert_eq!(whole.feed(&output), replies);
            same(&whole, &cut, "cut");

            let filter = || Neutral::new(Titles::Prefix("in: ".to_owned()), InputModes::Pass);
            let mut streaming = filter();
            let filtered: Vec<u8> = pieces(&output, bytes).iter().flat_map(|piece| streaming.filter(piece)).collect();
            assert_eq!(filter().filter(&output), filtered);
        }
    });
}

/// Reads output with the scanner alone, and judges by a list of what is forbidden rather than of what passes.
fn acts(output: &[u8]) -> Option<String> {
    let mut found = None;
    Scanner::default().feed(output, &mut |token| {
        let bad = match token {
            Token::Text(text) => text.chars().any(char::is_control),
            Token::Control(byte) => matches!(byte, 0..=6 | 0x10..),
            Token::Escape { last, .. } => matches!(last, b'c' | b'Z' | b'\\' | b'n' | b'o'),
            Token::Csi { params, intermediates, last } => {
                let asks = matches!(last, b'c' | b'n' | b't' | b'x' | b'i' | b'y');
                let keyboard = matches!(last, b'u') && !params.is_empty();
                let marked = params.first().is_some_and(|byte| matches!(byte, b'<' | b'=' | b'>'));
                asks || keyboard || marked || intermediates.contains(&b'$') || (last, params) == (b'J', b"3")
            }
            Token::Osc { body, .. } => !body.starts_with(b"2;in: "),
            Token::Dcs(_) => true,
        };
        if bad && found.is_none() {
            found = Some(format!("{token:?}"));
        }
    });
    found
}

#[test]
fn fuzz_neutral_lets_nothing_act() {
    let words = [ACTING, &["x", "\x1b", "[", "]", "P", "c", "n", "?", ">", "6", "\x07"]].concat();
    check!().for_each(|bytes| {
        for output in [bytes.to_vec(), speak(&words, bytes)] {
            let filtered = Neutral::new(Titles::Prefix("in: ".to_owned()), InputModes::Pass).filter(&output);
            assert_eq!(acts(&filtered), None, "{:?}", String::from_utf8_lossy(&output));
            assert!(!filtered.windows(2).any(|pair| pair == b"\x1b_" || pair == b"\x1b^" || pair == b"\x1bX"));
            let again = Neutral::new(Titles::Prefix(String::new()), InputModes::Pass).filter(&filtered);
            assert_eq!(again, filtered, "filtering once is enough");
            assert_eq!(Screen::new(20, 6, 0).feed(&filtered), b"", "an emulator has nothing to answer");
        }
    });
}

/// A viewer sees the screen also through the filter.
#[test]
fn fuzz_snapshot_survives_the_filter() {
    check!().for_each(|bytes| {
        let (cols, rows) = size(bytes);
        let mut screen = Screen::new(cols, rows, 50);
        screen.feed(&speak(DRAWING, bytes));
        let mut seen = Screen::new(cols, rows, 50);
        seen.feed(&Neutral::new(Titles::Prefix(String::new()), InputModes::Pass).filter(&screen.snapshot()));
        assert_eq!(screen.view(), seen.view());
    });
}

/// Whatever stands on the screen, detection answers; and what it answers can be shown and typed.
#[test]
fn fuzz_detection() {
    #[rustfmt::skip]
    let words = [
        "Continue", "?", " ", " ", ":", "[y/N]", "(yes/no)", "(", ")", "[", "]", "<", ">", "/", ",", "❯ ", "› 1. Yes", "  2. No",
        "│", "\r\n", "\r\n", "● ", "○ ", "1) a", "2) b", "#? ", "Press ENTER", "--More--", "password", "$ ", ">>> ", "日本", "é",
        "\x1b[A", "\x1b[2;3H", "\x1b[?1049h", "\x1b[?25l", "<Yes>", "Y", "Yes   No", "(Y)es", "？", "はい", "\u{301}",
    ];
    check!().for_each(|bytes| {
        let (cols, rows) = size(bytes);
        let flag = |index: usize, bit: u8| bytes.get(index).is_some_and(|byte| byte & bit != 0);
        let mut screen = Screen::new(cols * 4, rows + 3, 0);
        screen.feed(&speak(&words, bytes));
        let blocked_read = flag(0, 1).then(|| flag(0, 2));
        let look = Look::of(&screen, Tty { echo: flag(0, 4), canonical: flag(0, 8), quiet_ms: 5000, blocked_read });
        for look in [Look { cursor: (u16::MAX, u16::MAX), lines: Vec::new(), ..look.clone() }, look] {
            let Some(prompt) = detect(&look) else { continue };
            assert!((0.0..=1.0).contains(&prompt.score), "{prompt:?}");
            assert!(prompt.question.chars().count() <= 400 && prompt.choices.len() <= 40, "{prompt:?}");
            assert!(
                prompt.choices.iter().all(|choice| !choice.keys.is_empty() && !choice.label.is_empty()),
                "{prompt:?}"
            );
            assert_eq!(detect(&Look { quiet_ms: 10, ..look }), None, "nothing that moves asks");
        }
    });
}
