//! Whether this node is of use, and what has come in the way for good.

use super::{Desk, Role};
use crate::readiness::Readiness;

/// What this node has found out about its place in the cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Standing {
    #[default]
    Sound,
    /// A majority of the voters has lost its memory.
    Dead,
    /// Another process has its slot.
    Displaced,
    /// An operator has removed it.
    Removed,
}

impl Desk {
    pub(crate) fn readiness(&self) -> Readiness {
        let state = self.state();
        match (state.role, state.standing) {
            (_, Standing::Displaced) => Readiness::Displaced,
            (_, Standing::Removed) => Readiness::Removed,
            _ if state.failed => Readiness::StorageFailed,
            _ if state.draining => Readiness::Draining,
            (_, Standing::Dead) => Readiness::MajorityLost,
            (Role::Leaderless, _) => Readiness::NoLeader,
            (Role::Leading { .. }, _) if state.distrusts_clock => Readiness::Clock,
            (Role::Leading { .. } | Role::Following(_), _) => Readiness::Ready,
        }
    }

    /// Takes note of whether a majority of the voters has lost its memory, and says so if that is new.
    pub(in crate::cluster) fn set_dead(&self, dead: bool) {
        let mut state = self.state();
        match (state.standing, dead) {
            (Standing::Sound, true) => {
                state.standing = Standing::Dead;
                tracing::error!(
                    domain = %self.domain,
                    "the cluster is dead: a majority of its nodes has lost its memory, so nothing is \
                     granted under this identity any more; make a new one with `highwater cluster new`"
                );
            }
            (Standing::Dead, false) => {
                state.standing = Standing::Sound;
                tracing::warn!("the cluster is not dead: nodes that remember are there again");
            }
            _ => {}
        }
    }

    pub(in crate::cluster) fn is_dead(&self) -> bool {
        self.state().standing == Standing::Dead
    }

    /// Another process has taken the slot over: this node has nothing to say any more.
    pub(in crate::cluster) fn displace(&self) {
        self.state().standing = Standing::Displaced;
        self.fail();
    }

    /// This node was removed from the cluster: it has nothing to say any more.
    pub(in crate::cluster) fn remove(&self) {
        self.state().standing = Standing::Removed;
        self.fail();
    }
}
