//! What a command costs, and a held key in memory, when there are few and when there are many.
//!
//! Every figure is compared with its like from the same run: blocks of the small and of the large
//! machine come in turns, and the medians of the blocks are divided. Times are those that this
//! thread had the processor, so that other programs disturb only by the caches they take. Words on
//! the command line select lines by their names.

mod load;
mod memory;

use std::hint::black_box;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

use load::{Crowd, Hot, Leases, Load, Mixed, Random};

const SMALL: usize = 1_000;
const LARGE: usize = 1_000_000;
const FEW: usize = 10;
const MANY: usize = 100_000;
const BLOCKS: usize = 41;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if memory::alone(&words) {
        return;
    }
    let wanted: Vec<&String> = words.iter().filter(|word| !word.starts_with('-')).collect();
    let is_wanted =
        |name: &str| wanted.is_empty() || wanted.iter().any(|word| name.contains(*word));

    println!("| two commands | small, ns | large, ns | ratio |\n|---|---|---|---|");
    let line =
        |name: &str, small: &dyn Fn() -> Box<dyn Load>, large: &dyn Fn() -> Box<dyn Load>| {
            if is_wanted(name) {
                let (small, large) = in_turns(&mut *small(), &mut *large());
                println!(
                    "| {name} | {small:.0} | {large:.0} | {:.2} |",
                    large / small
                );
            }
        };
    line(
        "acquire and release of a few hot keys, 1,000 and 1,000,000 others held",
        &|| Box::new(Hot::new(SMALL)),
        &|| Box::new(Hot::new(LARGE)),
    );
    line(
        "the same, leases of random length held",
        &|| Box::new(Mixed::new(SMALL)),
        &|| Box::new(Mixed::new(LARGE)),
    );
    line(
        "release of a random one of 1,000 or 1,000,000 and acquire of a random other",
        &|| Box::new(Random::new(SMALL, Leases::Same)),
        &|| Box::new(Random::new(LARGE, Leases::Same)),
    );
    line(
        "the same, leases of random length",
        &|| Box::new(Random::new(SMALL, Leases::Mixed)),
        &|| Box::new(Random::new(LARGE, Leases::Mixed)),
    );
    line(
        "hand-over and enqueue, 10 waiters of one and 100,000 of 100 connections",
        &|| Box::new(Crowd::new(FEW, 1)),
        &|| Box::new(Crowd::new(MANY, 100)),
    );
    line(
        "hand-over and enqueue, 10 and 100,000 waiters, each with a connection",
        &|| Box::new(Crowd::new(FEW, u64::MAX)),
        &|| Box::new(Crowd::new(MANY, u64::MAX)),
    );
    if is_wanted("memory") {
        memory::report(&[LARGE / 2, LARGE * 3 / 4, 920_000, LARGE, LARGE * 2]);
    }
    if is_wanted("growth") {
        growth(LARGE);
    }
    if is_wanted("bound") {
        bound();
    }
}

/// The medians of both, in nanoseconds for two commands.
fn in_turns<'a>(small: &'a mut dyn Load, large: &'a mut dyn Load) -> (f64, f64) {
    let mut times = [Vec::new(), Vec::new()];
    for block in 0..=BLOCKS {
        for (load, times) in [&mut *small, &mut *large].into_iter().zip(&mut times) {
            let time = load.block();
            // The first one warms up.
            if block > 0 {
                times.push(time);
            }
        }
    }
    let [small, large] = times.map(median);
    (small, large)
}

/// How long this thread has had a processor.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID);
    time.expect("the system counts the time of threads").into()
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// The longest commands while the machine grows: tables grow in between.
fn growth(count: usize) {
    let mut machine = load::Bench::new();
    let mut times = Vec::with_capacity(count);
    for number in 0..count {
        let operation = machine.acquire_of(number, load::LEASE);
        let start = cpu_time();
        black_box(machine.apply(operation));
        times.push((cpu_time() - start).as_nanos() as f64);
    }
    times.sort_by(f64::total_cmp);
    let at = |share: f64| times[((count - 1) as f64 * share) as usize];
    println!("\nacquires from 0 to {count} held keys, ns, with one reading of the clock:");
    println!(
        "median {}, 99 % {}, 99.9 % {}, 99.99 % {}, longest {}",
        at(0.5),
        at(0.99),
        at(0.999),
        at(0.9999),
        at(1.0)
    );
}

/// One load from memory that waits for the one before it, in 64 KiB and in as much as a million
/// held keys take.
fn bound() {
    println!("\none load that depends on the last, from a random line of");
    for (name, bytes) in [("64 KiB", 1 << 16), ("192 MiB", 192 << 20)] {
        let mut next: Vec<u64> = vec![0; bytes / 8];
        let mut order: Vec<usize> = (0..bytes / 64).collect();
        load::shuffle(&mut order, 1);
        for pair in order.windows(2) {
            next[pair[0] * 8] = (pair[1] * 8) as u64;
        }
        next[order[order.len() - 1] * 8] = (order[0] * 8) as u64;
        let steps = 1_000_000;
        let mut times = Vec::new();
        let mut place = 0;
        for _ in 0..7 {
            let start = cpu_time();
            for _ in 0..steps {
                place = next[place] as usize;
            }
            times.push((cpu_time() - start).as_nanos() as f64 / f64::from(steps));
        }
        black_box(place);
        println!("{name}: {:.1} ns", median(times));
    }
}
