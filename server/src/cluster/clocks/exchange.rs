//! What questions and answers about the time prove of the rate of two clocks.
//!
//! A question leaves at `asked` and its answer comes at `answered`, on our clock; it arrives at `heard`
//! and the answer leaves at `said`, on the other one. Messages take time and arrive after they were
//! sent, and nothing else is known of them: so the other clock had not reached more than `heard` at our
//! `asked`, and had reached at least `said` at our `answered`. Two exchanges then bound how far the other
//! clock went meanwhile, from both sides, whatever took how long: a machine that is busy, a process
//! that was stopped or a slow network make the bounds wide, and never wrong.

use std::collections::VecDeque;

/// One question and its answer. All in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Exchange {
    pub(super) asked: u64,
    pub(super) heard: u64,
    pub(super) said: u64,
    pub(super) answered: u64,
}

/// How much faster than ours the other clock ran between two exchanges, at least and at most, in parts
/// per million.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rate {
    pub(super) least: i64,
    pub(super) most: i64,
}

impl Rate {
    /// The bounds by two exchanges, if the second one began after the first one's end.
    pub(super) fn between(first: Exchange, second: Exchange) -> Option<Self> {
        let outer = second.answered.checked_sub(first.asked)?;
        let inner = second.asked.checked_sub(first.answered)?;
        Some(Self {
            least: excess(distance(first.heard, second.said), outer)?,
            most: excess(distance(first.said, second.heard), inner)?,
        })
    }

    fn width(self) -> i64 {
        self.most.saturating_sub(self.least)
    }

    /// Whether it is certain that the rates differ by more than the bound.
    fn differs(self) -> bool {
        self.least > BOUND || self.most < -BOUND
    }

    /// The middle, and how far it may be from the truth.
    pub(super) fn estimate(self) -> (i64, i64) {
        let half = self.width() / 2;
        (self.least.saturating_add(half), half)
    }
}

fn distance(from: u64, to: u64) -> i128 {
    i128::from(to) - i128::from(from)
}

/// By how many millionths one span is longer than the other.
fn excess(other: i128, own: u64) -> Option<i64> {
    if own == 0 {
        return None;
    }
    let own = i128::from(own);
    let excess = (other - own) * MILLION / own;
    Some(i64::try_from(excess).unwrap_or(if excess < 0 { i64::MIN } else { i64::MAX }))
}

/// The exchanges with one peer over the last seconds.
#[derive(Debug, Default)]
pub(super) struct Window {
    exchanges: VecDeque<Exchange>,
    /// Until when, on our clock, two exchanges of the window prove that the rates differ.
    differs_until: u64,
    /// The narrowest bounds that the newest exchange gives.
    rate: Option<Rate>,
}

impl Window {
    pub(super) fn add(&mut self, newest: Exchange) {
        let begin = newest.answered.saturating_sub(WINDOW);
        while self.exchanges.len() >= MOST_EXCHANGES
            || self
                .exchanges
                .front()
                .is_some_and(|old| old.answered < begin)
        {
            self.exchanges.pop_front();
        }
        self.rate = None;
        for old in &self.exchanges {
            let Some(rate) = Rate::between(*old, newest) else {
                continue;
            };
            if rate.differs() {
                self.differs_until = self.differs_until.max(old.answered + WINDOW);
            }
            if self
                .rate
                .is_none_or(|narrowest| rate.width() < narrowest.width())
            {
                self.rate = Some(rate);
            }
        }
        self.exchanges.push_back(newest);
    }

    /// Whether the rates are proven to have differed within the window.
    pub(super) fn differs(&self, now: u64) -> bool {
        now < self.differs_until
    }

    pub(super) fn rate(&self) -> Option<Rate> {
        self.rate
    }
}

const MILLION: i128 = 1_000_000;
/// By how many millionths the rates of two clocks may differ. See the ADR.
pub(super) const BOUND: i64 = 5_000;
/// For how long exchanges are compared, and a difference is remembered.
pub(super) const WINDOW: u64 = 10_000_000;
const MOST_EXCHANGES: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    /// Exchanges every 250 ms with a clock of this speed; the ways there and back take what is given.
    fn exchanges(
        parts_per_million: i64,
        count: u64,
        delay: impl Fn(u64) -> (u64, u64),
    ) -> Vec<Exchange> {
        let other = |own: u64| {
            let own = i128::from(own);
            let shown = own + own * i128::from(parts_per_million) / MILLION;
            u64::try_from(shown).unwrap() + 123_456
        };
        (0..count)
            .map(|number| {
                let asked = number * 250_000;
                let (there, back) = delay(number);
                Exchange {
                    asked,
                    heard: other(asked + there),
                    said: other(asked + there + 50),
                    answered: asked + there + 50 + back,
                }
            })
            .collect()
    }

    fn judged(exchanges: &[Exchange]) -> bool {
        let mut window = Window::default();
        exchanges.iter().for_each(|exchange| window.add(*exchange));
        window.differs(exchanges.last().unwrap().answered)
    }

    /// Some delays from nothing to a second and a half, the two ways apart.
    fn ragged(number: u64) -> (u64, u64) {
        let mix = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
        (mix % 1_500_000, (mix / 7) % 1_500_000)
    }

    #[test]
    fn a_clock_within_the_bound_is_never_accused_whatever_the_messages_take() {
        for rate in [-5_000, -4_000, -100, 0, 100, 4_000, 5_000] {
            assert!(!judged(&exchanges(rate, 200, |_| (100, 100))), "{rate}");
            assert!(!judged(&exchanges(rate, 200, ragged)), "{rate}");
            // One way always slow: the usual estimate would take that for an offset.
            assert!(
                !judged(&exchanges(rate, 200, |n| (n * 10_000, 0))),
                "{rate}"
            );
            assert!(
                !judged(&exchanges(rate, 200, |n| (0, n * 10_000))),
                "{rate}"
            );
        }
    }

    #[test]
    fn a_clock_beyond_the_bound_is_found_within_the_window() {
        for rate in [-1_000_000, -100_000, -6_000, 6_000, 100_000, 2_000_000] {
            assert!(judged(&exchanges(rate, 41, |_| (100, 100))), "{rate}");
        }
        // The more it is wrong, the sooner, and the more disturbance it takes to hide it.
        assert!(judged(&exchanges(100_000, 2, |_| (1_000, 1_000))));
        assert!(judged(&exchanges(20_000, 41, |_| (20_000, 20_000))));
        assert!(!judged(&exchanges(6_000, 41, |_| (20_000, 20_000))));
    }

    #[test]
    fn a_process_that_was_stopped_is_no_clock_that_was_wrong() {
        // For eight seconds between the question and its answer; then for five between two questions.
        let stopped = |number| match number {
            10 => (100, 8_000_000),
            _ => (100, 100),
        };
        let mut all = exchanges(0, 11, stopped);
        let later = exchanges(0, 100, |_| (100, 100));
        all.extend(later.into_iter().filter(|next| next.asked > 13_000_000));
        let mut window = Window::default();
        for exchange in all {
            window.add(exchange);
            assert!(!window.differs(exchange.answered));
        }
    }

    #[test]
    fn a_clock_that_runs_right_again_is_trusted_again_after_the_window() {
        let wrong = exchanges(50_000, 21, |_| (100, 100));
        let last = *wrong.last().unwrap();
        let mut window = Window::default();
        wrong.iter().for_each(|exchange| window.add(*exchange));
        assert!(window.differs(last.answered));
        for number in 1..=80_u64 {
            let on = number * 250_000;
            window.add(Exchange {
                asked: last.asked + on,
                heard: last.heard + on,
                said: last.said + on,
                answered: last.answered + on,
            });
            // Two that were both wrong, or one of each, prove it as long as they are in the window.
            let differs = window.differs(last.answered + on);
            match on {
                ..=8_000_000 => assert!(differs, "{on}"),
                10_000_000.. => assert!(!differs, "{on}"),
                _ => {}
            }
        }
    }

    #[test]
    fn the_estimate_holds_the_truth() {
        for rate in [-3_000, 0, 250, 4_999] {
            let mut window = Window::default();
            for exchange in exchanges(rate, 30, |n| (n % 7 * 300, n % 3 * 900)) {
                window.add(exchange);
            }
            let (middle, error) = window.rate().unwrap().estimate();
            assert!((middle - rate).abs() <= error + 2, "{middle} {error}");
            assert!(error < 700, "{error}");
        }
    }
}
