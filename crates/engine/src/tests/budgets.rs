//! Budgets, models and usage as surfaces ask for them, and whom they are shown to.

use std::time::Duration;

use chrono::Utc;
use sandbar_api::{Code, CreateSandbox, Role, SessionId, SetBudget, SwitchModel, UsageBy};
use sandbar_gateway::{Reserve, Settlement};
use sandbar_policy::Amount;

use super::{
    Bed, Tested, code,
    ledger::{free, used},
    owner, soon,
};
use crate::{Caller, UsageAsked};

const GATEWAY: &str = r#"
[upstream.vendor]
format = "openai"
url = "https://api.example.org/v1"
secret = "KEY"
[upstream.near]
format = "anthropic"
url = "http://[::1]:8080"
[model.big]
upstream = "vendor"
input_usd = 1.5
output_usd = 6
[model.small]
upstream = "near"
[alias]
fast = "small"
"#;

async fn bed() -> Result<Bed, Box<dyn std::error::Error>> {
    let mut bed = Bed::new().await?;
    std::fs::write(bed.home.join("gateway.toml"), GATEWAY)?;
    bed.restart().await?;
    Ok(bed)
}

/// Makes a call of the session, as the gateway does.
async fn call(bed: &Bed, sandbox: &sandbar_api::Sandbox, model: &str, end: Settlement) -> Tested {
    let (ledger, session) = (&bed.engine.inner.gates.ledger, &sandbox.session);
    let _known = ledger.know(session).await?;
    let price = bed.engine.inner.gates.loaded().catalogue.models.get(model).and_then(|model| model.price);
    let used = end.usage.unwrap_or_default();
    let micros = price.map_or(0, |price| price.at_most(used.input, used.output));
    let bound = Amount { tokens: (used.input + used.output).max(1000), micros: micros.max(1000) };
    let (model, upstream) = (model.into(), "vendor".into());
    let call = Reserve { model, upstream, bound, price, budgeted: true, priced: true };
    let reserved = ledger.reserve(session, &sandbox.id, call).await;
    ledger.settle(reserved.map_err(|refused| format!("{refused:?}"))?, end);
    let written = || async { bed.engine.inner.store.held_calls().await.ok().filter(Vec::is_empty) };
    soon(written).await?;
    Ok(())
}

#[tokio::test]
async fn budgets_are_set_read_and_removed() -> Tested {
    let mut bed = bed().await?;
    let sandbox = bed.create("a").await?;
    let limits = SetBudget { tokens: Some(2_000_000), usd: Some(4.999_999_9), per_minute: Some(0) };
    let set = bed.engine.set_budget("a", limits.clone()).await?;
    assert_eq!((&set.session, &set.limits, set.tokens_used, set.usd_used), (&sandbox.session, &limits, 0, 0.0));
    bed.engine.set_budget(sandbox.id.as_str(), SetBudget { tokens: Some(0), ..SetBudget::default() }).await?;
    bed.engine.set_budget("a", SetBudget { usd: Some(5.0), ..SetBudget::default() }).await?;
    call(&bed, &sandbox, "big", used(1_000_000, 500_000)).await?;
    bed.engine.set_budget("a", SetBudget { usd: Some(1.0), ..SetBudget::default() }).await?;
    let budget = bed.engine.budget(&owner(), sandbox.session.as_str()).await?;
    assert_eq!((budget.tokens_used, budget.tokens_reserved, budget.usd_used), (1_500_000, 0, 4.5));
    let shown = bed.engine.session(&owner(), "a").await?.budget;
    assert_eq!((shown.tokens_used, shown.usd_used, shown.limits), (1_500_000, 4.5, budget.limits.clone()));
    assert!(call(&bed, &sandbox, "big", used(1, 0)).await.is_err(), "over it");

    bed.restart().await?;
    assert_eq!(bed.engine.budget(&owner(), "a").await?, budget);
    let none = bed.engine.set_budget("a", SetBudget::default()).await?;
    assert_eq!(none.limits, SetBudget::default());
    call(&bed, &sandbox, "big", free()).await?;

    for usd in [-0.1, f64::NAN, f64::INFINITY, 1.1e9] {
        let refused = bed.engine.set_budget("a", SetBudget { usd: Some(usd), ..SetBudget::default() }).await;
        assert_eq!(code(refused), Some(Code::BadBudget), "{usd}");
    }
    let nobody = SessionId::from_parts(1, [1; 10]);
    assert_eq!(code(bed.engine.set_budget(nobody.as_str(), SetBudget::default()).await), Some(Code::UnknownSession));
    assert_eq!(code(bed.engine.set_budget("nobody", SetBudget::default()).await), Some(Code::UnknownSandbox));
    bed.engine.delete("a").await?;
    assert_eq!(bed.engine.budget(&owner(), "a").await?.tokens_used, 1_500_000, "what it was can be read");
    assert_eq!(bed.engine.session(&owner(), sandbox.session.as_str()).await?.budget.tokens_used, 1_500_000);
    Ok(())
}

#[tokio::test]
async fn an_agent_reads_its_own_and_what_is_below_it() -> Tested {
    let bed = bed().await?;
    let (own, other) = (bed.create("own").await?, bed.create("other").await?);
    let parent = Some(own.session.clone());
    let request = CreateSandbox { name: Some("below".into()), parent, ..CreateSandbox::default() };
    let below = bed.engine.create(&owner(), request, None).await?.sandbox;
    for sandbox in [&own, &other, &below] {
        call(&bed, sandbox, "small", used(10, 5)).await?;
    }
    let session = Some(own.session.clone());
    let agent = Caller { owner: "token:x".into(), role: Role::Agent, session };
    assert_eq!(bed.engine.budget(&agent, "own").await?.tokens_used, 30);
    assert_eq!(bed.engine.budget(&agent, "below").await?.parent, Some(own.session.clone()));
    for of in ["other", other.session.as_str(), other.id.as_str(), "nobody", "ses-00000000000000000000000000"] {
        assert_eq!(code(bed.engine.budget(&agent, of).await), Some(Code::Forbidden), "{of}");
        assert_eq!(code(bed.engine.session_usage(&agent, of).await), Some(Code::Forbidden), "{of}");
        let asked = UsageAsked { of: Some(of.into()), ..UsageAsked::default() };
        assert_eq!(code(bed.engine.usage(&agent, asked).await), Some(Code::Forbidden), "{of}");
    }
    let asked = UsageAsked { by: UsageBy::Session, ..UsageAsked::default() };
    let report = bed.engine.usage(&agent, asked.clone()).await?;
    assert_eq!(report.rows.iter().filter_map(|row| row.session.as_deref()).collect::<Vec<_>>(), [own.session.as_str()]);
    assert_eq!(bed.engine.usage(&owner(), asked.clone()).await?.rows.len(), 3);
    let unbound = Caller { session: None, ..agent };
    assert_eq!(code(bed.engine.usage(&unbound, asked).await), Some(Code::Forbidden));
    assert_eq!(code(bed.engine.budget(&unbound, "own").await), Some(Code::Forbidden));
    Ok(())
}

#[tokio::test]
async fn usage_is_reported_in_both_shapes() -> Tested {
    let bed = bed().await?;
    let sandbox = bed.create("a").await?;
    call(&bed, &sandbox, "big", used(100, 10)).await?;
    call(&bed, &sandbox, "big", Settlement::default()).await?;
    call(&bed, &sandbox, "small", used(2000, 0)).await?;
    call(&bed, &sandbox, "small", free()).await?;
    let report = bed.engine.usage(&owner(), UsageAsked::default()).await?;
    let rows: Vec<_> = report.rows.iter().map(|row| (row.model.as_deref(), row.calls, row.total_tokens)).collect();
    assert_eq!(rows, [(Some("big"), 2, 1110), (Some("small"), 1, 2000)]);
    let total = &report.total;
    assert_eq!((total.calls, total.estimated, total.input_tokens, total.output_tokens), (3, 1, 2100, 10));
    assert_eq!((total.total_tokens, total.usd), (3110, 0.001_21));
    let by_day = bed.engine.usage(&owner(), UsageAsked { by: UsageBy::Day, ..UsageAsked::default() }).await?;
    assert_eq!(by_day.total.total_tokens, 3110);
    let backwards =
        UsageAsked { from: Some(Utc::now()), to: Some(Utc::now() - Duration::from_secs(9)), ..UsageAsked::default() };
    assert_eq!(code(bed.engine.usage(&owner(), backwards).await), Some(Code::BadRequest));

    let usage = bed.engine.session_usage(&owner(), sandbox.session.as_str()).await?;
    assert_eq!((usage.session_id.as_str(), usage.call_count), (sandbox.session.as_str(), 3));
    assert_eq!((usage.total_tokens, usage.prompt_tokens, usage.completion_tokens), (3110, 2100, 10));
    let models: Vec<_> = usage.models.iter().map(|model| (model.model.as_str(), model.num_calls)).collect();
    assert_eq!(models, [("small", 1), ("big", 2)], "most tokens first");
    Ok(())
}

#[tokio::test]
async fn a_session_is_switched_to_what_there_is() -> Tested {
    let mut bed = bed().await?;
    let sandbox = bed.create("a").await?;
    let switch = |model: Option<&str>| SwitchModel { model: model.map(str::to_owned) };
    let refused = bed.engine.switch_model("a", switch(Some("smal"))).await;
    let problem = refused.err().ok_or("there is no such model")?;
    assert_eq!(problem.code, Code::UnknownModel);
    assert_eq!(problem.detail, "There is no model `smal`: did you mean `small`?");
    for model in [Some("big"), Some("fast")] {
        assert_eq!(bed.engine.switch_model("a", switch(model)).await?.model.as_deref(), model);
    }
    bed.restart().await?;
    assert_eq!(bed.engine.budget(&owner(), "a").await?.model.as_deref(), Some("fast"));
    let ledger = bed.engine.inner.gates.ledger.clone();
    let _known = ledger.know(&sandbox.session).await?;
    assert_eq!(ledger.model(&sandbox.session).as_deref(), Some("fast"));
    assert_eq!(bed.engine.switch_model("a", switch(None)).await?.model, None);
    assert_eq!(ledger.model(&sandbox.session), None, "for the next call");
    Ok(())
}

#[tokio::test]
async fn what_is_configured_is_shown() -> Tested {
    let bed = bed().await?;
    let info = bed.engine.gateway_info().await?;
    let upstreams: Vec<_> = info.upstreams.iter().map(|of| (of.name.as_str(), of.url.as_str(), of.usable)).collect();
    assert_eq!(upstreams, [("near", "http://[::1]:8080", true), ("vendor", "https://api.example.org/v1", false)]);
    let models: Vec<_> = info.models.iter().map(|of| (of.name.as_str(), of.format.as_str(), of.output_usd)).collect();
    assert_eq!(models, [("big", "openai", Some(6.0)), ("small", "anthropic", None)]);
    assert_eq!(info.aliases.get("fast").map(String::as_str), Some("small"));
    assert!(info.sets.contains_key("github") && info.errors.is_empty());
    Ok(())
}
