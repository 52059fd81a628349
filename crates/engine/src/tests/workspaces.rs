//! Workspaces over scripted guests: one for each session however many ask, brought back, replaced, leased and forgotten.

use std::{collections::HashSet, time::Duration};

use chrono::{DateTime, TimeDelta, Utc};
use futures_util::future::{join_all, try_join_all};
use sandbar_api::{Code, CreateSandbox, CreateSession, Problem, Role, Sandbox, SandboxState, SessionState};
use sandbar_provider::Error;

use super::{Bed, Tested, code, exec, owner, soon};
use crate::{Caller, ConversationId, Engine, NewConversation, SessionQuery, Workspace};

fn talk(user: &str, id: &str) -> NewConversation {
    let id = Some(ConversationId { user: user.into(), id: Some(id.into()) });
    NewConversation { agent: Some("ns/coder".into()), id, ..NewConversation::default() }
}

impl Bed {
    /// A conversation's session.
    async fn talk(&self, id: &str) -> Result<String, Problem> {
        Ok(self.engine.begin_conversation(&owner(), talk("ann", id)).await?.id.to_string())
    }

    async fn workspace(&self, session: &str) -> Result<Workspace, Problem> {
        self.engine.workspace(&owner(), session, None).await
    }

    /// Its sandbox, which is ready.
    async fn place(&self, session: &str) -> Result<Sandbox, Problem> {
        let workspace = self.workspace(session).await?;
        let sandbox = workspace.sandbox.filter(|sandbox| workspace.ready && sandbox.state == SandboxState::Ready);
        sandbox.ok_or_else(|| Problem::new(Code::Internal, "It is not ready.", ""))
    }

    /// As if so much time had passed that no more than this is left of it.
    async fn age(&self, sandbox: &Sandbox, left: TimeDelta) -> Result<DateTime<Utc>, Box<dyn std::error::Error>> {
        let inner = &self.engine.inner;
        let row = inner.store.renew(&sandbox.id, Utc::now() + left).await?;
        let expires_at = row.sandbox.expires_at;
        inner.handle(sandbox.id.as_str()).await?.record.send_modify(|sandbox| sandbox.expires_at = expires_at);
        inner.expiry.notify_one();
        Ok(expires_at.ok_or("it expires")?)
    }

    fn configure(&self, text: &str) -> std::io::Result<()> {
        std::fs::write(self.home.join("workspaces.toml"), text)
    }
}

#[tokio::test]
async fn a_session_is_there_before_its_sandbox() -> Tested {
    let mut bed = Bed::new().await?;
    let long = "ü".repeat(256);
    let begun = bed.engine.begin_conversation(&owner(), talk("ann", &long)).await?;
    assert_eq!((begun.state, begun.sandboxes.len()), (SessionState::Idle, 0));
    assert_eq!(
        (begun.user.as_deref(), begun.external_id.as_deref(), begun.agent.as_deref()),
        (Some("ann"), Some(long.as_str()), Some("ns/coder"))
    );
    assert_eq!(bed.engine.sessions(&owner(), SessionQuery::default()).await?.sessions, std::slice::from_ref(&begun));
    assert_eq!(bed.engine.begin_conversation(&owner(), talk("ann", &long)).await?, begun, "begun again");
    let foreign = NewConversation { agent: Some("other".into()), ..talk("ann", &long) };
    assert_eq!(code(bed.engine.begin_conversation(&owner(), foreign).await), Some(Code::NameTaken));
    for (user, id) in [("bob", long.as_str()), ("ann", "another"), ("bob", begun.id.as_str())] {
        assert_eq!(code(bed.engine.conversation(user, id).await), Some(Code::UnknownSession), "{user}");
    }
    for id in [long.as_str(), begun.id.as_str()] {
        assert_eq!(bed.engine.conversation("ann", id).await?, begun);
    }
    for bad in [talk("", "x"), talk("ann", ""), talk("ann", "a\0"), talk("ann", &"x".repeat(513))] {
        assert_eq!(code(bed.engine.begin_conversation(&owner(), bad).await), Some(Code::BadName));
    }
    let now = bed.engine.workspace_now(&owner(), begun.id.as_str()).await?;
    assert!(now.sandbox.is_none() && now.secret.is_none() && !now.ready, "looking makes nothing");

    bed.restart().await?;
    let sandbox = bed.place(begun.id.as_str()).await?;
    assert_eq!(sandbox.session, begun.id);
    assert_eq!(sandbox.labels.get("agent").map(String::as_str), Some("ns/coder"));
    assert!(
        sandbox.labels.get("conversation").is_some_and(|label| label.starts_with("sha256-")),
        "{:?}",
        sandbox.labels
    );
    let lasts = sandbox.expires_at.map(|at| at - sandbox.created_at);
    assert_eq!(lasts, Some(TimeDelta::days(7)));
    assert_eq!(bed.engine.inner.handle(sandbox.id.as_str()).await?.template.idle.stop_after, Some("1h".parse()?));
    assert_eq!(bed.engine.session(&owner(), begun.id.as_str()).await?.state, SessionState::Active);
    bed.engine.delete_workspace(begun.id.as_str()).await?;
    assert_eq!(bed.engine.session(&owner(), begun.id.as_str()).await?.state, SessionState::Idle);
    Ok(())
}

#[tokio::test]
async fn a_workspace_is_called_like_its_session_unless_the_name_is_taken() -> Tested {
    let bed = Bed::new().await?;
    let named = |name: &str| NewConversation { name: Some(name.into()), ..NewConversation::default() };
    bed.engine.begin_conversation(&owner(), named("web")).await?;
    let web = bed.place("web").await?;
    assert_eq!(web.name, "web");
    bed.engine.delete_workspace("web").await?;
    let again = bed.place("web").await?;
    assert_eq!((again.name.as_str(), again.id == web.id), ("web", false), "a deleted one's name is free");

    bed.engine.begin_conversation(&owner(), named("db")).await?;
    let foreign = bed.create("db").await?;
    let own = bed.place("db").await?;
    assert!(own.name != "db" && own.id != foreign.id, "{own:?}");
    assert_eq!(bed.place("db").await?.id, own.id);
    Ok(())
}

#[tokio::test]
async fn a_hundred_calls_at_once_get_one() -> Tested {
    let mut bed = Bed::new().await?;
    let session = bed.talk("talk").await?;
    let all = try_join_all((0..100).map(|_| bed.workspace(&session))).await?;
    let ids: HashSet<_> = all.iter().filter_map(|one| one.sandbox.as_ref()).map(|one| one.id.clone()).collect();
    let secrets: HashSet<_> = all.iter().filter_map(|one| one.secret.clone()).collect();
    assert_eq!((ids.len(), secrets.len(), bed.provider.all().len()), (1, 1, 1));
    assert!(all.iter().all(|one| one.ready));
    let sessions = try_join_all((0..100).map(|number| {
        let bed = &bed;
        async move { bed.talk(&format!("talk-{number}")).await }
    }))
    .await?;
    let places = try_join_all(sessions.iter().map(|session| bed.place(session))).await?;
    assert_eq!(places.iter().map(|place| &place.id).collect::<HashSet<_>>().len(), 100);
    assert_eq!(bed.provider.all().len(), 101);
    bed.restart().await?;
    let again = bed.workspace(&session).await?;
    assert_eq!(again.sandbox.map(|sandbox| sandbox.id), ids.into_iter().next());
    assert_eq!(again.secret, secrets.into_iter().next(), "nothing secret is stored, and it is the same");
    Ok(())
}

#[tokio::test]
async fn those_who_do_not_know_of_each_other_agree_in_the_store() -> Tested {
    let bed = Bed::new().await?;
    let (session, owner) = (bed.talk("talk").await?, owner());
    for _ in 0..3 {
        let all = try_join_all((0..10).map(|_| bed.engine.provide_apart(&owner, &session))).await?;
        assert!(all.iter().all(|one| one.id == all[0].id && one.state == SandboxState::Ready));
        assert_eq!(bed.provider.all().len(), 1);
        // The next generation begins after it.
        bed.engine.delete_workspace(&session).await?;
    }
    Ok(())
}

#[tokio::test]
async fn what_is_begun_goes_on_without_its_caller() -> Tested {
    let bed = Bed::new().await?;
    let session = bed.talk("talk").await?;
    bed.provider.held.send_replace(true);
    let early = bed.engine.workspace(&owner(), &session, Some(Duration::from_millis(20))).await?;
    assert!(!early.ready && early.secret.is_some());
    let owner = owner();
    let polls = (0..5).map(|_| bed.engine.workspace(&owner, &session, Some(Duration::ZERO)));
    assert!(join_all(polls).await.into_iter().all(|poll| poll.is_ok_and(|one| !one.ready)));
    bed.provider.held.send_replace(false);
    let place = bed.place(&session).await?;
    assert_eq!(bed.provider.all().len(), 1, "who asks again begins nothing");
    let now = bed.engine.workspace_now(&owner, &session).await?;
    assert_eq!((now.ready, now.sandbox.map(|sandbox| sandbox.id), now.secret), (true, Some(place.id), early.secret));
    Ok(())
}

#[tokio::test]
async fn it_is_brought_back_from_wherever_it_is() -> Tested {
    let bed = Bed::new().await?;
    bed.configure("[default]\nidle.pause_after = \"100ms\"\n")?;
    let session = bed.talk("talk").await?;
    let first = bed.place(&session).await?;
    let id = first.id.as_str();
    bed.until(id, SandboxState::Paused).await?;
    assert!(!bed.engine.workspace_now(&owner(), &session).await?.ready);
    assert_eq!(bed.place(&session).await?.id, first.id, "woken");
    bed.engine.stop(id).await?;
    assert_eq!(bed.place(&session).await?.id, first.id, "started, though a person stopped it");
    bed.provider.die(&first.id);
    bed.until(id, SandboxState::Failed).await?;
    assert_eq!(bed.place(&session).await?.id, first.id, "its files are kept");
    // It has died, and nobody has noticed yet.
    bed.provider.die(&first.id);
    assert_eq!(bed.place(&session).await?.id, first.id);
    assert_eq!(bed.engine.exec(id, exec(&["echo", "x"], None, 10)).await?.stdout, "x", "ready means serving");

    bed.engine.pause(id).await?;
    let refused = bed.workspace(&session).await;
    assert_eq!(code(refused), Some(Code::WrongState), "a person's word stands");
    bed.engine.resume(id).await?;
    bed.engine.delete(id).await?;
    let second = bed.place(&session).await?;
    assert_ne!(second.id, first.id);
    for _ in 0..2 {
        bed.engine.delete_workspace(&session).await?;
    }
    assert_eq!(bed.provider.all(), []);
    let third = bed.place(&session).await?;
    assert!(third.id != second.id && third.id != first.id);
    Ok(())
}

#[tokio::test]
async fn one_that_cannot_be_started_is_replaced_once() -> Tested {
    let bed = Bed::new().await?;
    let session = bed.talk("talk").await?;
    let first = bed.place(&session).await?;
    bed.engine.stop(first.id.as_str()).await?;
    // Its files are gone, and the provider knows nothing of it.
    sandbar_provider::Provider::destroy(&*bed.provider, &first.id).await?;
    let all = try_join_all((0..20).map(|_| bed.place(&session))).await?;
    assert!(all.iter().all(|place| place.id == all[0].id && place.id != first.id));
    assert_eq!(bed.state(first.id.as_str()).await, Some(SandboxState::Failed), "what is left of it stays");
    assert_eq!(bed.place(&session).await?.id, all[0].id);
    bed.engine.delete_workspace(&session).await?;
    assert_eq!(bed.engine.session(&owner(), &session).await?.sandboxes, [], "with those it took the place of");

    let (layer, cause, fix) = ("seccomp", "no".to_owned(), "none".to_owned());
    *bed.provider.broken.lock().map_err(|_| "poisoned")? = Some(Error::NotEnforceable { layer, cause, fix });
    assert_eq!(code(bed.workspace(&session).await), Some(Code::NotEnforceable));
    bed.place(&session).await?;
    assert_eq!(bed.provider.all().len(), 1, "what failed leaves nothing");
    Ok(())
}

#[tokio::test]
async fn one_out_of_a_pool_is_the_newest_though_its_id_is_older() -> Tested {
    let bed = Bed::new().await?;
    bed.configure("[default]\nttl = \"3h\"\nidle.stop_after = \"2h\"\n")?;
    bed.engine.set_pool("default", 1).await?;
    let warm = async || bed.engine.pools().await.ok()?.first().filter(|pool| pool.warm == 1).map(drop);
    soon(&warm).await?;
    let member = bed.provider.all().first().ok_or("it is warm")?.0.clone();
    let session = bed.engine.create_session(&owner(), CreateSession::default(), None).await?.session;
    soon(&warm).await?;
    assert_eq!(session.sandboxes, [member]);
    let warm_one = bed.provider.all().into_iter().map(|(id, _)| id).find(|id| !session.sandboxes.contains(id));
    let warm_one = warm_one.ok_or("another is warm")?;
    let joins = CreateSandbox {
        session: Some(session.id.clone()),
        template: Some("tested".into()),
        ..CreateSandbox::default()
    };
    std::fs::write(bed.home.join("templates/tested.toml"), "")?;
    let younger = bed.engine.create(&owner(), joins, None).await?.sandbox;
    assert!(younger.id > warm_one);
    bed.engine.stop(younger.id.as_str()).await?;
    sandbar_provider::Provider::destroy(&*bed.provider, &younger.id).await?;
    // Another ttl and idle policy than the template's keep nobody from being claimed.
    let place = bed.place(session.id.as_str()).await?;
    assert_eq!(place.id, warm_one);
    assert_eq!(bed.place(session.id.as_str()).await?.id, warm_one);
    let at = bed.engine.session_place(&owner(), session.id.as_str()).await?;
    assert_eq!(at, (session.id, Some(warm_one.clone())), "tools work there too");
    assert_eq!(place.expires_at.map(|at| at - place.created_at), Some(TimeDelta::hours(3)));
    assert_eq!(bed.engine.inner.handle(warm_one.as_str()).await?.template.idle.stop_after, Some("2h".parse()?));
    Ok(())
}

#[tokio::test]
async fn each_agent_has_its_own_configuration() -> Tested {
    let bed = Bed::new().await?;
    std::fs::write(bed.home.join("templates/rust.toml"), "env = { A = \"1\" }\n")?;
    bed.configure("[agents.coder]\ntemplate = \"rust\"\n[agents.idler]\nenabled = false\n")?;
    let coder = bed.talk("talk").await?;
    assert_eq!(bed.place(&coder).await?.template, "rust");
    let idler = NewConversation { agent: Some("ns/idler".into()), ..talk("ann", "idle") };
    let idler = bed.engine.begin_conversation(&owner(), idler).await?.id;
    assert_eq!(code(bed.workspace(idler.as_str()).await), Some(Code::WorkspaceDisabled));

    // A file that is wrong refuses all, those that it does not speak of too, and names the line.
    bed.configure("[agents.coder]\ntemplate = \"rust\"\nttll = \"1h\"\n")?;
    for session in [coder.as_str(), idler.as_str()] {
        let Err(problem) = bed.workspace(session).await else { return Err("it was taken".into()) };
        assert_eq!(problem.code, Code::BadWorkspaceConfig);
        assert!(
            problem.detail.contains("workspaces.toml:3: ") && problem.detail.contains("did you mean `ttl`?"),
            "{problem}"
        );
    }
    bed.configure("[default]\ntemplate = \"none\"\n")?;
    assert_eq!(code(bed.workspace(idler.as_str()).await), Some(Code::UnknownTemplate));
    std::fs::remove_file(bed.home.join("workspaces.toml"))?;
    assert_eq!(bed.place(idler.as_str()).await?.template, "default");
    Ok(())
}

async fn authenticated(engine: &Engine, workspace: &Workspace) -> Result<Option<Caller>, Problem> {
    engine.authenticate(workspace.secret.as_deref().unwrap_or_default()).await
}

#[tokio::test]
async fn its_token_is_an_agents_and_ends_with_the_session() -> Tested {
    let bed = Bed::new().await?;
    let session = bed.talk("talk").await?;
    let first = bed.workspace(&session).await?;
    let caller = authenticated(&bed.engine, &first).await?.ok_or("it is known")?;
    assert_eq!((caller.role, caller.session.as_ref().map(|id| id.as_str())), (Role::Agent, Some(session.as_str())));
    assert_eq!(bed.workspace(&session).await?.secret, first.secret);
    assert_eq!(bed.engine.workspace_now(&owner(), &session).await?.secret, first.secret);
    // An agent looks at its own, is told no secret, and of others learns nothing.
    let seen = bed.engine.workspace_now(&caller, &session).await?;
    assert!(seen.ready && seen.secret.is_none());
    let other = bed.talk("other").await?;
    for foreign in [other.as_str(), "nobody"] {
        assert_eq!(code(bed.engine.workspace_now(&caller, foreign).await), Some(Code::Forbidden));
    }
    let token = caller.owner.strip_prefix("token:").ok_or("a token's")?.to_owned();
    bed.engine.revoke_token(&token).await?;
    assert!(authenticated(&bed.engine, &first).await?.is_none());
    assert!(bed.engine.workspace_now(&owner(), &session).await?.secret.is_none());
    let second = bed.workspace(&session).await?;
    assert_ne!(second.secret, first.secret);
    assert!(authenticated(&bed.engine, &second).await?.is_some());

    bed.engine.delete_workspace(&session).await?;
    assert!(authenticated(&bed.engine, &second).await?.is_some(), "it is the session's");
    let lasting = authenticated(&bed.engine, &second).await?.ok_or("it is known")?;
    let engine = bed.engine.clone();
    let lasts = tokio::spawn(async move { engine.turned_away(&lasting).await });
    bed.place(&session).await?;
    bed.engine.delete_session(&session).await?;
    assert_eq!(bed.provider.all(), []);
    assert!(authenticated(&bed.engine, &second).await?.is_none());
    tokio::time::timeout(Duration::from_secs(300), lasts).await???;
    assert_eq!(code(bed.workspace(&session).await), Some(Code::SessionEnded));
    assert_eq!(code(bed.engine.delete_workspace(&session).await), Some(Code::SessionEnded));
    Ok(())
}

#[tokio::test]
async fn use_renews_the_lease_and_nothing_else_does() -> Tested {
    let bed = Bed::new().await?;
    bed.configure("[default]\nttl = \"1h\"\n")?;
    let session = bed.talk("talk").await?;
    let place = bed.place(&session).await?;
    let expires = async || bed.engine.get(place.id.as_str()).await.map(|sandbox| sandbox.expires_at);
    bed.place(&session).await?;
    assert_eq!(expires().await?, place.expires_at, "more than half is left");
    let less_than_half = bed.age(&place, TimeDelta::minutes(29)).await?;
    bed.engine.workspace_now(&owner(), &session).await?;
    assert_eq!(expires().await?, Some(less_than_half), "looking is no use");
    bed.engine.session_place(&owner(), &session).await?;
    let renewed = expires().await?;
    assert!(renewed > place.expires_at, "a tool was called");
    assert_eq!(bed.engine.inner.store.expired(less_than_half).await?, [], "the time of before is forgotten");
    assert_eq!(bed.engine.inner.store.next_expiry().await?, renewed);
    // Nobody uses it any more.
    let over = bed.age(&place, TimeDelta::seconds(1)).await?;
    bed.until(place.id.as_str(), SandboxState::Deleted).await?;
    assert!(over <= Utc::now());
    assert_ne!(bed.place(&session).await?.id, place.id);
    // A time that a person set stays.
    let fixed = CreateSession { ttl: Some("1h".parse()?), ..CreateSession::default() };
    let fixed = bed.engine.create_session(&owner(), fixed, None).await?.session;
    let sandbox = bed.engine.get(fixed.sandboxes[0].as_str()).await?;
    assert_eq!(sandbox.expires_at.map(|at| at - sandbox.created_at), Some(TimeDelta::hours(1)));
    let left = bed.age(&sandbox, TimeDelta::minutes(10)).await?;
    assert_eq!(bed.place(fixed.id.as_str()).await?.id, sandbox.id);
    assert_eq!(bed.engine.get(sandbox.id.as_str()).await?.expires_at, Some(left));
    Ok(())
}

#[tokio::test]
async fn the_forgotten_are_deleted() -> Tested {
    let bed = Bed::new().await?;
    let (gone, stays) = (bed.talk("gone").await?, bed.talk("stays").await?);
    let secret = bed.workspace(&stays).await?;
    assert_eq!(bed.engine.inner.forget(Utc::now() - TimeDelta::days(30)).await?, 0);
    assert_eq!(bed.engine.inner.forget(Utc::now() + TimeDelta::days(1)).await?, 1);
    assert_eq!(code(bed.workspace(&gone).await), Some(Code::SessionEnded));
    assert!(authenticated(&bed.engine, &secret).await?.is_some());
    assert_eq!(
        bed.workspace(&stays).await?.sandbox.map(|sandbox| sandbox.id),
        secret.sandbox.map(|sandbox| sandbox.id)
    );
    Ok(())
}

#[tokio::test]
async fn a_server_that_ends_in_the_middle_leaves_one() -> Tested {
    let mut bed = Bed::new().await?;
    let session = bed.talk("talk").await?;
    let id: sandbar_api::SessionId = session.parse()?;
    // As one leaves it that was killed when it had recorded a sandbox and not made it.
    let last = crate::store::suite::new_sandbox("half");
    let mut half = crate::store::NewSandbox { new_session: false, ..last };
    half.row.sandbox.session = id.clone();
    let half_id = half.row.sandbox.id.clone();
    bed.engine.inner.store.create_sandbox(half).await?;
    bed.restart().await?;
    let place = bed.place(&session).await?;
    assert_ne!(place.id, half_id);
    assert_eq!(bed.engine.session(&owner(), &session).await?.sandboxes, std::slice::from_ref(&place.id));
    assert_eq!(bed.provider.all().len(), 1);
    // And when it had made it: the next one finds it.
    for _ in 0..3 {
        bed.restart().await?;
        let all = try_join_all((0..10).map(|_| bed.place(&session))).await?;
        assert!(all.iter().all(|one| one.id == place.id));
    }
    Ok(())
}
