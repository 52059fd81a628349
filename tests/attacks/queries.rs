//! Questions that programs ask of their terminal: answered once, by the server, in words that no program can choose; and
//! what programs can do to whoever emulates a terminal for them.

use std::{
    os::unix::fs::OpenOptionsExt as _,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use rustix::{
    fs::{OFlags, fcntl_setfl},
    io::Errno,
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
};
use sandbar_api::{Control as Hold, TerminalSize};
use sandbar_client::{AttachEvent, AttachOptions, Attachment, Client};

use crate::{
    attack::{Attack, Class, Control, Finding, act},
    person::{Program, holds, readable},
    stage::{Stage, Target},
    support::{Outcome, Server, done, until},
};

const ONE: &[&str] = &["standard"];
/// What the server may have grown by in MiB, when a program did its worst.
const GROWTH: u64 = 96;

pub(crate) fn all() -> Vec<Attack> {
    let doing =
        |name, act, place, control| Attack::act(Class::Terminals, name, act, Control::Act(place, control)).on(ONE);
    let each = "by a terminal that answers itself";
    vec![
        doing("queries_with_many_viewers", act!(once), each, act!(twice)),
        doing("queries_over_a_restart", act!(restarted), each, act!(twice)),
        doing("titles_reported_as_input", act!(reported), "by a terminal that reports them", act!(reporting)),
        doing("flood_of_queries", act!(flood), "by a terminal that answers each", act!(blocked)),
        doing("huge_numbers", act!(huge), "small ones", act!(small)),
        Attack::act(
            Class::Terminals,
            "huge_terminal",
            act!(huge_terminal),
            Control::NotRun("a screen of 9999 by 9999 cells takes some gigabytes, which the host may not have"),
        )
        .on(ONE),
    ]
}

/// Somebody who reads everything; of those who answer, as a terminal would.
struct Viewer(tokio::task::JoinHandle<()>);

impl Drop for Viewer {
    fn drop(&mut self) {
        self.0.abort();
    }
}

type Answers = fn(&[u8]) -> Option<&'static str>;

async fn viewer(client: &Client, sandbox: &str, process: &str, control: Hold, answers: Answers) -> Outcome<Viewer> {
    let size = Some(TerminalSize { cols: 80, rows: 24 });
    let options = AttachOptions { raw: true, control, size, ..AttachOptions::default() };
    let mut attachment: Attachment = client.attach(sandbox, process, options).await?;
    Ok(Viewer(tokio::spawn(async move {
        let typist = attachment.typist();
        while let Some(Ok(event)) = attachment.next().await {
            if let AttachEvent::Output { data, .. } = event
                && let Some(answer) = answers(&data)
            {
                let _typed = typist.send(answer.as_bytes()).await;
            }
        }
    })))
}

fn silent(_: &[u8]) -> Option<&'static str> {
    None
}

fn as_xterm(data: &[u8]) -> Option<&'static str> {
    holds(data, b"\x1b[6n").then_some("\x1b[1;1R")
}

/// Three questions, one after the other; what was typed after each.
const ASKS: &str = r#"
tty.setraw(0)
put("ready", b"")
await_("go")
got = answered(b"\x1b[6n", b"R", int(get("reports"))) + b"|"
for question, last in ((b"\x1b[c", b"c"), (b"\x1bP$qm\x1b\\", b"\x1b\\")):
    got += answered(question, last) + b"|"
put("heard", got)
while True: time.sleep(1000)
"#;

/// What the program is told with so many looking on, one of them in control; it waits for so many reports of the cursor.
async fn told(stage: &Stage, target: &Target, viewers: usize, answers: Answers, reports: &[u8]) -> Outcome<Vec<u8>> {
    let program = Program::start_with(stage, target, ASKS, &[("reports", reports)]).await?;
    program.tells("ready").await?;
    let mut looking = vec![];
    for number in 0..viewers {
        let control = if number == 0 { Hold::Take } else { Hold::View };
        looking.push(viewer(&stage.client, &target.id, &program.process, control, answers).await?);
    }
    program.tell("go")?;
    let heard = program.tells("heard").await?;
    program.end().await?;
    Ok(heard)
}

const EACH_ONCE: &[u8] = b"\x1b[1;1R|\x1b[?62;22c|\x1bP1$r0m\x1b\\|";

async fn once(stage: &Stage, target: &Target) -> Outcome<Finding> {
    for viewers in [0, 1, 5] {
        let heard = told(stage, target, viewers, silent, b"1").await?;
        if heard != EACH_ONCE {
            return Ok(Finding::escaped(format!("with {viewers} viewers: {}", readable(&heard))));
        }
    }
    Ok(Finding::contained("once with none, one and five viewers"))
}

async fn twice(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let heard = told(stage, target, 1, as_xterm, b"2").await?;
    let count = heard.windows(4).filter(|window| window == b"1;1R").count();
    Ok(if count > 1 { Finding::escaped(format!("{count} answers")) } else { Finding::contained(readable(&heard)) })
}

/// What was asked of one server is not answered by the next; what was asked of none, by at most one.
async fn restarted(stage: &Stage, _: &Target) -> Outcome<Finding> {
    let body = r#"
tty.setraw(0)
put("before", answered(b"\x1b[6n", b"R"))
await_("away")
say(b"\x1b[c"); put("printed", b"")
got = b""
while not os.path.exists(place("back")): got += heard(0.1)
put("after", got + heard(2.0))
while True: time.sleep(1000)
"#;
    let mut server = Server::start_in(stage.scratch.join(format!("home-{}", stage.number())))?;
    let shared = stage.directory("shared")?;
    done(&mut server.command(&["create", "--name", "box", "--workspace", &format!("{}:rw", shared.display())]))?;
    let client = server.client()?;
    let program = Program::run(&client, "box", &shared, stage.number(), body, &[]).await?;
    let before = program.tells("before").await?;
    server.kill()?;
    program.tell("away")?;
    program.tells("printed").await?;
    server.restart()?;
    // Looking makes the screen anew from all output.
    client.screen("box", &program.process).await?;
    let looking = viewer(&client, "box", &program.process, Hold::Take, silent).await?;
    program.tell("back")?;
    let after = program.tells("after").await?;
    drop(looking);
    program.end().await?;
    done(&mut server.command(&["rm", "-f", "box"]))?;
    let said = format!("before {}, after {}", readable(&before), readable(&after));
    let good = before == b"\x1b[1;1R" && (after.is_empty() || after == b"\x1b[?62;22c");
    Ok(if good { Finding::contained(said) } else { Finding::escaped(said) })
}

/// Puts words wherever a terminal keeps some, then asks for them back in every way.
const REPORTS: &str = r#"
tty.setraw(0)
put("ready", b"")
await_("go")
word = b"; touch owned #\r\n"
for code in (b"0", b"1", b"2", b"7", b"9", b"50", b"52;c", b"4;1", b"10", b"11", b"12", b"1337", b"l", b"L"):
    for end in (b"\x07", b"\x1b\\"): say(b"\x1b]" + code + b";" + word + end)
say(b"\x1bP1;0;0!z" + word.hex().encode() + b"\x1b\\\x1bP0;1|17/" + word.hex().encode() + b"\x1b\\")
say(b"\x1bkowned\x1b\\\x1b[22;0towned\x1b[1;1H")
asked = [b"\x1b[20t", b"\x1b[21t", b"\x1b[23;0t\x1b[21t", b"\x05", b"\x1b[1*z", b"\x1b[?62n", b"\x1b[?63;1n", b"\x1b[1;1;1;1;9;9*y"]
asked += [b"\x1b]%s;?\x07" % code for code in (b"0", b"2", b"4;1", b"4;owned", b"10", b"11", b"50", b"52;c", b"52;owned", b"owned")]
asked += [b"\x1bP$q%s\x1b\\" % word for word in (b"m", b"owned", b"; touch owned\r", b"m; owned", b"\"pnowned", b" qowned")]
asked += [b"\x1bP+q%s\x1b\\" % word for word in (b"owned", word.hex().encode(), b"544e;6f776e6564")]
asked += [b"\x1b[%sn" % word for word in (b"5", b"6", b"?6", b"?15", b"?25", b"?26", b"?53", b"?996")]
asked += [b"\x1b[%s$p" % word for word in (b"?2026", b"4", b"?65535", b"99999999")] + [b"\x1b[>q", b"\x1b[>0q", b"\x1b[c", b"\x1b[>c", b"\x1b[=c", b"\x1b[x", b"\x1b[1x"]
for question in asked: say(question); time.sleep(0.002)
got, end = heard(1.5), time.monotonic() + 30
while get("awaited") not in got and time.monotonic() < end: got += heard(0.5)
put("heard", got)
while True: time.sleep(1000)
"#;

async fn reports(stage: &Stage, target: &Target, answers: Answers, awaited: &[u8]) -> Outcome<Finding> {
    let program = Program::start_with(stage, target, REPORTS, &[("awaited", awaited)]).await?;
    program.tells("ready").await?;
    let looking = viewer(&stage.client, &target.id, &program.process, Hold::Take, answers).await?;
    program.tell("go")?;
    let heard = program.tells("heard").await?;
    drop(looking);
    program.end().await?;
    // Only these are typed to a shell that reads next: words of the program's, or the end of a line.
    let chosen = holds(&heard, b"owned") || holds(&heard, b"touch") || heard.iter().any(|byte| b"\r\n".contains(byte));
    let hex = String::from_utf8_lossy(&heard).to_lowercase().contains("6f776e6564");
    Ok(match heard.len() {
        0 => Finding::not_run("nothing was answered at all"),
        _ if chosen || hex => Finding::escaped(readable(&heard)),
        length => Finding::contained(format!("{length} bytes of answers, none of its words")),
    })
}

async fn reported(stage: &Stage, target: &Target) -> Outcome<Finding> {
    reports(stage, target, silent, b"\x1b").await
}

async fn reporting(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let answers: Answers = |data| holds(data, b"\x1b[21t").then_some("\x1b]l; touch owned #\x1b\\");
    reports(stage, target, answers, b"touch").await
}

const FLOOD: &str = r#"
tty.setraw(0)
put("ready", b"")
await_("go")
piece = b"\x1b[6n" * 4096
for _ in range(64): say(piece)
say(b"\r\nthe-end-of-it\r\n")
put("done", b"")
while True: time.sleep(1000)
"#;

/// What the server has grown by, in MiB.
fn grown(stage: &Stage, before: u64) -> Outcome<u64> {
    Ok(stage.server.resident()?.saturating_sub(before) >> 10)
}

/// A million bytes of questions by a program that reads no answer.
async fn flood(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let program = Program::start(stage, target, FLOOD).await?;
    program.tells("ready").await?;
    let before = stage.server.resident()?;
    let looking = viewer(&stage.client, &target.id, &program.process, Hold::Take, silent).await?;
    let begun = Instant::now();
    program.tell("go")?;
    let done = program.tells("done").await;
    let shown = async || Ok(program.screen().await.contains("the-end-of-it"));
    let seen = until("the end is shown", shown).await;
    let (took, grown) = (begun.elapsed(), grown(stage, before)?);
    drop(looking);
    program.end().await?;
    let said = format!("{} ms, {grown} MiB more", took.as_millis());
    Ok(match (done, seen) {
        (Err(_), _) => Finding::escaped(format!("the program is stuck: {said}")),
        (_, Err(_)) => Finding::escaped(format!("its output does not arrive: {said}")),
        _ if grown > GROWTH => Finding::escaped(said),
        _ => Finding::contained(said),
    })
}

/// The same before a terminal that types every answer before it reads on.
async fn blocked(_: &Stage, _: &Target) -> Outcome<Finding> {
    let keys = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    grantpt(&keys)?;
    unlockpt(&keys)?;
    let name = ptsname(&keys, Vec::new())?.into_string()?;
    // Where this program leads its session, the terminal must not become its own: its end would end us too.
    let screen = std::fs::File::options().read(true).write(true).custom_flags(libc::O_NOCTTY).open(name)?;
    fcntl_setfl(&keys, OFlags::NONBLOCK)?;
    let script =
        "import os, time, tty; tty.setraw(0)\nfor _ in range(64): os.write(1, b'\\x1b[6n' * 4096)\ntime.sleep(100)";
    let mut program = Command::new("python3");
    program.args(["-c", script]).stdin(Stdio::from(screen.try_clone()?)).stdout(Stdio::from(screen));
    let mut program = program.stderr(Stdio::null()).spawn()?;
    let (mut answers, end, mut piece) = (0, Instant::now() + Duration::from_secs(30), [0; 4096]);
    let mut found = Finding::contained("it never had to wait");
    'reading: while Instant::now() < end {
        let count = match rustix::io::read(&keys, &mut piece) {
            Ok(count) => count,
            Err(Errno::AGAIN) => {
                tokio::time::sleep(Duration::from_millis(2)).await;
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        for _ in piece[..count].windows(4).filter(|window| window == b"\x1b[6n") {
            match rustix::io::write(&keys, b"\x1b[1;1R") {
                Ok(6) => answers += 1,
                Ok(_) | Err(Errno::AGAIN) => {
                    found = Finding::escaped(format!("both wait for each other after {answers} answers"));
                    break 'reading;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
    program.kill()?;
    program.wait()?;
    Ok(found)
}

/// Numbers that say how often, how far and how large, in every sequence that has one.
async fn numbers(stage: &Stage, target: &Target, number: &str, times: u32) -> Outcome<(Duration, u64, bool)> {
    let body = format!(
        r#"
tty.setraw(0)
put("ready", b"")
await_("go")
number = b"{number}"
for _ in range({times}):
    for last in b"@ABCDEFGHIJKLMPSTXZ`abdefghlmrst":
        say(b"x\x1b[" + number + b";" + number + bytes([last]))
    say(b"x\x1b[" + number + b"b\x1b]4;" + number + b";?\x07\x1b[38;2;" + b";".join([number] * 30) + b"m")
    say(b"\x1b[" + b"1;" * 20000 + b"m")
say(b"\x1b[0m\x1b[r\x1b[?6l\x1b[4l\x1b[2J\x1b[Hthe-end-of-it")
put("done", b"")
while True: time.sleep(1000)
"#
    );
    let program = Program::start(stage, target, &body).await?;
    program.tells("ready").await?;
    let before = stage.server.resident()?;
    let looking = viewer(&stage.client, &target.id, &program.process, Hold::Take, silent).await?;
    let begun = Instant::now();
    program.tell("go")?;
    program.tells("done").await?;
    let shown = async || Ok(program.screen().await.contains("the-end-of-it"));
    let arrived = until("the end is shown", shown).await.is_ok();
    let (took, grown) = (begun.elapsed(), grown(stage, before)?);
    drop(looking);
    program.end().await?;
    Ok((took, grown, arrived))
}

async fn huge(stage: &Stage, target: &Target) -> Outcome<Finding> {
    for number in ["65535", "99999", "4294967296", "99999999999999999999999999"] {
        let (took, grown, arrived) = numbers(stage, target, number, 30).await?;
        if !arrived || grown > GROWTH || took > Duration::from_secs(20) {
            return Ok(Finding::escaped(format!(
                "{number}: {} ms, {grown} MiB more, shown: {arrived}",
                took.as_millis()
            )));
        }
    }
    Ok(Finding::contained("the end is shown, memory as before"))
}

/// The same arrives, so that what is looked for can be seen.
async fn small(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let (.., arrived) = numbers(stage, target, "1", 1).await?;
    Ok(if arrived { Finding::escaped("the end is shown") } else { Finding::contained("the end is not shown") })
}

/// The largest window there is, and letters for all of it.
async fn huge_terminal(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let body = r#"
tty.setraw(0)
put("ready", b"")
await_("go")
for _ in range(20): say(b"\x1b[9999;9999Hx\x1b[2J\x1b[H" + b"x" * 100000 + b"\x1b[9999b\n" * 50)
say(b"\x1b[2J\x1b[Hthe-end-of-it")
put("done", b"")
while True: time.sleep(1000)
"#;
    let program = Program::start(stage, target, body).await?;
    program.tells("ready").await?;
    let before = stage.server.resident()?;
    let largest = TerminalSize { cols: 9999, rows: 9999 };
    let options = AttachOptions { raw: true, control: Hold::Take, size: Some(largest), ..AttachOptions::default() };
    let mut attachment = stage.client.attach(&target.id, &program.process, options).await?;
    let reading = tokio::spawn(async move { while let Some(Ok(_)) = attachment.next().await {} });
    program.tell("go")?;
    program.tells("done").await?;
    let shown = async || Ok(program.screen().await.contains("the-end-of-it"));
    let arrived = until("the end is shown", shown).await.is_ok();
    // Sixteen who each want it painted.
    let mut most = grown(stage, before)?;
    for _ in 0..16 {
        drop(stage.client.attach(&target.id, &program.process, AttachOptions::default()).await?);
        most = most.max(grown(stage, before)?);
    }
    reading.abort();
    program.end().await?;
    let said = format!("{most} MiB more, shown: {arrived}");
    Ok(if !arrived || most > 2 * GROWTH { Finding::escaped(said) } else { Finding::contained(said) })
}
