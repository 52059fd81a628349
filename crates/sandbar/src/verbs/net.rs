//! `net allow|deny|ask|rm|show|log|sets`: where a sandbox may talk to, and what it did.

use sandbar_api::{AddRules, Effect, Network, Source};

use crate::{
    args::rule,
    context::Context,
    exit::{self, Failure},
    print::Printer,
    spinner, table,
    text::inert,
    verbs::net_log,
};

const RULES: &str = "\
A rule is HOST[:PORTS] [METHODS] [PATH], in quotes if it has blanks, or @SET. Without ports it is for 443 and 80. \
`deny` counts before `ask` before `allow`, and what no rule names is denied. Rules with methods or a path make the \
gateway look into the connection. HOST[:PORTS] ech also lets TLS greetings with an encrypted part pass, and \
HOST[:PORTS] raw protocols that are neither TLS nor HTTP.";

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Net {
    /// Let a sandbox connect to hosts, from its next request on
    #[command(after_help = format!("{RULES}\n
Examples:
  sandbar net allow agent api.github.com '*.example.org:443,8443'
  sandbar net allow agent 'api.github.com GET,HEAD /repos/**'
  sandbar net allow agent @github"))]
    Allow(Change),
    /// Refuse hosts to a sandbox, whatever else allows them
    #[command(after_help = format!("{RULES}\n
Examples:
  sandbar net deny agent gist.github.com
  sandbar net deny agent '* DELETE'"))]
    Deny(Change),
    /// Ask a person each time a sandbox wants to connect to hosts
    ///
    /// The connection waits for the answer: `sandbar approvals` shows the question, `approve` and `deny` answer it.
    #[command(after_help = format!("{RULES}\n
Examples:
  sandbar net ask agent '*'
  sandbar approvals --watch"))]
    Ask(Change),
    /// Take rules from a sandbox; those of its template stay
    Rm(Change),
    /// Show the rules of a sandbox, the secrets it may use, and what is odd about the rules
    Show {
        /// Its id or name
        sandbox: String,
    },
    Log(net_log::Log),
    /// Show the named sets of rules, which are kept in `sets.toml` of the home
    Sets,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Change {
    /// Its id or name
    pub sandbox: String,

    /// The rules
    #[arg(required = true, value_name = "RULE", value_parser = rule)]
    pub rules: Vec<String>,
}

pub(crate) async fn net(verb: Net, context: &Context) -> Result<u8, Failure> {
    match verb {
        Net::Allow(args) => add(args, Effect::Allow, "allowed", context).await,
        Net::Deny(args) => add(args, Effect::Deny, "denied", context).await,
        Net::Ask(args) => add(args, Effect::Ask, "asking about", context).await,
        Net::Rm(args) => remove(&args, context).await,
        Net::Show { sandbox } => show(&sandbox, context).await,
        Net::Log(args) => net_log::log(&args, context).await,
        Net::Sets => sets(context).await,
    }
}

async fn add(args: Change, effect: Effect, done: &str, context: &Context) -> Result<u8, Failure> {
    let client = context.client()?;
    let request = AddRules { effect, rules: args.rules };
    let network = spinner::during("changing the rules", client.add_rules(&args.sandbox, &request)).await?;
    let said = format!("{done} {} in {}", request.rules.join(", "), args.sandbox);
    changed(&network, &said, context.print)
}

async fn remove(args: &Change, context: &Context) -> Result<u8, Failure> {
    let client = context.client()?;
    let mut last = None;
    for rule in &args.rules {
        last = Some(spinner::during("changing the rules", client.remove_rule(&args.sandbox, rule)).await?);
        if !context.print.json {
            context.print.say(inert(&format!("removed {rule} from {}", args.sandbox)));
        }
    }
    match last {
        Some(network) if context.print.json => context.print.json(&network).map(|()| exit::OK),
        _ => Ok(exit::OK),
    }
}

/// What was done, and what the author of the rules should know now.
pub(crate) fn changed(network: &Network, said: &str, print: Printer) -> Result<u8, Failure> {
    if print.json {
        return print.json(network).map(|()| exit::OK);
    }
    print.say(inert(said));
    network.findings.iter().for_each(|finding| print.warn(finding));
    Ok(exit::OK)
}

async fn show(sandbox: &str, context: &Context) -> Result<u8, Failure> {
    let network = spinner::during("looking up the rules", context.client()?.network(sandbox)).await?;
    let print = context.print;
    if print.json {
        return print.json(&network).map(|()| exit::OK);
    }
    print.line(shown(&network))?;
    network.findings.iter().for_each(|finding| print.warn(finding));
    Ok(exit::OK)
}

fn shown(network: &Network) -> String {
    let rows = network
        .rules
        .iter()
        .map(|rule| [effect(rule.effect).to_owned(), rule.rule.clone(), source(rule.source).to_owned()]);
    let rules = match network.rules.is_empty() {
        true => "there are no rules: everything is denied".to_owned(),
        false => table::render(["EFFECT", "RULE", "SOURCE"], rows),
    };
    let secrets = if network.secrets.is_empty() { "none".to_owned() } else { network.secrets.join(", ") };
    format!("{rules}\n\n{}", table::fields([("secrets", secrets)]))
}

pub(crate) fn effect(effect: Effect) -> &'static str {
    match effect {
        Effect::Deny => "deny",
        Effect::Ask => "ask",
        Effect::Allow => "allow",
    }
}

fn source(source: Source) -> &'static str {
    match source {
        Source::Template => "template",
        Source::Sandbox => "sandbox",
        Source::Approval => "approval",
    }
}

async fn sets(context: &Context) -> Result<u8, Failure> {
    let gateway = spinner::during("looking up the sets", context.client()?.gateway()).await?;
    let print = context.print;
    if print.json {
        return print.json(&gateway.sets).map(|()| exit::OK);
    }
    // A row a rule: for grep.
    let rows =
        gateway.sets.iter().flat_map(|(name, rules)| rules.iter().map(move |rule| [format!("@{name}"), rule.clone()]));
    print.line(table::render(["SET", "RULE"], rows))?;
    gateway.errors.iter().for_each(|error| print.warn(error));
    Ok(exit::OK)
}

#[cfg(test)]
mod tests {
    use sandbar_api::NetworkRule;

    use super::*;

    #[test]
    fn rules_are_shown_with_effect_and_source() {
        let rule = |effect, rule: &str, source| NetworkRule { effect, rule: rule.into(), source };
        let network = Network {
            rules: vec![
                rule(Effect::Deny, "gist.github.com", Source::Template),
                rule(Effect::Allow, "*.github.com GET", Source::Approval),
            ],
            secrets: vec!["A".into(), "B".into()],
            findings: Vec::new(),
        };
        let want = "EFFECT  RULE              SOURCE\ndeny    gist.github.com   template\nallow   *.github.com GET  approval\n\nsecrets: A, B";
        assert_eq!(shown(&network), want);
        let none = Network { rules: Vec::new(), secrets: Vec::new(), findings: Vec::new() };
        assert_eq!(shown(&none), "there are no rules: everything is denied\n\nsecrets: none");
    }
}
