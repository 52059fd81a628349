//! What a kernel counts for all: a sandbox that takes everything there is must not leave a neighbour or the host without.

use std::{process::Command, time::Duration};

use sandbar_api::StartProcess;

use crate::{
    attack::{Attack, Class, Control, Finding, act},
    stage::{Stage, Target, recipe},
    support::{Outcome, until},
    terminals::text,
};

pub(crate) fn all() -> Vec<Attack> {
    let doing = |name, act, control| Attack::act(Class::Neighbours, name, act, control);
    let own = |act| Control::Act("in the sandbox itself", act);
    vec![
        // Taking all of it without the filter would be the host's loss; one is enough to see that it is given.
        doing("asynchronous_io_of_all", act!(aio), Control::Act("one, without seccomp", act!(one_aio))),
        doing("watches_of_all", act!(inotify), own(act!(own_inotify))),
        doing("queued_signals_of_all", act!(signals), own(act!(own_signals))),
    ]
}

async fn aio(stage: &Stage, target: &Target) -> Outcome<Finding> {
    exhaust(stage, target, "aio_bomb", "aio_one", false).await
}

async fn one_aio(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let open = stage.target(target.profile, &recipe(target.profile, "", &["seccomp"])).await?;
    stage.probe(&open, &["aio_one"]).await
}

async fn inotify(stage: &Stage, target: &Target) -> Outcome<Finding> {
    exhaust(stage, target, "inotify_bomb", "inotify_one", false).await
}

async fn own_inotify(stage: &Stage, target: &Target) -> Outcome<Finding> {
    exhaust(stage, target, "inotify_bomb", "inotify_one", true).await
}

async fn signals(stage: &Stage, target: &Target) -> Outcome<Finding> {
    exhaust(stage, target, "signal_bomb", "signal_one", false).await
}

async fn own_signals(stage: &Stage, target: &Target) -> Outcome<Finding> {
    exhaust(stage, target, "signal_bomb", "signal_one", true).await
}

/// A culprit that holds all it can get, and whoever asks for one more meanwhile.
async fn exhaust(stage: &Stage, target: &Target, bomb: &str, one: &str, own: bool) -> Outcome<Finding> {
    // What a neighbour never gets, nobody can take from it.
    let usual = stage.probe(target, &[one]).await?;
    let culprit = stage.fresh(target.profile, &recipe(target.profile, "", &[])).await?;
    let request = StartProcess {
        argv: ["/workspace/attacks", "--inside", bomb].map(str::to_owned).to_vec(),
        ..StartProcess::default()
    };
    let process = stage.client.start_process(&culprit.id, &request).await?.id.to_string();
    until("the culprit has all", async || Ok(stage.client.process(&culprit.id, &process).await?.output.end > 0))
        .await?;
    let neighbour = stage.probe(if own { &culprit } else { target }, &[one]).await;
    let host = Command::new(stage.scratch.join("attacks")).args(["--inside", one]).output();
    let held = text(stage, &culprit, &process).await?;
    stage.delete(&culprit).await?;
    // Given back a moment after the last process is gone.
    tokio::time::sleep(Duration::from_millis(20)).await;
    let (neighbour, host) = (neighbour?, Finding::parse(&String::from_utf8_lossy(&host?.stdout)));
    let held = held.trim();
    Ok(match (own, neighbour, host) {
        (true, Finding::Contained(how), _) => Finding::escaped(format!("{held}: nothing is left, {how}")),
        (true, other, _) => Finding::contained(format!("{held}: {}", other.line())),
        (false, _, Some(Finding::Contained(how))) => Finding::escaped(format!("the host has none left: {how}; {held}")),
        (false, Finding::Contained(how), _) if matches!(usual, Finding::Escaped(_)) => {
            Finding::escaped(format!("a neighbour has none left: {how}; {held}"))
        }
        (false, ..) => Finding::contained(format!("neighbour and host get what they did; {held}")),
    })
}
