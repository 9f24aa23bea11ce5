//! What will happen in each round, decided by the seed alone.

use super::words::Stop;

/// How holder A loses its right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Schedule {
    /// Stopped with SIGSTOP past its lease, between reading and writing; then it goes on.
    Freeze,
    /// Stopped with SIGSTOP inside its writing transaction, behind the fence; its successor waits for
    /// the end of that transaction. Then it goes on.
    FreezeInside,
    /// The same, but the server ends its session meanwhile, as servers do with idle transactions.
    Sever,
    /// Killed inside its writing transaction.
    Kill,
    /// Cut off from the lock server, not from the database, for longer than its lease; it goes on
    /// writing all the time.
    Partition,
}

/// One round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) schedule: Schedule,
    /// Where A is killed, or stopped inside its transaction.
    pub(super) stop: Stop,
    /// Whether the order of A is given to B before A writes, as a queue does whose worker is silent.
    /// Otherwise after.
    pub(super) early: bool,
    /// What the orders of A take from the stock.
    pub(super) of_a: [i64; 3],
    /// What the order of B takes.
    pub(super) of_b: i64,
}

/// The rounds of every row. Each five in a row have all schedules, in random order.
pub(super) fn plans(seed: u64, rounds: u32) -> Vec<Plan> {
    let mut random = Random(seed);
    let mut block = Vec::new();
    let mut plans = Vec::new();
    for _ in 0..rounds {
        if block.is_empty() {
            block = SCHEDULES.to_vec();
        }
        let schedule = block.swap_remove(random.below(block.len() as u64) as usize);
        let stops = match schedule {
            Schedule::Kill => &STOPS[..],
            _ => &STOPS[..INSIDE],
        };
        plans.push(Plan {
            schedule,
            stop: stops[random.below(stops.len() as u64) as usize],
            early: random.below(2) == 0,
            of_a: std::array::from_fn(|_| random.quantity()),
            of_b: random.quantity(),
        });
    }
    plans
}

const SCHEDULES: [Schedule; 5] = [
    Schedule::Freeze,
    Schedule::FreezeInside,
    Schedule::Sever,
    Schedule::Kill,
    Schedule::Partition,
];
const STOPS: [Stop; 4] = [Stop::Begun, Stop::Updated, Stop::Recorded, Stop::Committed];
/// How many of them are inside the transaction.
const INSIDE: usize = 3;

/// SplitMix64, by Steele, Lea and Flood: small, and the same on every machine and in every release.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// Below a small number; the bias does not matter here.
    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn quantity(&mut self) -> i64 {
        i64::from(self.below(9) as u8) + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_rounds() {
        assert_eq!(plans(7, 12), plans(7, 12));
        assert_ne!(plans(7, 12), plans(8, 12));
        assert_eq!(plans(7, 12)[..3], plans(7, 3));
    }

    #[test]
    fn the_generator_is_the_published_one() {
        let mut random = Random(1_234_567);
        assert_eq!(random.next(), 6_457_827_717_110_365_317);
        assert_eq!(random.next(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn every_five_rounds_have_all_schedules() {
        let count = u32::try_from(SCHEDULES.len()).unwrap();
        assert_eq!(crate::prove::Options::FEWEST_ROUNDS, count);
        for seed in 0..50 {
            for some in plans(seed, 3 * count).chunks(SCHEDULES.len()) {
                for wanted in SCHEDULES {
                    assert!(some.iter().any(|plan| plan.schedule == wanted), "{seed}");
                }
            }
        }
    }

    #[test]
    fn only_who_is_killed_can_stop_behind_the_commit() {
        for plan in plans(7, 500) {
            let inside = plan.stop != Stop::Committed;
            assert!(inside || plan.schedule == Schedule::Kill, "{plan:?}");
        }
    }
}
