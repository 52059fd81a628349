//! What is different where a cluster makes the sandboxes: it keeps its pools itself, files may go with the pod, and what
//! failed by itself may be started again.

use std::{path::PathBuf, sync::atomic::Ordering, time::Duration};

use sandbar_api::{Code, Pool, SandboxState};

use super::{Bed, Tested, code, exec, soon};

const CLUSTER: &str = "kubernetes";

impl Bed {
    fn orders(&self) -> Vec<(String, u32)> {
        self.provider.own_pools.told.lock().map(|told| told.clone()).unwrap_or_default()
    }

    async fn until_told(&self, size: u32) -> Result<(), String> {
        soon(|| async { self.was_told_last("default", size).then_some(()) }).await
    }

    fn was_told_last(&self, template: &str, size: u32) -> bool {
        self.orders().last() == Some(&(template.to_owned(), size))
    }
}

/// And the file of the template it is of.
async fn with_a_pool_of_its_own() -> Result<(Bed, PathBuf), Box<dyn std::error::Error>> {
    let bed = Bed::of(CLUSTER).await?;
    bed.provider.own_pools.on.store(true, Ordering::SeqCst);
    let file = bed.home.join("templates/own.toml");
    std::fs::write(&file, "description = \"of our own\"")?;
    bed.engine.set_pool("own", 2).await?;
    soon(|| async { bed.was_told_last("own", 2).then_some(()) }).await?;
    Ok((bed, file))
}

#[tokio::test]
async fn a_provider_that_keeps_its_pools_is_told_and_asked_and_makes_no_members() -> Tested {
    let mut bed = Bed::of(CLUSTER).await?;
    bed.provider.own_pools.on.store(true, Ordering::SeqCst);
    bed.engine.set_pool("default", 3).await?;
    bed.until_told(3).await?;
    bed.provider.own_pools.ready.store(2, Ordering::SeqCst);
    let shown = bed.engine.pools().await?;
    let want = Pool { template: "default".into(), size: 3, warm: 2, reason: Some("slowly".into()) };
    assert_eq!(shown, [want]);
    assert!(bed.engine.inner.store.pool_members().await?.is_empty());
    // A create asks the provider, which hands out what it has warm.
    assert_eq!(bed.create("a").await?.provider, CLUSTER);
    // Each server tells it again; one that is told the same changes nothing.
    bed.restart().await?;
    bed.until_told(3).await?;
    bed.engine.set_pool("default", 0).await?;
    bed.until_told(0).await?;
    assert!(bed.engine.pools().await?.is_empty());
    Ok(())
}

#[tokio::test]
async fn what_was_said_before_the_end_of_a_pool_is_not_heard_after_it() -> Tested {
    let mut bed = Bed::of(CLUSTER).await?;
    bed.provider.own_pools.on.store(true, Ordering::SeqCst);
    for by_a_look in [true, false] {
        let held = bed.provider.own_pools.held.clone();
        let listeners = || async { (held.receiver_count() == 1).then_some(()) };
        bed.engine.set_pool("default", 3).await?;
        bed.until_told(3).await?;
        held.send_replace(Some(3));
        let engine = bed.engine.clone();
        let look = by_a_look.then(|| tokio::spawn(async move { engine.pools().await }));
        if !by_a_look {
            // It tells it again.
            bed.restart().await?;
        }
        soon(listeners).await?;
        let engine = bed.engine.clone();
        let mut end = tokio::spawn(async move { engine.set_pool("default", 0).await });
        // Long enough to be heard if it does not wait.
        let _waits = tokio::time::timeout(Duration::from_millis(200), &mut end).await;
        held.send_replace(None);
        bed.until_told(0).await?;
        if !end.is_finished() {
            end.await??;
        }
        if let Some(look) = look {
            look.await??;
        }
        assert!(bed.engine.pools().await?.is_empty());
        assert_eq!(bed.orders().last().map(|(_, size)| *size), Some(0), "by a look: {by_a_look}");
    }
    Ok(())
}

#[tokio::test]
async fn a_cluster_that_does_not_answer_is_told_later_and_a_pool_does_not_end_unheard() -> Tested {
    let bed = Bed::of(CLUSTER).await?;
    let pools = &bed.provider.own_pools;
    pools.on.store(true, Ordering::SeqCst);
    pools.broken.store(true, Ordering::SeqCst);
    bed.engine.set_pool("default", 2).await?;
    soon(|| async { bed.engine.pools().await.ok()?.pop()?.reason.filter(|reason| reason.contains("cluster")) }).await?;
    assert_eq!(code(bed.engine.set_pool("default", 0).await), Some(Code::Internal));
    assert_eq!(bed.engine.pools().await?.len(), 1, "it is still wanted");
    pools.broken.store(false, Ordering::SeqCst);
    bed.until_told(2).await?;
    Ok(())
}

#[tokio::test]
async fn a_cluster_that_says_nothing_is_not_waited_for_for_ever() -> Tested {
    let bed = Bed::of(CLUSTER).await?;
    let pools = &bed.provider.own_pools;
    pools.on.store(true, Ordering::SeqCst);
    bed.engine.set_pool("default", 2).await?;
    bed.until_told(2).await?;
    pools.held.send_replace(Some(0));
    bed.engine.inner.patience.wait_for_pools(1);
    let problem = bed.engine.set_pool("default", 0).await.err().ok_or("it ended unheard")?;
    assert!(problem.detail.contains("timed out"), "{problem}");
    assert_eq!(bed.engine.pools().await?.len(), 1, "it is still wanted");
    bed.engine.inner.patience.wait_for_pools(60);
    pools.held.send_replace(None);
    bed.engine.set_pool("default", 0).await?;
    bed.until_told(0).await?;
    assert!(bed.engine.pools().await?.is_empty());
    Ok(())
}

#[tokio::test]
async fn the_pool_of_a_template_that_is_gone_ends_in_its_turn() -> Tested {
    let (bed, file) = with_a_pool_of_its_own().await?;
    let pools = &bed.provider.own_pools;
    // A look is under way, whose word must not be the last.
    pools.held.send_replace(Some(2));
    let engine = bed.engine.clone();
    let look = tokio::spawn(async move { engine.pools().await });
    soon(|| async { (pools.held.receiver_count() == 1).then_some(()) }).await?;
    std::fs::remove_file(&file)?;
    // Long enough to be heard if it does not wait.
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(bed.was_told_last("own", 2), "it overtook the look");
    pools.held.send_replace(None);
    look.await??;
    soon(|| async { bed.was_told_last("own", 0).then_some(()) }).await?;
    Ok(())
}

#[tokio::test]
async fn a_cluster_that_is_away_is_asked_ever_less_often_to_end_a_pool() -> Tested {
    let (bed, file) = with_a_pool_of_its_own().await?;
    let pools = &bed.provider.own_pools;
    pools.broken.store(true, Ordering::SeqCst);
    let before = pools.asked.load(Ordering::SeqCst);
    std::fs::remove_file(&file)?;
    soon(|| async { (pools.asked.load(Ordering::SeqCst) > before).then_some(()) }).await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let asked = pools.asked.load(Ordering::SeqCst) - before;
    assert!(asked < 8, "{asked} times in two seconds");
    pools.broken.store(false, Ordering::SeqCst);
    soon(|| async { bed.was_told_last("own", 0).then_some(()) }).await?;
    Ok(())
}

#[tokio::test]
async fn what_would_lose_its_files_is_not_stopped_and_what_lost_them_not_started() -> Tested {
    let bed = Bed::of(CLUSTER).await?;
    let sandbox = bed.create("a").await?;
    bed.provider.forgetful.store(true, Ordering::SeqCst);
    assert_eq!(code(bed.engine.stop("a").await), Some(Code::Declined));
    assert_eq!(bed.state("a").await, Some(SandboxState::Ready), "nothing was changed");
    bed.provider.die(&sandbox.id);
    bed.until("a", SandboxState::Failed).await?;
    assert_eq!(code(bed.engine.start("a").await), Some(Code::Declined));
    bed.engine.delete("a").await?;
    Ok(())
}

#[tokio::test]
async fn what_failed_by_itself_is_started_again_where_its_template_says_so() -> Tested {
    let mut bed = Bed::of(CLUSTER).await?;
    let kept = bed.create_of("kept", "[kubernetes]\nrecover = true\n").await?;
    let left = bed.create("left").await?;
    for sandbox in [&kept, &left] {
        bed.provider.die(&sandbox.id);
    }
    bed.until("left", SandboxState::Failed).await?;
    soon(|| async { bed.engine.exec("kept", exec(&["echo", "x"], None, 10)).await.ok() }).await?;
    // While no server was there to see it, too.
    bed.engine.shutdown().await;
    bed.provider.die(&kept.id);
    bed.restart().await?;
    bed.until("kept", SandboxState::Ready).await?;
    assert_eq!(bed.state("left").await, Some(SandboxState::Failed));
    // And what runs but does not answer the next server.
    bed.engine.shutdown().await;
    bed.provider.cut_off(&kept.id)?;
    bed.restart().await?;
    bed.until("kept", SandboxState::Ready).await?;
    // What a person stops stays so.
    bed.engine.stop("kept").await?;
    bed.restart().await?;
    assert_eq!(bed.state("kept").await, Some(SandboxState::Stopped));
    Ok(())
}

#[tokio::test]
async fn what_finds_no_room_when_it_recovers_is_tried_again() -> Tested {
    let mut bed = Bed::of(CLUSTER).await?;
    let sandbox = bed.create_of("kept", "[kubernetes]\nrecover = true\n").await?;
    let full = || sandbar_provider::Error::NoRoom { cause: "no nodes available".into(), fix: "Wait.".into() };
    // How often it could not be started, if that was said more often than before.
    let given_up = async |bed: &Bed, before: usize| {
        let events = bed.engine.events(0, 1000, Some("kept")).await.ok()?;
        let said = events.iter().map(|event| event.data.to_string()).filter(|data| data.contains("not_recovered"));
        let said: Vec<_> = said.collect();
        (said.len() > before && said.iter().all(|data| data.contains("no nodes available"))).then_some(said.len())
    };
    bed.provider.kernel.fail("launch", full);
    bed.provider.die(&sandbox.id);
    let before = soon(|| given_up(&bed, 0)).await?;
    // Somebody who does not wait, and has no luck either, ends nothing.
    assert!(bed.engine.start("kept").await.is_err());
    let before = soon(|| given_up(&bed, before)).await?;
    bed.provider.kernel.mend("launch");
    bed.until("kept", SandboxState::Ready).await?;
    // Also by the next server.
    bed.provider.kernel.fail("launch", full);
    bed.provider.die(&sandbox.id);
    soon(|| given_up(&bed, before)).await?;
    bed.provider.kernel.mend("launch");
    bed.restart().await?;
    bed.until("kept", SandboxState::Ready).await?;
    Ok(())
}

#[tokio::test]
async fn what_could_not_be_made_nor_removed_is_removed_when_it_can_be() -> Tested {
    let bed = Bed::of(CLUSTER).await?;
    let away = || sandbar_provider::Error::Cluster { cause: "it does not answer".into(), fix: "Wait.".into() };
    *bed.provider.broken.lock().map_err(|_| "poisoned")? = Some(away());
    bed.provider.stuck.store(true, Ordering::SeqCst);
    assert_eq!(code(bed.create("a").await), Some(Code::ClusterFailed));
    assert_eq!(bed.state("a").await, Some(SandboxState::Creating), "nothing else was observed");
    bed.provider.stuck.store(false, Ordering::SeqCst);
    soon(|| async { bed.state("a").await.is_none().then_some(()) }).await?;
    assert_eq!(bed.create("a").await?.state, SandboxState::Ready, "its name is free");
    Ok(())
}
