//! Rules and grants of sandboxes, changed live; and the log of what happened at their gates.

use std::time::Duration;

use sandbar_api::{
    AddRules, Code, CreateSandbox, Effect, Network, NetworkPolicy, NetworkRule, Problem, SetSecret, Source, Template,
};
use sandbar_gateway::{Direction, Fact, Outcome};
use sandbar_policy::{Decision, Host, Sets, Verdict};
use serde_json::json;

use super::{Bed, Tested, code, owner};
use crate::gate::{Rules, Share};

const TEMPLATE: &str = "network.allow = [\"*.example.org\"]\nnetwork.deny = [\"bad.example.org\"]";

impl Bed {
    async fn add(&self, effect: Effect, rules: &[&str]) -> Result<Network, Problem> {
        let rules = rules.iter().map(|rule| (*rule).to_owned()).collect();
        self.engine.add_rules(&owner(), "a", AddRules { effect, rules }).await
    }

    async fn changes(&self) -> Result<Vec<serde_json::Value>, Problem> {
        let events = self.engine.events(0, 10_000, Some("a")).await?.into_iter();
        Ok(events.filter(|event| event.kind == "net.changed").map(|event| event.data).collect())
    }
}

fn texts(network: &Network) -> Vec<String> {
    let shown = |rule: &NetworkRule| format!("{:?} {} {:?}", rule.effect, rule.rule, rule.source);
    network.rules.iter().map(shown).collect()
}

fn effect(rules: &Rules, sets: &Sets, host: &str) -> Result<Option<Effect>, sandbar_policy::BadHost> {
    Ok(match rules.policy(0, sets).connect(&Host::parse(host)?, 443) {
        Verdict::Decided(decision) => Some(decision.effect),
        Verdict::Inspect => None,
    })
}

#[tokio::test]
async fn rules_are_added_moved_and_removed_and_outlive_the_server() -> Tested {
    let mut bed = Bed::new().await?;
    bed.create_of("a", TEMPLATE).await?;
    let before = ["Deny bad.example.org Template", "Allow *.example.org Template"];
    assert_eq!(texts(&bed.engine.network("a").await?), before);
    let network = bed.add(Effect::Allow, &["API.github.com", "b.org:443,80"]).await?;
    let added = ["Allow api.github.com Sandbox", "Allow b.org Sandbox"];
    assert_eq!(texts(&network), [before.as_slice(), &added].concat());
    // The same again changes nothing, and is told to nobody.
    bed.add(Effect::Allow, &["api.github.com", "*.example.org"]).await?;
    let moved = bed.add(Effect::Ask, &["api.github.com"]).await?;
    let wanted = [before[0], "Ask api.github.com Sandbox", before[1], added[1]];
    assert_eq!(texts(&moved), wanted);
    bed.restart().await?;
    assert_eq!(texts(&bed.engine.network("a").await?), wanted);

    bed.engine.stop("a").await?;
    let removed = bed.engine.remove_rule(&owner(), "a", " API.github.com ").await?;
    assert_eq!(texts(&removed), [before[0], before[1], added[1]]);
    let told = [
        json!({ "effect": "allow", "rules": ["api.github.com", "b.org"], "by": "socket" }),
        json!({ "effect": "ask", "rules": ["api.github.com"], "by": "socket" }),
        json!({ "removed": ["api.github.com"], "by": "socket" }),
    ];
    assert_eq!(bed.changes().await?, told);

    let unknown = bed.engine.remove_rule(&owner(), "a", "api.github.com").await.err().ok_or("it was removed")?;
    assert_eq!(unknown.code, Code::UnknownRule);
    let templates = bed.engine.remove_rule(&owner(), "a", "*.example.org").await.err().ok_or("it was removed")?;
    assert_eq!(templates.code, Code::UnknownRule);
    assert!(templates.fix.contains("template"), "{templates}");
    bed.engine.delete("a").await?;
    assert_eq!(code(bed.engine.network("a").await), Some(Code::SandboxGone));
    assert_eq!(code(bed.add(Effect::Allow, &["c.org"]).await), Some(Code::SandboxGone));
    Ok(())
}

#[tokio::test]
async fn bad_rules_change_nothing() -> Tested {
    let bed = Bed::new().await?;
    bed.create_of("a", TEMPLATE).await?;
    for bad in [&["fine.org", "https://a.org"][..], &[], &["fine.org", "@nothing"]] {
        assert_eq!(code(bed.add(Effect::Allow, bad).await), Some(Code::BadRule), "{bad:?}");
    }
    let many: Vec<_> = (0..498).map(|number| format!("h{number}.org")).collect();
    let many: Vec<_> = many.iter().map(String::as_str).collect();
    bed.add(Effect::Allow, &many).await?;
    let problem = bed.add(Effect::Allow, &["one.more.org"]).await.err().ok_or("it was added")?;
    assert_eq!((problem.code, problem.detail.contains("501")), (Code::BadRule, true), "{problem}");
    assert_eq!(bed.engine.network("a").await?.rules.len(), 500);
    assert_eq!(bed.changes().await?.len(), 1);
    Ok(())
}

#[tokio::test]
async fn changes_at_once_do_not_lose_one_another() -> Tested {
    let mut bed = Bed::new().await?;
    bed.create_of("a", TEMPLATE).await?;
    let adding = (0..40).map(|number| {
        let engine = bed.engine.clone();
        let request = AddRules { effect: Effect::Allow, rules: vec![format!("h{number}.org")] };
        tokio::spawn(async move { engine.add_rules(&owner(), "a", request).await })
    });
    for (number, adding) in adding.collect::<Vec<_>>().into_iter().enumerate() {
        // A caller that goes away takes back either all of its change or nothing.
        if number % 4 == 0 {
            adding.abort();
        } else {
            adding.await??;
        }
    }
    // After all others in the sandbox's queue.
    let last = bed.add(Effect::Deny, &["last.org"]).await?;
    assert!((33..=43).contains(&last.rules.len()), "{}", last.rules.len());
    bed.restart().await?;
    assert_eq!(bed.engine.network("a").await?, last, "memory and store agree");
    Ok(())
}

#[tokio::test]
async fn findings_say_what_never_decides() -> Tested {
    let bed = Bed::new().await?;
    bed.create_of("a", TEMPLATE).await?;
    let network = bed.add(Effect::Allow, &["bad.example.org"]).await?;
    assert!(network.findings.iter().any(|finding| finding.starts_with("`bad.example.org`: never used")), "{network:?}");
    Ok(())
}

/// Fail closed: what a rule was meant for is not known without its set.
#[test]
fn a_rule_whose_set_is_gone_allows_nothing_or_denies_everything() -> Tested {
    let rule = |effect, text: &str| NetworkRule { effect, rule: text.into(), source: Source::Sandbox };
    let sets = Sets::from([("known".to_owned(), vec!["known.org".to_owned()])]);
    let own = vec![rule(Effect::Allow, "a.org"), rule(Effect::Allow, "@known"), rule(Effect::Allow, "@gone")];
    let rules = Rules::new(&Template::default(), own.clone(), vec![]);
    assert_eq!(effect(&rules, &sets, "a.org")?, Some(Effect::Allow));
    assert_eq!(effect(&rules, &sets, "known.org")?, Some(Effect::Allow));
    assert_eq!(effect(&rules, &sets, "other.org")?, Some(Effect::Deny));
    for closing in [Effect::Deny, Effect::Ask] {
        let own = own.iter().cloned().chain([rule(closing, "@gone")]).collect();
        let rules = Rules::new(&Template::default(), own, vec![]);
        assert_eq!(effect(&rules, &sets, "a.org")?, Some(Effect::Deny));
    }
    // Under other sets it is compiled anew.
    assert_eq!(
        rules.policy(1, &Sets::new()).connect(&Host::parse("known.org")?, 443),
        Verdict::Decided(Decision { effect: Effect::Deny, rule: None })
    );
    Ok(())
}

#[tokio::test]
async fn asking_anew_takes_back_what_a_person_allowed() -> Tested {
    let bed = Bed::new().await?;
    bed.create_of("a", TEMPLATE).await?;
    let handle = bed.engine.inner.handle("a").await?;
    let rule = |text: &str| NetworkRule { effect: Effect::Allow, rule: text.into(), source: Source::Approval };
    let own = vec![rule("api.example.org:443"), rule("b.org:443 GET /x"), rule("c.org:443"), rule("[2001:db8::1]:443")];
    handle.rules.take((own, vec![]));
    bed.add(Effect::Ask, &["*.example.org", "b.org POST /y", "[2001:db8::1]"]).await?;
    let (own, _) = handle.rules.own();
    let left: Vec<_> = own.iter().filter(|rule| rule.source == Source::Approval).map(|rule| &rule.rule).collect();
    assert_eq!(left, ["c.org:443"]);
    Ok(())
}

#[tokio::test]
async fn secrets_are_granted_and_revoked() -> Tested {
    let mut bed = Bed::new().await?;
    let secret = |value: &str| SetSecret {
        hosts: vec!["api.github.com".into()],
        placement: "header:Authorization:Bearer {}".into(),
        value: Some(value.into()),
    };
    bed.engine.set_secret("OF_TEMPLATE", secret("one")).await?;
    bed.engine.set_secret("TOKEN", secret("two")).await?;
    bed.create_of("a", "secrets = [\"OF_TEMPLATE\"]").await?;
    assert_eq!(code(bed.engine.grant_secret(&owner(), "a", "NOTHING").await), Some(Code::UnknownSecret));
    for _ in 0..2 {
        let network = bed.engine.grant_secret(&owner(), "a", "TOKEN").await?;
        assert_eq!(network.secrets, ["OF_TEMPLATE", "TOKEN"]);
    }
    bed.restart().await?;
    assert_eq!(bed.engine.network("a").await?.secrets, ["OF_TEMPLATE", "TOKEN"]);
    // Also one that was removed meanwhile can be revoked.
    bed.engine.remove_secret("TOKEN").await?;
    assert_eq!(bed.engine.revoke_secret(&owner(), "a", "TOKEN").await?.secrets, ["OF_TEMPLATE"]);
    assert_eq!(code(bed.engine.revoke_secret(&owner(), "a", "TOKEN").await), Some(Code::UnknownSecret));
    let templates = bed.engine.revoke_secret(&owner(), "a", "OF_TEMPLATE").await.err().ok_or("it was revoked")?;
    assert_eq!((templates.code, templates.fix.contains("template")), (Code::UnknownSecret, true));
    let told = [json!({ "granted": "TOKEN", "by": "socket" }), json!({ "revoked": "TOKEN", "by": "socket" })];
    assert_eq!(bed.changes().await?, told);
    Ok(())
}

fn fact(direction: Direction, outcome: Outcome) -> Fact {
    Fact {
        direction,
        host: "api.example.org".into(),
        port: 443,
        method: Some("GET".into()),
        path: Some("/x".repeat(5000)),
        decision: Decision { effect: Effect::Allow, rule: Some("*.example.org".into()) },
        secrets: vec!["TOKEN".into()],
        outcome,
        sent: 7,
        received: u64::MAX,
        elapsed: Duration::from_millis(12),
    }
}

#[tokio::test]
async fn what_happens_at_a_gate_is_written_down_before_the_server_ends() -> Tested {
    let mut bed = Bed::new().await?;
    let sandbox = bed.create_of("a", TEMPLATE).await?;
    let facts = bed.engine.inner.gates.facts.clone();
    let all = [
        (Direction::Tunnel, Outcome::Opened, "net.opened"),
        (Direction::Tunnel, Outcome::Done { status: None }, "net.closed"),
        (Direction::Request, Outcome::Done { status: Some(204) }, "net.request"),
        (Direction::Request, Outcome::Denied("no".into()), "net.denied"),
        (Direction::Tunnel, Outcome::Failed("down".into()), "net.failed"),
    ];
    for (direction, outcome, _) in &all {
        facts.record(&sandbox.id, &Share::default(), fact(*direction, outcome.clone()));
    }
    bed.restart().await?;
    let events = bed.engine.events(0, 1000, Some("a")).await?;
    let found: Vec<_> = events.iter().filter(|event| event.kind.starts_with("net.")).collect();
    let kinds: Vec<_> = found.iter().map(|event| event.kind.as_str()).collect();
    assert_eq!(kinds, all.map(|(_, _, kind)| kind));
    let mut data = found[2].data.clone();
    let path = data["path"].take();
    assert!(path.as_str().is_some_and(|path| path.len() < 2100 && path.ends_with('…')), "{path}");
    let wanted = json!({
        "host": "api.example.org", "port": 443, "method": "GET", "path": null, "rule": "*.example.org",
        "effect": "allow", "secrets": ["TOKEN"], "status": 204, "sent": 7, "received": u64::MAX, "ms": 12,
    });
    assert_eq!(data, wanted);
    assert_eq!((&found[3].data["reason"], &found[4].data["reason"]), (&"no".into(), &"down".into()));
    // After the end there is nobody left to write: nothing hangs, nothing panics.
    facts.record(&sandbox.id, &Share::default(), fact(Direction::Tunnel, Outcome::Opened));
    facts.close().await;
    Ok(())
}

#[tokio::test]
async fn what_does_not_fit_is_counted_and_told() -> Tested {
    let bed = Bed::new().await?;
    let sandbox = bed.create_of("a", TEMPLATE).await?;
    let facts = bed.engine.inner.gates.facts.clone();
    // No await in between: on this one thread the writer has no turn.
    for _ in 0..5000 {
        facts.record(&sandbox.id, &Share::default(), Fact { path: None, ..fact(Direction::Tunnel, Outcome::Opened) });
    }
    facts.close().await;
    let events = bed.engine.events(0, 10_000, Some("a")).await?;
    let opened = events.iter().filter(|event| event.kind == "net.opened").count() as u64;
    let lost: u64 = events
        .iter()
        .filter(|event| event.kind == "net.log_lost")
        .filter_map(|event| event.data["count"].as_u64())
        .sum();
    assert_eq!((opened, lost), (4096, 904));
    Ok(())
}

#[tokio::test]
async fn a_sandbox_that_asks_for_what_is_not_there_is_not_made() -> Tested {
    let bed = Bed::new().await?;
    let create = async |request: CreateSandbox| bed.engine.create(&owner(), request, None).await;
    let rules = NetworkPolicy { allow: vec!["@gihub".into()], ..NetworkPolicy::default() };
    let misspelt = CreateSandbox { network: rules, ..CreateSandbox::default() };
    let refused = create(misspelt).await.err().ok_or("a set that is not there was taken")?;
    assert_eq!(refused.code, Code::BadRule);
    assert!(refused.detail.contains("@github"), "{refused}");
    let secret = CreateSandbox { secrets: vec!["NOT_SET".into()], ..CreateSandbox::default() };
    assert_eq!(code(create(secret).await), Some(Code::UnknownSecret));
    assert!(bed.engine.list(crate::ListQuery::default()).await?.sandboxes.is_empty());
    Ok(())
}

#[tokio::test]
async fn one_sandbox_has_its_share_of_the_log_and_no_more() -> Tested {
    let bed = Bed::new().await?;
    let sandbox = bed.create("a").await?;
    let (facts, share) = (bed.engine.inner.gates.facts.clone(), Share::default());
    let begun = std::time::Instant::now();
    for _ in 0..3000 {
        facts.record(&sandbox.id, &share, fact(Direction::Request, Outcome::Denied("no".into())));
    }
    let most = 2000 + 1 + begun.elapsed().as_millis() as u64 / 10;
    facts.close().await;
    let events = bed.engine.events(0, 10_000, Some("a")).await?;
    let written = events.iter().filter(|event| event.kind == "net.denied").count() as u64;
    assert!((2000..=most).contains(&written), "{written} of at most {most}");
    let lost: u64 = events.iter().filter_map(|event| event.data["count"].as_u64()).sum();
    assert_eq!(written + lost, 3000);
    Ok(())
}
