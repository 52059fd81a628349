//! Budgets, models and usage, as surfaces ask for them.

use chrono::{DateTime, TimeDelta, Utc};
use sandbar_api::{
    Budget, Code, GatewayInfo, ModelInfo, Problem, Role, SessionId, SessionUsage, SessionUsageModel, SetBudget,
    SwitchModel, UpstreamInfo, UsageBy, UsageReport, UsageRow,
};
use sandbar_gateway::llm::Upstream;
use sandbar_policy::Host;

use crate::{
    Caller, Engine, Inner, clock,
    gate::unknown,
    problem::unknown_session,
    sessions::Sight,
    store::{self, gate::UsageQuery, sessions::SessionRow},
};

/// What is reported when nobody says from when.
const REPORTED: TimeDelta = TimeDelta::days(30);

#[derive(Debug, Clone, Default)]
pub struct UsageAsked {
    pub by: UsageBy,
    /// A session by id or name, or a sandbox by id or name.
    pub of: Option<String>,
    pub model: Option<String>,
    /// The last 30 days when absent.
    pub from: Option<DateTime<Utc>>,
    pub to: Option<DateTime<Utc>>,
}

impl Engine {
    /// `of` is a session by id or name, or a sandbox by id or name.
    pub async fn budget(&self, caller: &Caller, of: &str) -> Result<Budget, Problem> {
        let session = self.inner.session_for(caller, of).await?;
        self.inner.budget(session).await
    }

    /// For the next call. Limits below what was used are fine: nothing more is let through.
    pub async fn set_budget(&self, of: &str, limits: SetBudget) -> Result<Budget, Problem> {
        limits.check()?;
        let session = self.inner.session(of).await?;
        self.inner.gates.ledger.set_budget(&session.id, &limits).await.map_err(of_session(&session.id))?;
        self.inner.budget(session).await
    }

    pub async fn switch_model(&self, of: &str, request: SwitchModel) -> Result<Budget, Problem> {
        let session = self.inner.session(of).await?;
        if let Some(model) = &request.model {
            let catalogue = self.inner.gates.loaded().catalogue.clone();
            if !catalogue.models.contains_key(model) && !catalogue.aliases.contains_key(model) {
                let known: Vec<_> =
                    catalogue.models.keys().chain(catalogue.aliases.keys()).map(String::as_str).collect();
                return Err(Problem::new(
                    Code::UnknownModel,
                    capitalised(&unknown("model", model, &known)),
                    "Use one of those that gateway.toml names, or add it there.",
                ));
            }
        }
        let switched = self.inner.gates.ledger.switch_model(&session.id, request.model.as_deref()).await;
        switched.map_err(of_session(&session.id))?;
        self.inner.budget(session).await
    }

    pub async fn usage(&self, caller: &Caller, asked: UsageAsked) -> Result<UsageReport, Problem> {
        let to = asked.to.unwrap_or_else(clock::now);
        let from = asked.from.unwrap_or(to - REPORTED);
        if from >= to {
            return Err(Problem::new(
                Code::BadRequest,
                format!("{from} is not before {to}."),
                "Give a time from which to report that is before the time up to which.",
            ));
        }
        // An agent sees its own when it does not say whose.
        let own = caller.session.as_ref().filter(|_| caller.role == Role::Agent).map(ToString::to_string);
        let session = match asked.of.or(own) {
            Some(of) => Some(self.inner.session_for(caller, &of).await?.id),
            None if caller.role == Role::Agent => return Err(not_yours()),
            None => None,
        };
        let query = UsageQuery { by: asked.by, session, model: asked.model, from, to };
        // Those who just made a call want to see it.
        self.inner.gates.ledger.flush().await;
        let rows = self.inner.store.usage(&query).await?;
        let total = rows.iter().fold(UsageRow::default(), |mut total, row| {
            total.calls += row.calls;
            total.estimated += row.estimated;
            total.input_tokens += row.input_tokens;
            total.cached_input_tokens += row.cached_input_tokens;
            total.output_tokens += row.output_tokens;
            total.total_tokens += row.total_tokens;
            total.usd = usd(micros(total.usd).saturating_add(micros(row.usd)));
            total
        });
        Ok(UsageReport { by: asked.by, from, to, rows, total })
    }

    /// In kagenti's shape.
    pub async fn session_usage(&self, caller: &Caller, session: &str) -> Result<SessionUsage, Problem> {
        let session = self.inner.session_for(caller, session).await?.id;
        let all = UsageQuery {
            by: UsageBy::Model,
            session: Some(session.clone()),
            model: None,
            from: DateTime::UNIX_EPOCH,
            to: clock::now() + TimeDelta::days(1),
        };
        let of_model = |row: UsageRow| SessionUsageModel {
            model: row.model.unwrap_or_default(),
            prompt_tokens: row.input_tokens,
            completion_tokens: row.output_tokens,
            total_tokens: row.total_tokens,
            cost: row.usd,
            num_calls: row.calls,
        };
        self.inner.gates.ledger.flush().await;
        let mut models: Vec<_> = self.inner.store.usage(&all).await?.into_iter().map(of_model).collect();
        models.sort_by(|a, b| b.total_tokens.cmp(&a.total_tokens).then_with(|| a.model.cmp(&b.model)));
        let sum = |of: fn(&SessionUsageModel) -> u64| models.iter().map(of).sum();
        Ok(SessionUsage {
            session_id: session.into(),
            total_tokens: sum(|model| model.total_tokens),
            prompt_tokens: sum(|model| model.prompt_tokens),
            completion_tokens: sum(|model| model.completion_tokens),
            call_count: sum(|model| model.num_calls),
            models,
        })
    }

    pub async fn gateway_info(&self) -> Result<GatewayInfo, Problem> {
        let gates = &self.inner.gates;
        let loaded = gates.loaded();
        let catalogue = &loaded.catalogue;
        let usable = |upstream: &Upstream| match &upstream.secret {
            None => true,
            Some(secret) => {
                gates.secrets.reveal(&gates.vault, secret).is_some_and(|(_, _, hosts)| hosts.contains(&upstream.host))
            }
        };
        let upstreams = catalogue.upstreams.iter().map(|(name, upstream)| UpstreamInfo {
            name: name.clone(),
            format: upstream.format.as_str().into(),
            url: url(upstream),
            secret: upstream.secret.clone(),
            usable: usable(upstream),
        });
        let models = catalogue.models.iter().map(|(name, model)| ModelInfo {
            name: name.clone(),
            upstream: model.upstream.clone(),
            format: catalogue.upstreams.get(&model.upstream).map_or("", |of| of.format.as_str()).into(),
            input_usd: model.price.map(|price| usd(price.input)),
            output_usd: model.price.map(|price| usd(price.output)),
            max_output: model.max_output,
        });
        Ok(GatewayInfo {
            upstreams: upstreams.collect(),
            models: models.collect(),
            aliases: catalogue.aliases.clone(),
            sets: loaded.sets.clone(),
            errors: loaded.errors.clone(),
        })
    }
}

impl Inner {
    async fn budget(&self, session: SessionRow) -> Result<Budget, Problem> {
        let id = session.id;
        // Read once more: what was changed may be what is asked for.
        let row = self.store.session(&id).await?.ok_or_else(|| unknown_session(id.as_str()))?;
        let known = self.gates.ledger.know(&id).await.map_err(of_session(&id))?;
        let spent = self.gates.ledger.spent(&id).ok_or_else(|| unknown_session(id.as_str()))?;
        drop(known);
        Ok(Budget {
            session: id,
            limits: row.limits,
            tokens_used: spent.used.tokens,
            tokens_reserved: spent.reserved.tokens,
            usd_used: usd(spent.used.micros),
            usd_reserved: usd(spent.reserved.micros),
            parent: row.parent,
            model: row.model,
        })
    }

    /// An agent's is its own, or one below it; of others it does not even learn whether they are there.
    async fn session_for(&self, caller: &Caller, of: &str) -> Result<SessionRow, Problem> {
        match caller.role {
            Role::Agent => self.own_session(caller, Sight::Below, of).await?.ok_or_else(not_yours),
            Role::Viewer | Role::Operator | Role::Admin => self.session(of).await,
        }
    }
}

fn of_session(id: &SessionId) -> impl FnOnce(store::Error) -> Problem {
    move |error| match error {
        store::Error::Missing(_) => unknown_session(id.as_str()),
        error => error.into(),
    }
}

fn not_yours() -> Problem {
    Problem::new(
        Code::Forbidden,
        "An agent's token reads the budget and usage of its own session only.",
        "Name that session, or use another token.",
    )
}

fn url(upstream: &Upstream) -> String {
    let (scheme, usual) = if upstream.tls { ("https", 443) } else { ("http", 80) };
    let host = match &upstream.host {
        Host::Ip(std::net::IpAddr::V6(ip)) => format!("[{ip}]"),
        host => host.to_string(),
    };
    let port = if upstream.port == usual { String::new() } else { format!(":{}", upstream.port) };
    format!("{scheme}://{host}{port}{}", upstream.path)
}

fn capitalised(clause: &str) -> String {
    let mut letters = clause.chars();
    let first = letters.next().map(|first| first.to_ascii_uppercase());
    let end = if clause.ends_with('?') { "" } else { "." };
    first.into_iter().chain(letters).chain(end.chars()).collect()
}

/// Dollars in millionths, to the nearest.
pub(crate) fn micros(usd: f64) -> u64 {
    // A float becomes the nearest number there is.
    (usd * 1e6).round() as u64
}

pub(crate) fn usd(micros: u64) -> f64 {
    micros as f64 / 1e6
}
