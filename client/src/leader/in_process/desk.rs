//! The lock core, and who waits for what it grants.

use std::collections::BTreeMap;
use std::time::Duration;

use highwater_lock::{
    Command, Domain, Epoch, Event, FencingToken, KeySet, Limits, Machine, Operation, Reply,
    Timestamp, WaiterId,
};
use tokio::sync::oneshot;

use crate::leader::NodeId;
use crate::system;

/// Everything that a restart forgets.
#[derive(Debug)]
pub(super) struct Desk {
    pub(super) domain: Domain,
    pub(super) machine: Machine,
    pub(super) next_request: u64,
    pub(super) waiting: BTreeMap<WaiterId, (NodeId, oneshot::Sender<highwater_lock::Grant>)>,
    pub(super) nodes: BTreeMap<FencingToken, NodeId>,
}

impl Desk {
    pub(super) fn new() -> Self {
        Self {
            domain: Domain::from_bytes(system::random_bytes()),
            machine: Machine::new(Limits::default(), FencingToken::MIN),
            next_request: 0,
            waiting: BTreeMap::new(),
            nodes: BTreeMap::new(),
        }
    }

    pub(super) fn apply(&mut self, now: Timestamp, operation: Operation) -> Reply {
        let released = match &operation {
            Operation::Release { keys, token, .. } => Some((keys.clone(), *token)),
            _ => None,
        };
        let outcome = self.machine.apply(now, Command::new(EPOCH, operation));
        match (&outcome.reply, released) {
            (Reply::Released, Some((keys, token))) if !self.is_retained(&keys, token) => {
                self.nodes.remove(&token);
            }
            (Reply::ForceReleased { ended, .. }, _) => {
                for hold in ended {
                    self.nodes.remove(&hold.token);
                }
            }
            _ => {}
        }
        let mut unwanted = Vec::new();
        for event in outcome.events {
            match event {
                Event::Granted(grant) => unwanted.extend(self.deliver(grant)),
                Event::TimedOut(waiter) | Event::Dropped(waiter) => {
                    self.waiting.remove(&waiter);
                }
                Event::Expired { token, .. } | Event::RetentionEnded { token, .. } => {
                    self.nodes.remove(&token);
                }
            }
        }
        // Nobody takes them any more; the next in line may.
        for grant in unwanted {
            self.give_back(now, grant);
        }
        outcome.reply
    }

    /// Whether a lease that was released is kept by its minimum.
    fn is_retained(&self, keys: &KeySet, token: FencingToken) -> bool {
        let holders = self.machine.holders(&keys[0]);
        holders.iter().any(|holder| holder.token == token)
    }

    fn deliver(&mut self, grant: highwater_lock::Grant) -> Option<highwater_lock::Grant> {
        let (node, answer) = self.waiting.remove(&grant.waiter)?;
        self.nodes.insert(grant.token, node);
        answer.send(grant).err()
    }

    pub(super) fn give_back(&mut self, now: Timestamp, grant: highwater_lock::Grant) {
        let release = Operation::Release {
            keys: grant.keys,
            token: grant.token,
            minimum_hold: Duration::ZERO,
        };
        self.apply(now, release);
    }
}

/// There is one leader of this machine, for ever.
const EPOCH: Epoch = Epoch::new(1);
