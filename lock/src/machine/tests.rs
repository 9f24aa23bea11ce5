//! The tables by themselves, against the maps of the standard library, with their rules checked
//! after every step. What they do together is tested from outside.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use super::index::Index;
use super::list::{List, Place};
use super::rows::Rows;
use super::slab::{Id, Slab};
use super::timers::{Due, Links, Timed, Timers};
use crate::{HashSeed, Key, Timestamp};

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// A hash for each number: all different, few different, or mostly the same line.
const HASHES: [fn(u64) -> u32; 4] = [
    |number| HashSeed::default().number(number),
    |number| HashSeed::default().number(number % 11),
    |number| (number as u32) << 16 | 5,
    |number| number as u32,
];

/// Entries that were displaced from each of two lines, with room in both: nothing stops a search but the
/// number of lines.
#[test]
fn a_search_ends_where_every_line_was_passed_by() {
    let mut slab = Slab::default();
    let mut index = Index::default();
    let mut add = |index: &mut Index, hash| {
        let id = slab.insert(0_u64);
        index.insert(hash, id);
        (hash, id)
    };
    let first: Vec<_> = (0..8).map(|_| add(&mut index, 0)).collect();
    for &(hash, id) in &first[..7] {
        index.remove(hash, id);
    }
    for _ in 0..7 {
        add(&mut index, 1);
    }
    index.check().unwrap();
    assert_eq!(index.shape(), (2, 2), "both lines were passed by");
    for hash in 0..4 {
        assert_eq!(index.find(hash, |_| false), None);
    }
}

#[test]
fn an_index_finds_what_is_in_it_and_nothing_else() {
    for hash in HASHES {
        let mut random = Random(1);
        let mut slab = Slab::default();
        let mut index = Index::default();
        let mut model = BTreeMap::new();
        for step in 0..6_000 {
            // Grows, and then shrinks again.
            let bound = if step < 3_000 { 400 } else { 20 };
            let number = random.below(400);
            let find =
                |index: &Index, slab: &Slab<u64>| index.find(hash(number), |id| slab[id] == number);
            assert_eq!(find(&index, &slab), model.get(&number).copied());
            match model.remove(&number) {
                Some(id) if random.below(400) >= bound / 4 => {
                    index.remove(hash(number), id);
                    slab.remove(id);
                    assert_eq!(find(&index, &slab), None);
                }
                Some(id) => {
                    model.insert(number, id);
                }
                None if random.below(400) < bound => {
                    let id = slab.insert(number);
                    index.insert(hash(number), id);
                    model.insert(number, id);
                }
                None => {}
            }
            assert_eq!((index.len(), slab.len()), (model.len(), model.len()));
            index.check().unwrap();
            slab.check().unwrap();
        }
    }
}

#[test]
fn a_large_index_has_short_ways_and_gives_its_memory_back() {
    let mut slab = Slab::default();
    let mut index = Index::default();
    let seed = HashSeed::default();
    let numbers = 0..100_000;
    for number in numbers.clone() {
        let id = slab.insert(number);
        index.insert(seed.number(number), id);
    }
    index.check().unwrap();
    let (lines, passed) = index.shape();
    assert!(lines * 7 < 4 * 100_000, "{lines} lines for 100,000 entries");
    assert!(
        passed < 10_000,
        "{passed} entries are not in their own line"
    );
    for number in numbers.skip(100) {
        let hash = seed.number(number);
        let id = index.find(hash, |id| slab[id] == number).unwrap();
        index.remove(hash, id);
        slab.remove(id);
    }
    index.check().unwrap();
    assert!(
        index.shape().0 <= 64 * 8,
        "{:?} for 100 entries",
        index.shape()
    );
}

#[test]
fn rows_are_a_map() {
    let mut random = Random(2);
    let mut ids: Slab<u64> = Slab::default();
    let mut rows = Rows::new(HashSeed::default());
    let mut model = BTreeMap::new();
    for step in 0..8_000_u64 {
        // Mostly the next number, sometimes an old one, sometimes the ends.
        let number = match random.below(8) {
            0 => random.below(step + 1),
            1 => u64::MAX - random.below(3),
            2 => step + random.below(700),
            _ => step,
        };
        assert_eq!(rows.get(number), model.get(&number).copied());
        model.entry(number).or_insert_with(|| {
            let id = ids.insert(number);
            rows.insert(number, id);
            id
        });
        while model.len() as u64 > random.below(300) {
            let (&number, _) = model
                .iter()
                .nth(random.below(model.len() as u64) as usize)
                .unwrap();
            rows.remove(number);
            ids.remove(model.remove(&number).unwrap());
            assert_eq!(rows.get(number), None);
        }
        assert_eq!(rows.len(), model.len());
        if step % 16 == 0 {
            rows.check().unwrap();
            assert!(
                model
                    .iter()
                    .all(|(number, id)| rows.get(*number) == Some(*id))
            );
        }
    }
}

struct Alarm {
    due: Due,
    links: Links,
}

impl Timed for Alarm {
    fn due(&self) -> Due {
        self.due
    }

    fn links(&mut self) -> &mut Links {
        &mut self.links
    }

    fn links_ref(&self) -> Links {
        self.links
    }
}

/// How late after the last one each deadline is.
const LATENESS: [fn(&mut Random, u64) -> u64; 5] = [
    |_, step| 1_000 + step,
    |random, step| [10, 30, 250, 3_600][random.below(4) as usize] + step,
    |random, _| random.below(1_000),
    |_, step| 100_000 - step,
    |random, _| random.below(3),
];

#[test]
fn timers_give_the_earliest_first() {
    for lateness in LATENESS {
        let mut random = Random(3);
        let mut alarms = Slab::default();
        let mut timers = Timers::default();
        let mut model: BTreeMap<Due, Id> = BTreeMap::new();
        for step in 0..3_000 {
            let at = Timestamp::from_micros(lateness(&mut random, step));
            let due = Due { at, order: step };
            let links = Links::default();
            let id = alarms.insert(Alarm { due, links });
            timers.insert(&mut alarms, id);
            model.insert(due, id);
            while model.len() as u64 > random.below(120) {
                let first = *model.first_key_value().unwrap().1;
                let any = random.below(model.len() as u64) as usize;
                let any = *model.values().nth(any).unwrap();
                let last = *model.last_key_value().unwrap().1;
                let id = [first, any, any, last][random.below(4) as usize];
                timers.remove(&mut alarms, id);
                let due = alarms.remove(id).due;
                model.remove(&due);
            }
            timers.check(&alarms).unwrap();
            let first = model.first_key_value();
            assert_eq!(timers.first(), first.map(|(due, _)| due.at));
            let last = model.last_key_value().map(|(due, _)| due.at);
            assert_eq!(timers.last(&alarms), last);
            let end = Timestamp::from_micros(u64::MAX);
            assert_eq!(timers.first_due(end), first.map(|(_, id)| *id));
            if let Some((due, id)) = first {
                let before = due
                    .at
                    .as_micros()
                    .checked_sub(1)
                    .map(Timestamp::from_micros);
                assert_eq!(before.and_then(|before| timers.first_due(before)), None);
                assert_eq!(timers.first_due(due.at), Some(*id));
            }
        }
    }
}

#[test]
fn leases_of_a_few_lengths_make_as_many_runs() {
    let mut random = Random(4);
    let mut alarms = Slab::default();
    let mut timers = Timers::default();
    for step in 0..10_000 {
        let length = [10_000, 30_000, 250_000][random.below(3) as usize];
        let at = Timestamp::from_micros(step + length);
        let links = Links::default();
        let due = Due { at, order: step };
        let id = alarms.insert(Alarm { due, links });
        timers.insert(&mut alarms, id);
    }
    timers.check(&alarms).unwrap();
    assert!(timers.runs() <= 3, "{} runs", timers.runs());
}

#[test]
fn a_list_is_a_queue_that_can_be_left_anywhere() {
    let mut random = Random(5);
    let mut records: Slab<(u64, Place)> = Slab::default();
    let mut list = List::default();
    let mut model: Vec<(u64, Id)> = Vec::new();
    for step in 0..3_000 {
        let id = records.insert((step, Place::default()));
        list.append(&mut records, id, |record| &mut record.1);
        model.push((step, id));
        while model.len() as u64 > random.below(30) {
            let (_, id) = model.remove(random.below(model.len() as u64) as usize);
            list.remove(&mut records, id, |record| &mut record.1);
            records.remove(id);
        }
        list.check(&records, |record| Some(&record.1)).unwrap();
        assert_eq!(list.len as usize, model.len());
        let members = list.iter(&records, |record| &record.1);
        let members: Vec<(u64, Id)> = members.map(|(id, record)| (record.0, id)).collect();
        assert_eq!(members, model);
    }
}

#[test]
fn a_place_in_a_slab_is_given_out_again_and_never_twice() {
    let mut slab = Slab::default();
    let all: Vec<Id> = (0..5_000).map(|number| slab.insert(number)).collect();
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), 5_000);
    for id in &all[1_000..4_000] {
        slab.remove(*id);
    }
    slab.check().unwrap();
    assert_eq!((slab.len(), slab.places()), (2_000, 5_000));
    assert_eq!(
        (slab.at(999), slab.at(1_000), slab.at(5_000)),
        (Some(&999), None, None)
    );
    let again: BTreeSet<Id> = (0..3_000).map(|number| slab.insert(number)).collect();
    assert_eq!(again, all[1_000..4_000].iter().copied().collect());
    assert_eq!(slab.places(), 5_000);
    for id in all {
        slab.remove(id);
    }
    slab.check().unwrap();
    assert_eq!(
        (slab.len(), slab.places()),
        (0, 0),
        "an empty one keeps no memory"
    );
}

#[test]
fn keys_that_collide_with_one_seed_do_not_with_another() {
    let (known, secret) = (HashSeed::default(), HashSeed::from_bytes([7; 16]));
    let line = |seed: HashSeed, key: &Key| seed.key(key) % 1_024;
    let names = (0..).map(|number| Key::new(alloc::format!("k{number}")).unwrap());
    let chosen = names.filter(|key| line(known, key) == 17).take(100);
    let chosen: Vec<Key> = chosen.collect();
    let lines: BTreeSet<u32> = chosen.iter().map(|key| line(secret, key)).collect();
    assert!(lines.len() > 80, "only {} of 1,024 lines", lines.len());
    let high = HashSeed::from_bytes([0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
    assert_ne!(
        high.key(&chosen[0]),
        known.key(&chosen[0]),
        "all 16 bytes count"
    );
    assert_ne!(high.number(1), known.number(1));
    assert_eq!(alloc::format!("{secret:?}"), "HashSeed(..)");
}
