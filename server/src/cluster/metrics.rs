//! The numbers of a node, beside those that a single server has too.
//!
//! Their names are promised in `docs/metrics.md`.

use openraft::async_runtime::WatchReceiver as _;

use super::clocks::ClockHealth;
use super::start::Running;
use super::status::NodeRole;
use super::types::Member;
use crate::metrics::Page;

/// Writes them.
pub(crate) fn metrics(page: &mut Page, running: &Running) {
    roles(page, running);
    entries(page, running);
    proposals(page, running);
    clocks(page, running);
}

fn roles(page: &mut Page, running: &Running) {
    let status = running.presence.status();
    let roles = [
        ("leader", NodeRole::Leader),
        ("follower", NodeRole::Follower),
        ("leaderless", NodeRole::Leaderless),
        ("joining", NodeRole::Joining),
    ];
    page.gauges(
        "highwater_cluster_role",
        "1 for what this node is, 0 for what it is not.",
        "role",
        roles.map(|(name, role)| (name, u8::from(status.role == role))),
    );
    page.gauges(
        "highwater_cluster_node_info",
        "The generation of this node; the label tells its slot.",
        "slot",
        [(status.slot, status.generation)],
    );
    page.gauge(
        "highwater_cluster_leader",
        "The slot of the leader, or -1 if none is known.",
        status.leader.map_or(-1, i64::from),
    );
    page.gauge(
        "highwater_cluster_term",
        "The term: each election has a higher one.",
        status.term,
    );
    page.gauge(
        "highwater_cluster_voters",
        "How many nodes vote.",
        status.voters.len(),
    );
    page.gauge(
        "highwater_cluster_whole",
        "On the leader: 1 if all nodes are there and have caught up, so that any one may go.",
        u8::from(status.whole),
    );
    page.gauge(
        "highwater_cluster_dead",
        "1 if a majority of the nodes has lost its memory, and nothing is granted any more.",
        u8::from(status.dead),
    );
    page.gauge(
        "highwater_cluster_other_secrets",
        "Open connections of peers and operators that have proved another peer secret than the first of this node.",
        status.other_secrets,
    );
    let numbers = running.desk.leading().numbers;
    page.counter(
        "highwater_cluster_leader_changes_total",
        "How often this node found that another node leads, or this one.",
        numbers.leaders,
    );
    page.counter(
        "highwater_cluster_reigns_total",
        "How often this node began to lead.",
        numbers.reigns,
    );
}

fn entries(page: &mut Page, running: &Running) {
    // A process that is no node yet has no entries.
    let Some(node) = running.presence.node() else {
        return;
    };
    let metrics = node.raft().metrics();
    let (last, committed, applied, snapshot, followers) = {
        let metrics = metrics.borrow_watched();
        let last = metrics.last_log_index.unwrap_or(0);
        let index = |id: &Option<_>| id.as_ref().map_or(0, super::types::LogId::index);
        let replication = metrics.replication.iter().flatten();
        let followers: Vec<(Member, u64)> = replication
            .filter_map(|(id, matched)| Some((Member::from_id(*id)?, index(matched))))
            .filter(|(follower, _)| *follower != node.member())
            .collect();
        (
            last,
            index(&metrics.local_committed),
            index(&metrics.last_applied),
            index(&metrics.snapshot),
            followers,
        )
    };
    page.gauge(
        "highwater_cluster_last_entry",
        "The last entry of the log of this node.",
        last,
    );
    page.gauge(
        "highwater_cluster_committed_entry",
        "The last entry that it knows to be agreed on.",
        committed,
    );
    page.gauge(
        "highwater_cluster_applied_entry",
        "The last entry that its locks contain.",
        applied,
    );
    page.gauge(
        "highwater_cluster_snapshot_entry",
        "The last entry that its snapshot contains.",
        snapshot,
    );
    let behind = followers.iter();
    page.gauges(
        "highwater_cluster_behind_entries",
        "On the leader: by how many entries each other node is behind, as far as is known.",
        "slot",
        behind.map(|(follower, matched)| (follower.slot.get(), last.saturating_sub(*matched))),
    );
}

fn proposals(page: &mut Page, running: &Running) {
    let leading = running.desk.leading();
    page.gauge(
        "highwater_cluster_asked",
        "Requests that wait to be proposed.",
        leading.asked,
    );
    page.gauge(
        "highwater_cluster_proposed",
        "Batches that were proposed and have no outcome yet.",
        leading.proposed,
    );
    page.histogram(
        "highwater_cluster_batch_commands",
        "Commands in the batches that this node proposed.",
        &leading.numbers.commands,
        1,
    );
    page.histogram(
        "highwater_cluster_log_write_seconds",
        "How long each write of the log took, with its sync.",
        &running.writes.read(),
        MICROS_PER_SECOND,
    );
}

fn clocks(page: &mut Page, running: &Running) {
    let clock = running.presence.status().clock;
    let all = [
        ClockHealth::Good,
        ClockHealth::Differs,
        ClockHealth::Unmeasured,
    ];
    page.gauges(
        "highwater_cluster_clock",
        "1 for what this node makes of its own clock, else 0.",
        "health",
        all.map(|health| (health.name(), u8::from(clock.health == health))),
    );
    let peers = || clock.peers.iter();
    page.gauges(
        "highwater_cluster_clock_differs",
        "1 if the clock of another voter was found to run at another rate than that of this node.",
        "slot",
        peers().map(|peer| (peer.slot, u8::from(peer.differs))),
    );
    let rates = peers().filter_map(|peer| Some((peer.slot, peer.rate_ppm?)));
    page.gauges(
        "highwater_cluster_clock_rate_ppm",
        "By how many millionths the clock of another voter runs faster than that of this node.",
        "slot",
        rates,
    );
    let errors = peers().filter_map(|peer| Some((peer.slot, peer.error_ppm?)));
    page.gauges(
        "highwater_cluster_clock_error_ppm",
        "How far that may be from the truth.",
        "slot",
        errors,
    );
    let walls = peers().filter_map(|peer| Some((peer.slot, seconds(peer.wall_ahead_micros?))));
    page.gauges(
        "highwater_cluster_wall_clock_ahead_seconds",
        "How far the wall clock of another voter is ahead of that of this node. Nothing follows from it.",
        "slot",
        walls,
    );
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a float is what the format has, and 53 bits are plenty"
)]
fn seconds(micros: i64) -> f64 {
    micros as f64 / f64::from(MICROS_PER_SECOND)
}

const MICROS_PER_SECOND: u32 = 1_000_000;
