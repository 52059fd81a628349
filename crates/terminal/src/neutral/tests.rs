//! Each attack on the operator beside a control: the same bytes unfiltered do make a terminal answer or change.

use super::*;

fn attached(bytes: &[u8]) -> String {
    let mut filter = Neutral::new(Titles::Drop, InputModes::Pass);
    String::from_utf8_lossy(&filter.filter(bytes)).into_owned()
}

#[test]
fn what_acts_is_removed_and_text_around_it_stays() {
    let attacks: &[&[u8]] = &[
        b"\x1b]52;c;cm0gLXJmIC8K\x07",
        b"\x1b]52;c;?\x1b\\",
        b"\x1b]0;title\x07",
        b"\x1b]1;icon\x07",
        b"\x1b]2;title\x1b\\",
        b"\x1b]9;notification\x07",
        b"\x1b]777;notify;a;b\x07",
        b"\x1b]1337;File=:AAAA\x07",
        b"\x1b]4;1;?\x07",
        b"\x1b]10;?\x07",
        b"\x1b]11;?\x1b\\",
        b"\x1b]12;#ff0000\x07",
        b"\x1bP$qm\x1b\\",
        b"\x1bP+q544e\x1b\\",
        b"\x1bP1;1|17/0d\x1b\\",
        b"\x1bPq#0;2;0;0;0#0~~@@vv@@~~\x1b\\",
        b"\x1b_Gq=1;AAAA\x1b\\",
        b"\x1b^private\x1b\\",
        b"\x1bXstring\x1b\\",
        b"\x1bktitle\x1b\\",
        b"\x1b[c",
        b"\x1b[0c",
        b"\x1b[>c",
        b"\x1b[=c",
        b"\x1bZ",
        b"\x05",
        b"\x1b[5n",
        b"\x1b[6n",
        b"\x1b[?6n",
        b"\x1b[?996n",
        b"\x1b[?2026$p",
        b"\x1b[4$p",
        b"\x1b[>q",
        b"\x1b[>0q",
        b"\x1b[x",
        b"\x1b[14t",
        b"\x1b[18t",
        b"\x1b[21t",
        b"\x1b[8;5;5t",
        b"\x1b[2t",
        b"\x1b[22;0t",
        b"\x1b[?u",
        b"\x1b[>1u",
        b"\x1b[<u",
        b"\x1b[=1;1u",
        b"\x1b[>4;2m",
        b"\x1b[i",
        b"\x1b[?5i",
        b"\x1b[4i",
        b"\x1b[?3h",
        b"\x1b[?1001h",
        b"\x1b[2h",
        b"\x1b[20h",
        b"\x1b[3J",
        b"\x1b[1;1;1;1;1T",
        b"\x1b[1;1;2;2;1$r",
        b"\x1b[1;1;10;10;1;1*y",
        b"\x1b[99999999b",
        "\u{9b}6n".as_bytes(),
    ];
    for attack in attacks {
        let seen = attached(&[b"a", *attack, b"z"].concat());
        let harmless = match *attack {
            // Without its introducer the rest is text.
            bytes if bytes.starts_with("\u{9b}".as_bytes()) => "a6nz",
            _ => "az",
        };
        assert_eq!(seen, harmless, "{:?}", String::from_utf8_lossy(attack));
    }
}

#[test]
fn links_keep_their_text() {
    assert_eq!(attached(b"\x1b]8;;https://example.org\x1b\\click\x1b]8;;\x1b\\ here"), "click here");
}

#[test]
fn drawing_passes_as_it_is() {
    let drawing = "\x1b[1;38;2;1;2;3mbold\x1b[0m\r\n\x1b[2J\x1b[3;4H\x1b[K\x1b[?25l\x1b[?1049h\x1b[4 q\x1b7\x1b8\x1b(0lqk\x1b(B日本é\t\x08\
        \x1b[2;5r\x1b[?2004h\x1b[?1000;1006h\x1b=\x1b[4:3m\x1b[5@\x1b[!p";
    assert_eq!(attached(drawing.as_bytes()), drawing);
}

#[test]
fn modes_are_taken_out_one_by_one() {
    assert_eq!(attached(b"\x1b[?25;1001;2004;9999h"), "\x1b[?25;2004h");
    let mut log = Neutral::new(Titles::Drop, InputModes::Drop);
    assert_eq!(log.filter(b"\x1b[?1000h\x1b[?2004h\x1b[?1h\x1b=\x1b[?25;1004l"), b"\x1b[?25l");
}

#[test]
fn titles_can_be_shown_with_whose_they_are() {
    let mut filter = Neutral::new(Titles::Prefix("sandbar: ".to_owned()), InputModes::Pass);
    let output = filter.filter("\x1b]2;vim\u{9c}\x01 x\x07".as_bytes());
    assert_eq!(String::from_utf8_lossy(&output), "\x1b]2;sandbar: vim x\x1b\\");
    let long = format!("\x1b]0;{}\x07", "t".repeat(5000));
    assert_eq!(filter.filter(long.as_bytes()).len(), LONGEST_TITLE + 6);
}

#[test]
fn a_reset_leaves_scrollback_and_settings_alone() {
    let reset = attached(b"\x1bc");
    assert!(!reset.contains("\x1bc") && reset.ends_with("\x1b[2J\x1b[H"), "{reset:?}");
}

#[test]
fn memory_is_bounded_and_the_stream_recovers() {
    let mut filter = Neutral::new(Titles::Drop, InputModes::Pass);
    assert_eq!(filter.filter(b"a\x1b]52;c;"), b"a");
    for _ in 0..1000 {
        assert_eq!(filter.filter(&[b'A'; 4096]), b"");
    }
    assert!(format!("{filter:?}").len() < 200_000, "what is held is bounded");
    assert_eq!(filter.filter(b"\x07z"), b"z");
    let endless = [b"\x1b[".as_slice(), &[b'1'; 100_000], b"mz"].concat();
    assert_eq!(filter.filter(&endless), b"z");
}

#[test]
fn what_is_no_text_becomes_a_sign() {
    assert_eq!(attached(b"a\xff\x9b6n\xc3"), "a\u{fffd}\u{fffd}6n");
    assert_eq!(attached(b"\xe2\x82\x1b[1m"), "\u{fffd}\x1b[1m");
}

/// Control for the attacks above: an emulator that is given them unfiltered answers.
#[test]
fn unfiltered_queries_would_be_answered() {
    let queries = b"\x1b[c\x1b[6n\x1b[>q\x1b]11;?\x07\x1bP$qm\x1b\\\x1b[?25$p";
    assert!(!crate::Screen::new(80, 24, 0).feed(queries).is_empty());
    assert_eq!(attached(queries), "");
}

#[test]
fn restore_ends_what_a_session_began() {
    let mut screen = crate::Screen::new(20, 5, 0);
    let fresh = screen.view();
    screen.feed(
        b"\x1b[?1049h\x1b[?1000h\x1b[?1006h\x1b[?2004h\x1b[?1004h\x1b[?25l\x1b[4h\x1b[?7l\x1b[?1h\x1b=\x1b(0\x1b[2;3r",
    );
    screen.feed(RESTORE);
    assert_eq!(screen.view().modes, fresh.modes);
    assert!(screen.cursor_visible() && !screen.alternate_screen());
}

#[test]
fn restore_leaves_the_cursor_where_it_is() {
    for left_behind in [
        "\x1b[3;4H",
        "\x1b[2;4r\x1b[3;4H",
        "\x1b[2;4r\x1b[?6h\x1b[2;4H",
        "\x1b7\x1b[3;4H",
        "\x1b[3;4H\x1b[?1049h\x1b[5;9H",
        "\x1b[3;4H\x1b[?1049h\x1b[2;4r\x1b[?6h\x1b(0\x1b[31m",
        "\x1b[31m\x1b(0\x1b[3;4H",
    ] {
        let mut screen = crate::Screen::new(20, 5, 0);
        screen.feed(left_behind.as_bytes());
        screen.feed(RESTORE);
        assert_eq!(screen.cursor(), (2, 3), "{left_behind:?}");
        // Neither line drawing nor margins nor the counting of rows from them are left.
        screen.feed(b"q\x1b[5;1H\n\x1b[2;4r\x1b[1;1Htop");
        assert_eq!(screen.lines()[0], "top", "{left_behind:?}");
        assert_eq!(screen.lines()[1], "   q", "{left_behind:?}");
    }
}

#[test]
fn a_filter_goes_on_where_another_waited() {
    let output =
        "plain caf\u{e9} \x1b[1;3\n1mred\x1b[m \x1b]52;c;AAAA\x07after\x1bP+q54\x1b\\ \u{4e00}\x1b[?25h end".as_bytes();
    let mut output = output.to_vec();
    output.extend(b"\xff\xc3\x1b[3\r\r2mgreen\x1b[");
    let mut one = Neutral::new(Titles::Drop, InputModes::Pass);
    let want = one.filter_whole(&output);
    assert_eq!(one.waiting(), 2);
    for cut in 0..=output.len() {
        let mut first = Neutral::new(Titles::Drop, InputModes::Pass);
        let mut got = first.filter_whole(&output[..cut]);
        let resumed = cut - usize::try_from(first.waiting()).unwrap_or(usize::MAX);
        let mut second = Neutral::new(Titles::Drop, InputModes::Pass);
        got.extend(second.filter_whole(&output[resumed..]));
        assert_eq!(String::from_utf8_lossy(&got), String::from_utf8_lossy(&want), "resumed at {resumed}, cut at {cut}");
    }
}

#[test]
fn a_sequence_that_never_ends_holds_little() {
    let mut filter = Neutral::new(Titles::Drop, InputModes::Pass);
    let mut passed = filter.filter_whole(b"\x1b[").len();
    for _ in 0..100 {
        passed += filter.filter_whole(&[b'\n'; 1000]).len();
        assert!(filter.carried.len() <= MOST_CARRIED);
    }
    assert!(passed > 90_000, "{passed}");
    assert_eq!(filter.waiting(), 100_002);
}
