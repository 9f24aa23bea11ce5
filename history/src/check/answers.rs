//! What clients are told is what was decided.
//!
//! Certain: whoever is told that nothing happens is never granted. If all decisions are in the
//! history, then also: whatever is acknowledged was decided.

use std::collections::BTreeMap;

use super::Report;
use super::calls::{Call, Calls, decisions};
use crate::{Answer, CallId, Decision, Event, History, Request, Rule};

pub(super) fn check(history: &History, calls: &Calls<'_>, report: &mut Report) {
    let mut granted: BTreeMap<CallId, (u64, usize)> = BTreeMap::new();
    let mut acted: Vec<(&'static str, u64)> = Vec::new();
    for decided in decisions(history) {
        match decided.decision {
            Decision::Granted { call, token, .. } => {
                granted.insert(*call, (*token, decided.line));
            }
            Decision::Released { token, .. } => acted.push((RELEASED, *token)),
            Decision::Extended { token, .. } => acted.push((EXTENDED, *token)),
            Decision::ForceReleased { burned, .. } => acted.push((BURNED, *burned)),
            _ => {}
        }
    }
    acted.sort_unstable();
    let mut entries = history.entries().iter();
    let is_whole = entries.any(|entry| entry.event == Event::AllDecisions);
    for call in calls.iter() {
        check_denied(call, &granted, report);
        if is_whole {
            check_acknowledged(call, &granted, &acted, report);
        }
    }
}

const RELEASED: &str = "released";
const EXTENDED: &str = "extended";
const BURNED: &str = "burned";

fn check_denied(call: &Call<'_>, granted: &BTreeMap<CallId, (u64, usize)>, report: &mut Report) {
    let acquire = match (call.request, call.answered()) {
        (Request::Cancel { other }, Some(Answer::Cancelled)) => *other,
        (Request::Acquire { .. }, Some(_)) if call.did_nothing() => call.id,
        _ => return,
    };
    if let Some((token, line)) = granted.get(&acquire) {
        let events = [call.lines(), vec![*line]].concat();
        report.add(Rule::DeniedYetDone, events, format!("token {token}"));
    }
}

fn check_acknowledged(
    call: &Call<'_>,
    granted: &BTreeMap<CallId, (u64, usize)>,
    acted: &[(&str, u64)],
    report: &mut Report,
) {
    let was = |what, token| acted.binary_search(&(what, token)).is_ok();
    let is_decided = match (call.request, call.answered()) {
        (_, Some(Answer::Granted { token, .. })) => {
            granted.get(&call.id).map(|(token, _)| *token) == Some(token)
        }
        (Request::Release { token, .. }, Some(Answer::Released)) => was(RELEASED, *token),
        (Request::Extend { token, .. }, Some(Answer::Extended)) => was(EXTENDED, *token),
        (_, Some(Answer::ForceReleased { burned })) => was(BURNED, burned),
        _ => return,
    };
    if !is_decided {
        let about = format!("call {}", call.id.0);
        report.add(Rule::AnsweredUndecided, call.lines(), about);
    }
}
