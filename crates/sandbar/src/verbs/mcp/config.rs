//! What to paste into the configuration of agents, each in its own form. No secret is in it: where one is needed, there is
//! the command that makes it.

use std::path::PathBuf;

use clap::ValueEnum;
use serde_json::{Value, json};

use super::Mcp;
use crate::{
    context::Context,
    exit::{self, Failure},
    print::{Printer, Style},
    text::{command, inert_json},
};

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Agent {
    /// All of them
    #[value(hide = true)]
    All,
    /// Claude Code
    Claude,
    /// Claude Desktop
    ClaudeDesktop,
    Codex,
    Opencode,
    /// JSON that many other agents read
    Json,
    /// JSON for agents that connect by HTTP
    Http,
}

const EACH: [Agent; 6] = [Agent::Claude, Agent::ClaudeDesktop, Agent::Codex, Agent::Opencode, Agent::Json, Agent::Http];
/// Where `sandbar up` listens, unless told otherwise; for when no server runs that could say.
const USUAL: &str = "http://127.0.0.1:7227";
const PLACEHOLDER: &str = "sbt_…";

/// How to start the bridge, or where to find what it leads to.
struct Entry {
    /// What the agent will call it.
    name: String,
    argv: Vec<String>,
    /// Whether SANDBAR_TOKEN must be in the environment.
    token: bool,
    /// Whether the agent makes the session when it is not there.
    creates: bool,
    /// What leads this program's other verbs to the same server.
    server: Vec<String>,
    session: String,
    base: String,
}

pub(super) async fn print(agent: Agent, args: &Mcp, context: &Context) -> Result<u8, Failure> {
    let entry = Entry::new(args, context).await?;
    let print = context.print;
    if print.json {
        let (program, arguments) = (entry.argv.first(), entry.argv.get(1..));
        let shown =
            json!({"name": entry.name, "command": program, "args": arguments, "env": entry.env(), "url": entry.url()});
        return print.json(&shown).map(|()| exit::OK);
    }
    let agents: &[Agent] = if agent == Agent::All { &EACH } else { &[agent] };
    for (at, each) in agents.iter().enumerate() {
        if agents.len() > 1 {
            let gap = if at == 0 { "" } else { "\n" };
            print.line(format!("{gap}{}\n", print.mark(each.title(), Style::Bold)))?;
        }
        print.line(entry.shown(*each).trim_end())?;
    }
    entry.advise(agents, print);
    Ok(exit::OK)
}

impl Agent {
    fn title(self) -> &'static str {
        match self {
            Self::All => "",
            Self::Claude => "Claude Code: run the command, or put the JSON into .mcp.json of the project",
            Self::ClaudeDesktop => "Claude Desktop: claude_desktop_config.json",
            Self::Codex => "Codex: ~/.codex/config.toml",
            Self::Opencode => "opencode: opencode.json",
            Self::Json => "Others that start programs",
            Self::Http => "Others that connect by HTTP",
        }
    }
}

impl Entry {
    async fn new(args: &Mcp, context: &Context) -> Result<Self, Failure> {
        let program = std::env::current_exe().map_err(Failure::io("failed to find this program"))?;
        let named = context.named()?;
        let token = named.url.is_some();
        // An agent's token cannot make a session.
        let (session, creates) = match &args.session {
            Some(session) => (session.clone(), args.create),
            None => (here()?, args.create || !token),
        };
        let mut argv = vec![program.display().to_string(), "mcp".into(), session.clone()];
        if creates {
            argv.push("--create".into());
        }
        if let Some(agent) = &args.agent {
            argv.extend(["--agent".into(), agent.clone()]);
        }
        argv.extend(named.arguments.clone());
        let base = match &named.url {
            Some(url) => url.clone(),
            None => in_use(context).await.unwrap_or_else(|| USUAL.to_owned()),
        };
        let base = base.trim_end_matches('/').to_owned();
        Ok(Self { name: "sandbar".into(), argv, token, creates, server: named.arguments, session, base })
    }

    fn url(&self) -> String {
        format!("{}/v1/sessions/{}/mcp", self.base, self.session)
    }

    fn env(&self) -> Value {
        if self.token { json!({"SANDBAR_TOKEN": PLACEHOLDER}) } else { json!({}) }
    }

    /// The members of an entry that starts the program, in the order that people expect.
    fn stdio(&self) -> Vec<(&'static str, Value)> {
        let mut members = vec![("command", json!(self.argv.first())), ("args", json!(self.argv.get(1..)))];
        if self.token {
            members.push(("env", self.env()));
        }
        members
    }

    fn shown(&self, agent: Agent) -> String {
        match agent {
            Agent::All => String::new(),
            Agent::Claude => {
                let mut typed = vec!["claude".to_owned(), "mcp".into(), "add".into(), self.name.clone()];
                if self.token {
                    typed.extend(["-e".into(), format!("SANDBAR_TOKEN={PLACEHOLDER}")]);
                }
                typed.push("--".into());
                typed.extend(self.argv.clone());
                format!("{}\n\n{}", command(&typed), self.below("mcpServers", &self.stdio()))
            }
            Agent::ClaudeDesktop | Agent::Json => self.below("mcpServers", &self.stdio()),
            Agent::Codex => self.codex(),
            Agent::Opencode => {
                let mut members =
                    vec![("type", json!("local")), ("command", json!(self.argv)), ("enabled", json!(true))];
                if self.token {
                    members.push(("environment", self.env()));
                }
                let schema = "{\n  \"$schema\": \"https://opencode.ai/config.json\",\n";
                self.below("mcp", &members).replacen("{\n", schema, 1)
            }
            Agent::Http => {
                let headers = json!({"Authorization": format!("Bearer {PLACEHOLDER}")});
                let members = [("type", json!("http")), ("url", json!(self.url())), ("headers", headers)];
                self.below("mcpServers", &members)
            }
        }
    }

    /// JSON with this entry alone, each of its members on one line.
    fn below(&self, family: &str, members: &[(&str, Value)]) -> String {
        let lines: Vec<_> = members.iter().map(|(key, value)| format!("      \"{key}\": {value}")).collect();
        let shown =
            format!("{{\n  \"{family}\": {{\n    \"{}\": {{\n{}\n    }}\n  }}\n}}", self.name, lines.join(",\n"));
        inert_json(&shown).into_owned()
    }

    /// The strings of JSON are also TOML's.
    fn codex(&self) -> String {
        let mut shown = format!("[mcp_servers.{}]\n", self.name);
        for (key, value) in self.stdio() {
            match key {
                "env" => shown.push_str(&format!("env = {{ SANDBAR_TOKEN = \"{PLACEHOLDER}\" }}\n")),
                key => shown.push_str(&format!("{key} = {value}\n")),
            }
        }
        // Commands of the tools may take as long as this.
        shown.push_str("tool_timeout_sec = 1800\n");
        inert_json(&shown).into_owned()
    }

    fn advise(&self, agents: &[Agent], print: Printer) {
        if let Some(advice) = self.advice(agents) {
            print.say(advice);
        }
    }

    /// Where a token is needed: how to get one, and the session that it is for.
    fn advice(&self, agents: &[Agent]) -> Option<String> {
        if !self.token && !agents.contains(&Agent::Http) {
            return None;
        }
        let typed = |words: &[&str]| {
            let words = std::iter::once("sandbar").chain(words.iter().copied()).map(str::to_owned);
            command(&words.chain(self.server.clone()).collect::<Vec<_>>())
        };
        let (begin, make) =
            (["session", "new", "--name", &self.session], ["token", "create", "--name", "agent", "--role"]);
        Some(match self.token && self.creates {
            true => {
                let make = typed(&[&make[..], &["operator"]].concat());
                format!(
                    "\nIn the place of {PLACEHOLDER} goes what this prints; with --create it has to be an operator's:\n  {make}"
                )
            }
            false => {
                let make = typed(&[&make[..], &["agent", "--session", &self.session]].concat());
                let begin = typed(&begin);
                format!(
                    "\nIn the place of {PLACEHOLDER} goes what the second prints; the first is for a session that is not there yet:\n  {begin}\n  {make}"
                )
            }
        })
    }
}

/// Where the server of this home listens, if one is there: it is not waited for.
async fn in_use(context: &Context) -> Option<String> {
    context.client().ok()?.url().await.ok()?
}

/// The name of this directory, as far as it can be a session's.
fn here() -> Result<String, Failure> {
    let here: PathBuf = std::env::current_dir().map_err(Failure::io("failed to find out which directory this is"))?;
    let name = here.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    Ok(as_name(&name))
}

fn as_name(text: &str) -> String {
    let fits = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit();
    let text: String = text.to_lowercase().chars().map(|letter| if fits(letter) { letter } else { '-' }).collect();
    let text = text.split('-').filter(|part| !part.is_empty()).collect::<Vec<_>>().join("-");
    let text: String = text.chars().take(40).collect();
    if text.is_empty() { "workspace".into() } else { text.trim_end_matches('-').to_owned() }
}

#[cfg(test)]
mod tests;
