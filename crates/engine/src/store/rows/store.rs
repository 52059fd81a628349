//! The trait, method by method: which connection does it, and in which room it is written.

use std::collections::BTreeMap;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use sandbar_api::{
    Event, Exit, InstanceId, OutputRange, Process, ProcessId, ProcessState, SandboxId, SandboxState, SessionId,
    SnapshotId, StateReason, Token, TokenId,
};
use sandbar_provider::Quarantine;
use tokio::sync::watch;

use super::{
    This, approvals,
    births::{self, Of},
    events, found, instance, pools, processes, prune, sandboxes, scripts, snapshots, tokens, usage,
    writer::Need::{Essential, Ordinary},
};
use crate::store::{
    Chunk, Created, Error, NewSandbox, NewSnapshot, PoolMember, PoolRow, Pruned, Result, SandboxFilter, SandboxRow,
    SnapshotRow, Store,
};

#[async_trait]
impl Store for This {
    async fn create_sandbox(&self, new: NewSandbox) -> Result<Created> {
        self.writer
            .write_whole(Ordinary, move |transaction| Box::pin(births::create(transaction, new.clone(), Of::Nothing)))
            .await
    }

    async fn sandbox(&self, id: &SandboxId) -> Result<Option<SandboxRow>> {
        found::by_id(&self.readers, id).await
    }

    async fn sandbox_named(&self, name: &str) -> Result<Option<SandboxRow>> {
        found::by_name(&self.readers, name).await
    }

    async fn sandbox_last_named(&self, name: &str) -> Result<Option<SandboxRow>> {
        found::last_named(&self.readers, name).await
    }

    async fn sandbox_within(&self, session: &SessionId, of: &str) -> Result<Option<SandboxId>> {
        found::within(&self.readers, session, of).await
    }

    async fn sandboxes(&self, filter: &SandboxFilter) -> Result<Vec<SandboxRow>> {
        found::page(&self.readers, filter).await
    }

    async fn transition(&self, id: &SandboxId, to: SandboxState, reason: Option<StateReason>) -> Result<SandboxRow> {
        let id = id.clone();
        let need = match to {
            SandboxState::Creating | SandboxState::Ready | SandboxState::Paused => Ordinary,
            SandboxState::Stopping | SandboxState::Stopped | SandboxState::Failed | SandboxState::Deleted => Essential,
        };
        self.writer
            .write_whole(need, move |transaction| {
                Box::pin(sandboxes::transition(transaction, id.clone(), to, reason.clone()))
            })
            .await
    }

    async fn restate(&self, id: &SandboxId, reason: StateReason) -> Result<SandboxRow> {
        let id = id.clone();
        self.writer
            .write(Essential, move |transaction| Box::pin(sandboxes::restate(transaction, id.clone(), reason.clone())))
            .await
    }

    async fn renew(&self, id: &SandboxId, expires_at: DateTime<Utc>) -> Result<SandboxRow> {
        let id = id.clone();
        self.writer
            .write(Ordinary, move |transaction| Box::pin(sandboxes::renew(transaction, id.clone(), expires_at)))
            .await
    }

    async fn expired(&self, now: DateTime<Utc>) -> Result<Vec<SandboxId>> {
        found::expired(&self.readers, now).await
    }

    async fn next_expiry(&self) -> Result<Option<DateTime<Utc>>> {
        found::next_expiry(&self.readers).await
    }

    async fn count(&self) -> Result<BTreeMap<String, u64>> {
        found::count(&self.readers).await
    }

    async fn create_process(&self, process: &Process) -> Result<()> {
        let process = process.clone();
        self.writer
            .write_whole(Ordinary, move |transaction| Box::pin(processes::create(transaction, process.clone())))
            .await
    }

    async fn process(&self, sandbox: &SandboxId, id: &ProcessId) -> Result<Option<Process>> {
        let Some(mut process) = processes::by_id(&self.readers, sandbox, id).await? else { return Ok(None) };
        process.output = self.output.range(id).await?;
        Ok(Some(process))
    }

    async fn processes(&self, sandbox: &SandboxId) -> Result<Vec<Process>> {
        self.output.ranges(processes::of_sandbox(&self.readers, sandbox).await?).await
    }

    async fn running_processes(&self) -> Result<Vec<Process>> {
        self.output.ranges(processes::running(&self.readers).await?).await
    }

    async fn end_process(
        &self,
        id: &ProcessId,
        state: ProcessState,
        exit: Option<Exit>,
        at: DateTime<Utc>,
    ) -> Result<()> {
        let ended = id.clone();
        let was_running = match exit.as_ref().and_then(|exit| processes::limit(exit.reason)) {
            None => {
                let end = self.writer.write_whole(Essential, move |transaction| {
                    Box::pin(processes::end(transaction, ended.clone(), state, exit.clone(), at))
                });
                end.await?
            }
            Some(_) => {
                let end = self.writer.write(Essential, move |transaction| {
                    let (ended, exit) = (ended.clone(), exit.clone());
                    Box::pin(
                        async move { processes::end_in_steps(transaction, &ended, state, exit.as_ref(), at).await },
                    )
                });
                end.await?.is_some()
            }
        };
        if was_running || processes::exists(&self.readers, id).await? {
            return Ok(());
        }
        Err(Error::Missing(format!("process {id}")))
    }

    async fn refuse_process(&self, id: &ProcessId, reason: &str) -> Result<()> {
        let (gone, reason) = (id.clone(), reason.to_owned());
        self.writer
            .write(Essential, move |transaction| Box::pin(processes::refuse(transaction, gone.clone(), reason.clone())))
            .await?;
        self.output.remove(vec![id.clone()]).await
    }

    async fn create_snapshot(&self, new: NewSnapshot) -> Result<SnapshotRow> {
        self.writer.write(Ordinary, move |transaction| Box::pin(snapshots::create(transaction, new.clone()))).await
    }

    async fn snapshot(&self, id: &SnapshotId) -> Result<Option<SnapshotRow>> {
        snapshots::by_id(&self.readers, id).await
    }

    async fn snapshot_named(&self, name: &str) -> Result<Option<SnapshotRow>> {
        snapshots::by_name(&self.readers, name).await
    }

    async fn snapshots(&self) -> Result<Vec<SnapshotRow>> {
        snapshots::all(&self.readers).await
    }

    async fn delete_snapshot(&self, id: &SnapshotId, why: StateReason) -> Result<()> {
        let id = id.clone();
        self.writer
            .write(Essential, move |transaction| Box::pin(snapshots::delete(transaction, id.clone(), why.clone())))
            .await
    }

    async fn set_pool(&self, template: &str, size: u32) -> Result<()> {
        let template = template.to_owned();
        // Ending a pool makes room.
        let need = if size == 0 { Essential } else { Ordinary };
        self.writer.write(need, move |transaction| Box::pin(pools::set(transaction, template.clone(), size))).await
    }

    async fn pools(&self) -> Result<Vec<PoolRow>> {
        pools::all(&self.readers).await
    }

    async fn add_pool_member(&self, member: &PoolMember) -> Result<()> {
        let member = member.clone();
        self.writer.write(Ordinary, move |transaction| Box::pin(pools::add(transaction, member.clone()))).await
    }

    async fn pool_members(&self) -> Result<Vec<PoolMember>> {
        pools::members(&self.readers).await
    }

    async fn remove_pool_member(&self, id: &SandboxId) -> Result<()> {
        let id = id.clone();
        self.writer.write(Essential, move |transaction| Box::pin(pools::remove(transaction, id.clone()))).await
    }

    async fn claim_pool_member(&self, new: NewSandbox) -> Result<Created> {
        self.writer
            .write_whole(Ordinary, move |transaction| Box::pin(births::create(transaction, new.clone(), Of::Member)))
            .await
    }

    async fn append_output(&self, process: &ProcessId, chunk: &Chunk, keep: u64) -> Result<OutputRange> {
        self.output.append(process, chunk, keep).await
    }

    async fn output_range(&self, process: &ProcessId) -> Result<OutputRange> {
        self.output.range(process).await
    }

    async fn read_output(&self, process: &ProcessId, from: u64, limit: usize) -> Result<Option<Chunk>> {
        self.output.read(process, from, limit).await
    }

    async fn drop_output(&self, sandbox: &SandboxId) -> Result<()> {
        self.output.remove(processes::ids_of_sandbox(&self.readers, sandbox).await?).await
    }

    async fn quarantined_output(&self) -> Result<Vec<(ProcessId, Quarantine)>> {
        self.output.quarantined().await
    }

    async fn remove_quarantined_output(&self, process: &ProcessId) -> Result<()> {
        self.output.remove_quarantined(process).await
    }

    async fn set_instance(&self, instance: &InstanceId) -> Result<()> {
        let instance = instance.clone();
        self.writer
            .write(Essential, move |transaction| {
                let instance = instance.clone();
                Box::pin(async move { instance::set(transaction, &instance).await })
            })
            .await
    }

    async fn events(&self, after: u64, limit: u32, sandbox: Option<&SandboxId>) -> Result<Vec<Event>> {
        events::page(&self.readers, after, limit, sandbox).await
    }

    fn head(&self) -> watch::Receiver<u64> {
        self.head.clone()
    }

    async fn create_token(&self, token: &Token, digest: [u8; 32]) -> Result<()> {
        let token = token.clone();
        self.writer
            .write(Ordinary, move |transaction| Box::pin(tokens::create(transaction, token.clone(), digest)))
            .await
    }

    async fn tokens(&self) -> Result<Vec<Token>> {
        tokens::all(&self.readers).await
    }

    async fn token_of(&self, id: &str) -> Result<Option<Token>> {
        tokens::by_id(&self.readers, id).await
    }

    async fn token(&self, digest: [u8; 32], now: DateTime<Utc>) -> Result<Option<Token>> {
        tokens::by_digest(&self.readers, digest, now).await
    }

    async fn revoke_token(&self, id: &TokenId) -> Result<()> {
        let id = id.clone();
        self.writer.write(Essential, move |transaction| Box::pin(tokens::revoke(transaction, id.clone()))).await
    }

    async fn prune(&self, before: DateTime<Utc>) -> Result<Pruned> {
        let mut pruned = Pruned { events: 0, sandboxes: 0 };
        let staying = prune::first_staying(&self.readers, before).await?;
        loop {
            let gone =
                self.writer.write(Essential, move |transaction| Box::pin(prune::events(transaction, staying))).await?;
            if gone == 0 {
                break;
            }
            pruned.events += gone;
        }
        self.writer.write(Essential, move |transaction| Box::pin(prune::keys(transaction, before))).await?;
        self.writer.write(Essential, move |transaction| Box::pin(snapshots::prune(transaction, before))).await?;
        while self.writer.write(Essential, move |transaction| Box::pin(usage::prune(transaction, before))).await? > 0 {}
        self.writer.write(Essential, move |transaction| Box::pin(approvals::prune(transaction, before))).await?;
        loop {
            let gone = self
                .writer
                .write(Essential, move |transaction| Box::pin(prune::sandboxes(transaction, before)))
                .await?;
            if gone.sandboxes == 0 {
                break;
            }
            pruned.sandboxes += gone.sandboxes;
            self.output.remove(gone.processes).await?;
        }
        self.writer.write(Essential, move |transaction| Box::pin(prune::sessions(transaction, before))).await?;
        Ok(pruned)
    }

    async fn check(&self) -> Result<()> {
        self.writer
            .write(Ordinary, |transaction| {
                Box::pin(async {
                    sqlx::raw_sql(scripts::CHECK).execute(&mut transaction.connection).await?;
                    Ok(())
                })
            })
            .await
    }

    async fn close(&self) {
        self.output.close().await;
        self.readers.close().await;
        self.writer.close().await;
        self.let_go().await;
    }
}
