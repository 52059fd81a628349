//! tmux as the judge: real programs run in a pane, their bytes are recorded, and what we show must be what tmux shows.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::pane::{Pane, agree, can_run, until};

fn text(folder: &Path, lines: usize) -> PathBuf {
    let file = folder.join("text.txt");
    let body: String = (1..=lines).map(|line| format!("line {line} of the text, wide 日本 and é\n")).collect();
    fs::write(&file, body).unwrap_or_else(|error| panic!("{error}"));
    file
}

#[test]
fn vim() {
    if !can_run("vim", &["tmux", "vim"]) {
        return;
    }
    let place = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
    let pane = Pane::start(&format!("vim -u NONE -N -n '{}'", text(place.path(), 60).display()));
    agree(&pane, "line 1 of");
    pane.tmux(&["send-keys", "20jdd3p", "ohello", "Escape", ":set number", "Enter"]);
    agree(&pane, "hello");
    pane.tmux(&["send-keys", "G"]);
    agree(&pane, "line 60 of");
    pane.tmux(&["send-keys", "gg", ":vsplit", "Enter"]);
    agree(&pane, "|  1 line 1 of");
}

#[test]
fn less() {
    if !can_run("less", &["tmux", "less"]) {
        return;
    }
    let place = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
    let pane = Pane::start(&format!("echo before; less '{}'; echo after", text(place.path(), 200).display()));
    agree(&pane, "line 1 of");
    pane.tmux(&["send-keys", "  ", "b", "/line 150", "Enter"]);
    agree(&pane, "line 150 of");
    pane.tmux(&["send-keys", "kkkk"]);
    agree(&pane, "line 146 of");
    pane.tmux(&["send-keys", "q"]);
    agree(&pane, "after");
}

#[test]
fn shells_and_listings() {
    if !can_run("shells_and_listings", &["tmux", "bash", "ls"]) {
        return;
    }
    // Its prompt counts the commands: what is typed before the next one stands is edited by the terminal, not by bash.
    let pane = Pane::start("PS1='\\#> ' bash --norc --noprofile -i");
    agree(&pane, "1>");
    pane.tmux(&["send-keys", "ls --color=always /usr /usr/lib | head -60; echo listed", "Enter"]);
    agree(&pane, "2>");
    pane.tmux(&[
        "send-keys",
        "echo a long line that will be edited and wrapped around the right edge of it all, yes",
        "C-a",
        "M-f",
        "M-f",
    ]);
    pane.tmux(&["send-keys", "X", "C-e", "!", "C-w"]);
    agree(&pane, "echo aX");
}

#[test]
fn python_redraws_its_line() {
    if !can_run("python_redraws_its_line", &["tmux", "python3"]) {
        return;
    }
    let pane = Pane::start("python3 -c 'print(input(\"What is your name? \"))'");
    agree(&pane, "your name?");
    pane.tmux(&["send-keys", "Ada", "Enter"]);
    agree(&pane, "Ada");
}

/// Sequences that programs send, each as a whole session. Line drawing is left out: capture-pane gives its letters.
#[test]
fn recorded_sessions() {
    if !can_run("recorded_sessions", &["tmux"]) {
        return;
    }
    let bar: String = (0..=50).map(|step| format!("\r[{:<50}] {}%", "#".repeat(step), step * 2)).collect();
    let colours: String = (0..256).map(|index| format!("\x1b[48;5;{index}m{index:4}\x1b[m")).collect();
    let region = "\x1b[2J\x1b[3;10r".to_owned() + &(0..30).map(|line| format!("row {line}\r\n")).collect::<String>();
    let wide = "日本語の文字列が右端で折り返されるときの表示を確かめるための長い行ですからもう少し続けます".to_owned();
    let sessions = [
        bar,
        colours,
        region + "\x1b[r\x1b[24;1Hend",
        wide,
        "one\x1b[10;20Htwo\x1b[2Kthree\x1b[A\x1b[5Dfour\x1b[1Jx\x1b[Jy".to_owned(),
        "abcdef\x1b[4D\x1b[2@XY\x1b[P\x1b[3X".to_owned(),
        "a\r\nb\r\nc\r\nd\x1b[2;1H\x1b[L new\x1b[4;1H\x1b[M\x1b[S\x1b[2T".to_owned(),
        "main screen\x1b[?1049h\x1b[Hother\x1b[5;5Hscreen".to_owned(),
        "main screen\x1b[?1049h\x1b[Hother\x1b[?1049l and back".to_owned(),
        "x\x1b7\x1b[5;5H\x1b[31mred\x1b8y".to_owned(),
        "tabs\tand\tmore\x1b[2Zback".to_owned(),
        "\x1b[4hinsert\x1b[6Din\x1b[4l".to_owned(),
        "\x1b[?7l".to_owned() + &"0123456789".repeat(9) + "\x1b[?7h",
        "0123456789".repeat(8) + "wrapped\x1b[A\x1b[79Cz",
        "e\u{301}a\u{308}\u{200b}x\r\n".repeat(3),
        "\x1b[5;10r\x1b[?6h\x1b[1;1Htop\x1b[99;1Hbottom\x1b[?6l\x1b[r\x1b[1;1Hhome".to_owned(),
        "scroll\x1bM\x1bMup\x1b[24;1H\x1bD\x1bDdown\x1bEnext".to_owned(),
        "a\x1b[20bb\r\nc\x1b[200bd".to_owned(),
        "\x1b]0;title\x07\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\\x1bP+q00\x1b\\\x1b_apc\x1b\\text".to_owned(),
        (0..60).map(|line| format!("\x1b[3{}mline {line}\x1b[m\r\n", line % 8)).collect(),
    ];
    for (index, session) in sessions.iter().enumerate() {
        let place = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
        let file = place.path().join("session");
        fs::write(&file, session).unwrap_or_else(|error| panic!("{error}"));
        // Without output processing the bytes arrive as they are written.
        let pane = Pane::start(&format!("stty -opost -echo; cat '{}'; : {index}", file.display()));
        until("the session was played", || fs::read(pane.recording()).is_ok_and(|bytes| bytes.len() >= session.len()));
        agree(&pane, "");
    }
}
