//! Random histories over crashes, power losses and failing disks: tokens go up, the domain stays,
//! and no key is granted while somebody's lease on it is running.

use std::collections::BTreeMap;

use super::durable::{DOMAIN, World};
use super::*;
use crate::storage::tests::{Fault, ModelDisk};
use crate::storage::{AfterRestart, Record};

/// splitmix64, see Steele, Lea and Flood (2014).
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        usize::try_from((mixed ^ (mixed >> 31)) % limit as u64).unwrap()
    }

    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }
}

/// What all clients together know, over all starts of the server.
#[derive(Default)]
struct Knowledge {
    now: Duration,
    last_token: u64,
    /// Until when each key is held, and under which token.
    held: BTreeMap<&'static str, (u64, Duration)>,
    grants: usize,
    restarts: usize,
}

/// What a connection has asked and not been told.
#[derive(Clone, Copy)]
enum Asked {
    Acquire { key: &'static str, lease: u8 },
    Release { key: &'static str, token: u64 },
    Extend { key: &'static str, token: u64 },
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Told {
    No,
    Released,
    Extended(u32),
    Granted(u64),
}

struct Client {
    peer: Peer,
    open: BTreeMap<u64, Asked>,
}

const KEYS: [&str; 3] = ["apple", "pear", "plum"];

struct Simulation {
    dice: Dice,
    seed: u64,
    policy: AfterRestart,
    block: u64,
    disk: ModelDisk,
    world: World,
    /// A record that is being written.
    writing: Option<Record>,
    clients: Vec<Client>,
    next_id: u64,
    known: Knowledge,
}

impl Simulation {
    fn new(seed: u64, policy: AfterRestart) -> Self {
        let mut dice = Dice(seed);
        let block = dice.of(&[1, 2, 5, 1_000]);
        let disk = ModelDisk::new();
        let world = World::start_with(&disk, policy, block, Limits::default());
        let mut simulation = Self {
            dice,
            seed,
            policy,
            block,
            disk,
            world,
            writing: None,
            clients: Vec::new(),
            next_id: 0,
            known: Knowledge::default(),
        };
        simulation.connect();
        simulation
    }

    fn connect(&mut self) {
        let client = |_| Client {
            peer: peer(&self.world.desk),
            open: BTreeMap::new(),
        };
        self.clients = (0..3).map(client).collect();
    }

    async fn step(&mut self) {
        match self.dice.below(40) {
            0..12 => self.acquire(),
            12..19 => self.release(),
            19..22 => self.extend(),
            22..28 => {
                let time = Duration::from_millis(self.dice.of(&[1, 300, 1_000, 2_500, 7_000]));
                self.known.now += time;
                self.world.pass(time).await;
            }
            28..36 => self.write(),
            36 => {
                let fault = self.dice.of(&[Fault::Refused, Fault::DoneInPart]);
                self.disk.fail_at(self.dice.below(12), fault);
            }
            37 => {
                let client = self.dice.below(3);
                let gone = self.clients[client].peer.connection;
                self.world.desk.disconnect(gone, Vec::new());
                self.clients[client] = Client {
                    peer: peer(&self.world.desk),
                    open: BTreeMap::new(),
                };
            }
            _ if self.dice.below(3) == 0 => self.restart(),
            _ => {}
        }
        self.listen();
    }

    /// Begins to write a record, or is done with it: a while passes in between.
    fn write(&mut self) {
        match self.writing.take() {
            Some(record) => {
                self.world.write(record);
            }
            None => self.writing = self.world.desk.record().map(|(record, _)| record),
        }
    }

    fn ask(&mut self, client: usize, asked: Asked, ask: impl FnOnce(&Peer, &Desk, u64)) {
        self.next_id += 1;
        let id = self.next_id;
        self.clients[client].open.insert(id, asked);
        ask(&self.clients[client].peer, &self.world.desk, id);
    }

    fn acquire(&mut self) {
        let key = self.dice.of(&KEYS);
        let wait = self.dice.of(&[0, 1, 10, 100]);
        let lease = self.dice.of(&[1, 2, 5, 5, 9, 30]);
        let client = self.dice.below(3);
        let asked = Asked::Acquire { key, lease };
        self.ask(client, asked, |peer, desk, id| {
            peer.acquires(desk, id, &[key], wait, lease);
        });
    }

    fn release(&mut self) {
        let key = self.dice.of(&KEYS);
        if let Some((token, _)) = self.known.held.get(key).copied() {
            let client = self.dice.below(3);
            self.ask(client, Asked::Release { key, token }, |peer, desk, id| {
                peer.releases(desk, id, key, token);
            });
        }
    }

    fn extend(&mut self) {
        let key = self.dice.of(&KEYS);
        let millis = self.dice.of(&[500, 5_000, 20_000, 60_000]);
        if let Some((token, _)) = self.known.held.get(key).copied() {
            let client = self.dice.below(3);
            self.ask(client, Asked::Extend { key, token }, |peer, desk, id| {
                peer.extends(desk, id, key, token, millis);
            });
        }
    }

    /// Takes in all replies of one step, in an order in which they can have come about.
    fn listen(&mut self) {
        let mut told = Vec::new();
        for client in &mut self.clients {
            for reply in client.peer.replies() {
                let (id, reply) = match reply {
                    Reply::Released { id, .. } => (id, Told::Released),
                    Reply::Extended { id, remaining_ms } => (id, Told::Extended(remaining_ms)),
                    Reply::Granted { id, token, .. } => (id, Told::Granted(token.get())),
                    Reply::TimedOut { id }
                    | Reply::NotHeld { id }
                    | Reply::Busy { id }
                    | Reply::Error { id, .. } => (id, Told::No),
                    other => panic!("{other:?}"),
                };
                let asked = client.open.remove(&id.get()).expect("told twice");
                told.push((reply, asked));
            }
        }
        told.sort_by_key(|(reply, _)| *reply);
        for (reply, asked) in told {
            self.known.learn(asked, reply, self.policy, self.seed);
        }
    }

    /// The server ends, in order or not, and another one takes over what is on the disk.
    fn restart(&mut self) {
        let writing = self.writing.take();
        let disk = match self.dice.below(3) {
            0 => {
                self.world.desk.drain();
                self.listen();
                if let Some(record) = writing {
                    self.world.write(record);
                    self.listen();
                }
                self.world.desk.seal();
                self.world.store();
                self.disk.after_process_end()
            }
            end => {
                // It may have been durable already, and nobody got to know.
                if let Some(record) = writing
                    && self.dice.below(2) == 0
                {
                    let _ = self.world.store.commit(&record);
                }
                if end == 1 {
                    self.disk.after_process_end()
                } else {
                    let disks = self.disk.after_power_loss();
                    disks[self.dice.below(disks.len())].clone()
                }
            }
        };
        self.disk = disk;
        let start = World::try_start(&self.disk, self.policy, self.block, Limits::default());
        let seed = self.seed;
        self.world = start.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert_eq!(self.world.desk.domain().as_bytes(), &DOMAIN);
        assert!(
            self.world.first_token > self.known.last_token,
            "seed {seed}: starts at {}, {} was given out",
            self.world.first_token,
            self.known.last_token
        );
        self.known.restarts += 1;
        self.connect();
    }
}

impl Knowledge {
    fn learn(&mut self, asked: Asked, told: Told, policy: AfterRestart, seed: u64) {
        match (asked, told) {
            (_, Told::No) => {}
            (Asked::Acquire { key, lease }, Told::Granted(token)) => {
                let (now, last) = (self.now, self.last_token);
                assert!(token > last, "seed {seed}: {token} after {last}");
                if let Some((other, until)) = self.held.get(key)
                    && policy == AfterRestart::WaitForOldLeases
                {
                    assert!(
                        *until <= now,
                        "seed {seed}: {key} granted at {now:?}, {other} holds it until {until:?}"
                    );
                }
                let until = now + Duration::from_secs(lease.into());
                self.held.insert(key, (token, until));
                self.last_token = token;
                self.grants += 1;
            }
            (Asked::Release { key, token }, Told::Released) => {
                if self.held.get(key).is_some_and(|(held, _)| *held == token) {
                    self.held.remove(key);
                }
            }
            (Asked::Extend { key, token }, Told::Extended(remaining)) => {
                let until = self.now + Duration::from_millis(remaining.into());
                if let Some((held, end)) = self.held.get_mut(key)
                    && *held == token
                {
                    *end = until;
                }
            }
            _ => panic!("seed {seed}: an answer to something else"),
        }
    }
}

async fn histories(policy: AfterRestart, seeds: std::ops::Range<u64>) {
    let (mut grants, mut restarts) = (0, 0);
    for seed in seeds {
        let mut simulation = Simulation::new(seed, policy);
        for _ in 0..400 {
            simulation.step().await;
        }
        grants += simulation.known.grants;
        restarts += simulation.known.restarts;
    }
    println!("{grants} grants, {restarts} restarts");
    assert!(grants > 1_500 && restarts > 500, "nothing happens");
}

#[tokio::test(start_paused = true)]
async fn with_waiting_no_key_has_two_holders_over_any_restart() {
    histories(AfterRestart::WaitForOldLeases, 0..150).await;
}

#[tokio::test(start_paused = true)]
async fn with_trust_in_fencing_tokens_go_up_over_any_restart() {
    histories(AfterRestart::TrustFencing, 1_000..1_100).await;
}
