//! No token twice, and none backwards: in the order of the log, and in real time, where a request
//! that was made after a grant was seen must get a higher one, whatever their keys.

use std::collections::BTreeMap;

use super::Report;
use super::calls::{Calls, decisions};
use crate::{Answer, CallId, Decision, Event, History, Rule};

pub(super) fn check(history: &History, calls: &Calls<'_>, report: &mut Report) {
    check_twice(history, report);
    check_real_time(history, calls, report);
    check_log(history, report);
}

/// What took a token.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Taker {
    Grant(CallId),
    /// A force-release, as its client knows it.
    Order(CallId),
    /// A force-release, as the log knows it.
    Burned(u64, u32),
}

impl Taker {
    /// Whether both can be the same thing, seen from two sides.
    fn can_be(self, other: Self) -> bool {
        match (self, other) {
            (Self::Order(_), Self::Burned(..)) | (Self::Burned(..), Self::Order(_)) => true,
            _ => self == other,
        }
    }
}

/// What took a token here, if something did.
fn taken(event: &Event) -> Option<(u64, Taker)> {
    match event {
        Event::Answered { call, answer } => match answer {
            Answer::Granted { token, .. } => Some((*token, Taker::Grant(*call))),
            Answer::ForceReleased { burned } => Some((*burned, Taker::Order(*call))),
            _ => None,
        },
        Event::Decided {
            decision,
            position,
            part,
            ..
        } => match decision {
            Decision::Granted { call, token, .. } => Some((*token, Taker::Grant(*call))),
            Decision::ForceReleased { burned, .. } => {
                Some((*burned, Taker::Burned(*position, *part)))
            }
            _ => None,
        },
        _ => None,
    }
}

fn check_twice(history: &History, report: &mut Report) {
    let mut takers: BTreeMap<u64, Vec<(Taker, usize)>> = BTreeMap::new();
    for (line, entry) in history.entries().iter().enumerate() {
        let Some((token, taker)) = taken(&entry.event) else {
            continue;
        };
        let known = takers.entry(token).or_default();
        if let Some((_, other)) = known.iter().find(|(known, _)| !known.can_be(taker)) {
            report.add(Rule::TokenTwice, [*other, line], format!("token {token}"));
        }
        if !known.iter().any(|(known, _)| *known == taker) {
            known.push((taker, line));
        }
    }
}

fn check_real_time(history: &History, calls: &Calls<'_>, report: &mut Report) {
    let mut highest: Option<(u64, usize)> = None;
    // The highest token that was seen before a call.
    let mut before: BTreeMap<CallId, (u64, usize)> = BTreeMap::new();
    for (line, entry) in history.entries().iter().enumerate() {
        if let (Event::Called { call, .. }, Some(highest)) = (&entry.event, highest) {
            before.insert(*call, highest);
        }
        let Some((token, taker)) = taken(&entry.event) else {
            continue;
        };
        if let Taker::Grant(call) | Taker::Order(call) = taker
            && let Some((earlier, seen)) = before.get(&call)
            && token <= *earlier
        {
            let called = calls.get(call).map_or(line, |call| call.line);
            let about = format!("token {token} after {earlier}");
            report.add(Rule::TokenBackwards, [*seen, called, line], about);
        }
        highest = highest.max(Some((token, line)));
    }
}

fn check_log(history: &History, report: &mut Report) {
    let mut last: Option<(u64, usize, (u64, u32))> = None;
    for decided in decisions(history) {
        let token = match decided.decision {
            Decision::Granted { token, .. } => *token,
            Decision::ForceReleased { burned, .. } => *burned,
            _ => continue,
        };
        if let Some((earlier, line, place)) = last
            && place != decided.place
            && token <= earlier
        {
            let about = format!("token {token} after {earlier}");
            report.add(Rule::TokenBackwards, [line, decided.line], about);
        }
        last = last.max(Some((token, decided.line, decided.place)));
    }
}
