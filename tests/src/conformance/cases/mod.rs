//! The table of cases.

mod abandoned;
mod crossing;
mod ending;
mod forms;
mod isolation;
mod keys;
mod lost;
mod marks;
mod migrations;
mod protected;
mod resolving;
mod sessions;
mod several;
mod stale;
mod steps;
mod timeouts;

use super::Case;

/// Builds the table: each name is an `async fn` of that module which takes the world.
macro_rules! table {
    ($($module:ident: $($name:ident),+ $(,)?;)+) => {
        /// All cases.
        pub(super) const ALL: &[Case] = &[$($(Case {
            name: concat!(stringify!($module), "::", stringify!($name)),
            run: |world| Box::pin($module::$name(world)),
        },)+)+];
    };
}

table! {
    marks:
        the_first_use_of_a_key_sets_its_mark,
        a_higher_token_is_admitted_and_raises_the_mark,
        an_equal_token_is_admitted_again,
        a_lower_token_is_refused_with_both_tokens,
        a_refused_fence_runs_no_statement_of_the_body,
        another_domain_is_refused_whatever_its_token,
        with_adopt_higher_only_a_strictly_higher_token_of_another_domain_is_admitted,
        with_adopt_higher_the_old_domain_is_refused_afterwards,
        with_adopt_higher_one_key_that_refuses_refuses_all,
        the_highest_token_is_i64_max_and_more_is_refused_before_anything_is_sent;
    stale:
        without_a_fence_a_stale_writer_corrupts_the_stock,
        with_a_fence_the_same_interleaving_leaves_the_stock_exact,
        a_stale_error_cannot_be_swallowed_into_a_commit;
    crossing:
        a_newer_writer_waits_for_an_older_one_that_commits,
        a_newer_writer_waits_for_an_older_one_that_rolls_back,
        a_stale_writer_waits_for_a_newer_one_that_commits,
        a_stale_writer_waits_for_a_newer_one_that_rolls_back,
        on_a_new_key_a_newer_writer_waits_for_an_older_one_that_commits,
        on_a_new_key_a_newer_writer_waits_for_an_older_one_that_rolls_back,
        on_a_new_key_a_stale_writer_waits_for_a_newer_one_that_commits,
        on_a_new_key_a_stale_writer_waits_for_a_newer_one_that_rolls_back,
        the_mark_is_held_until_the_transaction_ends,
        three_writers_cross_on_a_new_key_and_the_first_rolls_back;
    isolation:
        read_committed_orders_tokens,
        repeatable_read_orders_tokens,
        serializable_orders_tokens,
        read_committed_settles_crossing_writers,
        repeatable_read_settles_crossing_writers,
        serializable_settles_crossing_writers;
    keys:
        every_byte_makes_its_own_key,
        awkward_keys_are_stored_as_they_are,
        keys_that_differ_only_in_case_padding_or_normalisation_are_different,
        the_longest_keys_work;
    several:
        all_keys_are_admitted_or_none,
        opposite_orders_from_many_tasks_reach_the_caller_without_a_deadlock,
        opposite_orders_do_not_deadlock_even_without_a_retry,
        one_stale_key_among_many_is_named,
        a_deadlock_on_business_rows_is_retried,
        sixteen_keys_fit_in_one_fence;
    ending:
        an_error_of_the_body_leaves_nothing_and_restores_the_mark,
        a_rolled_back_guard_leaves_nothing,
        a_swallowed_statement_error_refuses_the_commit,
        after_an_error_every_statement_is_refused,
        a_raw_commit_is_never_reported_as_success,
        a_raw_rollback_is_never_reported_as_success,
        a_raw_commit_and_begin_is_never_reported_as_success,
        through_the_connection_a_raw_end_is_never_reported_as_success,
        ddl_is_never_committed_behind_the_fences_back,
        an_end_by_the_database_itself_is_noticed,
        a_savepoint_of_the_body_may_be_rolled_back;
    forms:
        the_guard_commits_what_was_written,
        a_joined_transaction_commits_what_was_written,
        a_joined_transaction_is_refused_when_stale_and_rolled_back,
        a_fence_inside_a_savepoint_is_refused,
        a_fence_inside_a_raw_savepoint_is_refused_or_cannot_be_lost,
        a_lent_connection_is_given_back_clean,
        a_lent_connection_inside_a_transaction_is_refused,
        another_table_has_marks_of_its_own,
        a_missing_table_is_named,
        the_body_runs_in_a_spawned_task;
    steps:
        a_repeated_step_is_refused_as_already_applied,
        a_higher_step_and_a_higher_token_are_admitted,
        a_step_that_was_rolled_back_can_be_repeated;
    protected:
        every_form_writes_a_protected_table,
        a_protected_row_of_another_key_is_refused,
        a_connection_that_was_fenced_before_is_refused_without_a_fence;
    resolving:
        a_committed_step_is_applied,
        a_step_that_is_not_in_is_not_applied_and_stays_so,
        a_newer_token_or_a_later_step_supersedes_it,
        without_a_step_nothing_can_be_resolved,
        what_says_nothing_about_the_write_is_an_error,
        while_the_old_transaction_is_open_it_stays_unknown,
        it_leaves_the_session_as_it_was;
    timeouts:
        a_fence_that_waits_too_long_leaves_nothing_open,
        a_write_that_waits_too_long_is_no_unfenced_commit,
        a_statement_that_takes_too_long_is_no_unfenced_commit,
        a_cancelled_statement_is_no_unfenced_commit,
        a_session_killed_in_the_middle_of_a_statement_is_no_commit;
    sessions:
        unusual_settings_change_no_verdict,
        both_meanings_of_affected_rows_give_the_same_verdicts,
        a_fence_after_a_read_gives_no_wrong_result_unnoticed,
        a_stale_fence_after_a_read_is_told_as_such,
        a_read_before_the_fence_is_stale_where_the_database_says_nothing,
        a_conflict_with_the_snapshot_is_no_unfenced_commit,
        a_stale_fence_inside_a_raw_savepoint_ends_the_transaction;
    abandoned:
        a_closure_abandoned_at_every_await_leaves_the_pool_clean,
        a_guard_abandoned_at_every_await_leaves_the_pool_clean,
        a_joined_transaction_abandoned_at_every_await_leaves_the_pool_clean,
        a_lent_connection_abandoned_at_every_await_leaves_the_pool_clean,
        a_rollback_abandoned_at_every_await_leaves_the_pool_clean,
        a_closure_abandoned_while_it_waits_for_a_mark_leaves_the_pool_clean,
        a_dropped_guard_rolls_back;
    lost:
        a_connection_lost_before_the_commit_is_no_success,
        a_commit_whose_answer_is_lost_is_no_success;
    migrations:
        running_again_changes_nothing,
        eight_at_once_succeed,
        they_live_beside_the_users_own,
        the_printed_sql_creates_the_table_and_drops_it,
        a_foreign_table_of_the_same_name_is_refused;
}
