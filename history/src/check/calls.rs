//! The calls of a history, each with its answer.

use std::collections::BTreeMap;

use super::Report;
use crate::{Answer, CallId, Decision, Event, History, Request, Rule};

/// A request, its answer, and where both stand.
#[derive(Debug)]
pub(super) struct Call<'a> {
    pub(super) id: CallId,
    pub(super) line: usize,
    pub(super) at: u64,
    pub(super) connection: u64,
    pub(super) request: &'a Request,
    pub(super) answer: Option<Answered>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Answered {
    pub(super) line: usize,
    pub(super) at: u64,
    pub(super) answer: Answer,
}

impl Call<'_> {
    pub(super) fn answered(&self) -> Option<Answer> {
        self.answer.map(|answered| answered.answer)
    }

    /// The lines of the request and of the answer.
    pub(super) fn lines(&self) -> Vec<usize> {
        let answer = self.answer.map(|answered| answered.line);
        [self.line].into_iter().chain(answer).collect()
    }

    /// Whether the client was told that it had no effect and will have none.
    pub(super) fn did_nothing(&self) -> bool {
        matches!(
            self.answered(),
            Some(
                Answer::NotTaken
                    | Answer::TimedOut
                    | Answer::Busy
                    | Answer::NotHeld
                    | Answer::NotQueued
                    | Answer::Stale { .. }
            )
        )
    }
}

#[derive(Debug)]
pub(super) struct Calls<'a>(BTreeMap<CallId, Call<'a>>);

impl<'a> Calls<'a> {
    pub(super) fn of(history: &'a History, report: &mut Report) -> Self {
        let mut calls: BTreeMap<CallId, Call<'a>> = BTreeMap::new();
        for (line, entry) in history.entries().iter().enumerate() {
            match &entry.event {
                Event::Called {
                    call,
                    connection,
                    request,
                } => {
                    let made = Call {
                        id: *call,
                        line,
                        at: entry.at,
                        connection: *connection,
                        request,
                        answer: None,
                    };
                    if let Some(other) = calls.insert(*call, made) {
                        report.add(Rule::Malformed, [other.line, line], "a call twice");
                    }
                }
                Event::Answered { call, answer } => {
                    let answered = Answered {
                        line,
                        at: entry.at,
                        answer: *answer,
                    };
                    match calls.get_mut(call) {
                        None => report.add(Rule::Malformed, [line], "an answer to no call"),
                        Some(call) if call.answer.is_some() || !fits(call.request, answer) => {
                            report.add(
                                Rule::Malformed,
                                [call.line, line],
                                "a second answer, or one that does not fit",
                            );
                        }
                        Some(call) => call.answer = Some(answered),
                    }
                }
                _ => {}
            }
        }
        Self(calls)
    }

    pub(super) fn get(&self, call: CallId) -> Option<&Call<'a>> {
        self.0.get(&call)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Call<'a>> {
        self.0.values()
    }
}

fn fits(request: &Request, answer: &Answer) -> bool {
    match answer {
        Answer::NotTaken | Answer::Unknown => true,
        Answer::Granted { .. } | Answer::TimedOut | Answer::Busy => {
            matches!(request, Request::Acquire { .. })
        }
        Answer::Released => matches!(request, Request::Release { .. }),
        Answer::NotHeld => matches!(request, Request::Release { .. } | Request::Extend { .. }),
        Answer::Extended => matches!(request, Request::Extend { .. }),
        Answer::Cancelled | Answer::NotQueued => matches!(request, Request::Cancel { .. }),
        Answer::ForceReleased { .. } => matches!(request, Request::ForceRelease { .. }),
        Answer::Committed | Answer::Stale { .. } => matches!(request, Request::Write { .. }),
    }
}

/// One decision and where it stands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Decided<'a> {
    pub(super) line: usize,
    pub(super) at: u64,
    pub(super) place: (u64, u32),
    pub(super) epoch: u64,
    pub(super) decision: &'a Decision,
}

/// All decisions in the order of the log, as often as they were reported.
pub(super) fn decisions(history: &History) -> Vec<Decided<'_>> {
    let entries = history.entries().iter().enumerate();
    let mut decided: Vec<Decided<'_>> = entries
        .filter_map(|(line, entry)| match &entry.event {
            Event::Decided {
                position,
                part,
                epoch,
                decision,
            } => Some(Decided {
                line,
                at: entry.at,
                place: (*position, *part),
                epoch: *epoch,
                decision,
            }),
            _ => None,
        })
        .collect();
    decided.sort_by_key(|decided| decided.place);
    decided
}
