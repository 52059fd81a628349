//! What changes the state of sandboxes: `stop`, `start`, `pause`, `resume`.

use std::time::Instant;

use sandbar_api::Sandbox;
use sandbar_client::Client;

use crate::{
    context::Context,
    exit::Failure,
    print::{Printer, Style},
    spinner,
    text::{self, inert},
    verbs::sandbox::{Sandboxes, each},
};

pub(crate) async fn stop(which: &Sandboxes, context: &Context) -> Result<u8, Failure> {
    let client = context.client()?;
    each(&which.sandboxes, context, async |name| changed(&STOP, name, &client, client.stop(name), context.print).await)
        .await
}

pub(crate) async fn start(which: &Sandboxes, context: &Context) -> Result<u8, Failure> {
    let client = context.client()?;
    each(&which.sandboxes, context, async |name| {
        changed(&START, name, &client, client.start(name), context.print).await
    })
    .await
}

pub(crate) async fn pause(which: &Sandboxes, context: &Context) -> Result<u8, Failure> {
    let client = context.client()?;
    each(&which.sandboxes, context, async |name| {
        changed(&PAUSE, name, &client, client.pause(name), context.print).await
    })
    .await
}

pub(crate) async fn resume(which: &Sandboxes, context: &Context) -> Result<u8, Failure> {
    let client = context.client()?;
    each(&which.sandboxes, context, async |name| {
        changed(&RESUME, name, &client, client.resume(name), context.print).await
    })
    .await
}

/// How a change is told.
struct Words {
    did: &'static str,
    doing: &'static str,
    already: &'static str,
}

const STOP: Words = Words { did: "stopped", doing: "stopping", already: "stopped" };
const START: Words = Words { did: "started", doing: "starting", already: "running" };
const PAUSE: Words = Words { did: "paused", doing: "pausing", already: "paused" };
const RESUME: Words = Words { did: "resumed", doing: "resuming", already: "running" };

async fn changed(
    words: &Words,
    name: &str,
    client: &Client,
    change: impl Future<Output = sandbar_client::Result<Sandbox>>,
    print: Printer,
) -> Result<(), Failure> {
    let begin = Instant::now();
    let before = client.sandbox(name).await?;
    let sandbox = spinner::during(format!("{} {}", words.doing, inert(name)), change).await?;
    if print.json {
        return print.json(&sandbox);
    }
    let name = print.note(&inert(&sandbox.name), Style::Bold);
    print.say(match (before.state, before.changed_at) == (sandbox.state, sandbox.changed_at) {
        true => format!("{name} ({}) is already {}", sandbox.id, words.already),
        false => format!("{} {name} ({}) in {}", words.did, sandbox.id, text::took(begin.elapsed())),
    });
    Ok(())
}
