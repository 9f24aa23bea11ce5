//! After healing every key that was in use is granted once more, in bounded time, and every call has
//! an answer.

use std::collections::{BTreeMap, BTreeSet};

use super::calls::Calls;
use super::{Assumptions, Report, acquired};
use crate::{Answer, Event, History, Rule};

pub(super) fn check(
    history: &History,
    calls: &Calls<'_>,
    assumptions: Assumptions,
    report: &mut Report,
) {
    let mut entries = history.entries().iter();
    let Some(healed) = entries.position(|entry| entry.event == Event::Healed) else {
        return;
    };
    let in_time = history.entries()[healed].at + assumptions.recovery;
    // Each key, and where it was asked for first.
    let mut used: BTreeMap<&str, usize> = BTreeMap::new();
    let mut granted = BTreeSet::new();
    for call in calls.iter() {
        let keys = acquired(call.request).iter().map(String::as_str);
        for key in keys {
            let first = used.entry(key).or_insert(call.line);
            *first = (*first).min(call.line);
            let is_granted = call.answer.is_some_and(|answered| {
                matches!(answered.answer, Answer::Granted { .. }) && answered.at <= in_time
            });
            if call.line > healed && is_granted {
                granted.insert(key);
            }
        }
        if call.line > healed && call.answer.is_none() {
            let about = format!("call {} has no answer", call.id.0);
            report.add(Rule::NoProgress, [healed, call.line], about);
        }
    }
    for (key, line) in used.iter().filter(|(key, _)| !granted.contains(*key)) {
        let about = format!("key {key} is not granted any more, or not in time");
        report.add(Rule::NoProgress, [*line, healed], about);
    }
}
