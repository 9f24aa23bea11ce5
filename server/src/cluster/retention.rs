//! How much of the log a node keeps beside its snapshot.
//!
//! A node that is behind is sent what it lacks from the log, or a whole snapshot if the log does not
//! have it any more. A snapshot may take long to send, and more entries come meanwhile: if those were
//! not kept, the node would need the next snapshot as soon as it has this one, and so on. So the leader
//! leaves out nothing that a node still lacks which is there, up to a bound.

use std::collections::BTreeMap;
use std::time::Duration;

use openraft::ServerState;
use openraft::async_runtime::WatchReceiver as _;
use tokio::time::{Instant, sleep};

use super::node::Node;
use super::rules;
use super::succession::{Metrics, is_lively, matched};
use super::types::Member;
use crate::system;

/// How many entries a node keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Retention {
    /// Those that a snapshot always leaves in the log, for nodes that are a little behind.
    pub(super) least: u64,
    /// Those that it may leave there for nodes that are far behind.
    pub(super) most: u64,
}

impl Retention {
    /// What is kept if a snapshot is taken after so many entries.
    pub(super) fn beside(snapshot_every: u64) -> Self {
        Self {
            least: snapshot_every / rules::KEPT_PART,
            most: snapshot_every.saturating_mul(rules::KEPT_TIMES),
        }
    }

    /// The last entry that may be left out. `lacking` are the entries from which on others are without.
    fn limit(self, snapshot: u64, lacking: impl IntoIterator<Item = u64>) -> u64 {
        let wanted = snapshot.saturating_sub(self.least);
        let wanted = lacking.into_iter().fold(wanted, u64::min);
        wanted.max(snapshot.saturating_sub(self.most))
    }
}

impl Node {
    /// Leaves out of the log what nobody needs, for as long as it is polled.
    pub(super) async fn tidy_log(&self, retention: Retention) {
        let mut heard = BTreeMap::new();
        loop {
            sleep(LOOK_TIME).await;
            let upto = {
                let metrics = self.raft.metrics();
                let metrics = metrics.borrow_watched();
                let Some(snapshot) = metrics.snapshot.as_ref().map(|id| id.index()) else {
                    continue;
                };
                let lacking = self.lacking(&metrics, &mut heard);
                let upto = retention.limit(snapshot, lacking);
                let purged = metrics.purged.as_ref().map_or(0, |id| id.index());
                // A little is not worth it: a durable log may be written anew.
                (upto >= purged + retention.least.max(1)).then_some(upto)
            };
            if let Some(upto) = upto
                && let Err(error) = self.raft.trigger().purge_log(upto).await
            {
                tracing::debug!(%error, "the log is not tidied any more");
                return;
            }
        }
    }

    /// What the others have that were there not long ago, while this node leads. `heard` is since when each of
    /// them has been silent.
    fn lacking(&self, metrics: &Metrics, heard: &mut BTreeMap<u64, Instant>) -> Vec<u64> {
        let members = metrics.membership_config.membership();
        heard.retain(|id, _| members.get_node(id).is_some());
        if metrics.state != ServerState::Leader {
            heard.clear();
            return Vec::new();
        }
        let now = system::now();
        let mut lacking = Vec::new();
        for (id, _) in members.nodes().filter(|(id, _)| **id != self.member.id()) {
            // At first nobody is known to be silent.
            let since = heard.entry(*id).or_insert(now);
            if is_lively(metrics, *id, self.pace.lease()) {
                *since = now;
            }
            if now.duration_since(*since) < GIVEN_UP
                && let Some(member) = Member::from_id(*id)
            {
                lacking.push(matched(metrics, member).unwrap_or(0));
            }
        }
        lacking
    }
}

/// How often it is looked whether something can be left out.
const LOOK_TIME: Duration = Duration::from_millis(50);
/// For how long the log is kept for a node that does not answer.
const GIVEN_UP: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_lack_is_kept_up_to_a_bound() {
        let retention = Retention {
            least: 20,
            most: 1_000,
        };
        assert_eq!(retention.limit(100, []), 80);
        assert_eq!(retention.limit(100, [200, 90]), 80);
        assert_eq!(retention.limit(100, [200, 70]), 70);
        // It is being sent a snapshot, and has nothing yet.
        assert_eq!(retention.limit(1_000, [1_010, 0]), 0);
        assert_eq!(retention.limit(1_600, [1_610, 0]), 600);
        assert_eq!(retention.limit(10, []), 0);
    }
}
