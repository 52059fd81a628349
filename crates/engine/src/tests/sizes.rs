//! Limits and budgets that a request states: what they take the place of, and what is refused.

use sandbar_api::{Code, CreateSandbox, CreateSession, CreateSnapshot, Fork, Limits, SessionId, SetBudget, Snapshot};
use sandbar_gateway::Held;

use super::{Bed, Tested, code, owner, soon};
use crate::NewConversation;

const TEMPLATE: &str = "[limits]\nmemory = \"512MiB\"\nprocesses = 100\n[budget]\ntokens = 1000\nusd = 2.5\n";

async fn bed() -> Result<Bed, Box<dyn std::error::Error>> {
    let mut bed = Bed::new().await?;
    std::fs::write(bed.home.join("gateway.toml"), "[budget]\nusd = 9\nper_minute = 60\n")?;
    std::fs::write(bed.home.join("templates/tested.toml"), TEMPLATE)?;
    bed.restart().await?;
    Ok(bed)
}

fn tested(name: &str) -> CreateSandbox {
    CreateSandbox { name: Some(name.into()), template: Some("tested".into()), ..CreateSandbox::default() }
}

fn limits(text: &str) -> Result<Limits, serde_json::Error> {
    serde_json::from_str(text)
}

impl Bed {
    async fn limits_of(&self, name: &str) -> Result<Limits, Box<dyn std::error::Error>> {
        let id = self.engine.get(name).await?.id;
        Ok(self.provider.spec_of(&id).ok_or("it was not made")?.limits)
    }

    /// What the gateway lets a call of the session use.
    async fn held(&self, session: &SessionId) -> Result<Held, Box<dyn std::error::Error>> {
        let ledger = &self.engine.inner.gates.ledger;
        let _known = ledger.know(session).await?;
        Ok(ledger.budget(session))
    }

    async fn budget_of(&self, session: &str) -> Result<SetBudget, Box<dyn std::error::Error>> {
        Ok(self.engine.session(&owner(), session).await?.budget.limits)
    }
}

#[tokio::test]
async fn stated_limits_take_the_place_of_the_templates() -> Tested {
    let mut bed = bed().await?;
    let stated = limits(r#"{"memory": "1GiB", "cpus": 1.5}"#)?;
    bed.engine.create(&owner(), CreateSandbox { limits: stated.clone(), ..tested("own") }, None).await?;
    let want = limits(r#"{"memory": "1GiB", "cpus": 1.5, "processes": 100}"#)?;
    assert_eq!(bed.limits_of("own").await?, want);
    let session = CreateSession {
        name: Some("begun".into()),
        template: Some("tested".into()),
        limits: stated,
        ..CreateSession::default()
    };
    bed.engine.create_session(&owner(), session, None).await?;
    assert_eq!(bed.limits_of("begun").await?, want);

    // They are the sandbox's: kept by the record, a copy and a snapshot, and not by the template.
    bed.restart().await?;
    assert_eq!(bed.engine.inner.handle("own").await?.template.limits, want);
    let fork = Fork { count: 1, name: Some("copy".into()), labels: Default::default(), ttl: None };
    bed.engine.fork(&owner(), "own", fork).await?;
    assert_eq!(bed.limits_of("copy-1").await?, want);
    let Snapshot { id, .. } = bed.engine.snapshot(&owner(), "own", CreateSnapshot::default()).await?;
    let again = CreateSandbox { template: None, from: Some(id.to_string()), ..tested("again") };
    let again = CreateSandbox { limits: limits(r#"{"processes": 50}"#)?, ..again };
    bed.engine.create(&owner(), again, None).await?;
    assert_eq!(bed.limits_of("again").await?, limits(r#"{"memory": "1GiB", "cpus": 1.5, "processes": 50}"#)?);
    bed.engine.create(&owner(), tested("plain"), None).await?;
    assert_eq!(bed.limits_of("plain").await?, limits(r#"{"memory": "512MiB", "processes": 100}"#)?);
    Ok(())
}

#[tokio::test]
async fn a_warm_sandbox_with_other_limits_is_not_claimed() -> Tested {
    let bed = bed().await?;
    bed.engine.set_pool("tested", 1).await?;
    let warm = || async { bed.engine.pools().await.ok().filter(|pools| pools.iter().any(|pool| pool.warm == 1)) };
    soon(&warm).await?;
    let claims = || bed.engine.inner.metrics.claims.get();
    let stated = CreateSandbox { limits: limits(r#"{"memory": "1GiB"}"#)?, ..tested("other") };
    bed.engine.create(&owner(), stated, None).await?;
    assert_eq!((claims(), bed.limits_of("other").await?.memory), (0, limits(r#"{"memory": "1GiB"}"#)?.memory));
    // A budget is of the session and changes nothing about the sandbox.
    let budget = SetBudget { tokens: Some(5), ..SetBudget::default() };
    let same = CreateSandbox { limits: limits(r#"{"memory": "512MiB"}"#)?, budget, ..tested("same") };
    let same = bed.engine.create(&owner(), same, None).await?.sandbox;
    assert_eq!(claims(), 1);
    assert_eq!(bed.budget_of("same").await?.tokens, Some(5));
    assert_eq!(bed.held(&same.session).await?, Held::Budget { left: 5, priced: true });
    Ok(())
}

#[tokio::test]
async fn a_session_begins_with_the_nearest_budget() -> Tested {
    let mut bed = bed().await?;
    let budget = SetBudget { tokens: Some(77), ..SetBudget::default() };
    let made = bed.engine.create(&owner(), CreateSandbox { budget, ..tested("a") }, None).await?.sandbox;
    let want = SetBudget { tokens: Some(77), usd: Some(2.5), per_minute: Some(60) };
    assert_eq!(bed.budget_of("a").await?, want);
    assert_eq!(bed.held(&made.session).await?, Held::Budget { left: 60, priced: true });
    // The first gateway of a session does not look up what its creation has just written.
    let (ledger, fresh) = (&bed.engine.inner.gates.ledger, SessionId::from_parts(1, [1; 10]));
    let known = ledger.born(&fresh, &SetBudget { tokens: Some(7), ..SetBudget::default() });
    assert_eq!(ledger.budget(&fresh), Held::Budget { left: 7, priced: false });
    drop(known);
    let server = SetBudget { usd: Some(9.0), per_minute: Some(60), ..SetBudget::default() };
    bed.create("plain").await?;
    assert_eq!(bed.budget_of("plain").await?, server);
    bed.restart().await?;
    assert_eq!((bed.budget_of("a").await?, bed.budget_of("plain").await?), (want, server.clone()));

    // A session above limits those below it, and a copy spends what its origin spends.
    let below = CreateSandbox { parent: Some(made.session.clone()), template: None, ..tested("below") };
    bed.engine.create(&owner(), below, None).await?;
    let fork = Fork { count: 1, name: Some("copy".into()), labels: Default::default(), ttl: None };
    bed.engine.fork(&owner(), "a", fork).await?;
    assert_eq!((bed.budget_of("below").await?, bed.budget_of("copy-1").await?), Default::default());
    let joins = CreateSandbox {
        session: Some(made.session),
        budget: SetBudget { usd: Some(1.0), ..SetBudget::default() },
        ..tested("joins")
    };
    assert_eq!(code(bed.engine.create(&owner(), joins, None).await), Some(Code::BadRequest));

    // A conversation has its agent's.
    let text =
        "[default]\ntemplate = \"tested\"\n[agents.coder]\nbudget = { tokens = 5 }\nlimits = { memory = \"2GiB\" }\n";
    std::fs::write(bed.home.join("workspaces.toml"), text)?;
    let talk = NewConversation { name: Some("talk".into()), agent: Some("coder".into()), ..NewConversation::default() };
    bed.engine.begin_conversation(&owner(), talk).await?;
    let want = SetBudget { tokens: Some(5), usd: Some(2.5), per_minute: Some(60) };
    assert_eq!(bed.budget_of("talk").await?, want);
    let place = bed.engine.workspace(&owner(), "talk", None).await?.sandbox.ok_or("it has a sandbox")?;
    assert_eq!(bed.limits_of(place.id.as_str()).await?, limits(r#"{"memory": "2GiB", "processes": 100}"#)?);
    assert_eq!(bed.budget_of("talk").await?, want);
    Ok(())
}

#[tokio::test]
async fn limits_and_budgets_that_cannot_be_meant_make_nothing() -> Tested {
    let bed = bed().await?;
    for bad in [
        r#"{"memory": "1MiB"}"#,
        r#"{"cpus": 0}"#,
        r#"{"cpus": 1025}"#,
        r#"{"processes": 7}"#,
        r#"{"open_files": 1}"#,
        r#"{"disk": "1KiB"}"#,
        r#"{"output": 0}"#,
        r#"{"wall_time": "0s"}"#,
    ] {
        let request = CreateSandbox { limits: limits(bad)?, ..tested("bad") };
        assert_eq!(code(bed.engine.create(&owner(), request, None).await), Some(Code::BadLimit), "{bad}");
    }
    for usd in [-1.0, f64::NAN, 1e10] {
        let budget = SetBudget { usd: Some(usd), ..SetBudget::default() };
        let request = CreateSandbox { budget: budget.clone(), ..tested("bad") };
        assert_eq!(code(bed.engine.create(&owner(), request, None).await), Some(Code::BadBudget), "{usd}");
        let request = CreateSession { name: Some("bad".into()), budget, ..CreateSession::default() };
        assert_eq!(code(bed.engine.create_session(&owner(), request, None).await), Some(Code::BadBudget), "{usd}");
    }
    assert!(bed.provider.all().is_empty());
    assert_eq!(code(bed.engine.session(&owner(), "bad").await), Some(Code::UnknownSession));
    Ok(())
}
