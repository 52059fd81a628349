//! Attached terminals: what viewers are shown, who controls, what is typed, and who answers queries.

mod queries;
mod seats;
mod typing;

use std::time::Duration;

use sandbar_api::{Code, Control, Role, StartProcess, TerminalFrame, TerminalSize, ViewerFrame};

use super::{
    Bed, Tested, code, command, owner,
    terminals::{SIZE, Terminal},
};
use crate::{AttachAsk, Attached, Caller, Viewed};

type Any<T> = Result<T, Box<dyn std::error::Error>>;

/// What a viewer has seen.
#[derive(Default)]
struct Seen {
    text: Vec<u8>,
    /// Where it ends.
    end: u64,
    frames: Vec<TerminalFrame>,
}

impl Seen {
    fn add(&mut self, viewed: Viewed) {
        match viewed {
            Viewed::Output { end, data } => {
                self.text.extend_from_slice(&data);
                self.end = end;
            }
            Viewed::Frame(frame) => self.frames.push(frame),
        }
    }

    fn last(&self) -> Option<&TerminalFrame> {
        self.frames.last()
    }
}

fn raw() -> AttachAsk {
    AttachAsk { raw: true, ..AttachAsk::default() }
}

fn taking(control: Control, writer: &str) -> AttachAsk {
    AttachAsk { control, writer: Some(writer.into()), ..raw() }
}

fn operator(name: &str) -> Caller {
    Caller { owner: name.into(), role: Role::Operator, session: None }
}

impl Terminal {
    async fn attach(&self, ask: AttachAsk) -> Result<Attached, sandbar_api::Problem> {
        self.bed.engine.attach(&owner(), "a", self.id(), ask).await
    }

    async fn attach_as(&self, who: &str, ask: AttachAsk) -> Result<Attached, sandbar_api::Problem> {
        self.bed.engine.attach(&operator(who), "a", self.id(), ask).await
    }
}

async fn next(attached: &mut Attached) -> Any<Viewed> {
    let next = tokio::time::timeout(Duration::from_secs(300), attached.viewer.next()).await;
    Ok(next.map_err(|_| "nothing comes")??.ok_or("it is over")?)
}

/// Everything up to what is waited for.
async fn until(attached: &mut Attached, mut enough: impl FnMut(&Seen) -> bool) -> Any<Seen> {
    let mut seen = Seen::default();
    while !enough(&seen) {
        seen.add(next(attached).await?);
    }
    Ok(seen)
}

async fn frame(attached: &mut Attached) -> Any<TerminalFrame> {
    match next(attached).await? {
        Viewed::Frame(frame) => Ok(frame),
        output => Err(format!("{output:?}").into()),
    }
}

async fn refused(attached: &mut Attached) -> Any<Code> {
    match frame(attached).await? {
        TerminalFrame::Error { problem } => Ok(problem.code),
        other => Err(format!("{other:?}").into()),
    }
}

#[tokio::test]
async fn a_viewer_sees_the_screen_then_output_then_the_exit() -> Tested {
    let terminal = Terminal::start().await?;
    let end = terminal.print(b"one\r\ntwo \x1b[3").await?;
    let mut viewer = terminal.attach(AttachAsk::default()).await?;
    let first = frame(&mut viewer).await?;
    let TerminalFrame::Attached { process, offset, size, control, controller, input } = first else {
        return Err(format!("{first:?}").into());
    };
    assert_eq!((process, size, control, controller, input), (terminal.process.id.clone(), SIZE, false, None, 0));
    assert_eq!(offset, end - 3, "what is unfinished comes with the output");
    let TerminalFrame::Screen { offset, size, data } = frame(&mut viewer).await? else {
        return Err("no screen".into());
    };
    assert_eq!((offset, size), (end - 3, SIZE));
    let mut screen = sandbar_terminal::Screen::new(SIZE.cols, SIZE.rows, 0);
    screen.feed(data.as_bytes());
    assert_eq!(screen.text(), "one\ntwo");
    let end = terminal.print(b"1mred\x1b]52;c;ZXZpbA==\x07").await?;
    let seen = until(&mut viewer, |seen| seen.end == end).await?;
    assert_eq!(String::from_utf8(seen.text)?, "\x1b[31mred");
    terminal.end().await?;
    let TerminalFrame::Exit { process } = frame(&mut viewer).await? else { return Err("no exit".into()) };
    assert_eq!(process.exit.map(|exit| exit.code), Some(3));
    assert_eq!(viewer.viewer.next().await?, None);
    // After its end: the same screen, and the exit.
    let mut late = terminal.attach(raw()).await?;
    let seen = until(&mut late, |seen| matches!(seen.last(), Some(TerminalFrame::Exit { .. }))).await?;
    assert!(matches!(&seen.frames[1], TerminalFrame::Screen { data, .. } if data.contains("red")), "{:?}", seen.frames);
    assert_eq!((seen.frames.len(), seen.text.len()), (3, 0));
    late.keyboard.frame(ViewerFrame::Take {}).await;
    Ok(())
}

#[tokio::test]
async fn every_offset_that_was_given_is_one_to_come_back_to() -> Tested {
    let terminal = Terminal::start().await?;
    let parts: [&[u8]; 6] = [
        b"plain \x1b",
        b"[1;3",
        b"1mred caf\xc3",
        b"\xa9\x1b]52;c;AAAA",
        b"\x07after\x1b[",
        b"m \xe4\xb8\x80 end\x1b]0;t\x07.",
    ];
    for raw in [true, false] {
        let from = terminal.bed.engine.process("a", terminal.id()).await?.output.end;
        let ask = |from| AttachAsk { from: Some(from), raw, ..AttachAsk::default() };
        let mut whole = terminal.attach(ask(from)).await?;
        let mut seen = vec![(from, vec![])];
        let mut text = vec![];
        let mut end = from;
        for part in parts {
            end = terminal.print(part).await?;
            // What is unfinished may leave nothing to send.
            while let Ok(Ok(Some(viewed))) = tokio::time::timeout(Duration::from_millis(50), whole.viewer.next()).await
            {
                if let Viewed::Output { end, data } = viewed {
                    text.extend_from_slice(&data);
                    seen.push((end, text.clone()));
                }
            }
        }
        // The last part leaves nothing unfinished.
        while seen.last().is_some_and(|last| last.0 < end) {
            let viewed = tokio::time::timeout(Duration::from_secs(300), whole.viewer.next()).await??;
            if let Viewed::Output { end, data } = viewed.ok_or("it ended")? {
                text.extend_from_slice(&data);
                seen.push((end, text.clone()));
            }
        }
        assert_eq!(seen.last().map(|last| last.0), Some(end));
        assert!(seen.len() > 4, "{seen:?}");
        if raw {
            assert_eq!(text, parts.concat());
        } else {
            assert_eq!(String::from_utf8(text.clone())?, "plain \x1b[1;31mred caf\u{e9}after\x1b[m \u{4e00} end.");
        }
        for (from, before) in seen.iter().filter(|(from, _)| *from < end) {
            let mut again = terminal.attach(ask(*from)).await?;
            let rest = until(&mut again, |seen| seen.end == end).await?;
            assert_eq!([before.as_slice(), &rest.text].concat(), text, "from {from}, raw {raw}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_new_size_is_told_where_it_holds() -> Tested {
    let terminal = Terminal::start().await?;
    terminal.print(b"narrow").await?;
    let mut there = terminal.attach(raw()).await?;
    until(&mut there, |seen| seen.frames.len() == 2).await?;
    let wide = TerminalSize { cols: 40, rows: 3 };
    terminal.bed.engine.resize("a", terminal.id(), wide).await?;
    terminal.print(b"wide").await?;
    assert_eq!(frame(&mut there).await?, TerminalFrame::Resized { offset: 6, size: wide });
    assert_eq!(until(&mut there, |seen| seen.end == 10).await?.text, b"wide");
    // One that comes later is told in between.
    let mut late = terminal.attach(AttachAsk { from: Some(2), ..raw() }).await?;
    let TerminalFrame::Attached { size, offset: 2, .. } = frame(&mut late).await? else { return Err("no".into()) };
    assert_eq!(size, SIZE);
    assert_eq!(next(&mut late).await?, Viewed::Output { end: 6, data: "rrow".into() });
    assert_eq!(frame(&mut late).await?, TerminalFrame::Resized { offset: 6, size: wide });
    assert_eq!(next(&mut late).await?, Viewed::Output { end: 10, data: "wide".into() });
    Ok(())
}

#[tokio::test]
async fn what_cannot_be_attached_to_says_why() -> Tested {
    let terminal = Terminal::start().await?;
    let end = terminal.print(b"some").await?;
    let from = |from| AttachAsk { from: Some(from), ..raw() };
    assert_eq!(code(terminal.attach(from(end + 1)).await.map(drop)), Some(Code::OffsetBeyond));
    assert!(terminal.attach(from(end)).await.is_ok());
    let engine = &terminal.bed.engine;
    let plain = engine.start_process("a", command(&["sleep"])).await?;
    let attach =
        async |sandbox: &str, process: &str| code(engine.attach(&owner(), sandbox, process, raw()).await.map(drop));
    assert_eq!(attach("a", plain.id.as_str()).await, Some(Code::NoTerminal));
    assert_eq!(attach("a", "prc-00000000000000000000000000").await, Some(Code::UnknownProcess));
    assert_eq!(attach("b", terminal.id()).await, Some(Code::UnknownSandbox));
    for (cols, rows) in [(0, 5), (5, 0), (10_000, 5)] {
        let ask = AttachAsk { size: Some(TerminalSize { cols, rows }), ..raw() };
        assert_eq!(code(terminal.attach(ask).await.map(drop)), Some(Code::BadRequest));
    }
    for writer in ["", "a b", "\u{e9}", &"x".repeat(65)] {
        let ask = AttachAsk { writer: Some(writer.into()), ..raw() };
        assert_eq!(code(terminal.attach(ask).await.map(drop)), Some(Code::BadRequest), "{writer}");
    }
    Ok(())
}

#[tokio::test]
async fn what_retention_took_is_skipped_with_a_screen() -> Tested {
    let bed = Bed::new().await?;
    bed.create_of("a", "output_retention = 524288\n").await?;
    let terminal = Terminal::of(bed).await?;
    let mut stalled = terminal.attach(raw()).await?;
    until(&mut stalled, |seen| seen.frames.len() == 2).await?;
    let mut output = b"line of output\r\n".repeat(150_000);
    output.extend(b"\x1b[H\x1b[2Jlast");
    let end = output.len() as u64;
    terminal.guest.write(terminal.id(), &output);
    for _ in 0..10 {
        if terminal.stored(end).await.is_ok() {
            break;
        }
    }
    let dropped = terminal.attach(AttachAsk { from: Some(0), ..raw() }).await.map(drop);
    assert!(dropped.as_ref().is_err_and(|problem| problem.code == Code::OutputDropped && problem.first_kept > Some(0)));
    let seen = until(&mut stalled, |seen| seen.frames.len() == 2).await?;
    let [TerminalFrame::Skipped { from: 0, to }, TerminalFrame::Screen { offset, data, .. }] = seen.frames.as_slice()
    else {
        return Err(format!("{:?}", seen.frames).into());
    };
    assert_eq!(to, offset);
    assert!(*offset > 1 << 20 && seen.text.is_empty(), "{offset}");
    let mut screen = sandbar_terminal::Screen::new(SIZE.cols, SIZE.rows, 0);
    screen.feed(data.as_bytes());
    if *offset < end {
        screen.feed(&until(&mut stalled, |seen| seen.end == end).await?.text);
    }
    assert_eq!(screen.text(), "last");
    terminal.print(b"more").await?;
    assert_eq!(next(&mut stalled).await?, Viewed::Output { end: end + 4, data: "more".into() });
    Ok(())
}

#[tokio::test]
async fn the_first_screen_does_not_wait_for_history() -> Tested {
    let bed = Bed::new().await?;
    bed.create("a").await?;
    let request = StartProcess { terminal: Some(SIZE), ..command(&["sleep"]) };
    let process = bed.engine.start_process("a", request).await?;
    let guest = bed.provider.get(&process.sandbox).ok_or("no sandbox")?.guest.clone();
    let terminal = Terminal { bed, process, guest };
    let output = b"a line of some history that nobody has looked at\r\n".repeat(100_000);
    terminal.guest.write(terminal.id(), &output);
    for _ in 0..20 {
        if terminal.stored(output.len() as u64).await.is_ok() {
            break;
        }
    }
    // The keeper follows without being asked; a debug build is slow at it.
    let mut quickest = Duration::MAX;
    for _ in 0..200 {
        let start = std::time::Instant::now();
        let mut viewer = terminal.attach(raw()).await?;
        let seen = until(&mut viewer, |seen| seen.frames.len() == 2).await?;
        let newest = matches!(&seen.frames[1], TerminalFrame::Screen { offset, .. } if *offset == output.len() as u64);
        quickest = if newest { quickest.min(start.elapsed()) } else { quickest };
        if quickest < Duration::from_millis(50) {
            return Ok(());
        }
    }
    Err(format!("attaching took {quickest:?}").into())
}
