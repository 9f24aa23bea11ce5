//! A leader that is heard, and that no majority answers in time, falls silent.
//!
//! Its heartbeats keep the others from electing anybody, and answers that come too late to count keep it from
//! leading: without this, nobody would be granted anything for as long as that goes on. So after a while it sends no
//! heartbeats, for as long as the others need to elect one of them, and then tries again.

use std::time::Duration;

use openraft::ServerState;
use openraft::async_runtime::WatchReceiver as _;
use tokio::time::{sleep, timeout};

use super::node::{Node, silence};
use crate::system;

impl Node {
    /// Falls silent whenever that has to be, for as long as it is polled.
    pub(super) async fn make_room(&self) {
        let lease = self.pace.lease();
        let mut since = None;
        let mut is_told = false;
        loop {
            sleep(LOOK).await;
            if !self.leads_nobody() {
                (since, is_told) = (None, false);
                continue;
            }
            if since.get_or_insert_with(system::now).elapsed() < lease * 2 {
                continue;
            }
            if !is_told {
                is_told = true;
                tracing::warn!(
                    "no majority answers this leader in time: it falls silent now and then, so that another \
                     one may lead"
                );
            }
            self.raft.runtime_config().heartbeat(false);
            let changed = async {
                while self.leads_nobody() {
                    sleep(LOOK).await;
                }
            };
            // Until they do not keep the lease any more, ask for votes, and have them.
            let _ = timeout(lease * 3, changed).await;
            self.raft.runtime_config().heartbeat(true);
            since = None;
        }
    }

    /// Whether it is the leader of its term, and no majority has answered it for a lease.
    fn leads_nobody(&self) -> bool {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        metrics.state == ServerState::Leader
            && silence(&metrics).is_none_or(|silence| silence >= self.pace.lease())
    }
}

const LOOK: Duration = Duration::from_millis(50);
