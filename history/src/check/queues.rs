//! First come, first served, for tests that see no decisions: who was seen in a queue before another
//! one called is granted first, if both are granted in the epoch of that sight.
//!
//! Grants whose epoch the recorder does not know say nothing here.

use super::calls::{Call, Calls};
use super::{Report, share_a_key};
use crate::{Answer, Event, History, Rule};

pub(super) fn check(history: &History, calls: &Calls<'_>, report: &mut Report) {
    for (seen, entry) in history.entries().iter().enumerate() {
        let Event::QueueSeen { call, epoch } = &entry.event else {
            continue;
        };
        let Some(first) = calls.get(*call) else {
            report.add(Rule::Malformed, [seen], "a queue without a call");
            continue;
        };
        let Some(token) = granted_in(first, *epoch) else {
            continue;
        };
        let overtakers = calls.iter().filter(|second| {
            second.line > seen
                && granted_in(second, *epoch).is_some_and(|theirs| theirs < token)
                && share_a_key(first.request, second.request)
        });
        for second in overtakers {
            let events = [vec![seen], first.lines(), second.lines()].concat();
            report.add(Rule::Overtaken, events, format!("call {}", first.id.0));
        }
    }
}

fn granted_in(call: &Call<'_>, reign: u64) -> Option<u64> {
    match call.answered()? {
        Answer::Granted { token, epoch, .. } if epoch == Some(reign) => Some(token),
        _ => None,
    }
}
