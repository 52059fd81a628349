//! `budget set|show`, `model set|clear|ls`: what a session may use.

use sandbar_api::{Budget as Spent, GatewayInfo, SetBudget};

use crate::{
    amount::{Limit, bar, count, dollar_limit, dollars, token_limit},
    context::Context,
    exit::{self, Failure},
    print::Printer,
    spinner, table,
    text::inert,
};

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Budget {
    Set(Set),
    /// Show what a session has used of its budget
    Show {
        /// A session's id, or a sandbox's id or name
        #[arg(value_name = "SESSION|SANDBOX")]
        session: String,
    },
}

/// Limit what a session may use, from its next call on
///
/// Each call reserves the most it can use before it goes out, so a limit is never passed. A sub-session spends its
/// parents' budgets too. Limits that are not given stay as they are; `none` lifts one.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sandbar budget set agent --tokens 2M --usd 5 --per-minute 100k
  sandbar budget set agent --usd none
  sandbar budget set agent --none")]
#[command(group(clap::ArgGroup::new("limits").required(true).multiple(true)))]
pub(crate) struct Set {
    /// A session's id, or a sandbox's id or name
    #[arg(value_name = "SESSION|SANDBOX")]
    session: String,

    /// Input and output together, for example 250000, 100k or 2M
    #[arg(long, group = "limits", value_name = "TOKENS", value_parser = token_limit)]
    tokens: Option<Limit<u64>>,

    /// Dollars, for example 5 or 0.25
    #[arg(long, group = "limits", value_name = "DOLLARS", value_parser = dollar_limit)]
    usd: Option<Limit<f64>>,

    /// Tokens in any 60 seconds
    #[arg(long, group = "limits", value_name = "TOKENS", value_parser = token_limit)]
    per_minute: Option<Limit<u64>>,

    /// Lift all limits
    #[arg(long, group = "limits", conflicts_with_all = ["tokens", "usd", "per_minute"])]
    none: bool,
}

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Model {
    /// Send the calls of a session to another model, whatever they ask for
    ///
    /// The model has to speak the same wire format as the calls.
    #[command(after_help = "\
Examples:
  sandbar model set agent small
  sandbar model clear agent")]
    Set {
        /// A session's id, or a sandbox's id or name
        #[arg(value_name = "SESSION|SANDBOX")]
        session: String,
        /// A model or alias of `model ls`
        model: String,
    },
    /// Send the calls of a session where they say
    Clear {
        /// A session's id, or a sandbox's id or name
        #[arg(value_name = "SESSION|SANDBOX")]
        session: String,
    },
    /// Show upstreams, models and prices, which are kept in `gateway.toml` of the home
    Ls,
}

pub(crate) async fn budget(verb: Budget, context: &Context) -> Result<u8, Failure> {
    let client = context.client()?;
    let budget = match verb {
        Budget::Show { session } => spinner::during("looking up the budget", client.budget(&session)).await?,
        Budget::Set(args) => {
            let limits = match args.none {
                true => SetBudget::default(),
                // What is not mentioned must not be lifted by the way.
                false => changed(client.budget(&args.session).await?.limits, &args),
            };
            spinner::during("setting the budget", client.set_budget(&args.session, &limits)).await?
        }
    };
    if context.print.json {
        return context.print.json(&budget).map(|()| exit::OK);
    }
    context.print.line(shown(&budget))?;
    Ok(exit::OK)
}

fn changed(limits: SetBudget, args: &Set) -> SetBudget {
    SetBudget {
        tokens: args.tokens.map_or(limits.tokens, Limit::value),
        usd: args.usd.map_or(limits.usd, Limit::value),
        per_minute: args.per_minute.map_or(limits.per_minute, Limit::value),
    }
}

fn shown(budget: &Spent) -> String {
    let mut fields = vec![("session", budget.session.to_string())];
    fields.extend(budget.parent.iter().map(|parent| ("parent", parent.to_string())));
    fields.extend(budget.model.iter().map(|model| ("model", model.clone())));
    let tokens = format!("{} used, {} held", count(budget.tokens_used), count(budget.tokens_reserved));
    let usd = format!("{} used, {} held", dollars(budget.usd_used), dollars(budget.usd_reserved));
    fields.push((
        "tokens",
        match budget.limits.tokens {
            Some(limit) => {
                let bar = bar(budget.tokens_used as f64, budget.tokens_reserved as f64, limit as f64);
                format!("{tokens}, of {}  {bar}", count(limit))
            }
            None => format!("{tokens}, no limit"),
        },
    ));
    fields.push((
        "dollars",
        match budget.limits.usd {
            Some(limit) => {
                format!("{usd}, of {}  {}", dollars(limit), bar(budget.usd_used, budget.usd_reserved, limit))
            }
            None => format!("{usd}, no limit"),
        },
    ));
    let rate = budget.limits.per_minute.map_or_else(|| "no limit".into(), |limit| format!("{} tokens", count(limit)));
    fields.push(("per minute", rate));
    table::fields(fields)
}

pub(crate) async fn model(verb: Model, context: &Context) -> Result<u8, Failure> {
    let client = context.client()?;
    let print = context.print;
    let (session, model) = match verb {
        Model::Ls => return ls(&spinner::during("listing models", client.gateway()).await?, print),
        Model::Set { session, model } => (session, Some(model)),
        Model::Clear { session } => (session, None),
    };
    let budget = spinner::during("switching", client.switch_model(&session, model.as_deref())).await?;
    if print.json {
        return print.json(&budget).map(|()| exit::OK);
    }
    print.say(inert(&match model {
        Some(model) => format!("calls of {session} go to {model}"),
        None => format!("calls of {session} go where they say"),
    }));
    Ok(exit::OK)
}

fn ls(gateway: &GatewayInfo, print: Printer) -> Result<u8, Failure> {
    if print.json {
        return print.json(gateway).map(|()| exit::OK);
    }
    print.line(listed(gateway))?;
    gateway.errors.iter().for_each(|error| print.warn(error));
    Ok(exit::OK)
}

fn listed(gateway: &GatewayInfo) -> String {
    let price = |usd: Option<f64>| usd.map_or_else(|| "unknown".into(), |usd| format!("${usd}"));
    let models = gateway.models.iter().map(|model| {
        [
            model.name.clone(),
            model.upstream.clone(),
            model.format.clone(),
            price(model.input_usd),
            price(model.output_usd),
            model.max_output.map_or_else(|| "-".into(), count),
        ]
    });
    let upstreams = gateway.upstreams.iter().map(|upstream| {
        [
            upstream.name.clone(),
            upstream.format.clone(),
            upstream.url.clone(),
            upstream.secret.clone().unwrap_or_else(|| "-".into()),
            if upstream.usable { "yes" } else { "no" }.to_owned(),
        ]
    });
    let mut parts = vec![
        table::render(["MODEL", "UPSTREAM", "FORMAT", "INPUT/M", "OUTPUT/M", "MOST OUTPUT"], models),
        table::render(["UPSTREAM", "FORMAT", "URL", "SECRET", "USABLE"], upstreams),
    ];
    if !gateway.aliases.is_empty() {
        let aliases = gateway.aliases.iter().map(|(alias, model)| [alias.clone(), model.clone()]);
        parts.insert(1, table::render(["ALIAS", "MODEL"], aliases));
    }
    parts.join("\n\n")
}

#[cfg(test)]
mod tests {
    use sandbar_api::SessionId;

    use super::*;

    fn budget(limits: SetBudget) -> Spent {
        Spent {
            session: SessionId::from_parts(0, [0; 10]),
            limits,
            tokens_used: 1_000_000,
            tokens_reserved: 500_000,
            usd_used: 1.25,
            usd_reserved: 0.0,
            parent: None,
            model: Some("small\u{1b}".into()),
        }
    }

    #[test]
    fn a_budget_is_shown_with_its_bars() {
        let limits = SetBudget { tokens: Some(2_000_000), usd: None, per_minute: Some(100_000) };
        let text = shown(&budget(limits));
        let bar = format!("{}{}{} 50 %", "█".repeat(10), "▒".repeat(5), "░".repeat(5));
        for line in [
            "model:      small\\x1b".to_owned(),
            format!("tokens:     1,000,000 used, 500,000 held, of 2,000,000  {bar}"),
            "dollars:    $1.25 used, $0.00 held, no limit".to_owned(),
            "per minute: 100,000 tokens".to_owned(),
        ] {
            assert!(text.lines().any(|shown| shown == line), "no {line} in\n{text}");
        }
    }

    #[test]
    fn what_is_not_mentioned_stays() {
        let had = SetBudget { tokens: Some(1), usd: Some(2.0), per_minute: None };
        let args = Set {
            session: String::new(),
            tokens: None,
            usd: Some(Limit::None),
            per_minute: Some(Limit::At(3)),
            none: false,
        };
        assert_eq!(changed(had, &args), SetBudget { tokens: Some(1), usd: None, per_minute: Some(3) });
    }
}
