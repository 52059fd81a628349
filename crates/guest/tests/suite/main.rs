//! The guest over a real socket, in an ordinary process: no namespaces, and nothing is confined. This file is also the
//! guest itself, re-executed, because a test harness has threads and the guest must not.

mod answers;
mod archives;
mod cgroups;
mod dial;
mod files;
mod input;
mod limits;
mod look;
mod output;
mod probe;
mod processes;
mod remote;
mod responses;
mod runtimes;
mod search;
mod support;
mod terminal;
mod writers;

use std::{future::Future, pin::Pin, process::ExitCode, time::Duration};

use remote::{carried, ended, entrance, known};
use runtimes::{grpc, legacy, links, rest, serve};
use sandbar_test_harness as harness;
use support::{Guest, Outcome};

type Test = (&'static str, fn(Guest) -> Pin<Box<dyn Future<Output = Outcome>>>);

macro_rules! tests {
    ($($room:ident: $($name:ident),+ $(,)?;)+) => {
        &[$($((concat!(stringify!($room), "::", stringify!($name)), |guest| Box::pin($room::$name(guest)))),+),+]
    };
}

const TESTS: &[Test] = tests! {
    processes:
        greets,
        gives_the_defaults,
        starts_once,
        tells_why_it_did_not_start,
        tells_how_it_ended,
        kills_the_whole_tree,
        timeout_kills_what_daemonised,
        survives_the_death_of_a_minder,
        outruns_what_keeps_forking,
        kills_past_a_stopped_minder,
        wakes_a_stopped_minder,
        no_signal_but_one_ends_a_minder,
        kills_what_a_leader_left_behind,
        timeout_reaches_what_a_leader_left_behind,
        signals_reach_the_group,
        exit_comes_after_the_last_words,
        forgets_what_is_over,
        buries_orphans,
        is_small_again_when_idle;
    output:
        is_exact,
        waits_for_a_stalled_follower,
        holds_back_an_exit_whose_last_words_have_no_room,
        resumes_without_loss_or_repeat,
        refuses_offsets_it_does_not_have,
        serves_several_followers;
    limits:
        relieves_of_the_largest_tree,
        relieves_of_threads_too,
        relieves_when_nothing_can_be_forked,
        relieves_of_nothing_when_nothing_runs,
        cuts_off_output,
        tells_of_a_limit_that_was_found_after_the_end,
        cuts_off_output_that_nobody_reads,
        cuts_off_what_a_leader_left_behind,
        lets_output_reach_its_limit;
    cgroups:
        workloads_are_born_in_the_directory,
        workloads_join_what_they_are_given,
        nothing_starts_outside_its_group,
        freezing_leaves_the_guest_alone,
        a_start_that_froze_can_be_killed;
    probe:
        tells_what_there_is,
        is_refused_by_a_fence_and_by_nothing_else,
        is_given_up_when_it_hangs,
        knows_the_cluster_by_the_guests_environment;
    input:
        types_each_byte_once,
        counts_what_was_taken_when_the_caller_leaves,
        is_refused_when_nobody_reads_it;
    terminal:
        is_a_terminal_of_its_size,
        resizes,
        tells_from_where_its_size_holds,
        interrupts_and_ends_by_keys,
        loses_no_output,
        may_be_left_and_opened_again;
    writers:
        count_alone,
        resume_where_they_were_cut_off,
        end_once,
        are_forgotten;
    responses:
        are_typed_once_and_count_nowhere,
        are_dropped_when_nobody_reads,
        are_never_typed_by_halves,
        are_for_terminals;
    look:
        sees_what_is_hidden,
        sees_who_works,
        sees_output_that_waits,
        is_for_running_terminals;
    answers:
        are_typed_once,
        are_typed_key_by_key_to_whom_reads_keys,
        unseen_ones_are_not_typed_where_they_would_be_shown,
        are_not_typed_after_output,
        are_not_typed_after_output_that_nobody_has_read,
        are_not_typed_while_output_waits,
        are_not_typed_where_nothing_is_taken,
        are_not_typed_after_input,
        do_not_wait_behind_what_nobody_reads,
        are_typed_whole,
        replace_each_other,
        have_bounds;
    dial:
        passes_bytes_and_ends_on,
        moves_much_both_ways,
        is_held_up_by_whom_does_not_read,
        tells_what_is_closed,
        leaves_the_way_out_to_those_inside,
        reaches_ipv6,
        resets_what_broke_off,
        says_what_was_said_before_it_broke;
    files:
        round_trip_and_range,
        broken_upload_changes_nothing,
        writes_keep_modes_and_links,
        writes_only_what_the_workload_may_write,
        overwrites_what_has_other_names,
        refuses_what_is_not_a_file,
        lists_and_stats,
        removes,
        cancelled_calls_leave_no_worker,
        stopped_workers_go_on_or_are_given_up;
    search:
        finds_names_and_lines,
        is_done_as_the_workload,
        tells_what_is_wrong,
        ends_with_its_caller,
        has_a_few_at_once;
    archives:
        round_trip,
        tells_what_it_lacks,
        refuses_hostile_ones,
        refuses_broken_ones;
    serve:
        is_repeated_and_not_changed,
        refuses_what_cannot_be_meant,
        serves_nothing_where_a_port_is_taken,
        stays_out_of_the_list_and_can_be_relieved,
        drains,
        holds_what_changes_files,
        tells_who_is_waited_for,
        forgets_what_is_over;
    grpc:
        starts_in_order,
        executes,
        refuses_by_the_table,
        runs_where_and_with_what_it_is_told,
        has_terminals,
        takes_input,
        signals_reach_the_group,
        whoever_goes_away_ends_the_tree,
        a_deadline_ends_the_tree,
        a_slow_reader_loses_nothing,
        bounds_what_is_answered_in_one_piece,
        bounds_what_it_is_asked,
        asks_for_its_token,
        reflects;
    rest:
        reads_files,
        reads_ranges,
        lists_directories,
        replaces_files,
        a_broken_upload_changes_nothing,
        keeps_nothing_of_an_endless_head,
        removes,
        refuses_by_the_table,
        tells_of_itself,
        asks_for_its_token,
        is_not_used_up_by_idlers;
    links:
        lead_nobody_out,
        lead_nobody_out_while_they_change;
    entrance:
        opens_for_its_keys,
        stays_shut_for_others,
        tells_strangers_nothing,
        is_not_used_up_by_idlers,
        is_never_open_to_all;
    known:
        is_told_once,
        gives_what_the_image_says;
    carried:
        passes_bytes_and_ends_on,
        moves_much_both_ways,
        each_goes_to_one_call,
        given_up_calls_take_nothing,
        waits_for_the_next_server,
        resets_what_broke_off,
        is_not_for_those_outside;
    ended:
        takes_programs_along,
        is_quick_when_nothing_runs,
        is_not_asked_by_a_workload;
    legacy:
        is_there,
        executes_without_a_shell,
        tells_what_it_failed_to_execute,
        ends_what_takes_too_long,
        moves_files;
};

/// Far beyond what any of them needs on a busy machine.
const DEADLINE: Duration = Duration::from_secs(600);

fn main() -> ExitCode {
    if support::is_guest() {
        support::be_guest();
    }
    if remote::is_remote() {
        remote::be_remote();
    }
    harness::main(TESTS.iter().map(|(name, test)| harness::Test::new(*name, || run(*test))).collect())
}

fn run(test: fn(Guest) -> Pin<Box<dyn Future<Output = Outcome>>>) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let guest = Guest::start().await?;
        tokio::time::timeout(DEADLINE, test(guest)).await?
    })
}
