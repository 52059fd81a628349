//! `token create|router|ls|revoke`: who may call over TCP.

use chrono::Utc;
use clap::ValueEnum;
use sandbar_api::{CreateToken, HumanDuration, TokenList};

use crate::{
    context::Context,
    exit::{self, Failure},
    table,
    text::{self, inert},
    verbs::sandbox::session_of,
};

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Token {
    /// Make a token; the secret is printed once and stored nowhere
    #[command(after_help = "\
Examples:
  sandbar token create --name ci --role operator --ttl 90d
  export SANDBAR_TOKEN=$(sandbar token create --name laptop --role admin)
  sandbar token create --name agent-42 --role agent --session agent")]
    Create {
        /// What it is for, to recognise it in the list
        #[arg(long)]
        name: String,
        /// What it may do
        #[arg(long, value_enum)]
        role: Role,
        /// The session an agent's token is bound to: its id or name, or the id or name of a sandbox of it
        #[arg(long, value_name = "SESSION|SANDBOX", required_if_eq("role", "agent"))]
        session: Option<String>,
        /// Stops working after this long, for example 90d
        #[arg(long, value_name = "DURATION")]
        ttl: Option<HumanDuration>,
    },
    /// Make a token for one sandbox at /router, for clients of agent-sandbox
    ///
    /// It is stored nowhere and cannot be revoked: it ends when its time is over.
    #[command(after_help = "\
Examples:
  sandbar token router web --ttl 1h")]
    Router {
        /// The sandbox's id or name
        sandbox: String,
        /// Stops working after this long, from 1s to 30d
        #[arg(long, value_name = "DURATION", default_value = "1h")]
        ttl: HumanDuration,
    },
    /// List tokens
    Ls,
    /// Make tokens stop working at once
    Revoke {
        /// Their ids
        #[arg(required = true, value_name = "ID")]
        ids: Vec<String>,
    },
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Role {
    /// May use the tools of its own session, and look at its budget, usage and approvals; answers nothing
    Agent,
    /// May read everything and change nothing
    Viewer,
    /// May create, use and delete sandboxes
    Operator,
    /// May also manage tokens and secrets, and bind directories of the host
    Admin,
}

impl From<Role> for sandbar_api::Role {
    fn from(role: Role) -> Self {
        match role {
            Role::Agent => Self::Agent,
            Role::Viewer => Self::Viewer,
            Role::Operator => Self::Operator,
            Role::Admin => Self::Admin,
        }
    }
}

pub(crate) async fn token(verb: Token, context: &Context) -> Result<u8, Failure> {
    let client = context.client()?;
    let print = context.print;
    match verb {
        Token::Create { name, role, session, ttl } => {
            let session = match session {
                Some(session) => Some(session_of(&client, &session).await?),
                None => None,
            };
            let new = client.create_token(&CreateToken { name, role: role.into(), session, ttl }).await?;
            if print.json {
                return print.json(&new).map(|()| exit::OK);
            }
            print.say(format!(
                "created token {} ({}); this is the only time it is shown",
                inert(&new.token.name),
                new.token.id
            ));
            print.line(inert(&new.secret))?;
        }
        Token::Router { sandbox, ttl } => {
            let new = client.router_token(&sandbox, ttl).await?;
            if print.json {
                return print.json(&new).map(|()| exit::OK);
            }
            print.say(format!("made a token for {} at /router, good for {ttl}", inert(&sandbox)));
            print.line(inert(&new.token))?;
        }
        Token::Ls => {
            let tokens = client.tokens().await?;
            if print.json {
                return print.json(&TokenList { tokens }).map(|()| exit::OK);
            }
            let now = Utc::now();
            let rows = tokens.into_iter().map(|token| {
                let expires = token.expires_at.map_or_else(
                    || "never".into(),
                    |at| if at <= now { "expired".into() } else { format!("in {}", text::span(at - now)) },
                );
                let session = token.session.map_or_else(|| "-".into(), String::from);
                let age = text::ago(token.created_at, now);
                [token.id.to_string(), token.name, token.role.as_str().to_owned(), session, age, expires]
            });
            print.line(table::render(["ID", "NAME", "ROLE", "SESSION", "AGE", "EXPIRES"], rows))?;
        }
        Token::Revoke { ids } => {
            for id in ids {
                client.revoke_token(&id).await?;
                print.say(format!("revoked {}", inert(&id)));
            }
        }
    }
    Ok(exit::OK)
}
