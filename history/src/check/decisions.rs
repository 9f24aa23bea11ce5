//! The decisions of the log, followed with a model of owners and queues of its own.
//!
//! Certain: the order of the log. Here are mutual exclusion, first come first served within an
//! epoch, no grant to the dead, extensions that never shorten, and replicas that agree.

use std::collections::BTreeMap;

use super::calls::{Call, Calls, Decided, decisions};
use super::{Report, acquired, share_a_key};
use crate::{Answer, CallId, Decision, Event, History, Request, Rule};

pub(super) fn check(history: &History, calls: &Calls<'_>, report: &mut Report) {
    check_states(history, report);
    let mut model = Model {
        calls,
        askers: askers(history, calls),
        report,
        epoch: (0, 0),
        holds: BTreeMap::new(),
        owners: BTreeMap::new(),
        granted: BTreeMap::new(),
        waiting: Vec::new(),
        queued: BTreeMap::new(),
        is_whole: history
            .entries()
            .iter()
            .any(|entry| entry.event == Event::AllDecisions),
        dead: BTreeMap::new(),
        gone: BTreeMap::new(),
    };
    let mut last: Option<Decided<'_>> = None;
    for decided in decisions(history) {
        if let Some(last) = last
            && last.place == decided.place
        {
            if (last.epoch, last.decision) != (decided.epoch, decided.decision) {
                let about = format!("position {}", decided.place.0);
                let lines = [last.line, decided.line];
                model.report.add(Rule::Diverged, lines, about);
            }
            continue;
        }
        if last.is_some_and(|last| last.place.0 < decided.place.0) {
            model.check_nobody_sleeps();
        }
        model.follow(decided);
        last = Some(decided);
    }
    model.check_nobody_sleeps();
}

fn check_states(history: &History, report: &mut Report) {
    let mut first: BTreeMap<u64, (u64, usize)> = BTreeMap::new();
    for (line, entry) in history.entries().iter().enumerate() {
        let Event::State {
            position, digest, ..
        } = &entry.event
        else {
            continue;
        };
        let (known, seen) = *first.entry(*position).or_insert((*digest, line));
        if known != *digest {
            let about = format!("state after position {position}");
            report.add(Rule::Diverged, [seen, line], about);
        }
    }
}

struct Hold {
    line: usize,
    epoch: u64,
    call: CallId,
    places: Vec<Place>,
    until: u64,
    released: Option<usize>,
}

/// A key, or a slot of a name.
type Place = (String, Option<u32>);

struct Model<'a> {
    calls: &'a Calls<'a>,
    askers: Askers,
    report: &'a mut Report,
    /// The newest epoch, and the line that began it.
    epoch: (u64, usize),
    holds: BTreeMap<u64, Hold>,
    owners: BTreeMap<Place, u64>,
    granted: BTreeMap<CallId, usize>,
    waiting: Vec<(CallId, usize)>,
    /// When who queued, in lease time.
    queued: BTreeMap<CallId, (u64, usize)>,
    /// Without all decisions nobody can tell that a key is free.
    is_whole: bool,
    /// Who may not be granted any more, and what says so.
    dead: BTreeMap<CallId, usize>,
    gone: BTreeMap<u64, usize>,
}

impl Model<'_> {
    fn follow(&mut self, decided: Decided<'_>) {
        self.begin_epoch(&decided);
        let line = decided.line;
        match decided.decision {
            Decision::Queued { call, now } => {
                self.queued.insert(*call, (*now, line));
                self.waiting.push((*call, line));
            }
            Decision::Granted {
                call,
                token,
                slot,
                until,
            } => self.grant(&decided, *call, *token, *slot, *until),
            Decision::TimedOut { call }
            | Decision::Dropped { call }
            | Decision::Cancelled { call } => {
                self.leave(*call);
                self.dead.insert(*call, line);
            }
            Decision::Disconnected { connection } => {
                self.gone.insert(*connection, line);
                let calls = self.calls;
                let of = |call: CallId| calls.get(call).map(|call| call.connection);
                self.bury(line, |call| of(call) == Some(*connection));
            }
            Decision::Released { token, until } => self.release(&decided, *token, *until),
            Decision::Extended { token, now, until } => {
                self.extend(line, *token, (*now, *until));
            }
            Decision::Expired { token } | Decision::RetentionEnded { token } => {
                self.end(line, *token);
            }
            Decision::ForceReleased { ended, .. } => {
                ended.iter().for_each(|token| self.end(line, *token));
            }
        }
    }

    fn begin_epoch(&mut self, decided: &Decided<'_>) {
        let (epoch, began) = self.epoch;
        if decided.epoch < epoch {
            let about = format!("epoch {} after {epoch}", decided.epoch);
            let lines = [began, decided.line];
            self.report.add(Rule::EpochBackwards, lines, about);
        } else if decided.epoch > epoch {
            self.epoch = (decided.epoch, decided.line);
            self.bury(decided.line, |_| true);
        }
    }

    fn bury(&mut self, line: usize, is_dead: impl Fn(CallId) -> bool) {
        for (call, _) in self.waiting.extract_if(.., |(call, _)| is_dead(*call)) {
            self.dead.insert(call, line);
        }
    }

    fn leave(&mut self, call: CallId) {
        self.waiting.retain(|(waiting, _)| *waiting != call);
    }

    fn grant(
        &mut self,
        decided: &Decided<'_>,
        id: CallId,
        token: u64,
        slot: Option<u32>,
        until: u64,
    ) {
        let line = decided.line;
        let Some(call) = self.calls.get(id) else {
            self.report
                .add(Rule::Malformed, [line], "a grant without a call");
            return;
        };
        let about = format!("call {}", id.0);
        if let Some(before) = self.granted.insert(id, line) {
            let lines = [before, line];
            self.report.add(Rule::GrantedTwice, lines, &about);
        }
        let gone = self.gone.get(&call.connection);
        if let Some(death) = self.dead.get(&id).or(gone) {
            let lines = [call.line, *death, line];
            self.report.add(Rule::GrantToDead, lines, &about);
        }
        if let (Request::Acquire { wait, lease, .. }, Some((now, queued))) =
            (call.request, self.queued.get(&id))
            && until.saturating_sub(*lease) >= now.saturating_add(*wait)
        {
            let lines = [call.line, *queued, line];
            self.report.add(Rule::GrantToDead, lines, &about);
        }
        self.check_turn(line, id, call.request);
        self.leave(id);
        let keys = acquired(call.request).iter();
        let places: Vec<Place> = keys.map(|key| (key.clone(), slot)).collect();
        for place in &places {
            if let Some(other) = self.owners.insert(place.clone(), token)
                && let Some(hold) = self.holds.get(&other)
            {
                let about = format!("key {} has tokens {other} and {token}", place.0);
                self.report.add(Rule::TwoHolders, [hold.line, line], about);
            }
        }
        let hold = Hold {
            line,
            epoch: decided.epoch,
            call: id,
            places,
            until,
            released: None,
        };
        self.holds.insert(token, hold);
    }

    fn check_turn(&mut self, line: usize, id: CallId, request: &Request) {
        let before = self.waiting.iter().take_while(|(call, _)| *call != id);
        let passed = before.filter(|(call, _)| {
            let call = self.calls.get(*call);
            call.is_some_and(|call| share_a_key(call.request, request))
        });
        if let Some((call, queued)) = passed.into_iter().next() {
            let about = format!("call {} by call {}", call.0, id.0);
            self.report.add(Rule::Overtaken, [*queued, line], about);
        }
    }

    /// A free key goes to the first who waits for it in the same step.
    fn check_nobody_sleeps(&mut self) {
        if !self.is_whole {
            return;
        }
        for (place, (id, line)) in self.waiting.iter().enumerate() {
            let Some(call) = self.calls.get(*id) else {
                continue;
            };
            let Request::Acquire { keys, slots, .. } = call.request else {
                continue;
            };
            let earlier = self.waiting[..place].iter();
            let mut earlier = earlier.filter_map(|(other, _)| self.calls.get(*other));
            let is_next = !earlier.any(|other| share_a_key(other.request, call.request));
            let is_free = |key: &String| {
                let from = (key.clone(), None);
                let owned = self.owners.range(from..);
                let owned = owned.take_while(|((owned, _), _)| owned == key);
                owned.count() < slots.map_or(1, |slots| slots as usize)
            };
            if is_next && keys.iter().all(is_free) {
                let about = format!("call {}", id.0);
                self.report.add(Rule::SleepsOn, [*line], about);
                return;
            }
        }
    }

    fn release(&mut self, decided: &Decided<'_>, token: u64, until: Option<u64>) {
        let line = decided.line;
        let about = format!("token {token}");
        let Some(hold) = self.holds.get_mut(&token) else {
            self.report.add(Rule::EndedTwice, [line], about);
            return;
        };
        let began = hold.line;
        let granted = self.calls.get(hold.call).and_then(Call::answered);
        let was_delivered = matches!(granted, Some(Answer::Granted { .. }));
        let askers = self.askers.get(&token).map(Vec::as_slice);
        let was_asked = askers.unwrap_or_default().iter().any(|(asked, leader)| {
            let may = leader.is_none_or(|epoch| epoch == hold.epoch && !was_delivered);
            *asked < line && may
        });
        if hold.released.is_none() && !was_asked {
            self.report
                .add(Rule::NotYoursToRelease, [began, line], about);
        }
        hold.released = Some(line);
        if until.is_none() {
            self.end(line, token);
        }
    }

    fn extend(&mut self, line: usize, token: u64, (now, until): (u64, u64)) {
        let about = format!("token {token}");
        let Some(hold) = self.holds.get_mut(&token) else {
            self.report.add(Rule::DeadExtended, [line], about);
            return;
        };
        let over = (hold.until <= now).then_some(hold.line);
        if let Some(end) = hold.released.or(over) {
            self.report.add(Rule::DeadExtended, [end, line], &about);
        }
        if until < hold.until {
            let lines = [hold.line, line];
            self.report.add(Rule::ExtensionShortened, lines, about);
        }
        hold.until = until;
    }

    fn end(&mut self, line: usize, token: u64) {
        let Some(hold) = self.holds.remove(&token) else {
            let about = format!("token {token}");
            self.report.add(Rule::EndedTwice, [line], about);
            return;
        };
        for place in hold.places {
            if self.owners.get(&place) == Some(&token) {
                self.owners.remove(&place);
            }
        }
    }
}

/// Who may have asked for the release of a token: the line, and for a leader that could not deliver
/// the grant its epoch.
type Askers = BTreeMap<u64, Vec<(usize, Option<u64>)>>;

fn askers(history: &History, calls: &Calls<'_>) -> Askers {
    let mut askers = Askers::new();
    for call in calls.iter().filter(|call| !call.did_nothing()) {
        if let Request::Release { token, .. } = call.request {
            askers.entry(*token).or_default().push((call.line, None));
        }
    }
    for (line, entry) in history.entries().iter().enumerate() {
        if let Event::GaveBack { token, epoch } = &entry.event {
            askers.entry(*token).or_default().push((line, Some(*epoch)));
        }
    }
    askers
}
