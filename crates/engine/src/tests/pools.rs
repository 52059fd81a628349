//! Pools: filled, claimed once each, replaced when stale or dead, and found again by the next server.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::Ordering,
};

use sandbar_api::{Code, CreateSandbox, Pool, Problem, Sandbox, SandboxId, SandboxState, SetBudget, WorkspaceSource};
use sandbar_provider::{Error, Provider as _};

use super::{Bed, Tested, exec, owner, soon};
use crate::{
    ListQuery, pool,
    store::{NewSandbox, sessions::SessionMarks},
};

type Ids = BTreeSet<SandboxId>;

impl Bed {
    async fn pool(&self, template: &str) -> Option<Pool> {
        self.engine.pools().await.ok()?.into_iter().find(|pool| pool.template == template)
    }

    /// Waits until that many can be claimed, and tells which.
    async fn warm(&self, template: &str, count: u32) -> Result<Ids, Box<dyn std::error::Error>> {
        soon(|| async { self.pool(template).await.filter(|pool| pool.warm == count) }).await?;
        Ok(self.members().await?)
    }

    async fn members(&self) -> Result<Ids, crate::store::Error> {
        Ok(self.engine.inner.store.pool_members().await?.into_iter().map(|member| member.id).collect())
    }

    async fn made(&self) -> Result<Ids, Error> {
        Ok(self.provider.list().await?.into_iter().map(|found| found.id).collect())
    }

    async fn any(&self) -> Result<Sandbox, Problem> {
        Ok(self.engine.create(&owner(), CreateSandbox::default(), None).await?.sandbox)
    }

    async fn claimed(&self) -> Result<Ids, Box<dyn std::error::Error>> {
        let events = self.engine.events(0, 10_000, None).await?.into_iter();
        let claimed = events.filter(|event| event.kind == "sandbox.created" && event.data["claimed"] == true);
        Ok(claimed.filter_map(|event| event.sandbox?.parse().ok()).collect())
    }

    fn write_template(&self, name: &str, text: &str) -> std::io::Result<()> {
        std::fs::write(self.home.join("templates").join(name).with_extension("toml"), text)
    }

    /// From now on a `create` takes so long that whatever is quicker was warm.
    fn slow_down(&self) {
        self.provider.pace.store(3_000, Ordering::Relaxed);
    }
}

#[tokio::test]
async fn fifty_creates_share_ten_members_without_two_getting_the_same() -> Tested {
    let bed = Bed::new().await?;
    bed.engine.set_pool("default", 10).await?;
    let members = bed.warm("default", 10).await?;
    assert!(bed.engine.list(ListQuery::default()).await?.sandboxes.is_empty(), "members are no sandboxes");
    bed.slow_down();
    let creates = (0..50).map(|_| bed.any());
    let made = futures_util::future::join_all(creates).await.into_iter().collect::<Result<Vec<_>, _>>()?;
    let ids: Ids = made.iter().map(|sandbox| sandbox.id.clone()).collect();
    assert_eq!(ids.len(), 50);
    assert!(made.iter().all(|sandbox| sandbox.state == SandboxState::Ready));
    assert_eq!(bed.claimed().await?, members, "exactly what was warm was claimed");
    assert!(members.is_subset(&ids));
    Ok(())
}

#[tokio::test]
async fn a_claim_has_all_that_was_asked_for_and_makes_no_connection() -> Tested {
    let bed = Bed::new().await?;
    bed.engine.set_pool("default", 1).await?;
    let members = bed.warm("default", 1).await?;
    bed.slow_down();
    let connections = bed.provider.connections.load(Ordering::Relaxed);
    let map = |key: &str, value: &str| BTreeMap::from([(key.to_owned(), value.to_owned())]);
    let request = CreateSandbox {
        name: Some("mine".into()),
        labels: map("team", "a"),
        env: map("A", "1"),
        ttl: Some("1h".parse()?),
        ..CreateSandbox::default()
    };
    let sandbox = bed.engine.create(&owner(), request, None).await?.sandbox;
    assert_eq!(bed.provider.connections.load(Ordering::Relaxed), connections);
    assert_eq!(Ids::from([sandbox.id.clone()]), members);
    assert_eq!((sandbox.state, sandbox.name.as_str()), (SandboxState::Ready, "mine"));
    assert_eq!((&sandbox.labels, &sandbox.env), (&map("team", "a"), &map("A", "1")));
    assert_eq!(sandbox.expires_at.map(|at| at - sandbox.created_at), Some(chrono::TimeDelta::hours(1)));
    assert_eq!(bed.engine.get("mine").await?, sandbox);
    assert_eq!(bed.engine.exec("mine", exec(&["echo", "x"], None, 10)).await?.stdout, "x");
    let bound: Vec<_> = bed.provider.bound.lock().map_err(|_| "poisoned")?.drain(..).collect();
    assert_eq!(bound.iter().map(|spec| spec.hostname.as_str()).collect::<Vec<_>>(), ["mine"]);
    let kinds: Vec<_> = bed.engine.events(0, 100, Some("mine")).await?.into_iter().map(|event| event.kind).collect();
    assert_eq!(kinds[..2], ["sandbox.created", "sandbox.ready"]);

    bed.provider.pace.store(20, Ordering::Relaxed);
    bed.warm("default", 1).await?;
    bed.slow_down();
    let unnamed = bed.any().await?;
    assert_eq!(unnamed.name, crate::ids::default_name(&unnamed.id));
    assert!(bed.provider.bound.lock().map_err(|_| "poisoned")?.is_empty(), "it had its name already");
    for name in ["mine", unnamed.name.as_str()] {
        bed.engine.stop(name).await?;
        assert_eq!(bed.engine.start(name).await?.state, SandboxState::Ready);
        bed.engine.delete(name).await?;
    }
    assert!(bed.claimed().await?.iter().all(|id| bed.provider.get(id).is_none()));
    Ok(())
}

#[tokio::test]
async fn the_places_of_the_claimed_and_of_the_dead_are_filled() -> Tested {
    let bed = Bed::new().await?;
    bed.engine.set_pool("default", 3).await?;
    let before = bed.warm("default", 3).await?;
    let claimed = bed.any().await?.id;
    let refilled = || async { bed.members().await.ok().filter(|now| now.len() == 3 && !now.contains(&claimed)) };
    let now = soon(refilled).await?;
    assert_eq!(now.intersection(&before).count(), 2);
    let dead = now.first().ok_or("no members")?.clone();
    bed.provider.die(&dead);
    let replaced = || async { bed.members().await.ok().filter(|now| now.len() == 3 && !now.contains(&dead)) };
    soon(replaced).await?;
    assert!(bed.provider.get(&dead).is_none(), "nothing is left of it");
    bed.warm("default", 3).await?;
    Ok(())
}

#[tokio::test]
async fn an_edited_template_retires_what_was_made_from_it_before() -> Tested {
    let bed = Bed::new().await?;
    bed.write_template("t", "description = \"one\"")?;
    bed.engine.set_pool("t", 2).await?;
    let old = bed.warm("t", 2).await?;
    bed.write_template("t", "description = \"two\"")?;
    let request = CreateSandbox { template: Some("t".into()), ..CreateSandbox::default() };
    let sandbox = bed.engine.create(&owner(), request, None).await?.sandbox;
    assert!(!old.contains(&sandbox.id), "it was made from what the template no longer is");
    let retired = || async { bed.members().await.ok().filter(|now| now.len() == 2 && now.is_disjoint(&old)) };
    soon(retired).await?;
    let gone = || async { bed.made().await.ok().filter(|made| made.is_disjoint(&old)) };
    soon(gone).await?;

    let current = bed.warm("t", 2).await?;
    bed.write_template("t", "descriptoin = \"three\"")?;
    bed.provider.die(current.first().ok_or("no members")?);
    let told = || async { bed.pool("t").await.filter(|pool| pool.warm == 1)?.reason };
    let reason = soon(told).await?;
    assert!(reason.contains("t.toml:1:") && reason.contains("description"), "{reason}");
    std::fs::remove_file(bed.home.join("templates/t.toml"))?;
    soon(|| async { bed.members().await.ok().filter(Ids::is_empty) }).await?;
    assert_eq!(bed.engine.set_pool("t", 0).await?.warm, 0, "a pool can be ended without its template");
    assert_eq!(bed.engine.pools().await?, []);
    Ok(())
}

#[tokio::test]
async fn the_next_server_adopts_what_still_fits() -> Tested {
    let mut bed = Bed::new().await?;
    bed.write_template("t", "description = \"one\"")?;
    bed.engine.set_pool("default", 3).await?;
    let before = bed.warm("default", 3).await?;
    bed.engine.set_pool("t", 2).await?;
    let stale: Ids = bed.warm("t", 2).await?.difference(&before).cloned().collect();
    bed.engine.shutdown().await;
    assert!(bed.made().await?.is_superset(&before), "members go on without a server");
    let dead = before.first().ok_or("no members")?.clone();
    bed.provider.die(&dead);
    bed.write_template("t", "description = \"two\"")?;
    bed.restart().await?;
    bed.warm("default", 3).await?;
    let now = bed.warm("t", 2).await?;
    assert_eq!(now.intersection(&before).count(), 2, "the living were adopted");
    assert!(now.is_disjoint(&stale) && !now.contains(&dead));
    soon(|| async { bed.made().await.ok().filter(|made| *made == now) }).await?;
    bed.slow_down();
    let claimed = bed.any().await?;
    assert!(before.contains(&claimed.id));
    assert_eq!(bed.engine.exec(&claimed.name, exec(&["echo", "x"], None, 10)).await?.stdout, "x");
    Ok(())
}

#[tokio::test]
async fn a_name_that_is_taken_costs_no_member() -> Tested {
    let bed = Bed::new().await?;
    bed.create("a").await?;
    bed.engine.set_pool("default", 2).await?;
    let before = bed.warm("default", 2).await?;
    // On a slow host the place of a member that is tried would be filled before it is given back, and one of them go.
    bed.engine.inner.pools.stop_filling("default");
    assert_eq!(bed.create("a").await.map_err(|problem| problem.code), Err(Code::NameTaken));
    let stranger = "ses-00000000000000000000000000".parse()?;
    let request = CreateSandbox { session: Some(stranger), ..CreateSandbox::default() };
    let refused = bed.engine.create(&owner(), request, None).await.map_err(|problem| problem.code);
    assert_eq!(refused.err(), Some(Code::BadRequest));
    assert_eq!(bed.warm("default", 2).await?, before);
    assert_eq!(bed.made().await?.len(), 3);
    assert!(bed.provider.bound.lock().map_err(|_| "poisoned")?.is_empty());
    bed.slow_down();
    assert!(before.contains(&bed.any().await?.id), "it can still be claimed");
    Ok(())
}

#[tokio::test]
async fn of_two_who_want_a_name_at_once_one_gets_it_and_the_others_member_is_used_up() -> Tested {
    let bed = Bed::new().await?;
    bed.engine.set_pool("default", 4).await?;
    let before = bed.warm("default", 4).await?;
    let (first, second) = tokio::join!(bed.create("a"), bed.create("a"));
    let (won, lost) = if first.is_ok() { (first, second) } else { (second, first) };
    assert_eq!(lost.map_err(|problem| problem.code).err(), Some(Code::NameTaken));
    let won = won?;
    assert!(before.contains(&won.id));
    bed.warm("default", 4).await?;
    let bound: Ids = bed.provider.bound.lock().map_err(|_| "poisoned")?.iter().map(|spec| spec.id.clone()).collect();
    let unused = || async { bed.members().await.ok().filter(|now| now.len() == 4 && now.is_disjoint(&bound)) };
    let unused = soon(unused).await?;
    let made: Ids = unused.into_iter().chain([won.id]).collect();
    soon(|| async { bed.made().await.ok().filter(|now| *now == made) }).await?;
    Ok(())
}

#[tokio::test]
async fn one_key_claims_once() -> Tested {
    let bed = Bed::new().await?;
    bed.engine.set_pool("default", 3).await?;
    bed.warm("default", 3).await?;
    // The place of the claimed one is not filled meanwhile.
    bed.provider.held.send_replace(true);
    let (caller, request) = (owner(), CreateSandbox { name: Some("once".into()), ..CreateSandbox::default() });
    let create = || async {
        let outcome = bed.engine.create(&caller, request.clone(), Some("key")).await?;
        // Whoever is told of it can work in it, by name too.
        bed.engine.exec("once", exec(&["echo", "x"], None, 10)).await?;
        Ok::<_, Problem>((outcome.sandbox.id, outcome.replayed))
    };
    let outcomes = tokio::try_join!(create(), create(), create())?;
    let outcomes = [outcomes.0, outcomes.1, outcomes.2];
    assert_eq!(outcomes.iter().filter(|(_, replayed)| !replayed).count(), 1);
    assert!(outcomes.iter().all(|(id, _)| *id == outcomes[0].0));
    assert_eq!(bed.pool("default").await.map(|pool| pool.warm), Some(2), "replays gave back what they took");
    Ok(())
}

#[tokio::test]
async fn a_bound_workspace_is_bound_or_the_sandbox_is_not_handed_out() -> Tested {
    let bed = Bed::new().await?;
    bed.engine.set_pool("default", 2).await?;
    let members = bed.warm("default", 2).await?;
    bed.slow_down();
    let workspace = WorkspaceSource::Bind { path: "/srv/a".into() };
    let request = |name: &str| CreateSandbox {
        name: Some(name.into()),
        workspace: workspace.clone(),
        ..CreateSandbox::default()
    };
    let (what, cause, fix) = ("/srv/a".to_owned(), "ENOENT".to_owned(), "Make it.".to_owned());
    *bed.provider.unbindable.lock().map_err(|_| "poisoned")? = Some(Error::BadSpec { what, cause, fix });
    let refused = bed.engine.create(&owner(), request("a"), None).await.map_err(|problem| problem.code);
    assert_eq!(refused.err(), Some(Code::BadPath));
    assert!(bed.engine.list(ListQuery::default()).await?.sandboxes.is_empty());
    let sandbox = bed.engine.create(&owner(), request("a"), None).await?.sandbox;
    assert_eq!((sandbox.state, &sandbox.reason), (SandboxState::Ready, &None));
    assert!(members.contains(&sandbox.id));
    let bound: Vec<_> = bed.provider.bound.lock().map_err(|_| "poisoned")?.drain(..).collect();
    assert_eq!(bound.iter().map(|spec| (&spec.id, &spec.workspace)).collect::<Vec<_>>(), [(&sandbox.id, &workspace)]);
    let left: Ids = members.into_iter().filter(|id| bed.provider.get(id).is_some()).collect();
    assert_eq!(left, Ids::from([sandbox.id.clone()]), "one that could not be bound is gone");
    assert_eq!(bed.engine.exec("a", exec(&["echo", "x"], None, 10)).await?.stdout, "x");
    Ok(())
}

#[tokio::test]
async fn where_workspaces_cannot_be_bound_late_the_sandbox_is_made_as_without_a_pool() -> Tested {
    let bed = Bed::new().await?;
    bed.engine.set_pool("default", 2).await?;
    bed.warm("default", 2).await?;
    let declined = Error::Declined { provider: "local", verb: "bind a workspace late to" };
    *bed.provider.unbindable.lock().map_err(|_| "poisoned")? = Some(declined);
    for name in ["a", "b"] {
        let workspace = WorkspaceSource::Bind { path: "/srv/a".into() };
        let request = CreateSandbox { name: Some(name.into()), workspace, ..CreateSandbox::default() };
        assert_eq!(bed.engine.create(&owner(), request, None).await?.sandbox.state, SandboxState::Ready);
        assert_eq!(bed.engine.exec(name, exec(&["echo", "x"], None, 10)).await?.stdout, "x");
    }
    assert_eq!(bed.claimed().await?.len(), 1, "it is tried once");
    assert!(bed.provider.bound.lock().map_err(|_| "poisoned")?.is_empty());
    bed.warm("default", 2).await?;
    bed.create("c").await?;
    assert_eq!(bed.claimed().await?.len(), 2, "others are still claimed");
    Ok(())
}

#[tokio::test]
async fn a_claim_that_was_cut_off_is_undone_by_the_next_server() -> Tested {
    let mut bed = Bed::new().await?;
    let mut sandbox = bed.create("model").await?;
    let template = bed.engine.template("default").await?;
    bed.engine.set_pool("default", 1).await?;
    let member = bed.warm("default", 1).await?.pop_first().ok_or("no member")?;
    // As far as a claim comes before it binds a workspace.
    sandbox.id = member.clone();
    sandbox.name = "cut-off".into();
    sandbox.state = SandboxState::Creating;
    sandbox.reason = Some(pool::claiming());
    sandbox.changed_at = sandbox.created_at;
    let row = crate::store::SandboxRow { sandbox, template, lease: None };
    let gate = crate::store::suite::gate_row();
    let marks = SessionMarks::default();
    let new = NewSandbox {
        row,
        new_session: false,
        parent: None,
        marks,
        budget: SetBudget::default(),
        owner: "socket".into(),
        gate,
        key: None,
    };
    bed.engine.inner.store.claim_pool_member(new).await?;
    bed.restart().await?;
    assert!(bed.provider.get(&member).is_none());
    let undone = bed.engine.get(member.as_str()).await?;
    assert_eq!(
        (undone.state, undone.reason.map(|reason| reason.code)),
        (SandboxState::Deleted, Some("interrupted".into()))
    );
    assert!(!bed.warm("default", 1).await?.contains(&member));
    Ok(())
}

#[tokio::test]
async fn short_memory_empties_the_pool_until_it_is_over() -> Tested {
    let bed = Bed::new().await?;
    bed.engine.set_pool("default", 3).await?;
    bed.warm("default", 3).await?;
    bed.engine.inner.pools.feel(|| Some("Memory is short.".into()));
    let begun = std::time::Instant::now();
    let empty = |pool: &Pool| pool.warm == 0 && pool.reason.as_deref() == Some("Memory is short.");
    soon(|| async { bed.pool("default").await.filter(empty) }).await?;
    assert!(begun.elapsed() >= pool::TICK * 2, "one at a time");
    soon(|| async { bed.made().await.ok().filter(Ids::is_empty) }).await?;
    bed.any().await?;
    assert!(bed.claimed().await?.is_empty(), "an empty pool delays nobody");
    assert_eq!(bed.pool("default").await.map(|pool| pool.warm), Some(0));
    bed.engine.inner.pools.feel(|| None);
    bed.warm("default", 3).await?;
    assert_eq!(bed.pool("default").await.and_then(|pool| pool.reason), None);
    Ok(())
}

#[tokio::test]
async fn what_keeps_a_pool_from_being_filled_is_told_and_tried_again() -> Tested {
    let bed = Bed::new().await?;
    let refuses =
        || Error::NotEnforceable { layer: "user namespaces", cause: "EPERM".to_owned(), fix: "sysctl x".to_owned() };
    bed.provider.kernel.fail("launch", refuses);
    bed.engine.set_pool("default", 1).await?;
    let told = || async { bed.pool("default").await.and_then(|pool| pool.reason) };
    let reason = soon(told).await?;
    assert!(reason.contains("EPERM") && reason.contains("sysctl x"), "{reason}");
    bed.provider.kernel.mend("launch");
    bed.warm("default", 1).await?;
    assert_eq!(bed.pool("default").await.and_then(|pool| pool.reason), None);
    Ok(())
}

#[tokio::test]
async fn a_pool_shrinks_ends_and_leaves_nothing() -> Tested {
    let mut bed = Bed::new().await?;
    assert_eq!(bed.engine.set_pool("nope", 1).await.map_err(|p| p.code), Err(Code::UnknownTemplate));
    assert_eq!(bed.engine.set_pool("nope", 0).await.map_err(|p| p.code), Err(Code::UnknownTemplate));
    assert_eq!(bed.engine.set_pool("default", 1001).await.map_err(|p| p.code), Err(Code::BadRequest));
    assert_eq!(bed.engine.set_pool("default", 0).await?.size, 0);
    bed.engine.set_pool("default", 4).await?;
    bed.warm("default", 4).await?;
    let shrunk = bed.engine.set_pool("default", 2).await?;
    assert_eq!((shrunk.size, shrunk.warm, shrunk.reason), (2, 2, None));
    assert_eq!(bed.members().await?, bed.made().await?);
    let claimed = bed.any().await?.id;
    // In the middle of being refilled.
    bed.provider.pace.store(200, Ordering::Relaxed);
    bed.engine.set_pool("default", 50).await?;
    let creating = || bed.provider.creating.load(Ordering::SeqCst);
    soon(|| async { (creating() > 0).then_some(()) }).await?;
    let ended = bed.engine.set_pool("default", 0).await?;
    assert_eq!(creating(), 0, "it returned before those that were being made were gone");
    assert_eq!((ended.size, ended.warm), (0, 0));
    assert_eq!(bed.engine.pools().await?, []);
    let alone = Ids::from([claimed]);
    assert_eq!(bed.made().await?, alone);
    assert_eq!(bed.members().await?, Ids::new());
    bed.restart().await?;
    assert_eq!(bed.engine.pools().await?, []);
    assert_eq!(bed.made().await?, alone);
    bed.engine.shutdown().await;
    assert_eq!(bed.engine.set_pool("default", 1).await.map_err(|p| p.code), Err(Code::ShuttingDown));
    Ok(())
}
