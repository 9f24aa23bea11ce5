//! Long random histories, compared step by step with the naive model.
//!
//! Every history comes from a seed. `HIGHWATER_SEED=7 cargo test -p highwater-lock --test machine
//! random` replays one; `HIGHWATER_SEEDS` is how many there are, `HIGHWATER_STEPS` how long they are.

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use highwater_lock::{
    Command, ConnectionId, Epoch, Event, FencingToken, HashSeed, Key, KeySet, Limits, Machine,
    NameView, Operation, Outcome, Reply, RequestId, Timestamp, WaiterId,
};

use crate::build::key;
use crate::naive::Naive;
use crate::witness::Witness;

const SEEDS: u64 = 24;
const STEPS: u64 = 2_500;
/// All times are multiples of this, so that deadlines meet often.
const UNIT: Duration = Duration::from_millis(500);

#[test]
fn random_histories_agree_with_the_naive_model() {
    let number = |name| std::env::var(name).ok().map(|text| text.parse().unwrap());
    let steps = number("HIGHWATER_STEPS").unwrap_or(STEPS);
    let seeds: Vec<u64> = match number("HIGHWATER_SEED") {
        Some(seed) => vec![seed],
        None => (0..number("HIGHWATER_SEEDS").unwrap_or(SEEDS)).collect(),
    };
    let mut seen = BTreeSet::new();
    for seed in &seeds {
        let history = || History::new(*seed).play(steps, &mut seen);
        if let Err(failure) = catch_unwind(AssertUnwindSafe(history)) {
            eprintln!(
                "seed {seed} failed; replay: HIGHWATER_SEED={seed} HIGHWATER_STEPS={steps} \
                 cargo test -p highwater-lock --test machine random"
            );
            resume_unwind(failure);
        }
    }
    // Without this, a generator that never gets anywhere would pass too.
    if seeds.len() > 1 {
        let missing: Vec<&str> = KINDS
            .iter()
            .copied()
            .filter(|kind| !seen.contains(kind))
            .collect();
        assert!(missing.is_empty(), "never happened: {missing:?}");
    }
}

struct History {
    random: Random,
    limits: Limits,
    machine: Machine,
    /// The same with another seed for its tables, which must not show.
    twin: Machine,
    naive: Naive,
    witness: Witness,
    clock: Duration,
    epoch: u64,
    keys: Vec<Key>,
}

impl History {
    fn new(seed: u64) -> Self {
        let mut limits = Limits {
            expiries_per_apply: 1 + u32::try_from(seed % 3).unwrap(),
            lease: UNIT * 20,
            wait: UNIT * 12,
            minimum_hold: UNIT * 12,
            slots: 4,
            ..Limits::default()
        };
        if seed % 2 == 1 {
            limits.keys = 8;
            limits.waiters = 9;
            limits.waiters_per_key = 4;
            limits.waiters_per_connection = 3;
        }
        // Some histories run out of tokens.
        let first = match seed % 8 {
            7 => FencingToken::new(u64::MAX - 600).unwrap(),
            _ => FencingToken::new(1 + seed).unwrap(),
        };
        Self {
            random: Random(seed),
            machine: Machine::new(limits.clone(), first),
            twin: Machine::seeded(limits.clone(), first, hash_seed(seed)),
            naive: Naive::new(limits.clone(), first),
            limits,
            witness: Witness::default(),
            clock: Duration::ZERO,
            epoch: 1,
            keys: ["a", "b", "c", "d", "m", "n"].map(key).into(),
        }
    }

    fn play(&mut self, steps: u64, seen: &mut BTreeSet<&'static str>) {
        for step in 0..steps {
            let (now, command) = self.next_command();
            let foreseen = self.foresee(now, &command);
            let outcome = self.machine.apply(now, command.clone());
            if let Some(foreseen) = foreseen {
                check_foreseen(&foreseen, &outcome.reply, &self.machine, &command.operation);
            }
            let expected = self.naive.apply(now, command.clone());
            assert_eq!(outcome, expected, "step {step}: {command:?} at {now}");
            self.machine.assert_valid();
            let twin = self.twin.apply(now, command.clone());
            assert_eq!(twin, expected, "step {step}, with another seed");
            self.witness.observe(&command, &outcome, &self.machine);
            self.compare_views(step);
            note(&outcome, seen);
            if self.random.one_in(40) {
                self.restart();
                self.compare_views(step);
            }
        }
    }

    /// What the machine says in advance, unless the command ends more than that takes account of.
    fn foresee(&self, now: Timestamp, command: &Command) -> Option<Result<Duration, Reply>> {
        if command.epoch < self.machine.epoch() {
            return None;
        }
        let mut before = self.machine.clone();
        before.apply(now, Command::new(command.epoch, Operation::Tick));
        let due = before.next_deadline();
        due.is_none_or(|due| due > before.now())
            .then(|| before.would_hold(&command.operation))
    }

    fn compare_views(&self, step: u64) {
        let (machine, naive) = (&self.machine, &self.naive);
        for key in &self.keys {
            assert_eq!(
                machine.holders(key),
                naive.holders(key),
                "step {step}, {key}"
            );
            assert_eq!(machine.holder(key), naive.holders(key).first().cloned());
            assert_eq!(
                machine.queue_len(key),
                naive.queue_len(key),
                "step {step}, {key}"
            );
        }
        assert_eq!(
            machine.next_deadline(),
            naive.next_deadline(),
            "step {step}"
        );
        assert_eq!(machine.held_until(), naive.held_until(), "step {step}");
        assert_eq!(machine.now(), naive.now(), "step {step}");
        assert_eq!(machine.epoch(), naive.epoch(), "step {step}");
        assert_eq!(machine.next_token(), naive.next_token(), "step {step}");
        assert_eq!(machine.holds(), naive.held().len(), "step {step}");
        assert_eq!(machine.held_keys(), naive.held_keys(), "step {step}");
        assert_eq!(machine.waiters(), naive.waiting(), "step {step}");
        self.compare_listing(step);
    }

    /// A walk over all places sees every name in use once, and each as it is.
    fn compare_listing(&self, step: u64) {
        let (machine, naive) = (&self.machine, &self.naive);
        let is_used = |key: &Key| !naive.holders(key).is_empty() || naive.queue_len(key) > 0;
        let middle = machine.places() / 2;
        let seen = machine.keys_at(0..middle);
        let mut seen: Vec<&Key> = seen.chain(machine.keys_at(middle..usize::MAX)).collect();
        seen.sort();
        let used: Vec<&Key> = self.keys.iter().filter(|key| is_used(key)).collect();
        assert_eq!(seen, used, "step {step}");
        for key in &self.keys {
            let view = is_used(key).then(|| self.expected_view(key));
            assert_eq!(machine.name(key), view, "step {step}, {key}");
            for slot in 0..4 {
                let mut expected = naive.holders(key);
                expected.retain(|holder| holder.slot.unwrap_or(0) >= slot);
                let holders: Vec<_> = machine.holders_from(key, slot).collect();
                assert_eq!(holders, expected, "step {step}, {key} from slot {slot}");
            }
        }
    }

    fn expected_view(&self, key: &Key) -> NameView {
        let holders = self.naive.holders(key);
        NameView {
            key: key.clone(),
            slots: self.naive.slots(key).and_then(NonZeroU32::new),
            taken: u32::try_from(holders.len()).unwrap(),
            holder: holders.first().cloned(),
            queue: self.naive.queue_len(key),
        }
    }

    fn restart(&mut self) {
        let bytes = self.machine.snapshot();
        assert_eq!(self.twin.snapshot(), bytes, "with another seed");
        self.twin.assert_valid();
        let seed = hash_seed(self.random.next());
        self.machine = Machine::restore_seeded(&bytes, self.limits.clone(), seed).unwrap();
        self.machine.assert_valid();
        assert_eq!(self.machine.snapshot(), bytes);
    }

    fn next_command(&mut self) -> (Timestamp, Command) {
        if self.random.one_in(3) {
            self.clock += UNIT * self.random.below(4);
        }
        let mut now = Timestamp::ZERO.saturating_add(self.clock);
        if self.random.one_in(20) {
            now = Timestamp::from_micros(now.as_micros().saturating_sub(3_000_000));
        }
        if self.random.one_in(150) {
            self.epoch += 1;
        }
        let mut epoch = Epoch::new(self.epoch);
        if self.random.one_in(100) {
            epoch = Epoch::new(self.epoch - 1);
        }
        (now, Command::new(epoch, self.operation()))
    }

    fn operation(&mut self) -> Operation {
        match self.random.below(20) {
            0 => Operation::Tick,
            1..=6 => Operation::Acquire {
                waiter: self.waiter(),
                keys: self.key_set(),
                wait: self.span(14),
                lease: self.span(22),
            },
            7..=9 => self.acquire_slot(),
            10..=13 => {
                let (keys, token) = self.claim();
                let minimum_hold = match self.random.below(3) {
                    0 => self.span(14),
                    _ => Duration::ZERO,
                };
                Operation::Release {
                    keys,
                    token,
                    minimum_hold,
                }
            }
            14 | 15 => {
                let (keys, token) = self.claim();
                let lease = self.span(22);
                Operation::Extend { keys, token, lease }
            }
            16 | 17 => Operation::Cancel {
                waiter: self.waiter(),
            },
            18 => Operation::Disconnect {
                connection: self.waiter().connection,
            },
            _ if self.random.one_in(3) => Operation::ForceRelease { key: self.key() },
            _ => Operation::Tick,
        }
    }

    fn acquire_slot(&mut self) -> Operation {
        let name = match self.random.below(12) {
            0 => self.key(),
            1..=6 => key("m"),
            _ => key("n"),
        };
        // Mostly the same number for one name, or nobody would agree.
        let usual = 1 + u32::from(name == key("m"));
        let slots = match self.random.below(12) {
            0 => 1 + self.random.below(5),
            _ => usual + 1,
        };
        Operation::AcquireSlot {
            waiter: self.waiter(),
            name,
            slots: NonZeroU32::new(slots).unwrap(),
            wait: self.span(14),
            lease: self.span(22),
        }
    }

    fn key(&mut self) -> Key {
        let index = self.random.below(6) as usize;
        self.keys[index].clone()
    }

    /// One to three plain keys, seldom a name that has slots.
    fn key_set(&mut self) -> KeySet {
        let count = 1 + self.random.below(3);
        let mut keys = BTreeSet::new();
        for _ in 0..count {
            let names = if self.random.one_in(20) { 6 } else { 4 };
            let index = self.random.below(names) as usize;
            keys.insert(self.keys[index].clone());
        }
        KeySet::new(keys).unwrap()
    }

    fn waiter(&mut self) -> WaiterId {
        let connection = ConnectionId::new(u64::from(1 + self.random.below(4)));
        let request = RequestId::new(u64::from(1 + self.random.below(5)));
        WaiterId::new(connection, request)
    }

    fn span(&mut self, units: u32) -> Duration {
        UNIT * self.random.below(units)
    }

    /// Mostly a pair that is live; sometimes other keys, sometimes an old or future token.
    fn claim(&mut self) -> (KeySet, FencingToken) {
        let held = self.naive.held();
        let index = self.random.below(u32::try_from(held.len().max(1)).unwrap()) as usize;
        let Some((keys, token)) = held.get(index).cloned() else {
            return (self.key_set(), FencingToken::MIN);
        };
        match self.random.below(10) {
            0 => (self.key_set(), token),
            1 => {
                let shift = u64::from(self.random.below(4));
                let number = token.get().saturating_add(shift).saturating_sub(2);
                (keys, FencingToken::new(number.max(1)).unwrap())
            }
            _ => (keys, token),
        }
    }
}

const KINDS: [&str; 29] = [
    "granted",
    "queued",
    "timed out",
    "busy Keys",
    "busy Waiters",
    "busy WaitersPerKey",
    "busy WaitersPerConnection",
    "rejected StaleEpoch",
    "rejected DuplicateWaiter",
    "rejected Lease",
    "rejected Wait",
    "rejected MinimumHold",
    "rejected Slots",
    "rejected OtherSlots",
    "rejected HasSlots",
    "rejected HasNoSlots",
    "rejected TokensExhausted",
    "released",
    "not held",
    "group mismatch",
    "extended",
    "cancelled",
    "not queued",
    "disconnected",
    "force-released",
    "event granted",
    "event timed out",
    "event expired",
    "event dropped",
];

fn note(outcome: &Outcome, seen: &mut BTreeSet<&'static str>) {
    let kind = match &outcome.reply {
        Reply::Ticked => None,
        Reply::Granted(_) => Some("granted".into()),
        Reply::Queued => Some("queued".into()),
        Reply::TimedOut => Some("timed out".into()),
        Reply::Busy(busy) => Some(format!("busy {busy:?}")),
        Reply::Rejected(rejection) => {
            let text = format!("rejected {rejection:?}");
            Some(text.split(" {").next().unwrap().into())
        }
        Reply::Released => Some("released".into()),
        Reply::NotHeld => Some("not held".into()),
        Reply::GroupMismatch => Some("group mismatch".into()),
        Reply::Extended { .. } => Some("extended".into()),
        Reply::Cancelled => Some("cancelled".into()),
        Reply::NotQueued => Some("not queued".into()),
        Reply::Disconnected { .. } => Some("disconnected".into()),
        Reply::ForceReleased { .. } => Some("force-released".into()),
    };
    let events = outcome.events.iter().map(|event| match event {
        Event::Granted(_) => "event granted",
        Event::TimedOut(_) => "event timed out",
        Event::Expired { .. } | Event::RetentionEnded { .. } => "event expired",
        Event::Dropped(_) => "event dropped",
    });
    let kind: Option<String> = kind;
    seen.extend(KINDS.iter().filter(|name| kind.as_deref() == Some(**name)));
    seen.extend(events);
}

fn hash_seed(number: u64) -> HashSeed {
    HashSeed::from_bytes(u128::from(number.rotate_left(7) | 1).to_le_bytes())
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: u32) -> u32 {
        u32::try_from(self.next() % u64::from(bound)).unwrap()
    }

    fn one_in(&mut self, count: u32) -> bool {
        self.below(count) == 0
    }
}

fn check_foreseen(
    foreseen: &Result<Duration, Reply>,
    reply: &Reply,
    machine: &Machine,
    operation: &Operation,
) {
    let span = match foreseen {
        Ok(span) => *span,
        Err(foreseen) => return assert_eq!(foreseen, reply, "{operation:?}"),
    };
    let rest = |until: Timestamp| until.saturating_since(machine.now());
    match (operation, reply) {
        (_, Reply::Granted(grant)) => assert_eq!(rest(grant.expires), span, "{operation:?}"),
        (Operation::Acquire { lease, .. }, Reply::Queued) => assert_eq!(*lease, span),
        (Operation::AcquireSlot { lease, .. }, Reply::Queued) => assert_eq!(*lease, span),
        (_, Reply::Extended { expires }) => assert_eq!(rest(*expires), span, "{operation:?}"),
        (Operation::Release { .. }, Reply::Released) => {}
        (
            Operation::Acquire { .. }
            | Operation::AcquireSlot { .. }
            | Operation::Extend { .. }
            | Operation::Release { .. },
            _,
        ) => panic!("{operation:?} was to take {span:?}, and got {reply:?}"),
        _ => assert_eq!(span, Duration::ZERO, "{operation:?}"),
    }
}
