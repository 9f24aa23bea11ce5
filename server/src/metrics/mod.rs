//! The numbers of a running server, and the page that shows them.
//!
//! [`Tally`] is counted at the desk, [`Traffic`] around the connections. Their names outside are
//! part of what the server promises and stand here and in `docs/metrics.md`; a test holds the two
//! together.

mod histogram;
mod tally;
mod text;
mod traffic;

#[cfg(feature = "cluster")]
pub(crate) use self::histogram::{Histogram, SharedHistogram};
pub(crate) use self::tally::{Tally, micros};
pub(crate) use self::text::Page;
#[cfg(feature = "cluster")]
pub(crate) use self::traffic::Count;
pub(crate) use self::traffic::{Closed, Traffic};

use highwater_protocol::ErrorCode;

use self::tally::ERROR_CODES;
use crate::connection::Shared;

/// The whole page.
pub(crate) fn page(shared: &Shared) -> String {
    let mut page = Page::default();
    about(&mut page, shared);
    connections(&mut page, shared);
    locks(&mut page, shared);
    storage(&mut page, shared);
    #[cfg(feature = "cluster")]
    if let Some(running) = shared.desk.cluster() {
        crate::cluster::metrics(&mut page, running);
    }
    admin(&mut page, shared);
    limits(&mut page, shared);
    page.into_text()
}

fn about(page: &mut Page, shared: &Shared) {
    let version = [(env!("CARGO_PKG_VERSION"), 1)];
    page.gauges(
        "highwater_build_info",
        "Always 1; the label tells the version.",
        "version",
        version,
    );
    let domain = shared.desk.domain().to_string();
    page.gauges(
        "highwater_domain_info",
        "Always 1; the label tells the fencing domain.",
        "domain",
        [(&*domain, 1)],
    );
    page.gauge(
        "highwater_ready",
        "1 while the server grants locks, else 0.",
        u8::from(shared.readiness().is_ready()),
    );
}

fn connections(page: &mut Page, shared: &Shared) {
    let traffic = &shared.traffic;
    page.gauge(
        "highwater_connections",
        "Open connections, those still setting up included.",
        traffic.open.read(),
    );
    page.counter(
        "highwater_connections_accepted_total",
        "Connections that were accepted.",
        traffic.accepted.read(),
    );
    page.counter(
        "highwater_connections_refused_total",
        "Connections that were closed before the hello because the limit was reached.",
        traffic.refused.read(),
    );
    page.counter(
        "highwater_accept_errors_total",
        "Connections that the system did not let the server accept.",
        traffic.accept_errors.read(),
    );
    page.counters(
        "highwater_connections_closed_total",
        "Connections that ended, by reason.",
        "reason",
        Closed::ALL.map(|why| (why.name(), traffic.closed(why).read())),
    );
    page.histogram(
        "highwater_handover_seconds",
        "From the end of an ownership until the system had the next holder's grant to send.",
        &traffic.hand_over.read(),
        MICROS_PER_SECOND,
    );
}

fn locks(page: &mut Page, shared: &Shared) {
    let readings = shared.desk.readings();
    page.gauge(
        "highwater_uptime_seconds",
        "Seconds since the start.",
        readings.uptime.as_secs_f64(),
    );
    page.gauge(
        "highwater_clients",
        "Connections that have passed the challenge.",
        readings.counts.connections,
    );
    page.gauge(
        "highwater_held_keys",
        "Keys that are held, each taken slot counted as one.",
        readings.counts.held_keys,
    );
    page.gauge(
        "highwater_holds",
        "Ownerships; one may hold several keys.",
        readings.holds,
    );
    page.gauge(
        "highwater_waiters",
        "Requests in all queues.",
        readings.counts.waiters,
    );
    asked(page, &readings.tally);
    grants(page, &readings.tally);
    ends(page, &readings.tally);
    refusals(page, &readings.tally);
}

fn asked(page: &mut Page, tally: &Tally) {
    page.counters(
        "highwater_requests_total",
        "Requests that were understood, by kind.",
        "kind",
        [
            ("acquire", tally.acquires),
            ("release", tally.releases),
            ("extend", tally.extensions),
            ("cancel", tally.cancels),
            ("question", tally.questions),
        ],
    );
}

fn grants(page: &mut Page, tally: &Tally) {
    page.counters(
        "highwater_grants_total",
        "Locks that were given out, at once or from a queue.",
        "way",
        [
            ("at_once", tally.granted_at_once),
            ("handed_over", tally.handed_over),
        ],
    );
    page.counter(
        "highwater_grants_undelivered_total",
        "Grants that were given back because their connection ended before they left.",
        tally.undelivered,
    );
    page.counter(
        "highwater_queued_total",
        "Acquires that joined a queue.",
        tally.queued,
    );
    page.counter(
        "highwater_parked_total",
        "Requests that had to wait for the disk, or for leases of an earlier start.",
        tally.parked,
    );
    page.histogram(
        "highwater_wait_seconds",
        "How long those that were granted from a queue had waited.",
        &tally.waited,
        MICROS_PER_SECOND,
    );
    page.histogram(
        "highwater_queue_depth",
        "Requests in the queue of a key, the new one included, each time one joins; of several keys the longest.",
        &tally.depth,
        1,
    );
    page.counters(
        "highwater_not_acquired_total",
        "Acquires that ended without a lock, by reason.",
        "reason",
        [
            ("not_free", tally.not_free),
            ("timed_out", tally.timed_out + tally.timed_out_parked),
            ("cancelled", tally.cancelled),
            ("draining", tally.dropped),
        ],
    );
}

fn ends(page: &mut Page, tally: &Tally) {
    page.counter(
        "highwater_releases_total",
        "Locks that their holders gave back.",
        tally.released,
    );
    page.counter(
        "highwater_stale_releases_total",
        "Releases with a token that is not or no longer that of a holder.",
        tally.stale_releases,
    );
    page.counter(
        "highwater_extensions_total",
        "Leases that were extended.",
        tally.extended,
    );
    page.counter(
        "highwater_stale_extensions_total",
        "Extensions with a token that is not or no longer that of a holder.",
        tally.stale_extensions,
    );
    page.counter(
        "highwater_expiries_total",
        "Leases that ended without a release.",
        tally.expired,
    );
    page.counter(
        "highwater_force_releases_total",
        "Force-releases by operators.",
        tally.forced,
    );
}

fn refusals(page: &mut Page, tally: &Tally) {
    let busy = &tally.busy;
    page.counters(
        "highwater_busy_total",
        "Acquires that were answered busy, by what was used up.",
        "reason",
        [
            ("keys", busy.keys),
            ("waiters", busy.waiters),
            ("waiters_per_key", busy.waiters_per_key),
            ("waiters_per_connection", busy.waiters_per_connection),
            ("tokens", busy.tokens),
            ("other", busy.other),
        ],
    );
    let known = ERRORS.map(|(code, name)| (name, tally.errors[usize::from(code.to_byte())]));
    let named: u64 = known.iter().map(|(_, count)| count).sum();
    let all: u64 = tally.errors.iter().sum();
    page.counters(
        "highwater_errors_total",
        "Requests that were answered with an error, by its code.",
        "code",
        known.into_iter().chain([("other", all - named)]),
    );
}

fn storage(page: &mut Page, shared: &Shared) {
    let counts = shared.desk.storage_counts();
    page.counter(
        "highwater_state_records_total",
        "Records of the state that were made durable.",
        counts.records,
    );
    page.counter(
        "highwater_state_syncs_total",
        "Syncs of files and directories for that.",
        counts.syncs,
    );
    page.counter(
        "highwater_token_blocks_total",
        "Blocks of tokens that were reserved.",
        counts.blocks,
    );
}

fn admin(page: &mut Page, shared: &Shared) {
    page.gauge(
        "highwater_admin_connections",
        "Open connections of the admin listener.",
        shared.traffic.admin_open.read(),
    );
    page.counter(
        "highwater_admin_requests_total",
        "Requests to the admin listener.",
        shared.traffic.admin_requests.read(),
    );
    page.counter(
        "highwater_admin_refused_total",
        "Requests to the admin listener without a right to an answer.",
        shared.traffic.admin_refused.read(),
    );
}

fn limits(page: &mut Page, shared: &Shared) {
    let limits = &shared.limits;
    let locks = &limits.locks;
    page.gauges(
        "highwater_limit",
        "The most there can be of what the label names.",
        "of",
        [
            ("connections", limits.connections as u64),
            ("keys", locks.keys.into()),
            ("waiters", locks.waiters.into()),
            ("waiters_per_key", locks.waiters_per_key.into()),
            (
                "waiters_per_connection",
                locks.waiters_per_connection.into(),
            ),
            ("slots", locks.slots.into()),
            ("output_bytes", limits.effective_output_bytes() as u64),
        ],
    );
}

const MICROS_PER_SECOND: u32 = 1_000_000;
const ERRORS: [(ErrorCode, &str); 10] = [
    (ErrorCode::BadKey, "bad_key"),
    (ErrorCode::BadLease, "bad_lease"),
    (ErrorCode::NotActive, "not_active"),
    (ErrorCode::NoLeader, "no_leader"),
    (ErrorCode::BadKeySet, "bad_key_set"),
    (ErrorCode::GroupMismatch, "group_mismatch"),
    (ErrorCode::BadToken, "bad_token"),
    (ErrorCode::BadTime, "bad_time"),
    (ErrorCode::BadSlots, "bad_slots"),
    (ErrorCode::OtherUse, "other_use"),
];
const _: () = {
    let mut place = 0;
    while place < ERRORS.len() {
        assert!((ERRORS[place].0.to_byte() as usize) < ERROR_CODES);
        place += 1;
    }
};
