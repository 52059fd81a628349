//! A workload that exchanges a file or directory with a link, over and over, while the files API uses it. The control
//! of each is a program of the host that looks first and acts then.

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures_util::{TryStreamExt as _, stream};
use sandbar_api::StartProcess;
use tar::{Builder, Header};

use crate::{
    attack::{Attack, Class, Control, Finding, act},
    files_api::{download, refusal, upload},
    stage::{SECRET, Stage, Target},
    support::{Outcome, until},
};

/// Enough for a program that looks first to be caught many times over.
const TRIES: usize = 60;
/// How long such a program is given.
const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) fn all() -> Vec<Attack> {
    let doing =
        |name, act, control| Attack::act(Class::Files, name, act, Control::Act("by a host that looks first", control));
    vec![
        doing("exchange_during_downloads", act!(downloads), act!(naive_read)),
        doing("exchange_during_packing", act!(packing), act!(naive_read)),
        doing("exchange_during_uploads", act!(uploads), act!(naive_write)),
        doing("exchange_during_unpacking", act!(unpacking), act!(naive_write)),
        doing("exchange_during_removal", act!(removal), act!(naive_remove)),
    ]
}

/// A directory of the workspace in which `a` and `b` change places until it is dropped by `stop`.
pub(crate) struct Race {
    pub(crate) place: PathBuf,
    pub(crate) outside: PathBuf,
    process: String,
}

/// `a` is the sandbox's own, `b` a link to the same thing of the host.
pub(crate) async fn race(stage: &Stage, target: &Target, directories: bool) -> Outcome<Race> {
    let name = format!("race-{}", stage.number());
    let (place, outside) = (target.shared.join(&name), stage.directory("outside")?);
    fs::write(outside.join("file"), SECRET)?;
    for number in 0..TRIES {
        let deep = outside.join(format!("deep-{number}"));
        fs::create_dir(&deep)?;
        fs::write(deep.join("file"), SECRET)?;
    }
    // Made inside, so that it belongs to the workload.
    let own = if directories {
        "mkdir a && echo own > a/file && for i in $(seq 0 59); do mkdir a/deep-$i && echo own > a/deep-$i/file; done"
    } else {
        "echo own > a"
    };
    let aim = if directories { outside.clone() } else { outside.join("file") };
    stage.sh(target, &format!("mkdir {name} && cd {name} && {own} && ln -s {} b", aim.display())).await?;
    let request = StartProcess {
        argv: ["/workspace/attacks", "--inside", "exchange"].map(str::to_owned).to_vec(),
        cwd: Some(format!("/workspace/{name}")),
        ..StartProcess::default()
    };
    let process = stage.client.start_process(&target.id, &request).await?.id.to_string();
    let exchanged = place.join("a");
    until("the exchange begins", async || Ok(exchanged.is_symlink())).await?;
    Ok(Race { place, outside, process })
}

impl Race {
    fn inside(&self, name: &str) -> String {
        let race = self.place.file_name().unwrap_or_default().to_string_lossy();
        format!("/workspace/{race}/{name}")
    }

    pub(crate) async fn stop(self, stage: &Stage, target: &Target) -> Outcome {
        let process = stage.client.process(&target.id, &self.process).await?;
        if process.exit.is_some() {
            return Err("the exchange ended by itself".into());
        }
        stage.client.signal(&target.id, &self.process, "KILL").await?;
        until("the exchange ends", async || Ok(stage.client.process(&target.id, &self.process).await?.exit.is_some()))
            .await
    }
}

fn is_secret(bytes: &[u8]) -> bool {
    bytes.windows(SECRET.len()).any(|part| part == SECRET.as_bytes())
}

async fn downloads(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let race = race(stage, target, false).await?;
    let (mut own, mut refused) = (0, 0);
    for _ in 0..TRIES {
        match download(stage, target, &race.inside("a"), 1 << 16).await? {
            Ok(got) if is_secret(&got) => {
                race.stop(stage, target).await?;
                return Ok(Finding::escaped("the host's file was downloaded"));
            }
            Ok(_) => own += 1,
            Err(_) => refused += 1,
        }
    }
    race.stop(stage, target).await?;
    Ok(Finding::contained(format!("{own} times its own, {refused} refused")))
}

async fn packing(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let race = race(stage, target, true).await?;
    let mut packed = 0;
    for _ in 0..TRIES {
        let path = race.inside("");
        let got: Vec<Bytes> = stage.client.pack(&target.id, path.trim_end_matches('/')).await?.try_collect().await?;
        packed += 1;
        if is_secret(&got.concat()) {
            race.stop(stage, target).await?;
            return Ok(Finding::escaped("the host's file was packed"));
        }
    }
    race.stop(stage, target).await?;
    Ok(Finding::contained(format!("packed {packed} times")))
}

async fn uploads(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let race = race(stage, target, true).await?;
    let (mut own, mut refused) = (0, 0);
    for _ in 0..TRIES {
        match upload(stage, target, &race.inside("a/file"), None, b"attack".to_vec()).await? {
            Ok(()) => own += 1,
            Err(_) => refused += 1,
        }
    }
    let hit = fs::read_to_string(race.outside.join("file"))? != SECRET;
    race.stop(stage, target).await?;
    Ok(if hit {
        Finding::escaped("the host's file was written")
    } else {
        Finding::contained(format!("{own} times its own, {refused} refused"))
    })
}

async fn unpacking(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let race = race(stage, target, true).await?;
    let mut builder = Builder::new(vec![]);
    for name in ["a/file", "a/new"] {
        let mut header = Header::new_gnu();
        header.set_mode(0o644);
        header.set_size(6);
        builder.append_data(&mut header, name, &b"attack"[..])?;
    }
    let archive = Bytes::from(builder.into_inner()?);
    let (mut own, mut refused) = (0, 0);
    for _ in 0..TRIES {
        let body = stream::iter([Ok(archive.clone())]);
        match stage.client.unpack(&target.id, race.inside("").trim_end_matches('/'), body).await {
            Ok(_) => own += 1,
            Err(error) => {
                refusal(error)?;
                refused += 1;
            }
        }
    }
    let hit = fs::read_to_string(race.outside.join("file"))? != SECRET || race.outside.join("new").exists();
    race.stop(stage, target).await?;
    Ok(if hit {
        Finding::escaped("the host's file was written")
    } else {
        Finding::contained(format!("{own} times its own, {refused} refused"))
    })
}

/// Only below the exchanged name, so that the race goes on.
async fn removal(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let race = race(stage, target, true).await?;
    let (mut own, mut refused) = (0, 0);
    for number in 0..TRIES {
        match stage.client.remove(&target.id, &race.inside(&format!("a/deep-{number}")), true).await {
            Ok(()) => own += 1,
            Err(error) => {
                refusal(error)?;
                refused += 1;
            }
        }
    }
    let whole = (0..TRIES).all(|number| race.outside.join(format!("deep-{number}/file")).exists());
    race.stop(stage, target).await?;
    Ok(if whole {
        Finding::contained(format!("{own} times its own, {refused} refused"))
    } else {
        Finding::escaped("the host's directory was removed")
    })
}

/// Repeats until the host's file was hit, as a privileged file API without descriptors would.
async fn naive(stage: &Stage, target: &Target, directories: bool, act: fn(&Path) -> bool) -> Outcome<Finding> {
    let race = race(stage, target, directories).await?;
    let own = race.place.join("a");
    let begun = Instant::now();
    let mut tries = 0;
    let mut hit = false;
    while !hit && begun.elapsed() < PATIENCE {
        tries += 1;
        if own.symlink_metadata().is_ok_and(|found| !found.is_symlink()) {
            hit = act(&own);
        }
        hit |= fs::read_to_string(race.outside.join("file")).is_ok_and(|text| text != SECRET);
        hit |= !race.outside.join("file").exists();
    }
    race.stop(stage, target).await?;
    Ok(if hit {
        Finding::escaped(format!("after {tries} tries"))
    } else {
        Finding::contained(format!("not in {tries} tries"))
    })
}

async fn naive_read(stage: &Stage, target: &Target) -> Outcome<Finding> {
    naive(stage, target, false, |own| fs::read(own).is_ok_and(|got| is_secret(&got))).await
}

async fn naive_write(stage: &Stage, target: &Target) -> Outcome<Finding> {
    naive(stage, target, true, |own| {
        // Whether it hit the host's file is looked at there.
        fs::write(own.join("file"), "attack").ok();
        false
    })
    .await
}

async fn naive_remove(stage: &Stage, target: &Target) -> Outcome<Finding> {
    naive(stage, target, true, |own| {
        fs::remove_file(own.join("file")).ok();
        false
    })
    .await
}
