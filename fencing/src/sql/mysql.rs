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
pub(crate) fn begin(options: &FenceOptions, fence: &Fence, marker: Marker, hold: bool) -> String {
    let mut text = String::new();
    if hold {
        text.push_str("SET @highwater_autocommit = @@autocommit; SET autocommit = 0; ");
    }
    if let Some(wait) = options.lock_wait() {
        let seconds = wait.as_millis().div_ceil(1_000).clamp(1, MAX_LOCK_WAIT);
        write!(
            text,
            "SET @highwater_lock_wait = @@innodb_lock_wait_timeout; \
             SET innodb_lock_wait_timeout = {seconds}; "
        )
        .expect("a string");
    }
    if let Some(level) = options.isolation_level() {
        write!(text, "SET TRANSACTION ISOLATION LEVEL {}; ", level.sql()).expect("a string");
    }
    text + "START TRANSACTION; " + &join(options, fence, marker)
}

/// Takes the fence in a transaction that is open, and sets the marker.
pub(crate) fn join(options: &FenceOptions, fence: &Fence, marker: Marker) -> String {
    let mut text = String::new();
    for mark in fence.marks() {
        text.push_str(&admit(options, fence, mark));
        // More than one row from a scalar subquery is an error on both servers and in every
        // sql_mode; the subquery is only evaluated when the mark refused.
        text.push_str(
            "; SET @highwater = IF(LAST_INSERT_ID() = 1, 1, (SELECT 1 UNION ALL SELECT 2)); ",
        );
    }
    text + &format!("SAVEPOINT {marker}")
}

/// The upsert of one key. Afterwards `LAST_INSERT_ID()` is 1 if it was admitted, 2 if the token is
/// stale, 3 if the step was applied before, 4 if the mark belongs to another domain.
///
/// `step` is assigned before `domain`, and that before `token`, because an assignment sees the new
/// values of earlier ones.
/// `VALUES()` is the only form that both servers read.
fn admit(options: &FenceOptions, fence: &Fence, mark: &Mark) -> String {
    let step = fence.step().map_or(0, |step| step.get());
    let (repeat, new_step) = match fence.step() {
        None => (
            "1".to_owned(),
            "IF(token = VALUES(token), step, 0)".to_owned(),
        ),
        Some(_) => (format!("IF(step < {step}, 1, 3)"), step.to_string()),
    };
    let (foreign, raise) = if options.adopts_higher() {
        (
            "IF(token < VALUES(token), 1, 4)",
            "domain = IF(token < VALUES(token), VALUES(domain), domain), \
             token = GREATEST(token, VALUES(token))",
        )
    } else {
        (
            "4",
            "token = IF(domain = VALUES(domain), GREATEST(token, VALUES(token)), token)",
        )
    };
    format!(
        "INSERT INTO {table} (`key`, domain, token, step, updated_at) \
         VALUES (x'{key}', x'{domain}', {token}, {step} + 0 * LAST_INSERT_ID(1), UTC_TIMESTAMP(6)) \
         ON DUPLICATE KEY UPDATE step = IF(LAST_INSERT_ID(CASE \
         WHEN domain <> VALUES(domain) THEN {foreign} WHEN token > VALUES(token) THEN 2 \
         WHEN token < VALUES(token) THEN 1 ELSE {repeat} END) = 1, {new_step}, step), \
         {raise}, \
         updated_at = VALUES(updated_at)",
        table = options.table_ref().quoted('`'),
        key = hex(mark.key.as_bytes()),
        domain = fence.domain(),
        token = mark.token,
    )
}

/// Reads the marks of the fence's keys: key, domain, token, step; the first two as digits.
pub(crate) fn read(table: &TableName, fence: &Fence) -> String {
    let keys: Vec<String> = (fence.marks().iter())
        .map(|mark| format!("x'{}'", hex(mark.key.as_bytes())))
        .collect();
    format!(
        "SELECT HEX(`key`), HEX(domain), token, step FROM {} WHERE `key` IN ({})",
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
        // a subquery gave more than one row, raised by `join` on purpose
        1242 => Class::Refused,
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

#[cfg(test)]
mod tests {
    use highwater_lock::{Domain, FenceKey, FencingToken};

    use super::*;

    #[test]
    fn no_byte_of_a_key_reaches_the_text_unencoded() {
        let key = FenceKey::new("a'; DROP TABLE stock; --").unwrap();
        let fence = Fence::new(Domain::named("it's").unwrap(), key, FencingToken::MIN);
        for text in [
            begin(&FenceOptions::new(), &fence, Marker::new(), true),
            read(&TableName::DEFAULT, &fence),
        ] {
            assert!(!text.contains("DROP") && !text.contains("it's"), "{text}");
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
}
