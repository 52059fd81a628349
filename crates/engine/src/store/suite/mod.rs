//! What every store must do, whichever database it is: each function is one promise, and `promises!` runs them all.

pub(super) mod approvals;
pub(super) mod cancel;
pub(super) mod conversations;
pub(super) mod events;
pub(super) mod gates;
pub(super) mod ledger;
pub(super) mod names;
pub(super) mod output;
pub(super) mod pools;
pub(super) mod processes;
pub(super) mod prune;
pub(super) mod restarts;
pub(super) mod sandboxes;
pub(super) mod secrets;
pub(super) mod sessions;
pub(super) mod snapshots;
pub(super) mod terminals;
pub(super) mod texts;
pub(super) mod tokens;
pub(super) mod webhooks;

use std::{
    collections::BTreeMap,
    error::Error,
    sync::atomic::{AtomicU64, Ordering},
};

use bytes::Bytes;
use chrono::{DateTime, SubsecRound as _, Utc};
use sandbar_api::{
    Event, OutputRange, Process, ProcessId, ProcessState, Sandbox, SandboxId, SandboxState, SessionId, SetBudget,
    Stream, Template, WorkspaceSource,
};

use super::{
    Chunk, Created, NewSandbox, OWNER_SOCKET, Result, SandboxRow, Store, gate::GateRow, sessions::SessionMarks,
};

pub(super) type Outcome = std::result::Result<(), Box<dyn Error + Send + Sync>>;

/// Where a store lives: opening it again is what a restart of the server does.
pub(super) trait Home: Send + Sync + 'static {
    type Store: Store;
    fn open(&self) -> impl Future<Output = Result<Self::Store>> + Send;
}

/// Makes a test of every promise; `$home` gives a new `Home`.
macro_rules! promises {
    ($home:expr) => {
        promises!($home;
            approvals::approvals_are_opened_listed_and_kept
            approvals::an_answer_counts_once_and_its_text_is_not_told
            approvals::of_fifty_answers_at_once_one_counts
            approvals::too_late_is_expired_whoever_comes_first
            approvals::an_answer_and_the_expiry_race_to_one_end
            approvals::an_answer_changes_rules_with_itself_or_not_at_all
            approvals::what_an_answer_lets_through_is_spent_once
            approvals::withdrawn_ones_are_closed_and_old_ones_pruned
            approvals::a_terminal_asks_one_thing_at_a_time
            approvals::how_typing_ended_is_told_once
            conversations::they_are_there_before_and_after_their_sandboxes
            conversations::of_twenty_that_begin_one_a_user_has_one
            conversations::the_forgotten_are_found_and_pruned_when_they_are_deleted
            conversations::a_workspace_has_one_token_that_ends_with_its_session
            conversations::expiry_is_put_off
            conversations::the_last_sandbox_is_the_one_that_came_last
            cancel::a_dropped_write_is_done_and_told_or_neither
            events::numbers_have_no_gaps_under_fifty_writers_of_whom_some_fail
            events::nothing_is_announced_that_cannot_be_read
            events::a_restart_goes_on_counting
            events::they_page_and_filter_by_sandbox
            gates::gates_are_changed_told_and_found_again
            gates::gates_go_with_their_sandbox
            gates::facts_are_appended_in_order_and_at_once
            gates::sessions_are_pruned_by_families
            ledger::a_session_keeps_its_limits_and_its_model
            ledger::calls_are_held_until_they_end_once
            ledger::what_was_never_made_leaves_nothing
            ledger::what_is_used_counts_for_all_above
            ledger::usage_is_summed_by_model_session_and_day
            ledger::sums_do_not_overflow
            ledger::sessions_that_share_a_budget_go_together
            names::they_are_unique_until_their_sandbox_is_deleted
            names::the_last_that_had_one_is_found
            names::one_key_makes_one_sandbox
            names::one_key_makes_one_sandbox_at_the_same_time_too
            output::it_comes_back_as_it_was_written
            output::what_is_sent_again_is_kept_once
            output::a_gap_is_refused
            output::chunks_do_not_mix_streams
            output::the_oldest_goes_when_there_is_too_much
            output::reading_and_appending_at_once
            output::hundreds_of_logs_at_once
            output::it_goes_with_its_sandbox
            pools::they_are_set_changed_and_ended
            pools::members_come_and_go_unseen_among_sandboxes
            pools::a_claim_makes_a_sandbox_of_a_member_once
            pools::a_claim_that_is_refused_leaves_the_member
            processes::they_start_and_end_once
            processes::none_start_where_no_sandbox_is
            processes::a_refused_one_is_gone_and_told
            processes::one_that_ends_at_a_limit_tells_which
            prune::old_events_go_and_are_called_dropped
            prune::deleted_sandboxes_go_with_all_that_is_theirs
            restarts::what_is_to_follow_is_found_again_and_started_once
            restarts::one_that_keeps_dying_is_flagged_once_until_a_person_starts_it
            restarts::of_a_long_line_the_first_and_the_newest_are_kept
            restarts::a_person_and_the_end_of_the_sandbox_end_a_line
            restarts::one_that_cannot_be_started_counts_as_failed
            sandboxes::they_come_back_as_they_were_made
            sandboxes::only_legal_transitions_change_anything
            sandboxes::they_page_and_filter_by_label_and_state
            sandboxes::the_expired_are_found
            sandboxes::why_it_is_in_its_state_can_be_said_anew
            sandboxes::a_session_may_be_joined_if_it_is_there
            secrets::secrets_are_set_replaced_and_removed
            sessions::they_are_found_by_name_and_labels
            sessions::names_are_unique_until_they_are_deleted
            sessions::what_belongs_to_one_is_told
            sessions::one_with_sandboxes_is_not_deleted
            sessions::deleting_withdraws_and_tells_once
            sessions::nothing_joins_a_deleted_one
            sessions::a_bounded_lookup_finds_nothing_beyond_its_session
            snapshots::they_outlive_their_origin_and_give_their_names_back
            snapshots::hidden_ones_are_told_to_nobody
            terminals::moments_end_where_time_went_on
            terminals::sizes_and_screens_are_kept_with_the_output
            texts::a_nul_stops_nothing
            tokens::they_work_until_expired_or_revoked
            webhooks::webhooks_are_added_found_again_and_removed
            webhooks::a_webhooks_cursor_and_failures_are_kept
        );
    };
    ($home:expr; $($room:ident::$promise:ident)*) => {$(
        #[tokio::test]
        async fn $promise() -> $crate::store::suite::Outcome {
            $crate::store::suite::$room::$promise($home).await
        }
    )*};
}
pub(super) use promises;

/// Ids that ascend in the order they are asked for.
fn next() -> (u64, [u8; 10]) {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    (NEXT.fetch_add(1, Ordering::Relaxed), [7; 10])
}

pub(super) fn now() -> DateTime<Utc> {
    Utc::now().trunc_subsecs(6)
}

pub(crate) fn new_sandbox(name: &str) -> NewSandbox {
    let ((millis, random), at) = (next(), now());
    let sandbox = Sandbox {
        id: SandboxId::from_parts(millis, random),
        name: name.into(),
        session: SessionId::from_parts(millis, random),
        state: SandboxState::Creating,
        reason: None,
        template: "default".into(),
        provider: "local".into(),
        labels: BTreeMap::new(),
        env: BTreeMap::from([("SECRET".into(), "of the environment".into())]),
        workspace: WorkspaceSource::Empty,
        from: None,
        created_at: at,
        changed_at: at,
        expires_at: None,
    };
    let row = SandboxRow { sandbox, template: Template::default(), lease: None };
    NewSandbox {
        row,
        new_session: true,
        parent: None,
        marks: SessionMarks::default(),
        budget: SetBudget::default(),
        owner: OWNER_SOCKET.into(),
        gate: gate_row(),
        key: None,
    }
}

/// Of a sandbox without rules of its own.
pub(crate) fn gate_row() -> GateRow {
    GateRow { rules: Vec::new(), secrets: Vec::new(), certificate: "certificate".into(), key: vec![1, 2, 3] }
}

pub(super) async fn sandbox(store: &impl Store, name: &str) -> Result<SandboxId> {
    let (Created::New(row) | Created::Replayed(row)) = store.create_sandbox(new_sandbox(name)).await?;
    Ok(row.sandbox.id)
}

pub(super) fn new_process(sandbox: &SandboxId) -> Process {
    let (millis, random) = next();
    Process {
        id: ProcessId::from_parts(millis, random),
        sandbox: sandbox.clone(),
        argv: vec!["sh".into(), "-c".into(), "echo hello".into()],
        cwd: "/workspace".into(),
        terminal: false,
        state: ProcessState::Running,
        exit: None,
        started_at: now(),
        exited_at: None,
        output: OutputRange { start: 0, end: 0 },
        restart: None,
        restart_of: None,
        restarts: 0,
    }
}

pub(super) async fn process(store: &impl Store, sandbox: &SandboxId) -> Result<ProcessId> {
    let process = new_process(sandbox);
    store.create_process(&process).await?;
    Ok(process.id)
}

pub(super) fn chunk(offset: u64, stream: Stream, data: impl Into<Bytes>) -> Chunk {
    Chunk { offset, stream, at: now(), data: data.into() }
}

pub(super) fn stdout(offset: u64, data: impl Into<Bytes>) -> Chunk {
    chunk(offset, Stream::Stdout, data)
}

pub(super) async fn all_events(store: &impl Store) -> Result<Vec<Event>> {
    store.events(0, u32::MAX, None).await
}

pub(super) async fn kinds(store: &impl Store) -> Result<Vec<String>> {
    Ok(all_events(store).await?.into_iter().map(|event| event.kind).collect())
}

/// Everything from `from` to the current end, in chunks of at most `limit`.
pub(super) async fn read_all(store: &impl Store, process: &ProcessId, from: u64, limit: usize) -> Result<Vec<Chunk>> {
    let (mut chunks, mut at) = (vec![], from);
    while let Some(chunk) = store.read_output(process, at, limit).await? {
        at += chunk.data.len() as u64;
        chunks.push(chunk);
    }
    Ok(chunks)
}

pub(super) fn joined(chunks: &[Chunk]) -> Vec<u8> {
    chunks.iter().flat_map(|chunk| chunk.data.iter().copied()).collect()
}

/// Repeatable randomness (splitmix64): a failure can be run again.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ (x >> 31)) % sides
    }
}
