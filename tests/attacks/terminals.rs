//! Terminals: typing into somebody else's, and text that an operator's terminal would obey.

use sandbar_api::{CreateSandbox, StartProcess, TerminalSize};

use crate::{
    attack::{
        Attack, Class,
        Control::{self, NotRun},
        Finding, act,
    },
    stage::{Stage, Target, recipe},
    support::{Outcome, until},
};

/// Clears the screen, sets the title, writes to the clipboard and asks for an answer.
const EVIL: &str = "\u{1b}[2J\u{1b}]0;owned\u{7}\u{1b}]52;c;b3duZWQ=\u{7}\u{1b}[6n\u{9b}31m";

pub(crate) fn all() -> Vec<Attack> {
    let doing = |name, act, control| Attack::act(Class::Terminals, name, act, control);
    let console = || NotRun("only a virtual console of the host has it, and only its root may ask");
    vec![
        doing("tiocsti", act!(tiocsti), Control::Act("without seccomp", act!(tiocsti_open))),
        doing("tiocsti_by_high_bits", act!(tiocsti_high), Control::Act("without seccomp", act!(tiocsti_high_open))),
        doing("tioclinux", act!(tioclinux), console()),
        doing("line_discipline", act!(discipline), Control::Act("without seccomp", act!(discipline_open))),
        doing(
            "line_discipline_by_high_bits",
            act!(discipline_high),
            Control::Act("without seccomp", act!(discipline_high_open)),
        ),
        doing("tioccons", act!(tioccons), console()),
        doing(
            "descriptors_on_a_terminal",
            act!(descriptors),
            Control::Act("with one left open", act!(crate::files::left_open)),
        ),
        doing(
            "terminal_of_a_neighbour",
            act!(neighbours_terminal),
            Control::Act("in the sandbox itself", act!(own_terminal)),
        ),
        doing("escape_sequences_in_ps", act!(in_ps), Control::Act("in the raw answer", act!(in_raw))),
        doing("escape_sequences_in_names", act!(in_names), Control::Act("without them", act!(plain_name))),
        doing("escape_sequences_in_an_error", act!(in_error), Control::Act("in the raw answer", act!(in_raw))),
        doing("names_like_flags", act!(flag_name), Control::Act("without a dash", act!(plain_name))),
    ]
}

/// Runs a probe on a terminal of its own and waits for its word.
async fn on_terminal(stage: &Stage, target: &Target, probe: &str) -> Outcome<Finding> {
    let request = StartProcess {
        argv: ["/workspace/attacks", "--inside", probe].map(str::to_owned).to_vec(),
        terminal: Some(TerminalSize { cols: 80, rows: 24 }),
        ..StartProcess::default()
    };
    let process = stage.client.start_process(&target.id, &request).await?.id.to_string();
    until("the probe ends", async || Ok(stage.client.process(&target.id, &process).await?.exit.is_some())).await?;
    let output = text(stage, target, &process).await?;
    Finding::parse(&output.replace('\r', "")).ok_or_else(|| format!("no verdict: {output}").into())
}

pub(crate) async fn text(stage: &Stage, target: &Target, process: &str) -> Outcome<String> {
    use futures_util::TryStreamExt as _;
    let output = stage.client.output_bytes(&target.id, process, &sandbar_client::OutputQuery::default()).await?;
    let bytes: Vec<bytes::Bytes> = output.bytes.try_collect().await?;
    Ok(String::from_utf8_lossy(&bytes.concat()).into_owned())
}

async fn tiocsti(stage: &Stage, target: &Target) -> Outcome<Finding> {
    on_terminal(stage, target, "tiocsti").await
}

async fn tiocsti_high(stage: &Stage, target: &Target) -> Outcome<Finding> {
    on_terminal(stage, target, "tiocsti_by_high_bits").await
}

async fn tioclinux(stage: &Stage, target: &Target) -> Outcome<Finding> {
    on_terminal(stage, target, "tioclinux").await
}

async fn tioccons(stage: &Stage, target: &Target) -> Outcome<Finding> {
    on_terminal(stage, target, "tioccons").await
}

async fn descriptors(stage: &Stage, target: &Target) -> Outcome<Finding> {
    on_terminal(stage, target, "descriptors").await
}

async fn discipline(stage: &Stage, target: &Target) -> Outcome<Finding> {
    on_terminal(stage, target, "line_discipline").await
}

async fn discipline_high(stage: &Stage, target: &Target) -> Outcome<Finding> {
    on_terminal(stage, target, "line_discipline_by_high_bits").await
}

async fn discipline_open(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let open = stage.target(target.profile, &recipe(target.profile, "", &["seccomp"])).await?;
    on_terminal(stage, &open, "line_discipline").await
}

async fn discipline_high_open(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let open = stage.target(target.profile, &recipe(target.profile, "", &["seccomp"])).await?;
    on_terminal(stage, &open, "line_discipline_by_high_bits").await
}

async fn without_seccomp(stage: &Stage, target: &Target, probe: &str) -> Outcome<Finding> {
    if std::fs::read_to_string("/proc/sys/dev/tty/legacy_tiocsti").is_ok_and(|text| text.trim() == "0") {
        return Ok(Finding::not_run("the host has closed it: dev.tty.legacy_tiocsti is 0"));
    }
    let open = stage.target(target.profile, &recipe(target.profile, "", &["seccomp"])).await?;
    on_terminal(stage, &open, probe).await
}

async fn tiocsti_open(stage: &Stage, target: &Target) -> Outcome<Finding> {
    without_seccomp(stage, target, "tiocsti").await
}

async fn tiocsti_high_open(stage: &Stage, target: &Target) -> Outcome<Finding> {
    without_seccomp(stage, target, "tiocsti_by_high_bits").await
}

/// One with a terminal, and what another sandbox, or itself, finds of it.
async fn seen_terminal(stage: &Stage, target: &Target, own: bool) -> Outcome<Finding> {
    let recipe = recipe(target.profile, "", &[]);
    let other = stage.fresh(target.profile, &recipe).await?;
    let request = StartProcess {
        argv: ["sleep", "600"].map(str::to_owned).to_vec(),
        terminal: Some(TerminalSize { cols: 80, rows: 24 }),
        ..StartProcess::default()
    };
    stage.client.start_process(&other.id, &request).await?;
    let looker = if own { &other } else { target };
    let ran = stage.sh(looker, "ls /dev/pts | grep -v ptmx | head -n 1").await?;
    stage.delete(&other).await?;
    Ok(if ran.stdout.is_empty() {
        Finding::contained("none is there")
    } else {
        Finding::escaped(format!("/dev/pts/{}", ran.stdout.trim()))
    })
}

async fn neighbours_terminal(stage: &Stage, target: &Target) -> Outcome<Finding> {
    seen_terminal(stage, target, false).await
}

async fn own_terminal(stage: &Stage, target: &Target) -> Outcome<Finding> {
    seen_terminal(stage, target, true).await
}

/// Whether a terminal would do more with it than show it.
pub(crate) fn obeyed(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    text.chars().any(|character| character.is_control() && !matches!(character, '\n' | '\t' | '\r'))
}

fn shown(stage: &Stage, arguments: &[&str]) -> Outcome<Finding> {
    let ran = stage.server.command(arguments).env("TERM", "xterm-256color").env("NO_COLOR", "1").output()?;
    let all = [ran.stdout, ran.stderr].concat();
    let seen = String::from_utf8_lossy(&all).escape_debug().take(100).collect::<String>();
    Ok(if obeyed(&all) { Finding::escaped(seen) } else { Finding::contained(seen) })
}

async fn in_ps(stage: &Stage, target: &Target) -> Outcome<Finding> {
    stage.exec(target, &["true", EVIL]).await?;
    let all = stage.server.command(&["ps", &target.id]).output()?.stdout;
    if !String::from_utf8_lossy(&all).contains("owned") {
        return Err("it is not shown at all".into());
    }
    shown(stage, &["ps", &target.id])
}

/// The same bytes as the API gives them, unescaped.
async fn in_raw(stage: &Stage, target: &Target) -> Outcome<Finding> {
    stage.exec(target, &["true", EVIL]).await?;
    let processes = stage.client.processes(&target.id).await?;
    let evil = processes.iter().any(|process| process.argv.iter().any(|word| obeyed(word.as_bytes())));
    Ok(if evil { Finding::escaped("they are as they were written") } else { Finding::contained("they are gone") })
}

async fn in_error(stage: &Stage, target: &Target) -> Outcome<Finding> {
    shown(stage, &["exec", &target.id, "--", EVIL])
}

async fn named(stage: &Stage, name: &str) -> Outcome<Finding> {
    let request = CreateSandbox { name: Some(name.to_owned()), ..CreateSandbox::default() };
    match stage.client.create(&request, None).await {
        Ok(made) => {
            stage.client.delete(made.sandbox.id.as_str()).await?;
            Ok(Finding::escaped("it was taken"))
        }
        Err(error) => Ok(Finding::contained(crate::files_api::refusal(error)?)),
    }
}

async fn in_names(stage: &Stage, _: &Target) -> Outcome<Finding> {
    let labels = [("label".to_owned(), EVIL.to_owned())].into();
    let labelled = stage.client.create(&CreateSandbox { labels, ..CreateSandbox::default() }, None).await;
    if let Ok(made) = labelled {
        stage.client.delete(made.sandbox.id.as_str()).await?;
        return Ok(Finding::escaped("the label was taken"));
    }
    for name in [EVIL, "<script>alert(1)</script>", "a\nb", "../x", "a/b"] {
        if let Finding::Escaped(what) = named(stage, name).await? {
            return Ok(Finding::escaped(format!("{}: {what}", name.escape_debug())));
        }
    }
    Ok(Finding::contained("each was refused"))
}

async fn flag_name(stage: &Stage, _: &Target) -> Outcome<Finding> {
    named(stage, "--all").await
}

async fn plain_name(stage: &Stage, _: &Target) -> Outcome<Finding> {
    named(stage, "all").await
}
