//! Leader election: one contract, over the in-process backend in virtual time and over a real server
//! on the loopback interface; and what only a server has to show.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod contract;
mod fenced;
mod frozen;
mod server;
mod world;

/// Runs each case of the contract on both backends.
macro_rules! on_both {
    ($($case:ident),* $(,)?) => {
        mod in_process {
            use crate::world::World;

            $(#[tokio::test(start_paused = true)]
            async fn $case() {
                crate::contract::$case(&World::in_process()).await;
            })*
        }

        mod highwater {
            use crate::world::World;

            $(#[tokio::test]
            async fn $case() {
                crate::contract::$case(&World::highwater().await).await;
            })*
        }
    };
}

on_both! {
    one_leads_at_a_time_and_tokens_grow,
    contention_ends_after_the_wait_and_is_no_error,
    a_value_that_is_none_is_still_elected,
    an_action_that_fails_gives_its_error_and_the_lease_back,
    candidates_are_elected_in_the_order_of_their_coming,
    the_lock_is_not_reentrant_also_for_an_elector_made_anew,
    a_lease_that_is_not_extended_is_lost_before_another_one_is_elected,
    a_lease_that_extends_itself_outlives_its_time,
    an_extension_by_hand_lengthens_the_lease,
    a_minimum_lease_keeps_everybody_out_after_success_error_and_drop,
    a_stale_token_touches_no_successor,
    an_operator_ends_a_leadership_and_the_next_extension_notices,
    an_operator_ends_a_leadership_and_the_release_notices,
    a_dropped_run_gives_its_lease_back,
    a_panic_gives_its_lease_back,
    a_dropped_candidacy_is_never_elected,
    the_lease_is_kept_until_cancelled_work_is_at_rest,
    a_group_has_so_many_leaders_with_slots_and_fences_of_their_own,
    another_number_of_slots_is_refused_and_no_contention,
    a_state_tells_who_leads_who_waits_and_what_is_retained,
    events_and_levels_tell_of_each_term_once,
    a_schedule_survives_errors_and_elects_with_higher_tokens,
    a_campaign_goes_on_after_a_loss_with_a_higher_token,
    a_stream_leads_as_long_as_it_lives,
    tenants_do_not_meet,
    a_service_that_starts_anew_ends_the_old_leadership_and_the_candidacies,
    nothing_is_held_or_extended_after_many_acquires_cancels_and_releases,
}
