//! Tables of what programs print and what is then seen, and of what they ask and are answered.

use super::*;

fn shown(bytes: &str) -> String {
    let mut screen = Screen::new(20, 5, 100);
    screen.feed(bytes.as_bytes());
    screen.text()
}

#[test]
fn output_as_it_is_seen() {
    let table = [
        ("plain\r\ntext", "plain\ntext"),
        ("12345678901234567890wrap", "12345678901234567890\nwrap"),
        ("a\x1b[3;5Hb", "a\n\n    b"),
        ("one\rtwo", "two"),
        ("a\tb", "a       b"),
        ("\x1b(0lqk\x1b(Bq", "┌─┐q"),
        ("\x1b)0\x0ex\x0fx", "│x"),
        ("abc\x1b[2D\x1b[4hX\x1b[4l", "aXbc"),
        ("日本\x1b[2D\x1b[4hX\x1b[4l", "日X本"),
        ("\x1b[?7l1234567890123456789012345", "12345678901234567895"),
        ("ab\x1b[3bc", "abbbbc"),
        ("a\x1b[999bc", "aaaaaaaaaaaaaaaaaaaa\nc"),
        ("abc\x1b[s\x1b[5;1Hx\x1b[ud", "abcd\n\n\n\nx"),
        ("ab\x1bDc\x1bEd", "ab\n  c\nd"),
        ("0123456789\x1b[Zx", "01234567x9"),
        ("a\x1b[2Ib", "a               b"),
        ("a\x1b[2ab\x1b[2ec", "a  b\n\n    c"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1bktitle\x1b\\text", "text"),
        ("\x1bPqignored\x1b\\seen", "seen"),
        ("\u{9b}31mtext", "31mtext"),
        ("main\x1b[?1049hother", "    other"),
        ("main\x1b[?1049hother\x1b[?1049l!", "main!"),
        ("main\x1b[?1049l!", "main!"),
        ("\x1b[?1049hx\x1b[?1049h y", "x y"),
        ("heart\u{2764}\u{fe0f}!", "heart\u{2764}!"),
        ("a\x1bcb", "b"),
        ("ab\x1b[!pc", "abc"),
    ];
    for (output, seen) in table {
        assert_eq!(shown(output), seen, "{output:?}");
    }
}

#[test]
fn queries_are_answered_in_order() {
    let table: &[(&str, &str)] = &[
        ("\x1b[c", "\x1b[?62;22c"),
        ("\x1b[0c", "\x1b[?62;22c"),
        ("\x1b[>c", "\x1b[>1;10;0c"),
        ("\x1b[5n", "\x1b[0n"),
        ("ab\x1b[6n", "\x1b[1;3R"),
        ("\x1b[2;4r\x1b[?6h\x1b[2;2H\x1b[6n", "\x1b[2;2R"),
        ("\x1b[?6n", "\x1b[?1;1R"),
        ("\x1b[?2004h\x1b[?2004$p", "\x1b[?2004;1$y"),
        ("\x1b[?2004$p", "\x1b[?2004;2$y"),
        ("\x1b[?31337$p", "\x1b[?31337;0$y"),
        ("\x1b[4h\x1b[4$p", "\x1b[4;1$y"),
        ("\x1b]10;?\x07", "\x1b]10;rgb:d8d8/d8d8/d8d8\x07"),
        ("\x1b]11;?\x1b\\", "\x1b]11;rgb:0000/0000/0000\x1b\\"),
        ("\x1b]4;196;?\x07", "\x1b]4;196;rgb:ffff/0000/0000\x07"),
        ("\x1bP$qr\x1b\\", "\x1bP1$r1;5r\x1b\\"),
        ("\x1b[4 q\x1bP$q q\x1b\\", "\x1bP1$r4 q\x1b\\"),
        ("\x1bP$qz\x1b\\", "\x1bP0$r\x1b\\"),
        ("\x1bP+q544e\x1b\\", "\x1bP0+r\x1b\\"),
        ("\x1b[18t", "\x1b[8;5;20t"),
        ("\x1b]2;evil\x07\x1b[21t", "\x1b]l\x1b\\"),
        ("\x1b[x", "\x1b[2;1;1;128;128;1;0x"),
        // Not supported, so not answered; what follows is.
        ("\x1b[?u\x1b[c", "\x1b[?62;22c"),
        ("\x1b]52;c;?\x07\x05\x1b[>1u", ""),
    ];
    for (asked, answered) in table {
        let replies = Screen::new(20, 5, 0).feed(asked.as_bytes());
        assert_eq!(String::from_utf8_lossy(&replies), *answered, "{asked:?}");
    }
    let version = Screen::new(20, 5, 0).feed(b"\x1b[>q");
    assert!(version.starts_with(b"\x1bP>|sandbar("), "{version:?}");
}

#[test]
fn endless_queries_get_bounded_answers() {
    assert!(Screen::new(20, 5, 0).feed(&b"\x1b[c".repeat(100_000)).len() <= 64 << 10);
}

#[test]
fn titles_are_kept_put_away_and_bounded() {
    let mut screen = Screen::new(20, 5, 0);
    screen.feed(b"\x1b]0;shell\x07\x1b[22;0t\x1b]2;vi\x01m\x1b\\");
    assert_eq!(screen.title(), "vim");
    screen.feed(b"\x1b[23;0t");
    assert_eq!(screen.title(), "shell");
    screen.feed(format!("\x1b]2;{}\x07", "x".repeat(6000)).as_bytes());
    assert_eq!(screen.title().len(), 1024);
}

#[test]
fn sizes_are_brought_within_bounds() {
    let mut screen = Screen::new(0, 0, usize::MAX);
    assert_eq!(screen.size(), (NARROWEST, SHORTEST));
    screen.resize(u16::MAX, u16::MAX);
    assert_eq!(screen.size(), (LARGEST_SIDE, LARGEST_SIDE));
    screen.feed("wide 日本\r\n".repeat(3).as_bytes());
    screen.resize(1, 1);
    screen.feed("日本é\u{fe0f}".as_bytes());
}

#[test]
fn scrollback_is_kept_in_order_also_below_an_alternate_screen() {
    let mut screen = Screen::new(20, 3, 4);
    for line in 0..10 {
        screen.feed(format!("line {line}\r\n").as_bytes());
    }
    let above = ["line 4", "line 5", "line 6", "line 7"];
    assert_eq!(screen.scrollback(), above);
    screen.feed(b"\x1b[?1049hvim");
    assert_eq!(screen.scrollback(), above);
    assert!(screen.alternate_screen());
}

#[test]
fn a_viewer_of_the_alternate_screen_is_switched_to_it_first() {
    let mut screen = Screen::new(20, 3, 0);
    screen.feed(b"shell$ vim\r\n\x1b[?1049h\x1b[Htext\x1b[?2004h\x1b[?1002h\x1b[?1006h\x1b[?1h");
    let snapshot = screen.snapshot();
    let text = String::from_utf8_lossy(&snapshot).into_owned();
    assert!(text.find("\x1b[?1049h") < text.find("text"), "{text:?}");
    let mut viewer = Screen::new(20, 3, 0);
    viewer.feed(&snapshot);
    assert_eq!(viewer.view(), screen.view());
    viewer.feed(b"\x1b[?1049l");
    assert_eq!(viewer.text(), "shell$ vim", "and back to the shell");
}

#[test]
fn a_checkpoint_holds_half_a_sequence() {
    let mut screen = Screen::new(20, 3, 10);
    screen.feed(b"ab\x1b[3");
    let kept = screen.checkpoint(5).unwrap_or_default();
    let Ok((mut restored, 5)) = Screen::restore(&kept) else { panic!("restored at its offset") };
    restored.feed(b"1mc");
    assert_eq!(restored.text(), "abc");
    assert!(matches!(Screen::restore(b"junk"), Err(RestoreError::NoHeader)));
    assert!(matches!(Screen::restore(b"junk\n"), Err(RestoreError::Header(_))));
    let newer = String::from_utf8_lossy(&kept).replacen("\"version\":1", "\"version\":2", 1);
    assert!(matches!(Screen::restore(newer.as_bytes()), Err(RestoreError::Version { found: 2 })));
}

#[test]
fn a_checkpoint_is_small_however_much_was_printed() {
    let mut screen = Screen::new(80, 24, 200);
    for line in 0..20_000 {
        screen.feed(format!("\x1b[3{}mline {line} {}\x1b[m\r\n", line % 8, "x".repeat(40)).as_bytes());
    }
    let kept = screen.checkpoint(0).unwrap_or_default();
    assert!(kept.len() < 40_000, "{}", kept.len());
}

#[test]
fn colours_that_vt100_misreads() {
    let mut screen = Screen::new(20, 2, 0);
    screen.feed(b"\x1b[58;5;1;38:2::1:2:3mx");
    assert!(screen.as_ansi().contains("38;2;1;2;3"), "{:?}", screen.as_ansi());
    assert!(!screen.as_ansi().contains("[1m"), "an underline colour is not bold");
    screen.feed(b"\x1b[1m\x1b[58:5:3my");
    assert!(screen.as_ansi().contains("\x1b[1my"), "what is left out is no reset");
}

#[test]
fn the_screen_as_data() {
    let mut screen = Screen::new(10, 2, 0);
    screen.feed("\x1b]2;t\x07hé\x1b[?25l".as_bytes());
    let json = serde_json::to_value(screen.view()).unwrap_or_default();
    assert_eq!(json["lines"][0], "hé");
    assert_eq!(json["cursor"], serde_json::json!({"row": 0, "col": 2, "visible": false}));
    assert_eq!(json["title"], "t");
    assert_eq!(json["modes"]["mouse"], "none");
}
