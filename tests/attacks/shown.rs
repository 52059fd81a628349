//! What a program prints must draw on the terminal of whoever looks, and do nothing else there: every sequence that acts
//! or asks, by every way of looking, judged by a reading of our own of what arrived.

use std::process::Command;

use sandbar_client::{AttachEvent, AttachOptions};

use crate::{
    attack::{Attack, Class, Control, Finding, act},
    judge::{self, Look},
    person::{Person, Program, holds, readable},
    stage::{Stage, Target},
    support::{Outcome, Server, done, until},
};

const ONE: &[&str] = &["standard"];
const END: &str = "the-end-of-it";

/// Prints what it is given in pieces of a size, tells what was typed to it meanwhile, and stays.
const PRINTS: &str = r#"
tty.setraw(0)
put("ready", b"")
await_("go")
evil, size = get("evil"), int(get("size"))
for at in range(0, len(evil), size):
    say(evil[at:at + size])
    if size < 100: time.sleep(0.0005)
got = last_answered() + heard(0.7)
say(b"\r\nthe-end-of-it\r\n")
put("heard", got)
while True: time.sleep(1000)
"#;

pub(crate) fn all() -> Vec<Attack> {
    let doing =
        |name, act| Attack::act(Class::Terminals, name, act, Control::Act("on a plain terminal", act!(plain))).on(ONE);
    vec![
        doing("sequences_when_attached", act!(attached)),
        doing("sequences_in_pieces_when_attached", act!(in_pieces)),
        doing("sequences_when_attached_later", act!(attached_later)),
        doing("sequences_when_attached_to_the_session", act!(session)),
        doing("sequences_over_a_reconnect", act!(reconnect)),
        doing("sequences_over_the_api", act!(api)),
        doing("sequences_in_a_replay", act!(replay)),
        doing("sequences_in_logs", act!(logs)),
        doing("sequences_in_a_screen", act!(screen)),
        doing("sequences_in_a_transcript", act!(transcript)),
        doing("sequences_in_a_question", act!(question)),
    ]
}

fn verdict(shown: &[u8], look: &Look) -> Finding {
    let acts = judge::acts(shown, look);
    if acts.is_empty() {
        Finding::contained(format!("{} bytes, none of which acts", shown.len()))
    } else {
        Finding::escaped(acts.join(", ").chars().take(300).collect::<String>())
    }
}

/// The same bytes by `cat`: each of them acts.
async fn plain(stage: &Stage, _: &Target) -> Outcome<Finding> {
    let look = Look::Shown;
    for (name, bytes) in judge::evil() {
        if judge::acts(&bytes, &look).is_empty() {
            return Ok(Finding::contained(format!("{name} is not seen to act")));
        }
    }
    let file = stage.directory("evil")?.join("evil");
    std::fs::write(&file, judge::evil_bytes())?;
    let mut command = Command::new("cat");
    command.arg(file);
    let shown = Person::sits(&command)?.leaves()?;
    let (acts, all) = (judge::acts(&shown, &look).len(), judge::evil().len());
    Ok(if acts < all {
        Finding::contained(format!("{acts} of {all}"))
    } else {
        Finding::escaped(format!("{acts} acts"))
    })
}

async fn started<'a>(stage: &'a Stage, target: &'a Target, size: &str) -> Outcome<Program<'a>> {
    let mut evil = judge::evil_bytes();
    if size.len() < 3 {
        // Byte by byte the long one at the end would take long.
        evil.truncate(4000);
        evil.extend(b"\x1b\\\r\n");
    }
    let files: [(&str, &[u8]); 2] = [("evil", &evil), ("size", size.as_bytes())];
    let program = Program::start_with(stage, target, PRINTS, &files).await?;
    program.tells("ready").await?;
    Ok(program)
}

/// One that has printed all of it.
async fn printed<'a>(stage: &'a Stage, target: &'a Target) -> Outcome<Program<'a>> {
    let program = started(stage, target, "65536").await?;
    program.tell("go")?;
    program.tells("heard").await?;
    Ok(program)
}

fn title(target: &Target) -> Look {
    Look::Attached(format!("{}: ", target.id))
}

/// What the program hears when nobody looks, and what when somebody is there from the beginning, who sees this.
async fn compared(stage: &Stage, target: &Target, size: &str) -> Outcome<(Vec<u8>, Vec<u8>, Vec<u8>)> {
    let alone = started(stage, target, size).await?;
    alone.tell("go")?;
    let expected = alone.tells("heard").await?;
    alone.end().await?;
    let program = started(stage, target, size).await?;
    let person = Person::sits(&stage.server.command(&["attach", &target.id, &program.process]))?;
    person.sees("\u{1b}[2J").await?;
    program.tell("go")?;
    let got = program.tells("heard").await?;
    person.sees(END).await?;
    program.end().await?;
    Ok((expected, got, person.leaves()?))
}

/// Whoever looks makes no difference to the program.
async fn watched(stage: &Stage, target: &Target, size: &str) -> Outcome<Finding> {
    let mut found = Finding::not_run("nothing was tried");
    // Answers that would be late are given up, once in a while also here.
    for _ in 0..3 {
        let (expected, got, shown) = compared(stage, target, size).await?;
        if got == expected {
            return Ok(verdict(&shown, &title(target)));
        }
        found = Finding::escaped(format!("typed {} instead of {}", readable(&got), readable(&expected)));
    }
    Ok(found)
}

async fn attached(stage: &Stage, target: &Target) -> Outcome<Finding> {
    watched(stage, target, "65536").await
}

async fn in_pieces(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let one = watched(stage, target, "1").await?;
    if matches!(one, Finding::Escaped(_)) { Ok(one) } else { watched(stage, target, "7").await }
}

async fn attached_later(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let program = printed(stage, target).await?;
    let mut person = Person::sits(&stage.server.command(&["attach", &target.id, &program.process]))?;
    person.sees(END).await?;
    person.types(b"\x01d")?;
    let shown = person.leaves()?;
    program.end().await?;
    Ok(verdict(&shown, &title(target)))
}

async fn session(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let session = stage.client.sandbox(&target.id).await?.session.to_string();
    let program = started(stage, target, "65536").await?;
    let arguments = ["session", "attach", &session, &program.process];
    let person = Person::sits(&stage.server.command(&arguments))?;
    person.sees("\u{1b}[2J").await?;
    program.tell("go")?;
    person.sees(END).await?;
    program.end().await?;
    let (shown, named) = (person.leaves()?, stage.client.session(&session).await?);
    Ok(verdict(&shown, &Look::Attached(format!("{}: ", named.name.unwrap_or(session)))))
}

/// The server dies in the middle of every sequence; for a person, and for a viewer whom the server filters for.
async fn reconnect(stage: &Stage, _: &Target) -> Outcome<Finding> {
    const HALVES: &str = r#"
tty.setraw(0)
put("ready", b"")
await_("go")
say(get("first")); put("printed", b"")
await_("on")
say(get("second") + b"\r\nthe-end-of-it\r\n")
put("heard", heard(1.5))
while True: time.sleep(1000)
"#;
    let mut server = Server::start_in(stage.scratch.join(format!("home-{}", stage.number())))?;
    let shared = stage.directory("shared")?;
    done(&mut server.command(&["create", "--name", "box", "--workspace", &format!("{}:rw", shared.display())]))?;
    let mut all = vec![];
    for (_, evil) in judge::evil().into_iter().filter(|(name, _)| judge::IN_HALVES.contains(name)) {
        let (first, second) = evil.split_at(evil.len() / 2);
        let client = server.client()?;
        let files = [("first", first), ("second", second)];
        let program = Program::run(&client, "box", &shared, stage.number(), HALVES, &files).await?;
        program.tells("ready").await?;
        let person = Person::sits(&server.command(&["attach", "box", &program.process]))?;
        person.sees("\u{1b}[2J").await?;
        let options = AttachOptions { from: Some(0), ..AttachOptions::default() };
        let mut viewer = client.attach("box", &program.process, options).await?;
        program.tell("go")?;
        program.tells("printed").await?;
        until("the first half is kept", async || Ok(client.screen("box", &program.process).await?.offset > 0)).await?;
        server.kill()?;
        server.restart()?;
        program.tell("on")?;
        person.sees(END).await?;
        let mut filtered = vec![];
        while !holds(&filtered, END.as_bytes()) {
            match viewer.next().await.ok_or("the viewer's end")?? {
                AttachEvent::Output { data, .. } => filtered.extend_from_slice(&data),
                AttachEvent::Screen { data, .. } => filtered.extend_from_slice(data.as_bytes()),
                _ => {}
            }
        }
        program.end().await?;
        all.extend(person.leaves()?);
        all.extend(filtered);
    }
    done(&mut server.command(&["rm", "-f", "box"]))?;
    Ok(verdict(&all, &Look::Attached("box: ".into())))
}

/// A viewer of the WebSocket who does not ask for raw output, from the beginning.
async fn api(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let program = printed(stage, target).await?;
    let options = AttachOptions { from: Some(0), ..AttachOptions::default() };
    let mut viewer = stage.client.attach(&target.id, &program.process, options).await?;
    let mut shown = vec![];
    while !holds(&shown, END.as_bytes()) {
        if let AttachEvent::Output { data, .. } = viewer.next().await.ok_or("the viewer's end")?? {
            shown.extend_from_slice(&data);
        }
    }
    program.end().await?;
    Ok(verdict(&shown, &Look::Attached(String::new())))
}

/// By commands that show and end, each of them on a terminal.
async fn by(stage: &Stage, target: &Target, ways: &[&[&str]]) -> Outcome<Finding> {
    let program = printed(stage, target).await?;
    program.end().await?;
    let processes = stage.client.processes(&target.id).await?;
    let newest = processes.iter().filter(|one| one.terminal).max_by_key(|one| one.started_at).ok_or("no terminal")?;
    let mut last = Finding::not_run("nothing was tried");
    for way in ways {
        let arguments = [way, &[target.id.as_str(), newest.id.as_str()][..]].concat();
        let person = Person::sits(&stage.server.command(&arguments))?;
        person.sees(END).await?;
        last = verdict(&person.leaves()?, &Look::Shown);
        if matches!(last, Finding::Escaped(_)) {
            break;
        }
    }
    Ok(last)
}

async fn replay(stage: &Stage, target: &Target) -> Outcome<Finding> {
    by(stage, target, &[&["replay", "--speed", "100", "--idle", "1ms"]]).await
}

async fn logs(stage: &Stage, target: &Target) -> Outcome<Finding> {
    by(stage, target, &[&["logs"]]).await
}

async fn screen(stage: &Stage, target: &Target) -> Outcome<Finding> {
    by(stage, target, &[&["screen"], &["screen", "--ansi"]]).await
}

async fn transcript(stage: &Stage, target: &Target) -> Outcome<Finding> {
    by(stage, target, &[&["transcript"]]).await
}

/// A question between and within such sequences, of a command with them in its words.
async fn question(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let body = r#"
before = termios.tcgetattr(0)
tty.setraw(0)
say(get("evil") + b"\x1b[2J\x1b[H")
last_answered()
termios.tcsetattr(0, termios.TCSAFLUSH, before)
say(b"Remove \x1b]52;c;b3duZWQ=\x07all\x1b]8;;http://evil.example\x07 of it\x1b]8;;\x07\xc2\x9b6n? [y/n] \x1b[0m")
os.read(0, 1)
"#;
    let body = format!("{body}# {}", judge::EVIL_WORDS);
    let program = Program::start_with(stage, target, &body, &[("evil", &judge::evil_bytes())]).await?;
    let asked = crate::prompts::asked(stage, target, &program.process).await?;
    if asked.question.chars().any(char::is_control) {
        return Ok(Finding::escaped(format!("the question is {:?}", asked.question)));
    }
    let id = asked.id.to_string();
    let mut shown = Person::sits(&stage.server.command(&["approvals"]))?.leaves()?;
    shown.extend(Person::sits(&stage.server.command(&["approvals", &id]))?.leaves()?);
    let watching = Person::sits(&stage.server.command(&["approvals", "--watch"]))?;
    watching.sees(&id).await?;
    program.end().await?;
    watching.sees("withdrawn").await?;
    shown.extend(watching.seen());
    Ok(verdict(&shown, &Look::Shown))
}
