//! The checker on histories written by hand: each promise kept, and each broken once.

use std::collections::BTreeSet;

use highwater_history::{Assumptions, History, Rule, check};

const ASSUMPTIONS: Assumptions = Assumptions {
    clock_rate_ppm: 100_000,
    recovery: 1_000_000,
};

/// One event a line, a millisecond apart. `@SECONDS` alone moves the clock to that moment.
fn history(script: &str) -> History {
    let mut now = 0;
    let mut text = String::new();
    for line in script
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
    {
        match line.strip_prefix('@') {
            Some(moment) => now = seconds(moment),
            None => {
                now += 1_000;
                text += &format!("{now} {line}\n");
            }
        }
    }
    let history: History = text
        .parse()
        .unwrap_or_else(|error| panic!("{error}\n{text}"));
    assert_eq!(history.to_string(), text, "it is written as it was read");
    history
}

fn seconds(text: &str) -> u64 {
    text.parse::<u64>().expect("a number of seconds") * 1_000_000
}

#[track_caller]
fn breaks(rules: &[Rule], script: &str) {
    let history = history(script);
    let report = check(&history, ASSUMPTIONS);
    let found: BTreeSet<Rule> = report.violations.iter().map(|found| found.rule).collect();
    let explained = report.violations.iter();
    let explained: Vec<String> = explained.map(|found| found.explain(&history)).collect();
    let wanted: BTreeSet<Rule> = rules.iter().copied().collect();
    assert_eq!(found, wanted, "{}", explained.join("\n"));
    assert!(
        report
            .violations
            .iter()
            .all(|found| !found.events.is_empty())
    );
}

#[track_caller]
fn is_fine(script: &str) {
    breaks(&[], script);
}

#[test]
fn a_lock_goes_from_one_to_the_next() {
    is_fine(
        "all-decisions
        acquire call=1 connection=1 wait=0 lease=9000000 key=a
        decided-granted call=1 token=1 until=9000000 position=1 part=0 epoch=1
        granted call=1 token=1 epoch=1
        acquire call=2 connection=2 wait=9000000 lease=9000000 key=a key=b
        decided-queued call=2 now=0 position=2 part=0 epoch=1
        extend call=3 connection=1 token=1 lease=9000000 key=a
        decided-extended token=1 now=1 until=9005000 position=3 part=0 epoch=1
        extended call=3
        release call=4 connection=1 token=1 hold=0 key=a
        decided-released token=1 position=4 part=0 epoch=1
        decided-granted call=2 token=2 until=9007000 position=4 part=1 epoch=1
        granted call=2 token=2 epoch=1
        released call=4
        write call=5 connection=0 token=2 key=a
        committed call=5
        row call=5 token=2 key=a
        all-rows",
    );
}

#[test]
fn no_token_comes_twice_or_backwards() {
    breaks(
        &[Rule::TokenTwice],
        "acquire call=1 connection=1 wait=0 lease=1000 key=a
        acquire call=2 connection=1 wait=0 lease=1000 key=b
        granted call=1 token=7
        granted call=2 token=7",
    );
    breaks(
        &[Rule::TokenTwice],
        "acquire call=1 connection=1 wait=0 lease=1000 key=a
        force-release call=2 connection=1 key=b
        granted call=1 token=7
        force-released call=2 burned=7",
    );
    breaks(
        &[Rule::TokenBackwards],
        "acquire call=1 connection=1 wait=0 lease=1000 key=a
        granted call=1 token=7
        acquire call=2 connection=1 wait=0 lease=1000 key=b
        granted call=2 token=6",
    );
    // Two requests at one time may be granted in either order.
    is_fine(
        "acquire call=1 connection=1 wait=0 lease=1000 key=a
        acquire call=2 connection=1 wait=0 lease=1000 key=b
        granted call=1 token=7
        granted call=2 token=6",
    );
    breaks(
        &[Rule::TokenBackwards],
        "acquire call=1 connection=1 wait=0 lease=1000 key=a
        acquire call=2 connection=1 wait=0 lease=1000 key=b
        decided-granted call=1 token=7 until=1000 position=1 part=0 epoch=1
        decided-granted call=2 token=6 until=1000 position=2 part=0 epoch=1",
    );
}

#[test]
fn there_is_one_holder_at_a_time() {
    // By the decisions.
    breaks(
        &[Rule::TwoHolders],
        "acquire call=1 connection=1 wait=0 lease=9000000 key=a
        acquire call=2 connection=2 wait=0 lease=9000000 key=a key=b
        decided-granted call=1 token=1 until=9000000 position=1 part=0 epoch=1
        decided-granted call=2 token=2 until=9000000 position=2 part=0 epoch=1",
    );
    // By what clients saw alone, in the order of the tokens.
    let seen = |lease: u64, between: &str| {
        format!(
            "acquire call=1 connection=1 wait=0 lease={lease} key=a
            granted call=1 token=1
            {between}
            @5
            acquire call=2 connection=2 wait=0 lease=9000000 key=a
            granted call=2 token=2"
        )
    };
    breaks(&[Rule::TwoHolders], &seen(9_000_000, ""));
    is_fine(&seen(5_000_000, ""));
    // The clocks may differ by a tenth, and 5.4 seconds are not certainly over 5.
    is_fine(&seen(5_400_000, ""));
    breaks(&[Rule::TwoHolders], &seen(5_600_000, ""));
    let extended = "extend call=3 connection=1 token=1 lease=9000000 key=a
        extended call=3";
    breaks(&[Rule::TwoHolders], &seen(1_000_000, extended));
    let unknown = "extend call=3 connection=1 token=1 lease=9000000 key=a
        unknown call=3";
    is_fine(&seen(1_000_000, unknown));
    let released = "release call=3 connection=1 token=1 hold=0 key=a
        unknown call=3";
    is_fine(&seen(9_000_000, released));
    let not_taken = "release call=3 connection=1 token=1 hold=0 key=a
        not-taken call=3";
    breaks(&[Rule::TwoHolders], &seen(9_000_000, not_taken));
    is_fine(&seen(9_000_000, "force-release call=3 connection=3 key=a"));
    is_fine(&seen(9_000_000, "clock-jumped micros=8000000"));
}

#[test]
fn slots_are_places_of_their_own() {
    let two = |slot: u32| {
        format!(
            "acquire call=1 connection=1 wait=0 lease=9000000 slots=2 key=a
            granted call=1 token=1 slot=0
            acquire call=2 connection=2 wait=0 lease=9000000 slots=2 key=a
            granted call=2 token=2 slot={slot}"
        )
    };
    is_fine(&two(1));
    breaks(&[Rule::TwoHolders], &two(0));
}

#[test]
fn first_come_first_served_within_an_epoch() {
    let queued = "acquire call=1 connection=1 wait=9000000 lease=1000 key=a key=b
        decided-queued call=1 now=0 position=1 part=0 epoch=1
        acquire call=2 connection=2 wait=9000000 lease=1000 key=a";
    breaks(
        &[Rule::Overtaken],
        &format!(
            "{queued}
            decided-granted call=2 token=1 until=1000 position=2 part=0 epoch=1"
        ),
    );
    for gone in ["decided-timed-out call=1", "decided-cancelled call=1"] {
        is_fine(&format!(
            "{queued}
            {gone} position=2 part=0 epoch=1
            decided-granted call=2 token=1 until=1000 position=2 part=1 epoch=1"
        ));
    }
    is_fine(&format!(
        "{queued}
        decided-granted call=2 token=1 until=1000 position=2 part=0 epoch=2"
    ));
    // By what clients saw alone.
    let seen = |epoch: u64| {
        format!(
            "acquire call=1 connection=1 wait=9000000 lease=1000 key=a
            queue-seen call=1 epoch=1
            acquire call=2 connection=2 wait=9000000 lease=1000 key=a
            granted call=2 token=1 epoch={epoch}
            @1
            granted call=1 token=2 epoch=1"
        )
    };
    breaks(&[Rule::Overtaken], &seen(1));
    is_fine(&seen(2));
}

#[test]
fn the_dead_are_not_granted() {
    for death in [
        "decided-timed-out call=1 position=2 part=0 epoch=1",
        "decided-cancelled call=1 position=2 part=0 epoch=1",
        "decided-disconnected connection=1 position=2 part=0 epoch=1",
        "decided-dropped call=1 position=2 part=0 epoch=2",
        "decided-expired token=9 position=2 part=0 epoch=2",
    ] {
        let holder = "acquire call=9 connection=2 wait=0 lease=1000 key=b
            decided-granted call=9 token=9 until=0 position=0 part=0 epoch=1
            @1";
        breaks(
            &[Rule::GrantToDead],
            &format!(
                "{holder}
                acquire call=1 connection=1 wait=9000000 lease=1000 key=a
                decided-queued call=1 now=0 position=1 part=0 epoch=1
                {death}
                decided-granted call=1 token=10 until=1000 position=3 part=0 epoch=2"
            ),
        );
    }
    breaks(
        &[Rule::GrantedTwice],
        "acquire call=1 connection=1 wait=9000000 lease=1000 slots=2 key=a
        decided-granted call=1 token=1 slot=0 until=1000 position=1 part=0 epoch=1
        decided-granted call=1 token=2 slot=1 until=1000 position=2 part=0 epoch=1",
    );
}

#[test]
fn whose_wait_is_over_is_not_granted() {
    let granted_at = |moment: u64| {
        format!(
            "acquire call=1 connection=1 wait=5000 lease=1000 key=a
            decided-queued call=1 now=100 position=1 part=0 epoch=1
            decided-granted call=1 token=1 until={} position=2 part=0 epoch=1",
            moment + 1_000
        )
    };
    is_fine(&granted_at(5_099));
    breaks(&[Rule::GrantToDead], &granted_at(5_100));
}

#[test]
fn nobody_sleeps_on_before_a_free_key() {
    let left = |last: &str| {
        format!(
            "all-decisions
            acquire call=1 connection=1 wait=0 lease=1000 slots=2 key=a
            decided-granted call=1 token=1 slot=0 until=1000 position=1 part=0 epoch=1
            acquire call=2 connection=2 wait=0 lease=1000 slots=2 key=a
            decided-granted call=2 token=2 slot=1 until=1000 position=2 part=0 epoch=1
            acquire call=3 connection=3 wait=9000 lease=1000 slots=2 key=a
            decided-queued call=3 now=0 position=3 part=0 epoch=1
            @1
            decided-expired token=1 position=4 part=0 epoch=1
            {last}
            decided-disconnected connection=9 position=5 part=0 epoch=1"
        )
    };
    breaks(&[Rule::SleepsOn], &left(""));
    is_fine(&left(
        "decided-granted call=3 token=3 slot=0 until=1000 position=4 part=1 epoch=1",
    ));
    is_fine(&left("decided-timed-out call=3 position=4 part=1 epoch=1"));
    is_fine(&left("").replace("all-decisions", ""));
}

#[test]
fn a_minimum_hold_keeps_others_out() {
    let again = |second: u64, released: &str| {
        format!(
            "acquire call=1 connection=1 wait=0 lease=1000000 key=a
            granted call=1 token=1
            release call=2 connection=1 token=1 hold=5500000 key=a
            {released} call=2
            @{second}
            acquire call=3 connection=2 wait=0 lease=1000000 key=a
            granted call=3 token=2"
        )
    };
    breaks(&[Rule::TwoHolders], &again(4, "released"));
    is_fine(&again(5, "released"));
    // It may not have been done, and then the lease ended.
    is_fine(&again(4, "unknown"));
}

#[test]
fn a_lease_is_never_cut_short() {
    let granted = "acquire call=1 connection=1 wait=0 lease=2000000 key=a
        decided-granted call=1 token=1 until=2000000 position=1 part=0 epoch=1
        granted call=1 token=1";
    breaks(
        &[Rule::ExtensionShortened],
        &format!(
            "{granted}
            extend call=2 connection=1 token=1 lease=1000 key=a
            decided-extended token=1 now=1 until=1999999 position=2 part=0 epoch=1
            extended call=2"
        ),
    );
    breaks(
        &[Rule::ExpiredEarly],
        &format!(
            "{granted}
            @1
            decided-expired token=1 position=2 part=0 epoch=1"
        ),
    );
    is_fine(&format!(
        "{granted}
        @2
        decided-expired token=1 position=2 part=0 epoch=1"
    ));
    let extended = format!(
        "{granted}
        @1
        extend call=2 connection=1 token=1 lease=2000000 key=a
        decided-extended token=1 now=1 until=3000000 position=2 part=0 epoch=1
        extended call=2
        @2"
    );
    breaks(
        &[Rule::ExpiredEarly],
        &format!("{extended}\n decided-expired token=1 position=3 part=0 epoch=1"),
    );
    breaks(
        &[Rule::DeadExtended],
        &format!(
            "{granted}
            decided-extended token=1 now=2000000 until=3000000 position=3 part=0 epoch=1"
        ),
    );
    breaks(
        &[Rule::DeadExtended],
        &format!(
            "{granted}
            @2
            decided-expired token=1 position=2 part=0 epoch=1
            decided-extended token=1 now=1 until=3000000 position=3 part=0 epoch=1"
        ),
    );
}

#[test]
fn nobody_is_told_that_a_live_lock_is_gone() {
    let granted = "acquire call=1 connection=1 wait=0 lease=2000000 key=a
        granted call=1 token=1";
    let denied = "release call=3 connection=1 token=1 hold=0 key=a
        not-held call=3";
    breaks(&[Rule::LiveDenied], &format!("{granted}\n {denied}"));
    is_fine(&format!("{granted}\n @2\n {denied}"));
    // "Not taken" was no reason for it to be gone; "unknown" is.
    let before = "release call=2 connection=1 token=1 hold=0 key=a";
    breaks(
        &[Rule::LiveDenied],
        &format!("{granted}\n {before}\n not-taken call=2\n {denied}"),
    );
    is_fine(&format!("{granted}\n {before}\n unknown call=2\n {denied}"));
    let other = "release call=3 connection=1 token=1 hold=0 key=b
        not-held call=3";
    is_fine(&format!("{granted}\n {other}"));
}

#[test]
fn only_who_may_releases() {
    let granted = "acquire call=1 connection=1 wait=0 lease=2000000 key=a
        decided-granted call=1 token=1 until=2000000 position=1 part=0 epoch=1";
    let released = "decided-released token=1 position=2 part=0 epoch=2";
    breaks(
        &[Rule::NotYoursToRelease],
        &format!("{granted}\n {released}"),
    );
    let by_client = "release call=2 connection=1 token=1 hold=0 key=a";
    is_fine(&format!("{granted}\n {by_client}\n {released}"));
    is_fine(&format!(
        "{granted}\n {by_client}\n unknown call=2\n {released}"
    ));
    breaks(
        &[Rule::NotYoursToRelease],
        &format!("{granted}\n {by_client}\n not-taken call=2\n {released}"),
    );
    is_fine(&format!(
        "{granted}\n gave-back token=1 epoch=1\n {released}"
    ));
    // By a leader that inherited it, and by one that had delivered it.
    let inherited = "gave-back token=1 epoch=2";
    breaks(
        &[Rule::NotYoursToRelease],
        &format!("{granted}\n {inherited}\n {released}"),
    );
    breaks(
        &[Rule::NotYoursToRelease],
        &format!("{granted}\n granted call=1 token=1\n gave-back token=1 epoch=1\n {released}"),
    );
    breaks(
        &[Rule::EndedTwice],
        &format!(
            "{granted}\n {by_client}\n {released}
            decided-retention-ended token=1 position=3 part=0 epoch=2"
        ),
    );
}

#[test]
fn answers_are_what_was_decided() {
    for denial in ["not-taken", "busy", "timed-out"] {
        breaks(
            &[Rule::DeniedYetDone],
            &format!(
                "acquire call=1 connection=1 wait=0 lease=1000 key=a
                {denial} call=1
                decided-granted call=1 token=1 until=1000 position=1 part=0 epoch=1"
            ),
        );
    }
    is_fine(
        "acquire call=1 connection=1 wait=0 lease=1000 key=a
        unknown call=1
        @9
        decided-granted call=1 token=1 until=1000 position=1 part=0 epoch=1",
    );
    breaks(
        &[Rule::DeniedYetDone],
        "acquire call=1 connection=1 wait=0 lease=1000 key=a
        cancel call=2 connection=1 other=1
        cancelled call=2
        decided-granted call=1 token=1 until=1000 position=1 part=0 epoch=1",
    );
    for (request, answer) in [
        (
            "acquire call=1 connection=1 wait=0 lease=1000 key=a",
            "granted call=1 token=1",
        ),
        (
            "release call=1 connection=1 token=1 hold=0 key=a",
            "released call=1",
        ),
        (
            "extend call=1 connection=1 token=1 lease=1000 key=a",
            "extended call=1",
        ),
        (
            "force-release call=1 connection=1 key=a",
            "force-released call=1 burned=1",
        ),
    ] {
        let told = format!("{request}\n {answer}");
        breaks(
            &[Rule::AnsweredUndecided],
            &format!("all-decisions\n {told}"),
        );
        // Without all decisions there is nothing to compare with.
        is_fine(&told);
    }
}

#[test]
fn replicas_agree() {
    breaks(
        &[Rule::Diverged],
        "state node=0 position=8 digest=1
        state node=1 position=8 digest=2",
    );
    is_fine(
        "state node=0 position=8 digest=1
        state node=1 position=8 digest=1
        state node=1 position=16 digest=2",
    );
    let twice = |token: u64| {
        format!(
            "acquire call=1 connection=1 wait=0 lease=1000 key=a
            decided-granted call=1 token=1 until=1000 position=1 part=0 epoch=1
            decided-granted call=1 token={token} until=1000 position=1 part=0 epoch=1"
        )
    };
    is_fine(&twice(1));
    breaks(&[Rule::Diverged], &twice(2));
    breaks(
        &[Rule::EpochBackwards],
        "decided-disconnected connection=1 position=1 part=0 epoch=2
        decided-disconnected connection=2 position=2 part=0 epoch=1",
    );
}

#[test]
fn writes_are_there_once_and_in_token_order() {
    let offered = "write call=1 connection=0 token=5 key=a";
    let row = "row call=1 token=5 key=a";
    is_fine(&format!("{offered}\n committed call=1\n {row}\n all-rows"));
    breaks(
        &[Rule::WriteLost],
        &format!("{offered}\n committed call=1\n all-rows"),
    );
    breaks(
        &[Rule::WriteDoubled],
        &format!("{offered}\n committed call=1\n {row}\n {row}\n all-rows"),
    );
    // Unknown: there or not, but not twice.
    is_fine(&format!("{offered}\n unknown call=1\n all-rows"));
    is_fine(&format!("{offered}\n unknown call=1\n {row}\n all-rows"));
    breaks(
        &[Rule::WriteDoubled],
        &format!("{offered}\n unknown call=1\n {row}\n {row}"),
    );
    breaks(
        &[Rule::WriteFromNowhere],
        &format!("{offered}\n stale call=1 highest=6\n {row}"),
    );
    breaks(&[Rule::WriteFromNowhere], row);
    breaks(
        &[Rule::WriteFromNowhere],
        &format!("{offered}\n row call=1 token=6 key=a"),
    );
    // Stale, by the order of the rows, and by real time.
    let later = "write call=2 connection=0 token=4 key=a";
    breaks(
        &[Rule::StaleAccepted],
        &format!("{offered}\n {later}\n {row}\n row call=2 token=4 key=a"),
    );
    breaks(
        &[Rule::StaleAccepted],
        &format!("{offered}\n committed call=1\n {later}\n committed call=2"),
    );
    is_fine(&format!(
        "{offered}\n {later}\n committed call=1\n committed call=2"
    ));
}

#[test]
fn after_healing_everything_goes_on() {
    let before = "acquire call=1 connection=1 wait=0 lease=1000 key=a
        unknown call=1
        healed";
    breaks(&[Rule::NoProgress], before);
    let after = "acquire call=2 connection=1 wait=0 lease=1000 key=a";
    is_fine(&format!("{before}\n {after}\n granted call=2 token=1"));
    breaks(
        &[Rule::NoProgress],
        &format!("{before}\n {after}\n @2\n granted call=2 token=1"),
    );
    breaks(
        &[Rule::NoProgress],
        &format!(
            "{before}\n {after}\n granted call=2 token=1
            force-release call=3 connection=1 key=b"
        ),
    );
}

#[test]
fn recorders_are_merged_by_their_moments() {
    let read = |text: &str| text.parse::<History>().unwrap();
    let one =
        read("1 acquire call=1 connection=1 wait=0 lease=1 key=a\n3 granted call=1 token=2\n");
    let other =
        read("3 acquire call=2 connection=2 wait=0 lease=1 key=b\n9 granted call=2 token=1\n");
    let merged = History::merge([one, other]);
    let moments: Vec<u64> = merged.entries().iter().map(|entry| entry.at).collect();
    assert_eq!(moments, [1, 3, 3, 9]);
    // The second called at the very moment of the first grant: not certainly after it.
    assert_eq!(check(&merged, ASSUMPTIONS).violations, []);
}

#[test]
fn what_is_no_history_is_said() {
    breaks(&[Rule::Malformed], "released call=1");
    breaks(
        &[Rule::Malformed],
        "release call=1 connection=1 token=1 hold=0 key=a
        committed call=1",
    );
    breaks(
        &[Rule::Malformed],
        "decided-granted call=1 token=1 until=1000 position=1 part=0 epoch=1",
    );
    for (text, line) in [
        ("1 released", 1),
        ("\n# a comment\n1 released call=x", 3),
        ("1 released call=1 call=2", 1),
        ("1 released call=1 token=2", 1),
        ("1 sang call=1", 1),
        ("1 decided-sang position=1 part=0 epoch=1", 1),
        ("healed", 1),
        ("2 healed\n1 healed", 2),
    ] {
        let error = text.parse::<History>().unwrap_err();
        assert_eq!(error.line, line, "{text}: {error}");
    }
}
