//! The statements for PostgreSQL 13 and later, and its SQLSTATEs.
//!
//! Everything variable stands in the text as digits or hexadecimal digits, because the fence
//! travels in one simple-query message together with `BEGIN` and the marker.

use highwater_lock::Fence;

use super::{Class, Failed, Marker, hex};
use crate::{FenceOptions, TableName};

/// Begins, takes the fence and sets the marker. A fence that is not admitted is an error
/// (see [`class`]), so the message stops there.
pub(crate) fn begin(options: &FenceOptions, fence: &Fence, marker: Marker) -> String {
    let level = (options.isolation_level()).map_or(String::new(), |level| {
        format!(" ISOLATION LEVEL {}", level.sql())
    });
    // At least one, because zero means no limit.
    let wait = options.lock_wait().map_or(String::new(), |wait| {
        format!(
            "SET LOCAL lock_timeout = {}; ",
            wait.as_millis().clamp(1, MAX_LOCK_TIMEOUT)
        )
    });
    // The division of labour: the upsert decides, and the count turns a missing row into an error.
    // The cast must not be a constant, or the planner would evaluate it for every fence.
    format!(
        "BEGIN{level}; {wait}WITH admitted AS ({}) SELECT CASE WHEN count(*) = {} THEN 1 \
         ELSE ('{REFUSED} ' || count(*))::int END FROM admitted; SAVEPOINT {marker}",
        admit(options, fence, "1"),
        fence.marks().len(),
    )
}

/// Takes the fence in a transaction that is open, and sets the marker. Gives one row per admitted
/// key: whether the mark was written by the transaction itself and not inside a savepoint.
pub(crate) fn join(options: &FenceOptions, fence: &Fence, marker: Marker) -> String {
    // A row written inside a savepoint carries the number of the subtransaction.
    let top = "(m.xmin::text = (pg_current_xact_id()::text::numeric % 4294967296)::text)::int";
    format!("{}; SAVEPOINT {marker}", admit(options, fence, top))
}

/// The upsert: one row per admitted key. The rows are worked off as they are listed, in the order
/// of the keys, so two fences cannot deadlock.
fn admit(options: &FenceOptions, fence: &Fence, returning: &str) -> String {
    let table = options.table_ref().quoted('"');
    let (new_step, step, repeat) = match fence.step() {
        None => (
            "0".to_owned(),
            "CASE WHEN m.token = EXCLUDED.token THEN m.step ELSE 0 END".to_owned(),
            String::new(),
        ),
        Some(step) => (
            step.to_string(),
            "EXCLUDED.step".to_owned(),
            " AND m.step < EXCLUDED.step".to_owned(),
        ),
    };
    let domain = fence.domain();
    let rows: Vec<String> = (fence.marks().iter())
        .map(|mark| {
            let key = hex(mark.key.as_bytes());
            let token = mark.token;
            format!(
                "(decode('{key}', 'hex'), decode('{domain}', 'hex'), {token}, {new_step}, \
                 pg_current_xact_id(), clock_timestamp())"
            )
        })
        .collect();
    let admitted = if options.adopts_higher() {
        format!("m.token < EXCLUDED.token OR (m.token = EXCLUDED.token AND {SAME_DOMAIN}{repeat})")
    } else {
        format!(
            "{SAME_DOMAIN} AND (m.token < EXCLUDED.token OR (m.token = EXCLUDED.token{repeat}))"
        )
    };
    format!(
        "INSERT INTO {table} AS m (key, domain, token, step, last_tx, updated_at) \
         VALUES {rows} \
         ON CONFLICT (key) DO UPDATE SET domain = EXCLUDED.domain, token = EXCLUDED.token, \
         step = {step}, last_tx = EXCLUDED.last_tx, updated_at = EXCLUDED.updated_at \
         WHERE {admitted} RETURNING {returning}",
        rows = rows.join(", "),
    )
}

/// Reads the marks of the fence's keys: key, domain, token, step; the first two as digits.
pub(crate) fn read(table: &TableName, fence: &Fence) -> String {
    let keys: Vec<String> = (fence.marks().iter())
        .map(|mark| format!("decode('{}', 'hex')", hex(mark.key.as_bytes())))
        .collect();
    format!(
        "SELECT encode(key, 'hex'), encode(domain, 'hex'), token, step FROM {} WHERE key IN ({})",
        table.quoted('"'),
        keys.join(", "),
    )
}

/// What an error means for the transaction in which it happened.
pub(crate) fn class(sqlstate: &str, message: &str) -> Class {
    match sqlstate {
        // serialization_failure, deadlock_detected
        "40001" | "40P01" => Class::Transient,
        // lock_not_available
        "55P03" => Class::LockTimeout,
        // undefined_table
        "42P01" => Class::NoTable,
        // invalid_text_representation, raised by `begin` on purpose
        "22P02" if message.contains(REFUSED) => Class::Refused,
        _ => Class::Other,
    }
}

/// The same for a driver that keeps the text and drops the SQLSTATE, as diesel does.
///
/// What the server says for itself is in the language of its `lc_messages`, so this is sure for our
/// own words only; in another language a deadlock and a lock timeout are [`Class::Other`]. Of a
/// missing table it says nothing: look for the table.
#[cfg(any(feature = "__diesel", feature = "__diesel-async"))]
pub(crate) fn class_of_text(message: &str) -> Class {
    let says = |text| message.contains(text);
    if says(REFUSED) {
        Class::Refused
    } else if says("could not serialize access") || says("deadlock detected") {
        Class::Transient
    } else if says("due to lock timeout") {
        Class::LockTimeout
    } else {
        Class::Other
    }
}

/// What an error of severity ERROR means, that came instead of the answer to `RELEASE marker`
/// (`acknowledged` = 0) or to `COMMIT` (1).
pub(crate) fn failed(sqlstate: &str, acknowledged: u32) -> Failed {
    match sqlstate {
        // no_active_sql_transaction, invalid_savepoint_specification
        "25P01" | "3B001" if acknowledged == 0 => Failed::Ended,
        // statement_completion_unknown
        "40003" => Failed::Unknown,
        // connection exceptions and operator intervention
        state if state.starts_with("08") || state.starts_with("57P") => Failed::Unknown,
        _ => Failed::RolledBack,
    }
}

/// [`failed`] for a driver that hides the SQLSTATE, of an error that left the connection open and
/// came in place of the answer to `RELEASE SAVEPOINT marker; COMMIT` in one message.
///
/// Whatever the language, the text of 25P01 names the command, and that of 3B001 the savepoint.
#[cfg(any(feature = "__diesel", feature = "__diesel-async"))]
pub(crate) fn failed_by_text(message: &str, marker: Marker) -> Failed {
    if message.contains("RELEASE SAVEPOINT") || message.contains(&marker.to_string()) {
        Failed::Ended
    } else {
        Failed::RolledBack
    }
}

/// The highest value of `lock_timeout`, in milliseconds.
const MAX_LOCK_TIMEOUT: u128 = i32::MAX.unsigned_abs() as u128;
const SAME_DOMAIN: &str = "m.domain = EXCLUDED.domain";
const REFUSED: &str = "highwater: fence refused";

#[cfg(test)]
mod tests {
    use highwater_lock::{Domain, FenceKey, FencingToken};

    use super::*;

    #[test]
    fn no_byte_of_a_key_reaches_the_text_unencoded() {
        let key = FenceKey::new("a'; DROP TABLE stock; --").unwrap();
        let fence = Fence::new(Domain::named("it's").unwrap(), key, FencingToken::MIN);
        for text in [
            begin(&FenceOptions::new(), &fence, Marker::new()),
            join(&FenceOptions::new(), &fence, Marker::new()),
            read(&TableName::DEFAULT, &fence),
        ] {
            assert!(!text.contains("DROP") && !text.contains("it's"), "{text}");
        }
    }

    #[test]
    fn only_our_own_cast_error_is_a_refusal() {
        let ours = format!("invalid input syntax for type integer: \"{REFUSED} 0\"");
        assert_eq!(class("22P02", &ours), Class::Refused);
        assert_eq!(class("22P02", "invalid input syntax"), Class::Other);
        assert_eq!(class("40001", ""), Class::Transient);
    }

    #[cfg(any(feature = "__diesel", feature = "__diesel-async"))]
    #[test]
    fn a_text_is_told_apart_as_its_sqlstate_would_be() {
        assert_eq!(class_of_text("deadlock detected"), Class::Transient);
        let timeout = "canceling statement due to lock timeout";
        assert_eq!(class_of_text(timeout), Class::LockTimeout);
        let ours = format!("ungültige Eingabesyntax für Typ integer: »{REFUSED} 0«");
        assert_eq!(class_of_text(&ours), Class::Refused);
        assert_eq!(class_of_text("division by zero"), Class::Other);

        let marker = Marker::new();
        let gone = format!("Sicherungspunkt »{marker}« existiert nicht");
        assert_eq!(failed_by_text(&gone, marker), Failed::Ended);
        let outside = "RELEASE SAVEPOINT kann nur in Transaktionsblöcken verwendet werden";
        assert_eq!(failed_by_text(outside, marker), Failed::Ended);
        let aborted =
            "current transaction is aborted, commands ignored until end of transaction block";
        assert_eq!(failed_by_text(aborted, marker), Failed::RolledBack);
    }

    #[test]
    fn only_a_plain_answer_means_not_committed() {
        assert_eq!(failed("25P01", 0), Failed::Ended);
        assert_eq!(failed("3B001", 0), Failed::Ended);
        assert_eq!(failed("25P02", 0), Failed::RolledBack);
        assert_eq!(failed("40001", 1), Failed::RolledBack);
        assert_eq!(failed("23503", 1), Failed::RolledBack);
        for state in ["40003", "08006", "57P01"] {
            assert_eq!(failed(state, 1), Failed::Unknown, "{state}");
        }
    }
}
