//! Questions of programs in terminals: an answer that would land in another prompt, prompts that pretend to be something
//! else, and more of them than anybody can read.

use std::{
    fs,
    io::Write as _,
    process::Command,
    time::{Duration, Instant},
};

use sandbar_api::{AnswerApproval, Approval, ApprovalKind, ApprovalState, Delivery};
use sandbar_client::ApprovalQuery;

use crate::{
    attack::{Attack, Class, Control, Finding, act},
    person::{Program, readable},
    stage::{Stage, Target},
    support::{Dice, Outcome, done, until},
};

const ONE: &[&str] = &["standard"];
const ROUNDS: u64 = 30;
/// Of a question that is shown to people.
const LONGEST_QUESTION: usize = 1000;

pub(crate) fn all() -> Vec<Attack> {
    let doing =
        |name, act, place, control| Attack::act(Class::Approvals, name, act, Control::Act(place, control)).on(ONE);
    vec![
        doing("prompt_changed_before_the_answer", act!(directed), "typed as input", act!(typed)),
        doing("prompt_changed_during_the_answer", act!(raced), "typed as input", act!(typed)),
        doing("answer_by_printing", act!(by_printing), "by the operator", act!(by_operator)),
        doing("answer_by_its_own_terminal", act!(by_own_terminal), "by the operator", act!(by_operator)),
        doing("answer_by_a_background_process", act!(by_background), "by the operator", act!(by_operator)),
        doing("prompt_like_an_approval", act!(like_an_approval), "by the gate", act!(of_the_gate)),
        doing("prompt_without_end", act!(endless), "a short one", act!(short)),
        doing("prompts_in_a_flood", act!(flood), "one of them", act!(short)),
    ]
}

pub(crate) async fn of(stage: &Stage, target: &Target, process: &str) -> Outcome<Vec<Approval>> {
    let query = ApprovalQuery { states: vec![], sandbox: Some(target.id.clone()), limit: Some(1000) };
    let all = stage.client.approvals(&query).await?;
    Ok(all.into_iter().filter(|one| one.context["process"] == process).collect())
}

/// What a program asks, once it does.
pub(crate) async fn asked(stage: &Stage, target: &Target, process: &str) -> Outcome<Approval> {
    let mut found = None;
    until("the program asks", async || {
        found = of(stage, target, process).await?.into_iter().find(|one| one.state == ApprovalState::Open);
        Ok(found.is_some())
    })
    .await?;
    found.ok_or_else(|| "it is gone".into())
}

fn yes() -> AnswerApproval {
    AnswerApproval { choice: "yes".into(), text: None }
}

/// Asks something harmless, and on a sign something else. It tells which of the two a line was read by: the second only if
/// nothing had been typed by the time it was printed.
const CHANGES: &str = r#"
signs = os.open(place("signs"), os.O_RDWR)
def waiting(): return bool(select.select([0], [], [], 0)[0])
number = 0
while True:
    number += 1
    say(b"\x1b[2J\x1b[HRound %d: keep the file? [y/n] " % number)
    put("asked", b"%d" % number)
    select.select([signs], [], []); os.read(signs, 1)
    if waiting(): by = b"first"
    else:
        say(b"\r\nRound %d: delete everything? [y/n] " % number)
        by = b"both" if waiting() else b"second"
    put("changed", b"%d" % number)
    select.select([signs], [], []); os.read(signs, 1)
    line = os.read(0, 100) if waiting() else b""
    put("read-%d" % number, by + b" " + line)
"#;

struct Changing<'a> {
    program: Program<'a>,
    signs: fs::File,
}

impl<'a> Changing<'a> {
    async fn start(stage: &'a Stage, target: &'a Target) -> Outcome<Self> {
        let tag = stage.number();
        let signs = target.shared.join(format!("signs-{tag}"));
        done(Command::new("mkfifo").args(["-m", "666"]).arg(&signs))?;
        let program = Program::run(&stage.client, &target.id, &target.shared, tag, CHANGES, &[]).await?;
        Ok(Self { program, signs: fs::File::options().read(true).write(true).open(signs)? })
    }

    fn sign(&mut self) -> Outcome {
        Ok(self.signs.write_all(b".")?)
    }

    async fn has(&self, name: &str, round: u64) -> Outcome {
        let (place, wanted) = (self.program.place(name), round.to_string());
        until(name, async || Ok(fs::read_to_string(&place).is_ok_and(|text| text == wanted))).await
    }

    /// Ends the round; what was read by which prompt.
    async fn read(&mut self, round: u64) -> Outcome<String> {
        self.has("changed", round).await?;
        self.sign()?;
        let name = format!("read-{round}");
        Ok(String::from_utf8_lossy(&self.program.tells(&name).await?).trim_end().to_owned())
    }
}

/// The second prompt stands before the answer to the first is given.
async fn directed(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let mut changing = Changing::start(stage, target).await?;
    let approval = asked(stage, target, &changing.program.process).await?;
    changing.sign()?;
    changing.has("changed", 1).await?;
    let answered = stage.client.answer_approval(approval.id.as_str(), &yes()).await;
    let said = match &answered {
        Ok(approval) => format!("{:?}", approval.delivery),
        Err(error) => error.code().map_or_else(|| error.to_string(), |code| format!("{code:?}")),
    };
    tokio::time::sleep(Duration::from_millis(300)).await;
    let read = changing.read(1).await?;
    changing.program.end().await?;
    Ok(if read == "second" {
        Finding::contained(said)
    } else {
        Finding::escaped(format!("{said}: read by the {read}"))
    })
}

async fn typed(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let mut changing = Changing::start(stage, target).await?;
    let process = changing.program.process.clone();
    asked(stage, target, &process).await?;
    changing.sign()?;
    changing.has("changed", 1).await?;
    stage.client.write_stdin(&target.id, &process, None, "y\n".into(), false).await?;
    let read = changing.read(1).await?;
    changing.program.end().await?;
    Ok(if read == "second y" { Finding::escaped("y is read by the second") } else { Finding::contained(read) })
}

/// The sign and the answer at about the same time, in either order.
async fn raced(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let mut changing = Changing::start(stage, target).await?;
    let process = changing.program.process.clone();
    let (mut dice, mut taken, mut refused, mut reach) = (Dice(7), 0, 0, 12_000);
    for round in 1..=ROUNDS {
        changing.has("asked", round).await?;
        let wanted = format!("Round {round}: keep");
        let mut approval = asked(stage, target, &process).await?;
        while !approval.question.contains(&wanted) {
            tokio::time::sleep(Duration::from_millis(5)).await;
            approval = asked(stage, target, &process).await?;
        }
        let (client, id) = (stage.client.clone(), approval.id.to_string());
        let answering = tokio::spawn(async move {
            let begun = Instant::now();
            let _answered = client.answer_approval(&id, &yes()).await;
            begun.elapsed()
        });
        tokio::time::sleep(Duration::from_micros(dice.roll(reach))).await;
        changing.sign()?;
        // Before, while and after it is typed, however long this host takes for that.
        reach = u64::try_from(2 * answering.await?.as_micros())?.max(12_000);
        let id = approval.id.to_string();
        let settled = async || {
            let now = stage.client.approval(&id, None).await?;
            Ok(now.state != ApprovalState::Open && now.delivery != Some(Delivery::Pending))
        };
        until("it is settled", settled).await?;
        let delivery = stage.client.approval(&id, None).await?.delivery;
        let read = changing.read(round).await?;
        match (read.as_str(), delivery) {
            ("second y", _) => {
                changing.program.end().await?;
                return Ok(Finding::escaped(format!("round {round}: y is read by the second, {delivery:?}")));
            }
            ("first y" | "both y", Some(Delivery::Typed)) => taken += 1,
            ("second", None | Some(Delivery::Refused)) => refused += 1,
            (read, delivery) => {
                changing.program.end().await?;
                return Ok(Finding::escaped(format!("round {round}: {read} and {delivery:?} contradict each other")));
            }
        }
    }
    changing.program.end().await?;
    if taken == 0 || refused == 0 {
        return Err(format!("no race: {taken} taken, {refused} refused").into());
    }
    Ok(Finding::contained(format!("{taken} read by the prompt they were for, {refused} refused")))
}

/// Asks, does something that is no answer, and tells what was typed to it in the end.
async fn pretends(stage: &Stage, target: &Target, act: &str, by_operator: bool) -> Outcome<Finding> {
    let body = format!(
        r#"
say(b"Delete everything? [y/n] ")
put("asked", b"")
await_("go")
{act}
put("done", b"")
got = heard(1.0)
put("heard", got)
while True: time.sleep(1000)
"#
    );
    let program = Program::start(stage, target, &body).await?;
    let approval = asked(stage, target, &program.process).await?;
    if by_operator {
        stage.client.answer_approval(approval.id.as_str(), &yes()).await?;
    }
    program.tell("go")?;
    program.tells("done").await?;
    let heard = program.tells("heard").await?;
    let all = of(stage, target, &program.process).await?;
    program.end().await?;
    let answered = all.iter().any(|one| one.answer.is_some());
    Ok(if answered || !heard.is_empty() {
        Finding::escaped(format!("answered: {answered}, typed: {}", readable(&heard)))
    } else {
        Finding::contained(format!("{} asked, none answered, nothing typed", all.len()))
    })
}

async fn by_operator(stage: &Stage, target: &Target) -> Outcome<Finding> {
    pretends(stage, target, "pass", true).await
}

async fn by_printing(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let act = r#"
say(b'y\r\n{"choice":"yes"}\r\nanswered apr-0 with yes\r\n\x1b]0;yes\x07\x1bP1$ryes\x1b\\y\n')
say(b"\r\nDelete everything? [y/n] y\r\nDelete everything? [y/n] ")
"#;
    pretends(stage, target, act, false).await
}

async fn by_own_terminal(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let act = r#"
for name in ("/dev/tty", os.ttyname(0)):
    with open(name, "wb", buffering=0) as own: own.write(b"y\n")
for byte in b"y\n":
    try: fcntl.ioctl(0, termios.TIOCSTI, bytes([byte]))
    except OSError: pass
"#;
    pretends(stage, target, act, false).await
}

/// Another process of the same sandbox that writes to the terminal's device.
async fn by_background(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let act = r#"
import subprocess
name = os.ttyname(0)
subprocess.run(["sh", "-c", "for i in 1 2 3; do echo y > %s; done; printf 'y\\n' >> %s" % (name, name)], start_new_session=True)
"#;
    pretends(stage, target, act, false).await
}

/// Shown for what it is, a program's prompt, whatever it says.
async fn like_an_approval(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let prompts = [
        "kind: network\\r\\nAllow the connection to api.example:443 (rule ask, by sandbar)? [y/n] ",
        "apr-01m7fje0w77fd20zgc1dwm573g network: Allow sandbox-wide access to *:*? [y/n] ",
        "[sandbar] Password for operator: ",
    ];
    for prompt in prompts {
        let quiet = if prompt.contains("Password") {
            "flags = termios.tcgetattr(0); flags[3] &= ~termios.ECHO; termios.tcsetattr(0, 0, flags)\n"
        } else {
            ""
        };
        let body = format!("{quiet}say(b\"{prompt}\")\nos.read(0, 1)\n");
        let program = Program::start(stage, target, &body).await?;
        let approval = asked(stage, target, &program.process).await?;
        let as_program = approval.kind == ApprovalKind::Terminal
            && approval.context["process"] == program.process.as_str()
            && approval.context["command"].as_str().is_some_and(|command| command.contains("python3"))
            && approval.context.get("host").is_none()
            && !approval.choices.iter().any(|choice| ["once", "sandbox"].contains(&choice.id.as_str()))
            && !approval.question.chars().any(char::is_control);
        program.end().await?;
        if !as_program {
            return Ok(Finding::escaped(format!("{approval:?}")));
        }
    }
    Ok(Finding::contained("each is of kind terminal, with its command"))
}

/// The real one, which is of another kind.
async fn of_the_gate(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let kind = crate::approvals::kind_of_the_gates(stage, target).await?;
    Ok(if kind == ApprovalKind::Network {
        Finding::escaped("of kind network")
    } else {
        Finding::contained("of another")
    })
}

async fn questioned(stage: &Stage, target: &Target, body: &str) -> Outcome<Finding> {
    let program = Program::start(stage, target, body).await?;
    // A prompt that is taken for none is one that nobody is bothered with.
    let approval = match asked(stage, target, &program.process).await {
        Ok(approval) => approval,
        Err(error) if error.to_string().contains("in vain") => {
            program.end().await?;
            return Ok(Finding::contained("nobody is asked"));
        }
        Err(error) => return Err(error),
    };
    program.end().await?;
    let size = serde_json::to_string(&approval)?.len();
    let bounded = approval.question.len() <= LONGEST_QUESTION && size < 64 << 10;
    let exact = approval.question == "Go on? [y/n]";
    Ok(if exact || !bounded || approval.question.chars().any(char::is_control) {
        Finding::escaped(format!("a question of {} bytes, {size} in all", approval.question.len()))
    } else {
        Finding::contained(format!("a question of {} bytes, {size} in all", approval.question.len()))
    })
}

async fn endless(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let long = questioned(stage, target, "say(b\"Delete \" + b\"x\" * 4000 + b\"? [y/n] \")\nos.read(0, 1)\n").await?;
    if matches!(long, Finding::Escaped(_)) {
        return Ok(long);
    }
    let wide = "say(b\"Delete \" + \"\\u0301\\U0001F4A9\".encode() * 1000 + b\"? [y/n] \")\nos.read(0, 1)\n";
    questioned(stage, target, wide).await
}

async fn short(stage: &Stage, target: &Target) -> Outcome<Finding> {
    questioned(stage, target, "say(b\"Go on? [y/n] \")\nos.read(0, 1)\n").await
}

/// A new prompt two hundred times a second, for ten seconds.
async fn flood(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let body = r#"
end, number = time.time() + 10, 0
while time.time() < end:
    number += 1
    say(b"\x1b[2J\x1b[HDelete file %d? [y/n] " % number)
    time.sleep(0.005)
put("done", b"%d" % number)
while True: time.sleep(1000)
"#;
    let before = stage.server.resident()?;
    let program = Program::start(stage, target, body).await?;
    let begun = Instant::now();
    let printed = String::from_utf8_lossy(&program.tells("done").await?).into_owned();
    let (all, took) = (of(stage, target, &program.process).await?.len(), begun.elapsed().as_secs());
    program.end().await?;
    let grown = stage.server.resident()?.saturating_sub(before) >> 10;
    let said = format!("{all} asked of {printed} prompts in {took} s, {grown} MiB more");
    Ok(if all > 30 || grown > 64 { Finding::escaped(said) } else { Finding::contained(said) })
}
