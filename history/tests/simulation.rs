//! Thousands of seeds keep every promise, the same seed gives the same history, and the checker
//! finds every bug that is put in on purpose.

use highwater_history::simulation::{ASSUMPTIONS, Mutant, run, run_all};
use highwater_history::{History, Rule, check};

/// Seeds that broke something once, one a line.
const ONCE_FAILED: &str = include_str!("../testdata/seeds.txt");
const SEEDS: u64 = 3_000;
/// Every bug is found within this many seeds, counted from 0.
const BOUND: u64 = 400;

#[track_caller]
fn keep_every_promise(seeds: &[u64]) -> Vec<(&'static str, u64)> {
    let runs = run_all(seeds, None);
    let explained = runs.failed.iter().take(3).map(|run| run.explain());
    let explained: Vec<String> = explained.collect();
    let failed: Vec<u64> = runs.failed.iter().map(|run| run.seed).collect();
    assert!(
        failed.is_empty(),
        "these seeds broke a promise: {failed:?}\n{}",
        explained.join("\n\n")
    );
    let mut counts = runs.stats.all();
    let (writes, stale) = runs.writes;
    counts.push(("grants", runs.grants as u64));
    counts.push(("unknown outcomes", runs.unknown as u64));
    counts.push(("writes", writes as u64));
    counts.push(("stale writes", stale as u64));
    counts
}

#[test]
fn thousands_of_seeds_keep_every_promise() {
    let seeds: Vec<u64> = (0..SEEDS).collect();
    let counts = keep_every_promise(&seeds);
    // A run without trouble proves little: all of it has to have happened, and more than once.
    let rare: Vec<_> = counts.iter().filter(|(_, count)| *count < 20).collect();
    assert!(rare.is_empty(), "too little of {rare:?} in {counts:?}");
}

#[test]
fn seeds_that_failed_once_do_not_fail_again() {
    let lines = ONCE_FAILED.lines().filter(|line| !line.starts_with('#'));
    let seeds: Vec<u64> = lines.map(|line| line.parse().unwrap()).collect();
    assert!(!seeds.is_empty());
    keep_every_promise(&seeds);
}

#[test]
fn the_same_seed_gives_the_same_history() {
    for seed in 0..20 {
        let (one, other) = (run(seed, None), run(seed, None));
        let text = one.history.to_string();
        assert!(text == other.history.to_string(), "{}", one.replay());
        assert_eq!(one.stats, other.stats);
        let read: History = text.parse().unwrap();
        assert!(read == one.history, "seed {seed} is not read as it was");
    }
    let other = run(1, None).history;
    assert!(run(0, None).history != other, "seeds differ");
}

#[test]
fn a_failure_says_how_to_see_it_again() {
    let seeds: Vec<u64> = (0..20).collect();
    let runs = run_all(&seeds, Some(Mutant::StaleWriteAccepted));
    let run = &runs.failed[0];
    let told = run.explain();
    let command = "to repeat it: cargo xtask simulate --seed";
    let command = format!("{command} {} --mutant StaleWriteAccepted", run.seed);
    assert!(told.ends_with(&command), "{told}");
    assert!(told.contains("StaleAccepted: key "), "{told}");
    assert!(told.contains(" row call="), "{told}");
}

/// The first seed with which the bug breaks this promise.
#[track_caller]
fn is_caught(mutant: Mutant, rule: Rule) {
    let caught = (0..BOUND).find(|seed| run(*seed, Some(mutant)).report.breaks(rule));
    match caught {
        Some(seed) => println!("{mutant:?} is caught by {rule:?} with seed {seed}"),
        None => panic!("{mutant:?} does not break {rule:?} in {BOUND} seeds"),
    }
}

/// Tests against real nodes may see clients and the database only: what they can find.
#[test]
fn most_bugs_are_seen_by_clients_alone() {
    let findings = [
        (Mutant::MovedAfterAppend, Rule::LiveDenied),
        (Mutant::DeadGenerationAccepted, Rule::TokenTwice),
        (Mutant::InheritedGrantReleased, Rule::TwoHolders),
        (Mutant::DeposedExpiryApplied, Rule::TwoHolders),
        (Mutant::ExtensionShortens, Rule::TwoHolders),
        (Mutant::TokensLostOnRestart, Rule::TokenTwice),
        (Mutant::StaleWriteAccepted, Rule::StaleAccepted),
        (Mutant::WriteDoubled, Rule::WriteDoubled),
        (Mutant::WriteLost, Rule::WriteLost),
        (Mutant::FifoOvertaken, Rule::Overtaken),
        (Mutant::ReleasedByKey, Rule::TwoHolders),
        (Mutant::TicksForgotten, Rule::NoProgress),
        (Mutant::LocalExpiry, Rule::TokenTwice),
        (Mutant::RawClockStamped, Rule::TwoHolders),
        (Mutant::AnsweredBeforeCommit, Rule::TokenTwice),
    ];
    for (mutant, rule) in findings {
        let is_seen = |seed: &u64| {
            let history = run(*seed, Some(mutant)).history.seen_by_clients();
            check(&history, ASSUMPTIONS).breaks(rule)
        };
        let seen = (0..BOUND).find(is_seen);
        assert!(
            seen.is_some(),
            "clients alone do not see {mutant:?} break {rule:?}"
        );
    }
    for seed in 0..20 {
        let history = run(seed, None).history.seen_by_clients();
        assert_eq!(check(&history, ASSUMPTIONS).violations, []);
    }
}

/// One test for each bug, and all the promises that it has to be seen to break.
macro_rules! mutants {
    ($($name:ident: $mutant:ident => $($rule:ident),+;)*) => {
        $(
            #[test]
            fn $name() {
                $(is_caught(Mutant::$mutant, Rule::$rule);)+
            }
        )*

        #[test]
        fn every_bug_has_its_test() {
            let tested = [$(Mutant::$mutant),*];
            assert_eq!(tested, Mutant::ALL);
        }
    };
}

mutants! {
    not_taken_after_an_append_is_caught: MovedAfterAppend => DeniedYetDone, LiveDenied, NotYoursToRelease;
    frames_of_a_dead_generation_are_caught: DeadGenerationAccepted => TokenTwice, Diverged;
    waiters_of_an_old_epoch_are_caught: OldWaitersGranted => GrantToDead;
    a_released_inherited_grant_is_caught: InheritedGrantReleased => NotYoursToRelease;
    an_expiry_by_a_deposed_leader_is_caught: DeposedExpiryApplied => ExpiredEarly, TwoHolders;
    an_extension_that_shortens_is_caught: ExtensionShortens => ExtensionShortened, ExpiredEarly;
    a_lost_token_counter_is_caught: TokensLostOnRestart => TokenTwice, Diverged;
    a_stale_write_is_caught: StaleWriteAccepted => StaleAccepted;
    a_doubled_write_is_caught: WriteDoubled => WriteDoubled;
    a_lost_write_is_caught: WriteLost => WriteLost;
    overtaking_in_the_queue_is_caught: FifoOvertaken => Overtaken;
    an_ignored_disconnect_is_caught: DisconnectIgnored => GrantToDead;
    a_release_without_the_token_is_caught: ReleasedByKey => NotYoursToRelease, TwoHolders;
    a_forgotten_tick_is_caught: TicksForgotten => NoProgress;
    a_replica_that_expires_alone_is_caught: LocalExpiry => Diverged;
    a_raw_clock_is_caught: RawClockStamped => ExpiredEarly;
    an_answer_before_the_commit_is_caught: AnsweredBeforeCommit => AnsweredUndecided, TokenTwice;
}
