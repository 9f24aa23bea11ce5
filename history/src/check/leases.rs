//! Leases in real time, as a client may count on them.
//!
//! Certain: a lock lives from the moment before the acquire was sent for its lease, by a clock that
//! may be slower than a node's by no more than the assumption says, and longer by every extension
//! that was acknowledged. It ends earlier only if somebody asked for it, or if a clock jumped. And a
//! release with a minimum hold keeps others out for that long, counted from before the acquire.

use std::collections::BTreeMap;

use super::calls::{Call, Calls, decisions};
use super::{Assumptions, Report, acquired};
use crate::{Answer, Decision, Event, History, Request, Rule};

pub(super) fn check(
    history: &History,
    calls: &Calls<'_>,
    assumptions: Assumptions,
    report: &mut Report,
) {
    let leases = Leases::of(history, calls, assumptions);
    leases.check_expiries(history, report);
    leases.check_holders(report);
    leases.check_denials(report);
}

/// All that concerns one token.
#[derive(Default)]
struct Lease<'a> {
    /// The acquire, if it is known.
    grant: Option<&'a Call<'a>>,
    extensions: Vec<&'a Call<'a>>,
    /// Every release that may have been done.
    releases: Vec<&'a Call<'a>>,
    /// The moments of everything else that may have ended it.
    ends: Vec<u64>,
    denials: Vec<&'a Call<'a>>,
}

struct Leases<'a> {
    by_token: BTreeMap<u64, Lease<'a>>,
    jumps: Vec<(u64, u64)>,
    assumptions: Assumptions,
}

impl<'a> Leases<'a> {
    fn of(history: &'a History, calls: &'a Calls<'a>, assumptions: Assumptions) -> Self {
        let mut leases = Self {
            by_token: BTreeMap::new(),
            jumps: Vec::new(),
            assumptions,
        };
        let mut forced: BTreeMap<&str, Vec<&Call<'_>>> = BTreeMap::new();
        for call in calls.iter() {
            leases.note(call);
            if let Request::ForceRelease { key } = call.request
                && !call.did_nothing()
            {
                forced.entry(key).or_default().push(call);
            }
        }
        for entry in history.entries() {
            match &entry.event {
                Event::ClockJumped { micros } => leases.jumps.push((entry.at, *micros)),
                Event::GaveBack { token, .. } => {
                    let lease = leases.by_token.entry(*token).or_default();
                    lease.ends.push(entry.at);
                }
                Event::Decided {
                    decision: Decision::Granted { call, token, .. },
                    ..
                } => {
                    let lease = leases.by_token.entry(*token).or_default();
                    lease.grant = lease.grant.or(calls.get(*call));
                }
                _ => {}
            }
        }
        for lease in leases.by_token.values_mut() {
            let keys = lease.grant.map_or(&[][..], |call| acquired(call.request));
            let orders = keys.iter().filter_map(|key| forced.get(&**key)).flatten();
            lease.ends.extend(orders.map(|call| call.at));
        }
        leases
    }

    fn note(&mut self, call: &'a Call<'a>) {
        let token = match (call.request, call.answered()) {
            (_, Some(Answer::Granted { token, .. })) => token,
            (Request::Release { token, .. } | Request::Extend { token, .. }, _) => *token,
            _ => return,
        };
        let lease = self.by_token.entry(token).or_default();
        match (call.request, call.answered()) {
            (Request::Acquire { .. }, _) => lease.grant = Some(call),
            (_, Some(Answer::NotHeld)) => lease.denials.push(call),
            (Request::Extend { .. }, Some(Answer::Extended)) => lease.extensions.push(call),
            (Request::Release { .. }, _) if !call.did_nothing() => {
                lease.releases.push(call);
            }
            _ => {}
        }
    }

    /// How long a lease certainly lives that was asked for at this moment.
    fn lives_until(&self, asked: u64, lease: u64) -> u64 {
        let million = 1_000_000_u128;
        let rate = million + u128::from(self.assumptions.clock_rate_ppm);
        let scaled = u128::from(lease) * million / rate;
        let end = asked.saturating_add(u64::try_from(scaled).unwrap_or(u64::MAX));
        let jumps = self.jumps.iter();
        let within = jumps.filter(|(at, _)| (asked..=end).contains(at));
        within.fold(end, |end, (_, micros)| end.saturating_sub(*micros))
    }

    /// Until when nothing but a request can end it.
    fn runs_until(&self, lease: &Lease<'_>) -> u64 {
        let calls = lease.grant.iter().chain(&lease.extensions);
        let ends = calls.filter_map(|call| match call.request {
            Request::Acquire { lease, .. } | Request::Extend { lease, .. } => {
                Some(self.lives_until(call.at, *lease))
            }
            _ => None,
        });
        ends.max().unwrap_or(0)
    }

    /// Until when it is certainly held.
    fn held_until(&self, lease: &Lease<'_>) -> u64 {
        let releases = lease.releases.iter().map(|call| call.at);
        let asked = releases.chain(lease.ends.iter().copied()).min();
        self.runs_until(lease).min(asked.unwrap_or(u64::MAX))
    }

    /// Until when certainly nobody else gets it: a release may keep it longer than it is held.
    fn kept_until(&self, lease: &Lease<'_>) -> u64 {
        let asked = lease.grant.map_or(0, |call| call.at);
        // Any of the releases may be the one that was done.
        let releases = lease.releases.iter().map(|call| match call.request {
            Request::Release { hold, .. } if *hold > 0 => {
                call.at.max(self.lives_until(asked, *hold))
            }
            _ => call.at,
        });
        let released = releases.min().unwrap_or(u64::MAX);
        let mut answers = lease.releases.iter().map(|call| call.answered());
        let is_released = answers.any(|answer| answer == Some(Answer::Released));
        let until = match is_released {
            true => released,
            false => released.min(self.runs_until(lease)),
        };
        let ended = lease.ends.iter().copied().min();
        until.min(ended.unwrap_or(u64::MAX))
    }

    fn check_expiries(&self, history: &History, report: &mut Report) {
        for decided in decisions(history) {
            let Decision::Expired { token } = decided.decision else {
                continue;
            };
            let Some(lease) = self.by_token.get(token) else {
                continue;
            };
            if decided.at < self.runs_until(lease) {
                let calls = lease.grant.iter().chain(&lease.extensions);
                let mut events: Vec<usize> = calls.flat_map(|call| call.lines()).collect();
                events.push(decided.line);
                report.add(Rule::ExpiredEarly, events, format!("token {token}"));
            }
        }
    }

    /// In token order: a later ownership is not seen while an earlier one is certainly held.
    fn check_holders(&self, report: &mut Report) {
        // Who holds a place longest, of the tokens so far.
        let mut longest: BTreeMap<(&str, Option<u32>), (u64, &Call<'_>)> = BTreeMap::new();
        for (token, lease) in &self.by_token {
            let Some(call) = lease.grant else { continue };
            let Some(answered) = call.answer else {
                continue;
            };
            let Answer::Granted { slot, .. } = answered.answer else {
                continue;
            };
            let until = self.kept_until(lease);
            for key in acquired(call.request) {
                let place = (key.as_str(), slot);
                if let Some((held, earlier)) = longest.get(&place)
                    && *held > answered.at
                {
                    let events = [earlier.lines(), call.lines()].concat();
                    let about = format!("key {key} went to token {token}");
                    report.add(Rule::TwoHolders, events, about);
                }
                let other = longest.get(&place).map_or(0, |(held, _)| *held);
                if until > other {
                    longest.insert(place, (until, call));
                }
            }
        }
    }

    /// Nobody is told that it holds nothing while it certainly holds.
    fn check_denials(&self, report: &mut Report) {
        for (token, lease) in &self.by_token {
            let Some(grant) = lease.grant else { continue };
            for denied in &lease.denials {
                let (Request::Release { keys, .. } | Request::Extend { keys, .. }) = denied.request
                else {
                    continue;
                };
                let is_later = denied.answer.is_some_and(|answered| {
                    answered.at >= self.held_until(lease) || keys != acquired(grant.request)
                });
                if !is_later {
                    let events = [grant.lines(), denied.lines()].concat();
                    report.add(Rule::LiveDenied, events, format!("token {token}"));
                }
            }
        }
    }
}
