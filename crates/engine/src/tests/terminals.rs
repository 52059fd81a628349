//! Looking at terminals: what they show while they run, after a restart and after their end, and what they have shown.

use std::fs;

use sandbar_api::{Code, Process, StartProcess, TerminalSize};
use serde_json::Value;

use super::{
    Bed, Tested, code, command,
    script::{self, Script},
    soon,
};
use crate::{Look, TranscriptQuery, terminals::MOST_SCREENS};

pub(super) const SIZE: TerminalSize = TerminalSize { cols: 20, rows: 5 };

pub(super) struct Terminal {
    pub(super) bed: Bed,
    pub(super) process: Process,
    pub(super) guest: Script,
}

impl Terminal {
    pub(super) async fn start() -> Result<Self, Box<dyn std::error::Error>> {
        let bed = Bed::new().await?;
        bed.create("a").await?;
        Self::of(bed).await
    }

    pub(super) async fn of(bed: Bed) -> Result<Self, Box<dyn std::error::Error>> {
        let request = StartProcess { terminal: Some(SIZE), ..command(&["sleep"]) };
        let process = bed.engine.start_process("a", request).await?;
        let guest = bed.provider.get(&process.sandbox).ok_or("no sandbox")?.guest.clone();
        Ok(Self { bed, process, guest })
    }

    pub(super) fn id(&self) -> &str {
        self.process.id.as_str()
    }

    /// Returns when it is stored.
    pub(super) async fn print(&self, text: &[u8]) -> Result<u64, Box<dyn std::error::Error>> {
        self.guest.write(self.id(), text);
        let want = self.guest.play(self.id()).ok_or("no play")?.output.len() as u64;
        self.stored(want).await?;
        Ok(want)
    }

    pub(super) async fn stored(&self, want: u64) -> Result<(), String> {
        let stored = || async {
            Some(self.bed.engine.process("a", self.id()).await.ok()?.output.end).filter(|end| *end == want)
        };
        soon(stored).await.map(drop)
    }

    async fn look(&self) -> Result<Look, sandbar_api::Problem> {
        self.bed.engine.screen("a", self.id()).await
    }

    /// When so much of its output is shown, which a debug build takes its time for.
    async fn look_at(&self, offset: u64) -> Result<Look, Box<dyn std::error::Error>> {
        for _ in 0..60 {
            let look = self.look().await?;
            if look.view.offset == offset {
                return Ok(look);
            }
        }
        Err(format!("not all of {offset} bytes are shown").into())
    }

    pub(super) async fn end(&self) -> Tested {
        self.guest.change(self.id(), |play| {
            play.exit = script::exit(3, 0, sandbar_guest::protocol::ExitReason::ByItself);
        });
        let over = || async { self.bed.engine.process("a", self.id()).await.ok()?.exit };
        soon(over).await?;
        Ok(())
    }

    fn file(&self, name: &str) -> std::path::PathBuf {
        self.bed.home.join("output").join(self.id()).join(name)
    }

    async fn recording(&self) -> Result<Vec<Value>, Box<dyn std::error::Error>> {
        let mut recording = self.bed.engine.recording("a", self.id()).await?;
        let mut text = vec![];
        while let Some(lines) = recording.next().await? {
            text.extend_from_slice(&lines);
        }
        Ok(String::from_utf8(text)?.lines().map(serde_json::from_str).collect::<Result<_, _>>()?)
    }
}

#[tokio::test]
async fn a_screen_is_what_was_written_to_it() -> Tested {
    let terminal = Terminal::start().await?;
    let blank = terminal.look().await?.view;
    assert_eq!((blank.size, blank.text().as_str(), blank.offset, blank.ended), (SIZE, "", 0, false));
    let end = terminal.print(b"one\r\n\x1b]2;a title\x07\x1b[1;32mtwo\x1b[m").await?;
    let look = terminal.look_at(end).await?;
    assert_eq!((look.view.text().as_str(), look.view.title.as_str()), ("one\ntwo", "a title"));
    assert_eq!((look.view.cursor.row, look.view.cursor.col, look.view.offset), (1, 3, end));
    assert!(look.ansi.contains("\x1b[") && look.ansi.contains("two") && !look.ansi.contains("title"), "{look:?}");
    let end = terminal.print(b"\x1b[?1049h\x1b[H\x1b[2Jfull").await?;
    let look = terminal.look_at(end).await?;
    assert!(look.view.alternate_screen && look.view.text() == "full", "{look:?}");
    let end = terminal.print(b"\x1b[?1049l").await?;
    terminal.end().await?;
    let look = terminal.look_at(end).await?;
    assert_eq!((look.view.text().as_str(), look.view.ended), ("one\ntwo", true));
    Ok(())
}

#[tokio::test]
async fn what_is_painted_for_a_size_before_that_is_written_down_is_shown_by_it() -> Tested {
    let terminal = Terminal::start().await?;
    terminal.guest.change(terminal.id(), |play| play.hand.slow = true);
    let narrow = TerminalSize { cols: 10, rows: 5 };
    let painted = async {
        let sized = || async {
            terminal.guest.play(terminal.id()).filter(|play| play.hand.widths.last() == Some(&u32::from(narrow.cols)))
        };
        soon(sized).await?;
        let end = terminal.print(b"\x1b[H\x1b[2J0123456789abc").await?;
        terminal.look().await?;
        Ok::<_, Box<dyn std::error::Error>>(end)
    };
    let (resized, painted) = tokio::join!(terminal.bed.engine.resize("a", terminal.id(), narrow), painted);
    resized?;
    let view = terminal.look_at(painted?).await?.view;
    assert_eq!((view.size, view.text().as_str()), (narrow, "0123456789\nabc"));
    Ok(())
}

#[tokio::test]
async fn sizes_hold_from_where_they_were_given() -> Tested {
    let mut terminal = Terminal::start().await?;
    let end = terminal.print(b"0123456789").await?;
    let wide = TerminalSize { cols: 40, rows: 3 };
    terminal.bed.engine.resize("a", terminal.id(), wide).await?;
    terminal.bed.engine.resize("a", terminal.id(), wide).await?;
    assert_eq!(terminal.look_at(end).await?.view.size, wide);
    let events = terminal.bed.engine.events(0, 100, None).await?;
    let resized: Vec<_> = events.iter().filter(|event| event.kind == "process.resized").collect();
    assert_eq!(resized.len(), 1, "the same size again is no news");
    assert_eq!(resized[0].data, serde_json::json!({"cols": 40, "rows": 3, "offset": end}));
    assert_eq!(resized[0].process.as_deref(), Some(terminal.id()));
    let end = terminal.print(&[b'x'; 30]).await?;
    let before = terminal.look_at(end).await?.view;
    assert_eq!(before.lines[0], format!("0123456789{}", "x".repeat(30)));
    terminal.bed.restart().await?;
    assert_eq!(terminal.look_at(end).await?.view, before);
    Ok(())
}

#[tokio::test]
async fn a_screen_survives_the_server_and_its_process() -> Tested {
    let mut terminal = Terminal::start().await?;
    terminal.print(b"before \x1b[1").await?;
    terminal.bed.restart().await?;
    let end = terminal.print(b";31mred\x1b[m after").await?;
    assert_eq!(terminal.look_at(end).await?.view.text(), "before red after");
    terminal.end().await?;
    let checkpoint = terminal.file("screen");
    soon(|| async { checkpoint.exists().then_some(()) }).await?;
    let last = terminal.look_at(end).await?;
    terminal.bed.restart().await?;
    assert_eq!(terminal.look_at(end).await?.view, last.view);
    // A checkpoint is a matter of speed only.
    for broken in [&b"nonsense"[..], b"{\"version\":99}\n", b""] {
        fs::write(&checkpoint, broken)?;
        terminal.bed.restart().await?;
        let look = terminal.look_at(end).await?;
        assert_eq!((look.view, look.ansi), (last.view.clone(), last.ansi.clone()));
    }
    Ok(())
}

#[tokio::test]
async fn checkpoints_show_what_all_of_the_output_shows() -> Tested {
    let mut terminal = Terminal::start().await?;
    let mut output = vec![];
    for row in 0..200_000u32 {
        let column = row % 13;
        output.extend(format!("\x1b[{};{column}H\x1b[3{}mrow {row}\x1b[K\r\n", row % 5, row % 8).bytes());
    }
    let checkpoint = terminal.file("screen");
    terminal.print(&output[..3_000_000]).await?;
    terminal.bed.engine.resize("a", terminal.id(), TerminalSize { cols: 33, rows: 7 }).await?;
    terminal.guest.write(terminal.id(), &output[3_000_000..]);
    // More than the debug build stores in five seconds may be under way.
    for _ in 0..10 {
        if terminal.stored(output.len() as u64).await.is_ok() {
            break;
        }
    }
    let with = terminal.look_at(output.len() as u64).await?;
    let saved = || async { fs::read(&checkpoint).ok() };
    let saved = soon(saved).await?;
    let (_, offset) = sandbar_terminal::Screen::restore(&saved)?;
    assert!(offset >= 4 << 20, "{offset}");
    terminal.end().await?;
    let at_end = || async {
        let (_, offset) = sandbar_terminal::Screen::restore(&fs::read(&checkpoint).ok()?).ok()?;
        (offset == output.len() as u64).then_some(())
    };
    soon(at_end).await?;
    terminal.bed.restart().await?;
    let from_checkpoint = terminal.look_at(output.len() as u64).await?;
    fs::remove_file(&checkpoint)?;
    terminal.bed.restart().await?;
    let replayed = terminal.look_at(output.len() as u64).await?;
    for other in [&from_checkpoint, &replayed] {
        let same = (&other.view.lines, other.view.cursor, other.view.size);
        assert_eq!(same, (&with.view.lines, with.view.cursor, with.view.size));
        assert_eq!(other.ansi, with.ansi);
    }
    Ok(())
}

#[tokio::test]
async fn many_terminals_are_looked_at_in_little_memory() -> Tested {
    let mut terminals = vec![];
    let bed = Bed::new().await?;
    bed.create("a").await?;
    for number in 0..MOST_SCREENS + 8 {
        let request = StartProcess { terminal: Some(SIZE), ..command(&["sleep"]) };
        let process = bed.engine.start_process("a", request).await?;
        let guest = bed.provider.get(&process.sandbox).ok_or("no sandbox")?.guest.clone();
        guest.write(process.id.as_str(), format!("number {number}").as_bytes());
        terminals.push(process);
    }
    for _ in 0..2 {
        for (number, process) in terminals.iter().enumerate() {
            let shown = || async {
                let look = bed.engine.screen("a", process.id.as_str()).await.ok()?;
                (look.view.text() == format!("number {number}")).then_some(())
            };
            soon(shown).await?;
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_look_does_not_wait_for_much_to_be_drawn() -> Tested {
    let terminal = Terminal::start().await?;
    let output = b"a line of more than can be drawn while somebody waits for it\r\n".repeat(200_000);
    let end = output.len() as u64;
    terminal.print(&output).await?;
    let mut last = 0;
    for _ in 0..60 {
        let looks = async || -> Result<u64, sandbar_api::Problem> {
            let asked = std::time::Instant::now();
            let offset = terminal.look().await?.view.offset;
            // On a slow host it may take its time, but not for all at once.
            let waited = last == 0 && offset == end && asked.elapsed() >= std::time::Duration::from_secs(8);
            assert!(!waited, "it took {:?}", asked.elapsed());
            Ok(offset)
        };
        // Whoever else asks does not wait for all of them.
        let (first, second, third) = tokio::try_join!(looks(), looks(), looks())?;
        assert!([first, second, third].iter().all(|seen| (last..=end).contains(seen)), "a screen goes on from {last}");
        last = first.max(second).max(third);
        if last == end {
            return Ok(());
        }
    }
    Err(format!("{last} of {end} bytes are shown").into())
}

#[tokio::test]
async fn what_has_no_screen_says_why() -> Tested {
    let bed = Bed::new().await?;
    bed.create("a").await?;
    let plain = bed.engine.start_process("a", command(&["sleep"])).await?;
    let (id, any) = (plain.id.as_str(), TranscriptQuery::default());
    assert_eq!(code(bed.engine.screen("a", id).await), Some(Code::NoTerminal));
    assert_eq!(code(bed.engine.transcript("a", id, &any).await), Some(Code::NoTerminal));
    assert_eq!(code(bed.engine.recording("a", id).await.map(drop)), Some(Code::NoTerminal));
    assert_eq!(code(bed.engine.resize("a", id, SIZE).await), Some(Code::NoTerminal));
    assert!(!bed.home.join("output").join(id).join("sizes").exists());
    for unknown in ["prc-00000000000000000000000000", "x"] {
        assert_eq!(code(bed.engine.screen("a", unknown).await), Some(Code::UnknownProcess));
        assert_eq!(code(bed.engine.transcript("a", unknown, &any).await), Some(Code::UnknownProcess));
    }
    assert_eq!(code(bed.engine.screen("b", id).await), Some(Code::UnknownSandbox));
    Ok(())
}

#[tokio::test]
async fn a_transcript_is_searched_and_continued() -> Tested {
    let terminal = Terminal::start().await?;
    let end = terminal.print(b"$ make\r\n\x1b[31mError\x1b[m: one\r\n10%\r99%\r\nerror: two\r\n$ ").await?;
    let engine = &terminal.bed.engine;
    let texts = async |query: TranscriptQuery| -> Result<_, sandbar_api::Problem> {
        let found = engine.transcript("a", terminal.id(), &query).await?;
        Ok((found.lines.iter().map(|line| line.text.clone()).collect::<Vec<_>>(), found.next, found.more))
    };
    let all = texts(TranscriptQuery::default()).await?;
    assert_eq!(all, (["$ make", "Error: one", "99%", "error: two", "$"].map(str::to_owned).into(), end - 2, false));
    let grep = |grep: &str| TranscriptQuery { grep: Some(grep.into()), ..TranscriptQuery::default() };
    assert_eq!(texts(grep("error")).await?.0, ["error: two"]);
    assert_eq!(texts(grep("rror")).await?.0, ["Error: one", "error: two"]);
    assert_eq!(texts(grep("10%")).await?.0, [""; 0], "it was overwritten");
    let any_case = TranscriptQuery { ignore_case: true, ..grep("ERROR") };
    assert_eq!(texts(any_case).await?.0, ["Error: one", "error: two"]);
    let (mut from, mut read) = (None, vec![]);
    loop {
        let (lines, next, more) = texts(TranscriptQuery { from, limit: Some(1), ..TranscriptQuery::default() }).await?;
        read.extend(lines);
        if !more {
            break;
        }
        assert!(from < Some(next), "it goes on at {next} for ever");
        from = Some(next);
    }
    assert_eq!(read, all.0);
    let part = TranscriptQuery { from: Some(8), to: Some(22), ..TranscriptQuery::default() };
    assert_eq!(texts(part).await?.0, ["Error:"]);
    let refused = TranscriptQuery { from: Some(end + 1), ..TranscriptQuery::default() };
    assert_eq!(code(texts(refused).await), Some(Code::OffsetBeyond));
    let refused = TranscriptQuery { limit: Some(0), ..TranscriptQuery::default() };
    assert_eq!(code(texts(refused).await), Some(Code::BadRequest));
    Ok(())
}

#[tokio::test]
async fn what_retention_dropped_is_said_to_be_dropped() -> Tested {
    let bed = Bed::new().await?;
    bed.create_of("a", "output_retention = 524288\n").await?;
    let terminal = Terminal::of(bed).await?;
    let mut output = vec![];
    for row in 0..40_000 {
        output.extend(format!("line {row}\r\n").bytes());
    }
    output.extend(b"\x1b[H\x1b[2Jlast");
    while output.len() < 1 << 20 {
        output.splice(0..0, b"padding\r\n".repeat(10_000));
    }
    let end = terminal.print(&output).await?;
    let first_kept = terminal.bed.engine.process("a", terminal.id()).await?.output.start;
    assert!(first_kept > 0);
    let query = TranscriptQuery { from: Some(0), ..TranscriptQuery::default() };
    let Err(dropped) = terminal.bed.engine.transcript("a", terminal.id(), &query).await else {
        return Err("no".into());
    };
    assert_eq!((dropped.code, dropped.first_kept), (Code::OutputDropped, Some(first_kept)));
    assert_eq!(terminal.look_at(end).await?.view.text(), "last");
    let recording = terminal.recording().await?;
    assert_eq!(recording[0]["version"], 3);
    Ok(())
}

#[tokio::test]
async fn a_recording_is_asciicast_and_harmless() -> Tested {
    let terminal = Terminal::start().await?;
    terminal.print("one \x1b]52;c;ZXZpbA==\x07caf\u{e9}\r\n".as_bytes()).await?;
    terminal.bed.engine.resize("a", terminal.id(), TerminalSize { cols: 30, rows: 6 }).await?;
    // A letter in two pieces.
    terminal.print(b"\x1b[31mtw\xc3").await?;
    terminal.print(b"\xa9\x1b[6n").await?;
    terminal.end().await?;
    let lines = terminal.recording().await?;
    assert_eq!((&lines[0]["version"], &lines[0]["term"]), (&3.into(), &serde_json::json!({"cols": 20, "rows": 5})));
    let events: Vec<(&str, &str)> = lines[1..]
        .iter()
        .map(|event| (event[1].as_str().unwrap_or_default(), event[2].as_str().unwrap_or_default()))
        .collect();
    let printed: String = events.iter().filter(|event| event.0 == "o").map(|event| event.1).collect();
    assert_eq!(printed, "one caf\u{e9}\r\n\x1b[31mtw\u{e9}");
    assert_eq!(events.iter().position(|event| *event == ("r", "30x6")), Some(1), "{events:?}");
    assert_eq!(events.last(), Some(&("x", "3")));
    assert!(lines[1..].iter().all(|event| event[0].as_f64().is_some_and(|seconds| seconds >= 0.0)));
    Ok(())
}
