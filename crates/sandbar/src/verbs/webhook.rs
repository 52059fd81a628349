//! `webhook add|ls|show|rm|test`: who outside is told when somebody has to answer.

use chrono::Utc;
use sandbar_api::{CreateWebhook, Webhook as Told, WebhookList, WebhookState};

use crate::{
    context::Context,
    exit::{self, Failure},
    spinner, table,
    text::{self, inert},
    verbs::sandbox::each,
};

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Webhook {
    /// Send events to a URL from now on; the signing secret is printed once and cannot be shown again
    ///
    /// Each event is POSTed in order and at least once, signed as Standard Webhooks has it, and tried for three days. The
    /// URL is https; http goes to addresses that gateway.toml lists as private. Private addresses need to be listed there
    /// either way. Redirects are not followed.
    #[command(after_help = "\
Examples:
  sandbar webhook add https://hooks.example.org/sandbar --name pager
  sandbar webhook add https://hooks.example.org/sandbar --kind approval. --kind process.crash_loop
  sandbar webhook test pager")]
    Add {
        /// Where to POST
        url: String,
        /// What it is called; made up if not given
        #[arg(long)]
        name: Option<String>,
        /// A type of events, or with a dot at its end all that begin with it [default: those of approvals, and crash loops]
        #[arg(long = "kind", value_name = "KIND")]
        kinds: Vec<String>,
    },
    /// List webhooks and how they do
    Ls,
    /// Show a webhook
    Show {
        /// Its id or name
        webhook: String,
    },
    /// Remove webhooks; what is being sent is cut off
    Rm {
        /// Their ids or names
        #[arg(required = true, value_name = "WEBHOOK")]
        webhooks: Vec<String>,
    },
    /// Send a notice of type webhook.test, once, and tell what became of it
    Test {
        /// Its id or name
        webhook: String,
    },
}

pub(crate) async fn webhook(verb: Webhook, context: &Context) -> Result<u8, Failure> {
    let client = context.client()?;
    let print = context.print;
    match verb {
        Webhook::Add { url, name, kinds } => {
            let new = spinner::during("adding", client.add_webhook(&CreateWebhook { url, name, kinds })).await?;
            if print.json {
                return print.json(&new).map(|()| exit::OK);
            }
            print.say(format!(
                "added webhook {} ({}); this is the only time its signing secret is shown",
                inert(&new.webhook.name),
                new.webhook.id
            ));
            print.line(inert(&new.secret))?;
        }
        Webhook::Ls => {
            let webhooks = spinner::during("listing webhooks", client.webhooks()).await?;
            if print.json {
                return print.json(&WebhookList { webhooks }).map(|()| exit::OK);
            }
            let rows = webhooks.into_iter().map(|told| {
                let (state, error) = (state(&told), told.last_error.unwrap_or_else(|| "-".into()));
                [told.id.to_string(), told.name, text::shortened(&told.url, 60), told.kinds.join(","), state, error]
            });
            print.line(table::render(["ID", "NAME", "URL", "KINDS", "STATE", "LAST ERROR"], rows))?;
        }
        Webhook::Show { webhook } => {
            let told = spinner::during("looking", client.webhook(&webhook)).await?;
            if print.json {
                return print.json(&told).map(|()| exit::OK);
            }
            print.line(table::fields(fields(&told)))?;
        }
        Webhook::Rm { webhooks } => {
            let mut removed = Vec::new();
            let outcome = each(&webhooks, context, async |webhook| {
                spinner::during("removing", client.remove_webhook(webhook)).await?;
                if !print.json {
                    print.say(inert(&format!("removed {webhook}")));
                }
                removed.push(webhook.to_owned());
                Ok(())
            })
            .await;
            if print.json {
                print.json(&serde_json::json!({"removed": removed}))?;
            }
            return outcome;
        }
        Webhook::Test { webhook } => {
            let test = spinner::during("sending", client.test_webhook(&webhook)).await?;
            if print.json {
                print.json(&test)?;
                return Ok(if test.delivered { exit::OK } else { exit::FAILED });
            }
            if !test.delivered {
                let why = test.error.unwrap_or_else(|| "it was not taken".into());
                return Err(Failure::new(exit::FAILED, format!("the test was not delivered: {why}")));
            }
            print.say(inert(&format!("{webhook} took the test")));
        }
    }
    Ok(exit::OK)
}

fn state(told: &Told) -> String {
    match (told.state, told.failing_since) {
        (WebhookState::Failing, Some(since)) => format!("failing for {}", text::ago(since, Utc::now())),
        (state, _) => state.as_str().to_owned(),
    }
}

fn fields(told: &Told) -> Vec<(&'static str, String)> {
    let now = Utc::now();
    let ago = |at| format!("{} ago", text::ago(at, now));
    let mut fields = vec![
        ("id", told.id.to_string()),
        ("name", told.name.clone()),
        ("url", told.url.clone()),
        ("kinds", told.kinds.join(", ")),
        ("state", state(told)),
        ("added", ago(told.created_at)),
        ("delivered", told.delivered_at.map_or_else(|| "nothing yet".into(), ago)),
    ];
    if told.attempts > 0 {
        fields.push(("attempts", told.attempts.to_string()));
    }
    if let Some(error) = &told.last_error {
        fields.push(("last error", error.clone()));
    }
    fields
}

#[cfg(test)]
mod tests {
    use chrono::TimeDelta;
    use sandbar_api::WebhookId;

    use super::*;

    #[test]
    fn how_it_does_is_said_in_words() {
        let mut told = Told {
            id: WebhookId::from_parts(1, [1; 10]),
            name: "pager".into(),
            url: "https://hooks.example.org/x".into(),
            kinds: vec!["approval.".into()],
            state: WebhookState::Ok,
            created_at: Utc::now(),
            delivered_at: None,
            failing_since: None,
            attempts: 0,
            last_error: None,
        };
        assert_eq!(state(&told), "ok");
        assert!(table::fields(fields(&told)).contains("nothing yet"));
        told.state = WebhookState::Failing;
        told.failing_since = Some(Utc::now() - TimeDelta::minutes(5));
        told.last_error = Some("hooks.example.org cannot be reached: connection refused".into());
        assert_eq!(state(&told), "failing for 5m");
        assert!(table::fields(fields(&told)).contains("connection refused"));
        told.state = WebhookState::Disabled;
        assert_eq!(state(&told), "disabled");
    }
}
