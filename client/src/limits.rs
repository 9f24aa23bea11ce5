//! Every bound of the client in one place.

use std::time::Duration;

/// Connections to a single address.
pub(crate) const CONNECTIONS: usize = 2;
/// The longest time from the first packet to the first request.
pub(crate) const SETUP_TIME: Duration = Duration::from_secs(10);
/// The pause after the first failure to connect; it doubles with each further one.
pub(crate) const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest pause between two attempts to connect.
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_millis(3_200);

/// After how long an attempt is given up for a new one, if its node is newly said to lead a cluster.
pub(crate) const LATE_ATTEMPT: Duration = Duration::from_millis(500);

/// Acquires that wait for one connection to take them up.
pub(crate) const QUEUED_ACQUIRES: usize = 256;
/// Other calls that wait for one connection to take them up.
pub(crate) const QUEUED_CONTROLS: usize = 256;
/// Acquires without an answer on one connection. Others are not bounded by it: a release must
/// get through however many wait.
pub(crate) const UNANSWERED_ACQUIRES: usize = 1_024;
/// Requests that are written together.
pub(crate) const BATCH: usize = 64;
/// Bytes that may stand in front of the socket before nothing more is taken up.
pub(crate) const WRITE_AHEAD_BYTES: usize = 32 * 1024;

/// How much longer than the wait an answer may take, until the connection counts as broken.
pub(crate) const GRACE: Duration = Duration::from_secs(2);
/// How much longer than the wait a server that counts it in milliseconds may take, until it is told
/// to stop.
pub(crate) const LATE: Duration = Duration::from_millis(250);
/// How long the one try of a wait of zero may take with all its repetitions.
pub(crate) const ONE_TRY_BUDGET: Duration = Duration::from_secs(5);
/// How long the answer to anything but a wait may take, until the connection counts as broken.
pub(crate) const ANSWER_TIME: Duration = Duration::from_secs(5);
/// The longest pause within a reply, and the longest stand-still of a write.
pub(crate) const STALL_TIME: Duration = Duration::from_secs(3);
/// After this much silence a server with our extensions is asked whether it is still there.
pub(crate) const SILENCE: Duration = Duration::from_secs(10);

/// How long one attempt to extend a lease may take, unless a sixth of the lease is less.
pub(crate) const EXTEND_ATTEMPT: Duration = Duration::from_secs(2);
/// The least that an attempt to extend a lease gets.
pub(crate) const SHORTEST_EXTEND_ATTEMPT: Duration = Duration::from_millis(100);
/// How long an extension may take with all its repetitions, unless the ticket ends before.
pub(crate) const EXTEND_BUDGET: Duration = Duration::from_secs(5);
/// The shortest lease that can be kept up by itself: less would end before a second attempt.
pub(crate) const SHORTEST_KEPT_LEASE: Duration = Duration::from_millis(300);

/// How long a query may take with all its repetitions.
pub(crate) const QUERY_BUDGET: Duration = Duration::from_secs(5);
/// How long one attempt at it may take.
pub(crate) const QUERY_ATTEMPT: Duration = Duration::from_secs(2);

/// Tickets that were dropped and wait for their release.
pub(crate) const QUEUED_RELEASES: usize = 4_096;
/// Releases of dropped tickets that run at once.
pub(crate) const RUNNING_RELEASES: usize = 64;
/// How long one attempt to release may take.
pub(crate) const RELEASE_ATTEMPT: Duration = Duration::from_secs(2);
/// The first pause before a refused call is made again; it doubles with each further one.
pub(crate) const FIRST_RETRY_PAUSE: Duration = Duration::from_millis(20);
/// The longest such pause.
pub(crate) const LONGEST_RETRY_PAUSE: Duration = Duration::from_millis(500);
/// How many such pauses of one call end early, because the leader of a cluster can be asked; and how
/// many pauses and attempts of a connection, until one has lasted.
pub(crate) const MOST_HOPS: u32 = 8;
/// After how long one more pause or attempt of a connection may end early, if none has lasted.
pub(crate) const HOP_TIME: Duration = Duration::from_secs(1);

/// How long a closing client waits for calls that are under way.
pub(crate) const CLOSE_CALLS: Duration = Duration::from_millis(1_500);
/// How long a closing client works at its last releases.
pub(crate) const CLOSE_RELEASES: Duration = Duration::from_millis(4_000);
/// How long a closing client takes altogether.
pub(crate) const CLOSE_TIME: Duration = Duration::from_millis(4_800);
/// What a caller may rely on for it.
#[cfg(feature = "blocking")]
pub(crate) const CLOSE_BOUND: Duration = Duration::from_secs(5);
/// How long saying goodbye on one connection may take.
pub(crate) const GOODBYE_TIME: Duration = Duration::from_millis(300);
