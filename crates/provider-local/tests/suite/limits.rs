//! Limits: in force where they are stated, refused where they cannot be, and seen when they are reached.

use std::time::{Duration, Instant};

use sandbar_api::{HumanSize, Layer, Limits};
use sandbar_provider::{
    Error, Provider, Spec, cases,
    suite::{Case, Outcome, Subject, run, same},
};

use crate::{Home, is_root, needs_root, said, spec};

pub(crate) fn cases() -> Vec<Case<Home>> {
    let mut cases = cases![open_files_and_tmpfs_are_bounded_for_everybody, a_limit_that_cannot_be_enforced_is_refused];
    let root = cases![
        a_memory_bomb_is_counted,
        a_fork_bomb_is_held_and_noticed,
        a_disk_filler_finds_an_end,
        disks_of_one_size_are_made_at_once,
        an_operators_umask_is_not_felt_on_a_limited_disk,
        frozen_processes_stand_still,
    ];
    cases.extend(root.into_iter().map(|case| Case { not_here: needs_groups, ..case }));
    cases
}

fn needs_groups() -> Option<String> {
    needs_root().or_else(|| {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        (!mounts.contains(" - cgroup2 ")).then(|| "no cgroup v2 is mounted".to_owned())
    })
}

fn limited(name: &str, limits: Limits) -> Spec {
    Spec { limits, ..spec(name) }
}

async fn an_operators_umask_is_not_felt_on_a_limited_disk(home: &Home) -> Outcome {
    let limits = Limits { disk: Some(HumanSize(64 << 20)), ..Limits::default() };
    crate::seen_with_a_tight_umask(home, limited("umask", limits)).await
}

async fn started(home: &Home, spec: &Spec) -> Result<(std::sync::Arc<dyn Provider>, sandbar_provider::Guest), String> {
    let provider = home.open().await?;
    provider.create(spec).await.map_err(said)?;
    let guest = provider.connect(&spec.id).await.map_err(said)?;
    Ok((provider, guest))
}

async fn holds(provider: &dyn Provider, spec: &Spec, layer: Layer) -> Outcome {
    let report = provider.inspect(spec).await.map_err(said)?;
    let found = report.into_iter().find(|report| report.layer == layer).ok_or("no report")?;
    same(&format!("{}: {}", layer.title(), found.evidence), &found.in_force, &true)
}

async fn open_files_and_tmpfs_are_bounded_for_everybody(home: &Home) -> Outcome {
    let limits = Limits { open_files: Some(64), tmpfs: Some(HumanSize(1 << 20)), ..Limits::default() };
    let spec = limited("small", limits);
    let (provider, guest) = started(home, &spec).await?;
    for layer in [Layer::OpenFiles, Layer::Tmpfs] {
        holds(&*provider, &spec, layer).await?;
    }
    let script = "ulimit -Hn; ulimit -n 65 2>/dev/null || echo not more; \
                  head -c 2M /dev/zero > /tmp/big 2>/dev/null || stat -c %s /tmp/big";
    let ran = run(&guest, script).await?;
    provider.destroy(&spec.id).await.map_err(said)?;
    same("output", &ran.output.as_str(), &"64\nnot more\n1048576\n")
}

async fn a_limit_that_cannot_be_enforced_is_refused(home: &Home) -> Outcome {
    if is_root() {
        return Ok(());
    }
    let provider = home.open().await?;
    for limits in [
        Limits { memory: Some(HumanSize(64 << 20)), ..Limits::default() },
        Limits { processes: Some(64), ..Limits::default() },
        Limits { disk: Some(HumanSize(64 << 20)), ..Limits::default() },
    ] {
        match provider.create(&limited("never", limits)).await {
            Err(Error::NotEnforceable { .. }) => {}
            other => return Err(format!("{other:?}")),
        }
        same("left behind", &provider.list().await.map_err(said)?.len(), &0)?;
    }
    Ok(())
}

async fn a_memory_bomb_is_counted(home: &Home) -> Outcome {
    let spec = limited("memory", Limits { memory: Some(HumanSize(32 << 20)), cpus: Some(1.0), ..Limits::default() });
    let (provider, guest) = started(home, &spec).await?;
    for layer in [Layer::Memory, Layer::Cpu] {
        holds(&*provider, &spec, layer).await?;
    }
    same("before", &provider.counters(&spec.id).await.map_err(said)?.oom_kills, &0)?;
    // The control: half of the limit is fine.
    let small = run(&guest, "head -c 8M /dev/zero | tail -c 8M | wc -c").await?;
    same("within the limit", &small.output.as_str(), &"8388608\n")?;
    let bomb = run(&guest, "head -c 200M /dev/zero | tail -c 200M | wc -c; echo the shell lives").await?;
    let counters = provider.counters(&spec.id).await.map_err(said)?;
    provider.destroy(&spec.id).await.map_err(said)?;
    if counters.oom_kills == 0 {
        return Err(format!("nothing was killed: {}", bomb.output));
    }
    Ok(())
}

async fn a_fork_bomb_is_held_and_noticed(home: &Home) -> Outcome {
    let spec = limited("forks", Limits { processes: Some(32), ..Limits::default() });
    let (provider, guest) = started(home, &spec).await?;
    holds(&*provider, &spec, Layer::Processes).await?;
    let noticed = provider.refused_fork(&spec.id);
    let bomb = run(&guest, "i=0; while [ $i -lt 64 ]; do sleep 1 & i=$((i+1)); done 2>&1; wait; echo over");
    let (noticed, _) = tokio::join!(noticed, bomb);
    noticed.map_err(said)?;
    let counters = provider.counters(&spec.id).await.map_err(said)?;
    provider.destroy(&spec.id).await.map_err(said)?;
    if counters.refused_forks == 0 { Err("no fork was refused".into()) } else { Ok(()) }
}

async fn a_disk_filler_finds_an_end(home: &Home) -> Outcome {
    let spec = limited("disk", Limits { disk: Some(HumanSize(32 << 20)), ..Limits::default() });
    let (provider, guest) = started(home, &spec).await?;
    holds(&*provider, &spec, Layer::Disk).await?;
    let small =
        run(&guest, "head -c 4M /dev/zero > /workspace/small && head -c 4M /dev/zero > /home/agent/small && echo fits")
            .await?;
    same("within the limit", &small.output.as_str(), &"fits\n")?;
    same("before", &provider.counters(&spec.id).await.map_err(said)?.disk_full, &false)?;
    let filler = run(&guest, "head -c 64M /dev/zero > /workspace/big 2>/dev/null || echo no room").await?;
    same("beyond it", &filler.output.as_str(), &"no room\n")?;
    same("after", &provider.counters(&spec.id).await.map_err(said)?.disk_full, &true)?;
    // Files outlive the mount.
    provider.stop(&spec.id).await.map_err(said)?;
    provider.start(&spec).await.map_err(said)?;
    let guest = provider.connect(&spec.id).await.map_err(said)?;
    let kept = run(&guest, "stat -c %s /workspace/small; rm /workspace/big").await?;
    same("after a start", &kept.output.as_str(), &"4194304\n")?;
    provider.destroy(&spec.id).await.map_err(said)?;
    let loops = std::fs::read_dir("/sys/block").map_err(|error| error.to_string())?.flatten();
    let ours = loops.filter(|entry| {
        let backing = std::fs::read_to_string(entry.path().join("loop/backing_file")).unwrap_or_default();
        backing.contains(spec.id.as_str())
    });
    same("loop devices left", &ours.count(), &0)
}

async fn disks_of_one_size_are_made_at_once(home: &Home) -> Outcome {
    let provider = home.open().await?;
    // A size that no other case uses: its blank disk is made now, and by one of them only.
    let limits = Limits { disk: Some(HumanSize(24 << 20)), ..Limits::default() };
    let specs: Vec<_> = (0..6).map(|number| limited(&format!("disk-{number}"), limits.clone())).collect();
    let made = specs.iter().map(|spec| async { provider.create(spec).await.map_err(said) });
    for made in futures_util::future::join_all(made).await {
        made?;
    }
    for spec in &specs {
        provider.destroy(&spec.id).await.map_err(said)?;
    }
    Ok(())
}

async fn frozen_processes_stand_still(home: &Home) -> Outcome {
    let spec = spec("frozen");
    let (provider, guest) = started(home, &spec).await?;
    run(
        &guest,
        "(while :; do echo x >> /workspace/ticks; done) >/dev/null 2>&1 & until [ -s /workspace/ticks ]; do :; done",
    )
    .await?;
    let size = async |when: &str| -> Result<u64, String> {
        // The guest's own file workers are not frozen.
        let mut guest = guest.clone();
        let path = "/workspace/ticks".to_owned();
        let entry = guest.stat(sandbar_guest::protocol::StatRequest { path }).await;
        Ok(entry.map_err(|status| format!("{when}: {status}"))?.into_inner().size)
    };
    for _ in 0..2 {
        provider.freeze(&spec.id).await.map_err(said)?;
        provider.freeze(&spec.id).await.map_err(said)?;
        let (one, two) = (size("frozen").await?, size("frozen").await?);
        same("while frozen", &two, &one)?;
        provider.thaw(&spec.id).await.map_err(said)?;
        let deadline = Instant::now() + Duration::from_secs(300);
        while size("thawed").await? == one {
            if Instant::now() > deadline {
                return Err("it does not go on".into());
            }
        }
    }
    // One that is frozen can be ended.
    provider.freeze(&spec.id).await.map_err(said)?;
    provider.destroy(&spec.id).await.map_err(said)
}
