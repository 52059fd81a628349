//! Snapshots and files on their way: nothing is caught halfway, and whoever comes meanwhile waits.

use bytes::Bytes;
use sandbar_api::{Code, CreateSnapshot, Fork, Problem, SandboxState};
use tokio::{sync::mpsc, task::JoinHandle};
use tokio_stream::wrappers::ReceiverStream;

use super::{
    Bed, Tested, code, exec, owner,
    script::{Script, kernel::broken},
    soon,
};

type Body = mpsc::Sender<Result<Bytes, Problem>>;

/// A sandbox `a`, into which a file is being written until the body ends.
struct Transfer {
    bed: Bed,
    guest: Script,
    body: Body,
    upload: JoinHandle<Result<u64, Problem>>,
}

impl Transfer {
    async fn begin() -> Result<Self, Box<dyn std::error::Error>> {
        let bed = Bed::new().await?;
        let sandbox = bed.create("a").await?;
        let guest = bed.provider.get(&sandbox.id).ok_or("no sandbox")?.guest.clone();
        let (body, pieces) = mpsc::channel(1);
        let engine = bed.engine.clone();
        let pieces = Box::pin(ReceiverStream::new(pieces));
        let upload = tokio::spawn(async move { engine.write_file("a", "upload", None, pieces).await });
        body.send(Ok(Bytes::from_static(b"half"))).await?;
        soon(|| async { (guest.changes() == 1).then_some(()) }).await?;
        Ok(Self { bed, guest, body, upload })
    }

    /// In the background.
    fn take(&self, name: &str) -> JoinHandle<Result<(), Problem>> {
        let (engine, name) = (self.bed.engine.clone(), Some(name.to_owned()));
        tokio::spawn(async move { engine.snapshot(&owner(), "a", CreateSnapshot { name }).await.map(drop) })
    }

    fn echo(&self) -> JoinHandle<Result<String, Problem>> {
        let engine = self.bed.engine.clone();
        tokio::spawn(async move { Ok(engine.exec("a", exec(&["echo", "late"], None, 10)).await?.stdout) })
    }

    async fn until_held(&self) -> Tested {
        let handle = self.bed.engine.inner.handle("a").await?;
        soon(|| async { handle.is_held().then_some(()) }).await?;
        Ok(())
    }
}

#[tokio::test]
async fn a_snapshot_waits_for_an_upload_and_not_for_a_command() -> Tested {
    let under_way = Transfer::begin().await?;
    let engine = under_way.bed.engine.clone();
    let command = tokio::spawn(async move { engine.exec("a", exec(&["sleep"], None, 10)).await });
    let process = soon(|| async { under_way.guest.last_start() }).await?.process_id;
    soon(|| async { under_way.guest.play(&process) }).await?;
    let snapshot = under_way.take("s");
    under_way.until_held().await?;
    let late = under_way.echo();
    let engine = under_way.bed.engine.clone();
    let fork = tokio::spawn(async move { engine.fork(&owner(), "a", Fork::default()).await });
    under_way.body.send(Ok(Bytes::from_static(b" and half"))).await?;
    assert!(!snapshot.is_finished() && !late.is_finished() && !fork.is_finished());
    assert_eq!(under_way.guest.last_start().map(|start| start.process_id).as_ref(), Some(&process));
    assert!(under_way.bed.provider.kernel.done().is_empty(), "nothing stands still before the upload has ended");

    drop(under_way.body);
    assert_eq!(under_way.upload.await??, 13);
    snapshot.await??;
    assert_eq!(late.await??, "late");
    assert_eq!(fork.await??.len(), 1);
    assert!(!command.is_finished(), "it goes on");
    under_way.bed.engine.signal("a", &process, "KILL").await?;
    command.await??;
    Ok(())
}

#[tokio::test]
async fn an_upload_that_does_not_end_refuses_the_snapshot_and_goes_on() -> Tested {
    let under_way = Transfer::begin().await?;
    let patience = &under_way.bed.engine.inner.patience;
    patience.wait_for_transfers(2);
    let snapshot = under_way.take("s");
    under_way.until_held().await?;
    let late = under_way.echo();
    let refused = snapshot.await?.err().ok_or("it was taken")?;
    assert_eq!(refused.code, Code::WrongState);
    assert!(refused.detail.contains("transferred") && refused.fix.contains("try again"), "{refused}");
    assert_eq!(late.await??, "late");
    let bed = &under_way.bed;
    assert!(!bed.provider.kernel.done().iter().any(|verb| verb == "freeze" || verb == "snapshot"));
    assert_eq!(bed.state("a").await, Some(SandboxState::Ready));

    // A pause does not wait as long, and a snapshot of what is paused does.
    bed.engine.pause("a").await?;
    assert_eq!(code(under_way.take("s").await?), Some(Code::WrongState));
    assert_eq!(bed.state("a").await, Some(SandboxState::Paused));
    patience.wait_for_transfers(60);
    let snapshot = under_way.take("s");
    drop(under_way.body);
    assert_eq!(under_way.upload.await??, 4);
    snapshot.await??;
    assert_eq!(code(bed.engine.stat("a", "f").await), Some(Code::WrongState), "it is still paused");
    bed.engine.resume("a").await?;
    assert_eq!(code(bed.engine.stat("a", "f").await), Some(Code::UnknownFile));
    Ok(())
}

#[tokio::test]
async fn what_a_caller_left_behind_is_waited_for() -> Tested {
    let under_way = Transfer::begin().await?;
    under_way.upload.abort();
    assert_eq!(under_way.guest.changes(), 1, "it was undone too fast to show anything");
    under_way.take("uploaded").await??;
    assert_eq!(under_way.guest.changes(), 0);

    let engine = under_way.bed.engine.clone();
    let removal = tokio::spawn(async move { engine.remove("a", "upload", false).await });
    soon(|| async { (under_way.guest.changes_begun() == 2).then_some(()) }).await?;
    removal.abort();
    under_way.take("removed").await??;
    Ok(())
}

#[tokio::test]
async fn a_snapshot_that_fails_lets_in_who_waited() -> Tested {
    let under_way = Transfer::begin().await?;
    under_way.bed.provider.kernel.fail("snapshot", broken);
    let snapshot = under_way.take("s");
    under_way.until_held().await?;
    let late = under_way.echo();
    drop(under_way.body);
    assert_eq!(code(snapshot.await?), Some(Code::Internal));
    assert_eq!(late.await??, "late");
    assert!(!under_way.bed.engine.inner.handle("a").await?.is_held());
    Ok(())
}

#[tokio::test]
async fn a_server_that_ends_waits_for_neither() -> Tested {
    let under_way = Transfer::begin().await?;
    let snapshot = under_way.take("s");
    under_way.until_held().await?;
    let patience = std::time::Duration::from_secs(20);
    tokio::time::timeout(patience, under_way.bed.engine.shutdown()).await?;
    assert_eq!(code(snapshot.await?), Some(Code::ShuttingDown));
    assert_eq!(code(under_way.upload.await?), Some(Code::ShuttingDown));
    Ok(())
}
