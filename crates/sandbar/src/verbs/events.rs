//! `events`: the log of everything that happened, from any point on.

use futures_util::StreamExt as _;
use sandbar_api::Event;

use crate::{
    context::Context,
    exit::{self, Failure},
    print::Printer,
    text::{inert, inert_json},
};

/// How many events a request brings.
const PAGE: u32 = 1000;

/// Show what has happened
///
/// Events are numbered without gaps. `-f` goes on with what happens next, also across restarts of the server.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sandbar events
  sandbar events -f --sandbox agent
  sandbar events --from 1200 --json")]
pub(crate) struct Events {
    /// Go on with what happens next
    #[arg(short, long)]
    follow: bool,

    /// The first event wanted, by its number; by default the first that is kept
    #[arg(long, value_name = "N")]
    from: Option<u64>,

    /// Only events of this sandbox
    #[arg(long, value_name = "SANDBOX")]
    sandbox: Option<String>,
}

pub(crate) async fn events(args: &Events, context: &Context) -> Result<u8, Failure> {
    let client = context.client()?;
    let sandbox = args.sandbox.as_deref();
    if args.follow {
        let mut events = std::pin::pin!(client.events(args.from, sandbox));
        while let Some(event) = events.next().await {
            show(&event?, context.print)?;
        }
        return Ok(exit::OK);
    }
    let mut from = args.from;
    loop {
        let page = client.event_page(from, Some(PAGE), sandbox).await?;
        for event in &page {
            show(event, context.print)?;
        }
        match page.last() {
            Some(last) => from = Some(last.seq + 1),
            None => return Ok(exit::OK),
        }
    }
}

fn show(event: &Event, print: Printer) -> Result<(), Failure> {
    if print.json {
        return print.json(event);
    }
    let at = event.at.format("%Y-%m-%d %H:%M:%S%.3f");
    let mut line = format!("{:>6}  {at}  {:<20}", event.seq, inert(&event.kind));
    for about in [&event.sandbox, &event.process].into_iter().flatten() {
        line.push_str("  ");
        line.push_str(&inert(about));
    }
    let empty = event.data.is_null() || event.data.as_object().is_some_and(serde_json::Map::is_empty);
    if !empty {
        line.push_str("  ");
        line.push_str(&inert_json(&event.data.to_string()));
    }
    print.line(line)
}
