//! `preview`: a link that opens a server in a sandbox in a browser.

use chrono::{TimeDelta, Utc};

use crate::{
    context::Context,
    exit::{self, Failure},
    text::{self, inert},
};

/// Open a server that runs in a sandbox in a browser
///
/// Prints a link that works once and lets one browser in for half a day. The page has a host name of its own, below
/// localhost or the domain of `sandbar up --preview-domain`; the sandbox gets no way out by it.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sandbar preview web 8080
  xdg-open \"$(sandbar preview web 8080)\"")]
pub(crate) struct Preview {
    /// The sandbox's id or name
    sandbox: String,

    /// The port inside
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,
}

pub(crate) async fn preview(args: &Preview, context: &Context) -> Result<u8, Failure> {
    let (client, print) = (context.client()?, context.print);
    let preview = client.preview(&args.sandbox, args.port).await?;
    if print.json {
        return print.json(&preview).map(|()| exit::OK);
    }
    // What the answer took on its way is not worth a minute less.
    let left = text::span(preview.expires_at - Utc::now() + TimeDelta::seconds(1));
    let sandbox = inert(&args.sandbox);
    print.say(format!("port {} of {sandbox}: the link works once, in the next {left}", args.port));
    print.line(inert(&preview.url))?;
    Ok(exit::OK)
}
