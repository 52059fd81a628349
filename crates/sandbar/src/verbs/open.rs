//! `open`: a link that signs a browser in.

use chrono::{TimeDelta, Utc};

use crate::{
    context::Context,
    exit::{self, Failure},
    text::{self, inert},
};

/// Print a link that signs a browser in
///
/// The link works once, within ten minutes, and makes the browser that opens it an admin for seven days. Only the owner of
/// the server's Unix socket gets one, in a pod by `kubectl exec`: whoever reads the link is an admin.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sandbar open
  xdg-open \"$(sandbar open)\"
  sandbar open --at https://sandbar.example.com
  kubectl -n sandbar exec deploy/sandbar -c server -- /sandbar open")]
pub(crate) struct Open {
    /// Where the browser reaches the server [default: where it listens, by the name sandbar.localhost]
    #[arg(long, value_name = "URL", value_parser = place)]
    at: Option<String>,
}

pub(crate) async fn open(args: &Open, context: &Context) -> Result<u8, Failure> {
    let (client, print) = (context.client()?, context.print);
    let mut link = client.sign_in_link().await?;
    if let (Some(place), Some((_, code))) = (&args.at, link.url.split_once("/#")) {
        link.url = format!("{place}/#{code}");
    }
    if print.json {
        return print.json(&link).map(|()| exit::OK);
    }
    // What the answer took on its way is not worth a minute less.
    let left = text::span(link.expires_at - Utc::now() + TimeDelta::seconds(1));
    print.say(format!("the link works once, in the next {left}, and makes its browser an admin"));
    print.line(inert(&link.url))?;
    Ok(exit::OK)
}

/// The beginning of a URL, without what would be a path of ours.
fn place(text: &str) -> Result<String, String> {
    let place = text.strip_suffix('/').unwrap_or(text);
    let host = place.strip_prefix("https://").or_else(|| place.strip_prefix("http://"));
    let is_host = |host: &&str| !host.is_empty() && !host.contains(['/', '#', '?', '@', ' ']);
    host.filter(is_host).ok_or("write http://HOST:PORT or https://HOST:PORT")?;
    Ok(place.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_at_a_server_and_nowhere_in_it() {
        for (text, want) in [
            ("https://box.example", Some("https://box.example")),
            ("http://sandbar.localhost:7401/", Some("http://sandbar.localhost:7401")),
            ("https://[::1]:7227", Some("https://[::1]:7227")),
            ("box.example", None),
            ("https://", None),
            ("https://box.example/docs", None),
            ("https://box.example#x", None),
            ("https://me@box.example", None),
        ] {
            assert_eq!(place(text).ok().as_deref(), want, "{text}");
        }
    }
}
