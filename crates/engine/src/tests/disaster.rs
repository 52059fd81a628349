//! A database that was lost, restored from an old backup, or exchanged: nothing that it does not know is destroyed.

use std::{fs, path::Path};

use sandbar_api::{AdoptQuarantined, Adopted, Code, QuarantineKind, Quarantined, SandboxState};
use sandbar_provider::{Mark, Provider as _};

use super::{Bed, Tested, code, command, exec, owner, soon};
use crate::{Config, Engine, Mismatch, OpenError};

const DATABASE: [&str; 3] = ["sandbar.db", "sandbar.db-wal", "sandbar.db-shm"];

/// The database alone, as a backup would have it.
fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::create_dir_all(to)?;
    for name in DATABASE {
        drop(fs::remove_file(to.join(name)));
        if from.join(name).exists() {
            fs::copy(from.join(name), to.join(name))?;
        }
    }
    Ok(())
}

fn lose(home: &Path) {
    DATABASE.iter().for_each(|name| drop(fs::remove_file(home.join(name))));
}

impl Bed {
    async fn mismatch(&self) -> Result<Mismatch, String> {
        match Self::open(&self.home, &self.provider).await {
            Err(OpenError::Mismatch { mismatch, .. }) => Ok(mismatch),
            Err(error) => Err(format!("it failed otherwise: {error}")),
            Ok(_) => Err("it started".into()),
        }
    }

    async fn adopt(&mut self) -> Tested {
        let providers: Vec<std::sync::Arc<dyn sandbar_provider::Provider>> = vec![self.provider.clone()];
        let config = Config { home: self.home.clone(), providers, asks: true, adopt: true, ..Config::default() };
        self.engine = Engine::open(config).await?;
        Ok(())
    }

    async fn quarantine(&self) -> Result<Vec<Quarantined>, sandbar_api::Problem> {
        self.engine.quarantined().await
    }

    /// What the provider has, and how it is marked.
    async fn had(&self) -> Result<Vec<(String, Option<Mark>)>, Box<dyn std::error::Error>> {
        let mut had: Vec<_> =
            self.provider.list().await?.into_iter().map(|found| (found.id.to_string(), found.mark)).collect();
        had.extend(self.provider.snapshots().await?.into_iter().map(|found| (found.id.to_string(), found.mark)));
        had.sort_by(|one, other| one.0.cmp(&other.0));
        Ok(had)
    }
}

fn ids(quarantined: &[Quarantined]) -> Vec<&str> {
    let mut ids: Vec<_> = quarantined.iter().map(|one| one.id.as_str()).collect();
    ids.sort_unstable();
    ids
}

#[tokio::test]
async fn a_lost_database_costs_no_files() -> Tested {
    let mut bed = Bed::new().await?;
    let (kept, gone) = (bed.create("kept").await?, bed.create("gone").await?);
    let process = bed.engine.start_process("kept", command(&["sleep"])).await?;
    let guest = bed.provider.get(&kept.id).ok_or("no sandbox")?.guest.clone();
    guest.write(process.id.as_str(), b"said");
    soon(|| async { bed.engine.process("kept", process.id.as_str()).await.ok().filter(|one| one.output.end == 4) })
        .await?;
    let snapshot = bed.engine.snapshot(&owner(), "kept", Default::default()).await?;
    bed.engine.shutdown().await;
    let had = bed.had().await?;
    assert!(had.iter().all(|(_, mark)| matches!(mark, Some(Mark::Kept(_)))), "{had:?}");
    lose(&bed.home);

    assert!(matches!(bed.mismatch().await?, Mismatch::Empty { .. }));
    fs::write(bed.home.join("sandbar.db"), "")?;
    assert!(matches!(bed.mismatch().await?, Mismatch::Empty { .. }), "an empty file is no database");
    assert_eq!(bed.had().await?, had, "a refused start changes nothing");
    assert!(bed.home.join("output").join(process.id.as_str()).exists());

    bed.adopt().await?;
    assert!(bed.engine.list(Default::default()).await?.sandboxes.is_empty());
    let found = bed.quarantine().await?;
    let mut expected = vec![kept.id.as_str(), gone.id.as_str(), snapshot.id.as_str(), process.id.as_str()];
    expected.sort_unstable();
    assert_eq!(ids(&found), expected);
    let output = found.iter().find(|one| one.kind == QuarantineKind::Output).ok_or("no output")?;
    assert_eq!(
        code(bed.engine.adopt_quarantined(&owner(), &output.id, Default::default()).await),
        Some(Code::Declined)
    );

    // A second start finds the same, and no longer needs to be told.
    bed.restart().await?;
    assert_eq!(ids(&bed.quarantine().await?), expected);

    let request = AdoptQuarantined { name: Some("mine".into()), template: None };
    let adopted = bed.engine.adopt_quarantined(&owner(), kept.id.as_str(), request).await?;
    assert!(
        matches!(adopted, Adopted::Sandbox(sandbox) if sandbox.id == kept.id && sandbox.state == SandboxState::Ready)
    );
    assert_eq!(bed.engine.exec("mine", exec(&["echo", "x"], None, 10)).await?.stdout, "x");
    let adopted = bed.engine.adopt_quarantined(&owner(), snapshot.id.as_str(), Default::default()).await?;
    assert!(matches!(adopted, Adopted::Snapshot(taken) if taken.id == snapshot.id));
    bed.engine.remove_quarantined(gone.id.as_str()).await?;
    bed.engine.remove_quarantined(process.id.as_str()).await?;
    assert_eq!(ids(&bed.quarantine().await?), [""; 0]);
    assert!(bed.provider.get(&gone.id).is_none());
    assert!(!bed.home.join("output").join(process.id.as_str()).exists());
    assert_eq!(code(bed.engine.remove_quarantined(gone.id.as_str()).await), Some(Code::UnknownQuarantined));
    bed.restart().await?;
    assert_eq!(bed.state("mine").await, Some(SandboxState::Ready));
    Ok(())
}

#[tokio::test]
async fn an_old_backup_destroys_nothing_that_came_after_it() -> Tested {
    let mut bed = Bed::new().await?;
    let old = bed.create("old").await?;
    bed.engine.shutdown().await;
    let place = sandbar_test_harness::scratch()?;
    let (backup, newest) = (place.path().join("backup"), place.path().join("newest"));
    copy(&bed.home, &backup)?;
    bed.engine = Bed::open(&bed.home, &bed.provider).await?;
    let new = bed.create("new").await?;
    bed.engine.shutdown().await;
    copy(&bed.home, &newest)?;
    copy(&backup, &bed.home)?;

    assert!(matches!(bed.mismatch().await?, Mismatch::Older { .. }));
    bed.adopt().await?;
    assert_eq!(bed.state("old").await, Some(SandboxState::Ready));
    assert_eq!(ids(&bed.quarantine().await?), [new.id.as_str()]);
    bed.restart().await?;
    assert_eq!(ids(&bed.quarantine().await?), [new.id.as_str()], "it fits from now on");

    // The right database is found after all.
    bed.engine.shutdown().await;
    copy(&newest, &bed.home)?;
    bed.adopt().await?;
    assert_eq!(ids(&bed.quarantine().await?), [""; 0]);
    for (name, id) in [("old", &old.id), ("new", &new.id)] {
        assert_eq!((bed.state(name).await, bed.engine.get(name).await?.id), (Some(SandboxState::Ready), id.clone()));
    }
    Ok(())
}

#[tokio::test]
async fn the_database_of_another_home_is_refused() -> Tested {
    let (bed, other) = (Bed::new().await?, Bed::new().await?);
    bed.create("a").await?;
    other.create("b").await?;
    bed.engine.shutdown().await;
    other.engine.shutdown().await;
    let had = bed.had().await?;
    copy(&other.home, &bed.home)?;
    assert!(matches!(bed.mismatch().await?, Mismatch::Foreign { .. }));
    assert_eq!(bed.had().await?, had);
    Ok(())
}

/// A claim changes a member's files, and an old backup does not know of it.
#[tokio::test]
async fn a_member_that_was_claimed_after_the_backup_is_given_to_nobody() -> Tested {
    let mut bed = Bed::new().await?;
    bed.engine.set_pool("default", 1).await?;
    soon(|| async { bed.engine.pools().await.ok()?.pop().filter(|pool| pool.warm == 1) }).await?;
    bed.engine.shutdown().await;
    let place = sandbar_test_harness::scratch()?;
    copy(&bed.home, place.path())?;
    bed.engine = Bed::open(&bed.home, &bed.provider).await?;
    soon(|| async { bed.engine.pools().await.ok()?.pop().filter(|pool| pool.warm == 1) }).await?;
    let claimed = bed.create("claimed").await?;
    let members = bed.engine.inner.store.pool_members().await?;
    assert!(members.iter().all(|member| member.id != claimed.id), "it was claimed");
    bed.engine.shutdown().await;
    copy(place.path(), &bed.home)?;
    bed.adopt().await?;
    soon(|| async { bed.engine.pools().await.ok()?.pop().filter(|pool| pool.warm == 1) }).await?;
    assert!(ids(&bed.quarantine().await?).contains(&claimed.id.as_str()));
    let next = bed.create("next").await?;
    assert_ne!(next.id, claimed.id);
    assert!(bed.provider.get(&claimed.id).is_some());
    Ok(())
}

/// As an upgrade finds it: neither store nor files say whose they are.
#[tokio::test]
async fn a_home_from_before_marks_gets_them_at_its_first_start() -> Tested {
    let mut bed = Bed::new().await?;
    let known = bed.create("known").await?;
    bed.engine.shutdown().await;
    forget_instance(&bed.home).await?;
    fs::remove_file(bed.home.join("instance.json"))?;
    bed.provider.marks.lock().map_err(|_| "poisoned")?.clear();
    let unknown = sandbar_api::SandboxId::from_parts(1, [1; 10]);
    bed.provider.create(&sandbar_provider::Spec::standard(unknown.clone(), "unknown")).await?;
    bed.engine = Bed::open(&bed.home, &bed.provider).await?;
    assert_eq!(bed.state("known").await, Some(SandboxState::Ready));
    assert!(matches!(bed.provider.mark_of(known.id.as_str()), Some(Mark::Kept(_))));
    assert_eq!(ids(&bed.quarantine().await?), [unknown.as_str()]);
    Ok(())
}

async fn forget_instance(home: &Path) -> Tested {
    use sqlx::{Connection as _, SqliteConnection, sqlite::SqliteConnectOptions};
    let options = SqliteConnectOptions::new().filename(home.join("sandbar.db"));
    let mut connection = SqliteConnection::connect_with(&options).await?;
    sqlx::query("DELETE FROM instance").execute(&mut connection).await?;
    connection.close().await?;
    Ok(())
}
