//! The contract's cases.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use sandbar_api::{InstanceId, Root, SandboxId};
use sandbar_guest::protocol::{HelloRequest, VERSION};

use super::{Case, Outcome, Subject, inside::run, same, terminal::a_terminal_is_seen_to_ask_and_answered_once};
use crate::{Error, Found, Made, Mark, Origin, Provider, Quarantine, Spec, cases};

pub(super) fn all<S: Subject>() -> Vec<Case<S>> {
    cases![
        a_sandbox_answers_and_is_gone_after_destroy,
        verbs_may_be_repeated,
        stop_keeps_files_and_ends_processes,
        a_reopened_provider_finds_what_runs,
        a_mark_says_whose_it_is_and_outlives_the_provider,
        death_of_the_guest_is_noticed,
        what_is_unknown_is_said_to_be,
        a_create_that_fails_leaves_nothing,
        the_workload_is_an_ordinary_user_of_its_own_machine,
        neighbours_do_not_see_each_other,
        many_at_once,
        the_host_is_probed_from_inside,
        a_terminal_is_seen_to_ask_and_answered_once,
    ]
}

pub(super) fn spec() -> Result<Spec, String> {
    let mut random = [0; 10];
    std::fs::File::open("/dev/urandom")
        .and_then(|mut file| std::io::Read::read_exact(&mut file, &mut random))
        .map_err(|error| error.to_string())?;
    Ok(Spec::standard(SandboxId::from_parts(1, random), "suite"))
}

pub(super) fn said(error: Error) -> String {
    format!("{error} ({error:?})")
}

pub(super) async fn is_listed(provider: &Arc<dyn Provider>, id: &SandboxId) -> Result<Option<bool>, String> {
    let found = provider.list().await.map_err(said)?;
    Ok(found.into_iter().find(|Found { id: found, .. }| found == id).map(|found| found.running))
}

async fn a_sandbox_answers_and_is_gone_after_destroy<S: Subject>(subject: &S) -> Outcome {
    let provider = subject.open().await?;
    let spec = spec()?;
    provider.create(&spec).await.map_err(said)?;
    let mut guest = provider.connect(&spec.id).await.map_err(said)?;
    let hello = guest.hello(HelloRequest {}).await.map_err(|status| status.to_string())?.into_inner();
    same("protocol", &hello.protocol, &VERSION)?;
    same("sandbox", &hello.sandbox_id.as_str(), &spec.id.as_str())?;
    same("listed", &is_listed(&provider, &spec.id).await?, &Some(true))?;
    let ran = run(&guest, "echo out; hostname; exit 7").await?;
    match subject.differs().named_by_its_maker {
        true => same("output", &ran.output.lines().next(), &Some("out"))?,
        false => same("output", &ran.output.as_str(), &"out\nsuite\n")?,
    }
    same("code", &ran.code, &7)?;
    provider.destroy(&spec.id).await.map_err(said)?;
    same("listed after destroy", &is_listed(&provider, &spec.id).await?, &None)
}

async fn verbs_may_be_repeated<S: Subject>(subject: &S) -> Outcome {
    let provider = subject.open().await?;
    let spec = spec()?;
    provider.create(&spec).await.map_err(said)?;
    let mut guest = provider.connect(&spec.id).await.map_err(said)?;
    let boot = guest.hello(HelloRequest {}).await.map_err(|status| status.to_string())?.into_inner().boot_id;
    provider.create(&spec).await.map_err(said)?;
    provider.start(&spec).await.map_err(said)?;
    let again = guest.hello(HelloRequest {}).await.map_err(|status| status.to_string())?.into_inner().boot_id;
    same("boot", &again, &boot)?;
    for _ in 0..2 {
        provider.stop(&spec.id).await.map_err(said)?;
    }
    for _ in 0..2 {
        provider.start(&spec).await.map_err(said)?;
    }
    for _ in 0..2 {
        provider.destroy(&spec.id).await.map_err(said)?;
    }
    Ok(())
}

async fn stop_keeps_files_and_ends_processes<S: Subject>(subject: &S) -> Outcome {
    let provider = subject.open().await?;
    let spec = spec()?;
    provider.create(&spec).await.map_err(said)?;
    let guest = provider.connect(&spec.id).await.map_err(said)?;
    let made = "echo kept > /workspace/w && echo kept > ~/h && (setsid sleep 1000 >/dev/null 2>&1 & ) && echo made";
    same("made", &run(&guest, made).await?.output.as_str(), &"made\n")?;
    provider.stop(&spec.id).await.map_err(said)?;
    same("listed", &is_listed(&provider, &spec.id).await?, &Some(false))?;
    if provider.connect(&spec.id).await.is_ok() {
        return Err("a stopped sandbox took a connection".into());
    }
    provider.start(&spec).await.map_err(said)?;
    let guest = provider.connect(&spec.id).await.map_err(said)?;
    let look = "cat /workspace/w ~/h; for c in /proc/[0-9]*/comm; do read -r n < $c && [ \"$n\" = sleep ] && echo alive; done; true";
    same("after start", &run(&guest, look).await?.output.as_str(), &"kept\nkept\n")?;
    provider.destroy(&spec.id).await.map_err(said)
}

async fn a_reopened_provider_finds_what_runs<S: Subject>(subject: &S) -> Outcome {
    let provider = subject.open().await?;
    let (running, stopped) = (spec()?, spec()?);
    for spec in [&running, &stopped] {
        provider.create(spec).await.map_err(said)?;
    }
    provider.stop(&stopped.id).await.map_err(said)?;
    let guest = provider.connect(&running.id).await.map_err(said)?;
    run(&guest, "echo here > /tmp/mark").await?;
    drop((guest, provider));
    let provider = subject.open().await?;
    same("running", &is_listed(&provider, &running.id).await?, &Some(true))?;
    same("stopped", &is_listed(&provider, &stopped.id).await?, &Some(false))?;
    let guest = provider.connect(&running.id).await.map_err(said)?;
    same("memory", &run(&guest, "cat /tmp/mark").await?.output.as_str(), &"here\n")?;
    for spec in [&running, &stopped] {
        provider.destroy(&spec.id).await.map_err(said)?;
    }
    Ok(())
}

/// What is quarantined keeps its files, may have stopped meanwhile, and is used again once it is kept.
async fn a_mark_says_whose_it_is_and_outlives_the_provider<S: Subject>(subject: &S) -> Outcome {
    let provider = subject.open().await?;
    let origin = |epoch| Origin { instance: InstanceId::from_parts(1, [7; 10]), epoch };
    let spec = Spec { origin: Some(origin(3)), ..spec()? };
    provider.create(&spec).await.map_err(said)?;
    let made = Made::Sandbox(&spec.id);
    let marked = async |provider: &Arc<dyn Provider>| {
        let found = provider.list().await.map_err(said)?;
        Ok::<_, String>(found.into_iter().find(|found| found.id == spec.id).and_then(|found| found.mark))
    };
    // Where a record comes before what is made, it is kept from the beginning.
    let first = marked(&provider).await?;
    if !matches!(&first, Some(Mark::Begun(found) | Mark::Kept(found)) if *found == origin(3)) {
        return Err(format!("a new sandbox is marked {first:?}"));
    }
    provider.mark(made, &Mark::Kept(origin(4))).await.map_err(said)?;
    same("kept", &marked(&provider).await?, &Some(Mark::Kept(origin(4))))?;
    let since = DateTime::<Utc>::from_timestamp(1, 0).unwrap_or_default();
    let quarantine = Quarantine { since, reason: "nobody knows it".into(), origin: Some(origin(4)) };
    provider.mark(made, &Mark::Quarantined(quarantine.clone())).await.map_err(said)?;
    let again = subject.open().await?;
    same("quarantined", &marked(&again).await?, &Some(Mark::Quarantined(quarantine)))?;
    again.mark(made, &Mark::Kept(origin(5))).await.map_err(said)?;
    same("kept again", &marked(&again).await?, &Some(Mark::Kept(origin(5))))?;
    again.start(&spec).await.map_err(said)?;
    // Where nothing can be held still, it ran on.
    match again.thaw(&spec.id).await {
        Ok(()) | Err(Error::Declined { .. } | Error::NotEnforceable { .. }) => {}
        Err(error) => return Err(said(error)),
    }
    let guest = again.connect(&spec.id).await.map_err(said)?;
    same("output", &run(&guest, "echo lives").await?.output.as_str(), &"lives\n")?;
    again.destroy(&spec.id).await.map_err(said)
}

async fn death_of_the_guest_is_noticed<S: Subject>(subject: &S) -> Outcome {
    let provider = subject.open().await?;
    let spec = spec()?;
    provider.create(&spec).await.map_err(said)?;
    let (gone, stopped) = tokio::join!(provider.gone(&spec.id), async {
        tokio::task::yield_now().await;
        provider.stop(&spec.id).await
    });
    gone.and(stopped).map_err(said)?;
    provider.gone(&spec.id).await.map_err(said)?;
    provider.destroy(&spec.id).await.map_err(said)
}

async fn what_is_unknown_is_said_to_be<S: Subject>(subject: &S) -> Outcome {
    let provider = subject.open().await?;
    let id = spec()?.id;
    for (verb, result) in
        [("start", provider.start(&Spec::standard(id.clone(), "none")).await), ("stop", provider.stop(&id).await)]
    {
        if !matches!(result, Err(Error::Unknown(_))) {
            return Err(format!("{verb} of an unknown sandbox: {result:?}"));
        }
    }
    provider.destroy(&id).await.map_err(said)
}

async fn a_create_that_fails_leaves_nothing<S: Subject>(subject: &S) -> Outcome {
    let provider = subject.open().await?;
    let spec = Spec { root: Root::Image { path: "/nonexistent/image".into() }, ..spec()? };
    match provider.create(&spec).await {
        Err(Error::BadSpec { .. }) => {}
        other => return Err(format!("an image that is not there: {other:?}")),
    }
    same("listed", &is_listed(&provider, &spec.id).await?, &None)
}

async fn the_workload_is_an_ordinary_user_of_its_own_machine<S: Subject>(subject: &S) -> Outcome {
    let provider = subject.open().await?;
    let spec = spec()?;
    provider.create(&spec).await.map_err(said)?;
    let guest = provider.connect(&spec.id).await.map_err(said)?;
    for (script, want) in [
        ("id -u; id -un; pwd; echo $HOME", "1000\nagent\n/\n/home/agent\n"),
        ("cat /proc/1/environ 2>&1 | tr -d '\\n' | grep -c denied", "1\n"),
        (
            "grep -E '^(CapEff|CapBnd|CapPrm|NoNewPrivs|Seccomp):' /proc/self/status | tr '\\t' ' '",
            "CapPrm: 0000000000000000\nCapEff: 0000000000000000\nCapBnd: 0000000000000000\nNoNewPrivs: 1\nSeccomp: 2\n",
        ),
        (
            "ls /workspace /home; touch /workspace/a ~/b /tmp/c && echo written",
            "/home:\nagent\n\n/workspace:\nwritten\n",
        ),
        ("ls /root 2>/dev/null; echo nothing", "nothing\n"),
        ("touch /usr/x 2>/dev/null || touch /etc/x 2>/dev/null || echo refused", "refused\n"),
    ] {
        same(script, &run(&guest, script).await?.output.as_str(), &want)?;
    }
    let differs = subject.differs();
    for (rightly, script, want) in [
        (differs.root_of_an_image, "ls -d /sys /boot /lost+found 2>/dev/null; echo nothing", "nothing\n"),
        (differs.more_interfaces, "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '", "lo\n"),
    ] {
        if !rightly {
            same(script, &run(&guest, script).await?.output.as_str(), &want)?;
        }
    }
    provider.destroy(&spec.id).await.map_err(said)
}

async fn neighbours_do_not_see_each_other<S: Subject>(subject: &S) -> Outcome {
    let provider = subject.open().await?;
    let (one, two) = (spec()?, spec()?);
    for spec in [&one, &two] {
        provider.create(spec).await.map_err(said)?;
    }
    let guest = provider.connect(&one.id).await.map_err(said)?;
    run(&guest, "echo secret | tee /tmp/s /workspace/s /dev/shm/s ~/s; (sleep 98765 >/dev/null 2>&1 &)").await?;
    // The brackets keep the search from finding itself.
    let look = "cat /tmp/s /workspace/s /dev/shm/s ~/s 2>/dev/null; cat /proc/[0-9]*/cmdline | grep -ac '[9]8765'";
    same("the control", &run(&guest, look).await?.output.as_str(), &"secret\nsecret\nsecret\nsecret\n1\n")?;
    let guest = provider.connect(&two.id).await.map_err(said)?;
    same("seen by the other", &run(&guest, look).await?.output.as_str(), &"0\n")?;
    for spec in [&one, &two] {
        provider.destroy(&spec.id).await.map_err(said)?;
    }
    Ok(())
}

async fn many_at_once<S: Subject>(subject: &S) -> Outcome {
    let provider = subject.open().await?;
    let specs = (0..20).map(|_| spec()).collect::<Result<Vec<_>, _>>()?;
    let mut working = tokio::task::JoinSet::new();
    for spec in specs {
        let provider = provider.clone();
        working.spawn(async move {
            provider.create(&spec).await.map_err(said)?;
            let guest = provider.connect(&spec.id).await.map_err(said)?;
            let ran = run(&guest, "echo alive").await?;
            provider.destroy(&spec.id).await.map_err(said)?;
            same("output", &ran.output.as_str(), &"alive\n")
        });
    }
    while let Some(done) = working.join_next().await {
        done.map_err(|error| error.to_string())??;
    }
    Ok(())
}

async fn the_host_is_probed_from_inside<S: Subject>(subject: &S) -> Outcome {
    let provider = subject.open().await?;
    let report = provider.probe().await;
    if !report.usable() {
        return Err(format!("this host made sandboxes, yet: {report:?}"));
    }
    same("left behind", &provider.list().await.map_err(said)?, &vec![])
}
