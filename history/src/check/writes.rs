//! The fenced writes and what is in the database afterwards.
//!
//! Certain: what was acknowledged is there once; what was refused is not; what is unknown may be
//! there once. Rows of a key stand in token order, and a write that was acknowledged before another
//! one was offered has no higher token than that.

use std::collections::BTreeMap;

use super::Report;
use super::calls::{Call, Calls};
use crate::{Answer, CallId, Event, History, Request, Rule};

pub(super) fn check(history: &History, calls: &Calls<'_>, report: &mut Report) {
    check_real_time(history, calls, report);
    let rows = check_rows(history, calls, report);
    let mut entries = history.entries().iter();
    if !entries.any(|entry| entry.event == Event::AllRows) {
        return;
    }
    for call in calls.iter() {
        let is_committed = call.answered() == Some(Answer::Committed);
        if is_committed && !rows.contains_key(&call.id) {
            let about = format!("call {}", call.id.0);
            report.add(Rule::WriteLost, call.lines(), about);
        }
    }
}

fn check_real_time(history: &History, calls: &Calls<'_>, report: &mut Report) {
    // By key: the highest token of an acknowledged write so far.
    let mut highest: BTreeMap<&str, (u64, &Call<'_>)> = BTreeMap::new();
    let mut before: BTreeMap<CallId, (u64, &Call<'_>)> = BTreeMap::new();
    for entry in history.entries() {
        match &entry.event {
            Event::Called {
                call,
                request: Request::Write { key, .. },
                ..
            } => {
                if let Some(highest) = highest.get(key.as_str()) {
                    before.insert(*call, *highest);
                }
            }
            Event::Answered {
                call,
                answer: Answer::Committed,
            } => {
                let Some(made) = calls.get(*call) else {
                    continue;
                };
                let Request::Write { key, token } = made.request else {
                    continue;
                };
                if let Some((earlier, other)) = before.get(call)
                    && token < earlier
                {
                    let about = format!("key {key}: token {token} after {earlier}");
                    let events = [other.lines(), made.lines()].concat();
                    report.add(Rule::StaleAccepted, events, about);
                }
                if highest
                    .get(key.as_str())
                    .is_none_or(|(high, _)| high < token)
                {
                    highest.insert(key, (*token, made));
                }
            }
            _ => {}
        }
    }
}

/// Gives the rows by call.
fn check_rows(
    history: &History,
    calls: &Calls<'_>,
    report: &mut Report,
) -> BTreeMap<CallId, usize> {
    let mut rows = BTreeMap::new();
    let mut last: BTreeMap<&str, (u64, usize)> = BTreeMap::new();
    for (line, entry) in history.entries().iter().enumerate() {
        let Event::Row { key, token, call } = &entry.event else {
            continue;
        };
        let about = format!("call {}", call.0);
        let offer = Request::Write {
            key: key.clone(),
            token: *token,
        };
        let offered = calls.get(*call);
        if offered.is_none_or(|made| *made.request != offer || made.did_nothing()) {
            let known = offered.map(Call::lines).unwrap_or_default();
            let events = [known, vec![line]].concat();
            report.add(Rule::WriteFromNowhere, events, &about);
        }
        if let Some(first) = rows.insert(*call, line) {
            report.add(Rule::WriteDoubled, [first, line], &about);
        }
        if let Some((higher, above)) = last.insert(key, (*token, line))
            && higher > *token
        {
            let about = format!("key {key}: token {token} after {higher}");
            report.add(Rule::StaleAccepted, [above, line], about);
        }
    }
    rows
}
