//! The statements for MySQL 8 and later and for MariaDB 10.6 and later, and their error numbers.
//!
//! Everything variable stands in the text as digits or hexadecimal digits, because the fence
//! travels in one message together with `BEGIN` and the marker.

use std::fmt::Write as _;

use highwater_lock::{Fence, Mark};

use super::{Class, Failed, Marker, hex};
use crate::{FenceOptions, TableName};

/// Begins, takes the fence and sets the marker. A fence that is not admitted is an error
/// (see [`class`]), so the message stops there.
///
/// With `hold` the transaction runs without autocommit until [`COMMIT`] or [`ROLLBACK`] restores
/// it: what runs after the server silently ended the transaction is then never committed.
///
/// `notes` are assignments of variables of the session that an adapter needs besides. Each
/// statement of a message costs the server a packet and the client a wake-up, so there are few.
pub(crate) fn begin(
    options: &FenceOptions,
    fence: &Fence,
    marker: Marker,
    hold: bool,
    notes: &[String],
) -> String {
    // All values are computed before the first is assigned.
    let mut assign = notes.to_vec();
    if hold {
        assign.push("@highwater_autocommit = @@autocommit, autocommit = 0".to_owned());
    }
    if let Some(wait) = options.lock_wait() {
        let seconds = wait.as_millis().div_ceil(1_000).clamp(1, MAX_LOCK_WAIT);
        assign.push(format!(
            "@highwater_lock_wait = @@innodb_lock_wait_timeout, \
             innodb_lock_wait_timeout = {seconds}"
        ));
    }
    let mut text = String::new();
    if !assign.is_empty() {
        write!(text, "SET {}; ", assign.join(", ")).expect("a string");
    }
    if let Some(level) = options.isolation_level() {
        write!(text, "SET TRANSACTION ISOLATION LEVEL {}; ", level.sql()).expect("a string");
    }
    // Not left to the fence statement: it ends what somebody left open on the connection.
    text + "START TRANSACTION; " + &join(options, fence, marker)
}

/// Takes the fence in a transaction that is open, and sets the marker.
pub(crate) fn join(options: &FenceOptions, fence: &Fence, marker: Marker) -> String {
    let mut text = String::new();
    for mark in fence.marks() {
        text.push_str(&admit(options, fence, mark));
        text.push_str("; ");
    }
    text + &format!("SAVEPOINT {marker}")
}

/// The upsert of one key. It fails if the mark does not admit the fence, by an overflow, which is an
/// error on both servers and in every `sql_mode`. The row is then locked and as it was.
///
/// It leaves 1 in `LAST_INSERT_ID()` if the fence was admitted, and 0 if it was refused: so the
/// triggers of protected tables know it from another write. A function of `LAST_INSERT_ID()` is
/// no constant, which a server would compute, and find to overflow, before it looks at the row.
///
/// The time changes with every fence, so that the row is always written: servers that certify
/// transactions see a conflict only between written rows.
///
/// An assignment sees the new values of earlier ones. There is no `VALUES()`: MySQL warns of it,
/// and what it has instead MariaDB does not read.
fn admit(options: &FenceOptions, fence: &Fence, mark: &Mark) -> String {
    let (token, domain) = (mark.token, format!("x'{}'", fence.domain()));
    let (repeat, admits) = match fence.step() {
        None => (format!("token = {token}"), format!("token <= {token}")),
        Some(step) => {
            let repeat = format!("token = {token} AND step < {step}");
            let admits = format!("(token < {token} OR {repeat})");
            (repeat, admits)
        }
    };
    let (admits, adopt) = if options.adopts_higher() {
        (
            format!("token < {token} OR domain = {domain} AND {repeat}"),
            format!("domain = {domain}, "),
        )
    } else {
        (format!("domain = {domain} AND {admits}"), String::new())
    };
    let raise = format!("token = IF({admits}, {token}, ~LAST_INSERT_ID(0) + 1)");
    // What an assignment reads must not have been assigned yet.
    let (step, raise) = match fence.step() {
        None => (0, format!("step = step * (token = {token}), {raise}")),
        Some(step) => (step.get(), format!("{raise}, step = {step}")),
    };
    format!(
        "INSERT INTO {table} (`key`, domain, token, step, updated_at) \
         VALUES (x'{key}', {domain}, {token}, {step} + 0 * LAST_INSERT_ID(1), UTC_TIMESTAMP(6)) \
         ON DUPLICATE KEY UPDATE {raise}, {adopt}updated_at = UTC_TIMESTAMP(6)",
        table = options.table_ref().quoted('`'),
        key = hex(mark.key.as_bytes()),
    )
}

/// Reads the marks of the fence's keys: key, domain, token, step; the first two as digits.
///
/// For update, because a transaction of the caller may have a snapshot older than what refused. It waits
/// for nobody: the mark that refused is locked by the transaction itself.
pub(crate) fn read(table: &TableName, fence: &Fence) -> String {
    let keys: Vec<String> = (fence.marks().iter())
        .map(|mark| format!("x'{}'", hex(mark.key.as_bytes())))
        .collect();
    format!(
        "SELECT HEX(`key`), HEX(domain), token, step FROM {} WHERE `key` IN ({}) \
         FOR UPDATE SKIP LOCKED",
        table.quoted('`'),
        keys.join(", "),
    )
}

/// Ends a transaction that was begun with `hold`, and restores autocommit and, after a bounded wait
/// (which is always rolled back), the time that a lock is waited for.
///
/// The cast, because a variable that was never set is a text for MariaDB.
pub(crate) const ROLLBACK: &str = "ROLLBACK; SET autocommit = @highwater_autocommit, \
     innodb_lock_wait_timeout = \
     COALESCE(CAST(@highwater_lock_wait AS UNSIGNED), @@innodb_lock_wait_timeout), \
     @highwater_lock_wait = NULL";

/// The highest value of `innodb_lock_wait_timeout`, in seconds.
const MAX_LOCK_WAIT: u128 = 1 << 30;

/// What an error means for the transaction in which it happened.
///
/// A lock wait that timed out (1205) is not transient: the server already waited as long as it was
/// told to.
pub(crate) fn class(number: u16) -> Class {
    match number {
        // deadlock; the record changed since the snapshot (MariaDB); rolled back while committing
        1213 | 1020 | 3101 => Class::Transient,
        // lock wait timeout exceeded
        1205 => Class::LockTimeout,
        // no such table
        1146 => Class::NoTable,
        // a number out of range, which the fence statement raises on purpose
        1690 => Class::Refused,
        _ => Class::Other,
    }
}

/// What an error means that came instead of the answer to `RELEASE marker` (`acknowledged` = 0) or
/// to `COMMIT` (1).
///
/// The server stops at the first error, so without the first answer there was no `COMMIT`. After
/// it only errors that say "rolled back" are believed.
pub(crate) fn failed(number: u16, acknowledged: u32) -> Failed {
    match number {
        // no such savepoint
        1305 if acknowledged == 0 => Failed::Ended,
        // shutdown, interrupted, killed
        1053 | 1317 | 1927 | 3169 => Failed::Unknown,
        _ if acknowledged == 0 => Failed::RolledBack,
        // lock wait timeout, deadlock, changed record, rolled back while committing
        1205 | 1213 | 1020 | 3101 => Failed::RolledBack,
        _ => Failed::Unknown,
    }
}

/// What an error means that came to a message of both, where it is not known to which of them.
///
/// Only the release can miss a savepoint. Whatever else it says is believed as little as of a commit.
#[cfg(any(feature = "diesel-mysql", feature = "diesel-async-mysql"))]
pub(crate) fn failed_at_once(number: u16) -> Failed {
    failed(number, u32::from(number != 1305))
}

#[cfg(test)]
mod tests {
    use highwater_lock::{Domain, FenceKey, FencingToken};

    use super::*;

    #[test]
    fn no_byte_of_a_key_reaches_the_text_unencoded() {
        let key = FenceKey::new("a'; DROP TABLE stock; --").unwrap();
        let fence = Fence::new(Domain::named("it's").unwrap(), key, FencingToken::MIN);
        for text in [
            begin(&FenceOptions::new(), &fence, Marker::new(), true, &[]),
            read(&TableName::DEFAULT, &fence),
        ] {
            assert!(!text.contains("DROP") && !text.contains("it's"), "{text}");
        }
    }

    #[test]
    fn nothing_is_read_after_it_was_assigned() {
        let adopt = FenceOptions::new().domain_policy(crate::DomainPolicy::AdoptHigher);
        let key = FenceKey::new("k").unwrap();
        let fence = Fence::new(Domain::named("d").unwrap(), key, FencingToken::MIN);
        let with_step = fence.clone().with_step(3.try_into().unwrap());
        for options in [FenceOptions::new(), adopt] {
            let assigned = |fence| {
                let text = join(&options, fence, Marker::new());
                text.split_once("ON DUPLICATE KEY UPDATE ")
                    .unwrap()
                    .1
                    .to_owned()
            };
            // The step is made from the old token; the verdict from the old step and domain.
            let text = assigned(&fence);
            assert!(
                text.starts_with("step = step * (token = 1), token = IF("),
                "{text}"
            );
            let text = assigned(&with_step);
            assert!(text.starts_with("token = IF("), "{text}");
            assert!(
                text.contains("~LAST_INSERT_ID(0) + 1), step = 3, "),
                "{text}"
            );
            let adopts = text.contains("step = 3, domain = x'");
            assert_eq!(adopts, options.adopts_higher(), "{text}");
        }
    }

    #[test]
    fn only_a_plain_answer_means_not_committed() {
        assert_eq!(failed(1305, 0), Failed::Ended);
        assert_eq!(failed(1305, 1), Failed::Unknown);
        assert_eq!(failed(1213, 1), Failed::RolledBack);
        for number in [1053, 1180, 1317, 1927] {
            assert_eq!(failed(number, 1), Failed::Unknown, "{number}");
        }
    }

    #[cfg(any(feature = "diesel-mysql", feature = "diesel-async-mysql"))]
    #[test]
    fn of_both_only_a_missing_marker_means_that_the_transaction_was_ended() {
        assert_eq!(failed_at_once(1305), Failed::Ended);
        assert_eq!(failed_at_once(1213), Failed::RolledBack);
        for number in [0, 1053, 1180, 1317, 1927] {
            assert_eq!(failed_at_once(number), Failed::Unknown, "{number}");
        }
    }
}
