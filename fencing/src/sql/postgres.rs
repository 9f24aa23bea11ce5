//! The statements for PostgreSQL 13 and later, and its SQLSTATEs.
//!
//! Everything variable stands in the text as digits or hexadecimal digits, because the fence
//! travels in one simple-query message together with `BEGIN` and the marker.

use highwater_lock::{Fence, FencingToken};

use super::{Class, Failed, Marker, hex};
use crate::{FenceOptions, TableName};

/// Begins, takes the fence and sets the marker. A fence that is not admitted is an error
/// (see [`class`]), so the message stops there.
pub(crate) fn begin(options: &FenceOptions, fence: &Fence, marker: Marker) -> String {
    begin_with_token(options, fence, marker, |token| token.to_string())
}

/// The same, and an error with [`OPEN_BEFORE`] in it if a transaction was open already: `BEGIN` is
/// only a warning then, but a transaction is as old as the message that began it.
#[cfg(feature = "tokio-postgres")]
pub(crate) fn begin_first(options: &FenceOptions, fence: &Fence, marker: Marker) -> String {
    begin_with_token(options, fence, marker, |token| {
        format!(
            "CASE WHEN transaction_timestamp() = statement_timestamp() THEN {token} \
             ELSE ('{OPEN_BEFORE} ' || transaction_timestamp()::text)::bigint END"
        )
    })
}

fn begin_with_token(
    options: &FenceOptions,
    fence: &Fence,
    marker: Marker,
    token: impl Fn(FencingToken) -> String,
) -> String {
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
    let upsert = Upsert::new(options, fence);
    format!(
        "BEGIN{level}; {wait}{}; SAVEPOINT {marker}",
        upsert.or_fail(token)
    )
}

/// Takes the fence in a transaction that is open, and sets the marker. Gives one row per admitted
/// key: whether the mark was written by the transaction itself and not inside a savepoint.
pub(crate) fn join(options: &FenceOptions, fence: &Fence, marker: Marker) -> String {
    // A row written inside a savepoint carries the number of the subtransaction.
    let top = "(m.xmin::text = (pg_current_xact_id()::text::numeric % 4294967296)::text)::int";
    let upsert = Upsert::new(options, fence);
    format!("{}; SAVEPOINT {marker}", upsert.returning(top))
}

/// The upsert of all marks of a fence. The rows are worked off as they are listed, in the order of
/// the keys, so two fences cannot deadlock.
///
/// The server parses and plans it for every fence, so the text is as cheap to plan as it can be: no
/// subquery, constants that are constants, and casts instead of operators that are functions in SQL
/// (`text || anynonarray` is one).
struct Upsert<'f> {
    options: &'f FenceOptions,
    fence: &'f Fence,
    /// The step of a mark that is raised or kept.
    step: &'static str,
    /// Whether a mark admits the fence.
    admits: String,
}

impl<'f> Upsert<'f> {
    fn new(options: &'f FenceOptions, fence: &'f Fence) -> Self {
        let (step, repeat) = match fence.step() {
            None => (
                "CASE WHEN m.token = EXCLUDED.token THEN m.step ELSE 0 END",
                "",
            ),
            Some(_) => ("EXCLUDED.step", " AND m.step < EXCLUDED.step"),
        };
        let admits = if options.adopts_higher() {
            format!(
                "m.token < EXCLUDED.token OR (m.token = EXCLUDED.token AND {SAME_DOMAIN}{repeat})"
            )
        } else if repeat.is_empty() {
            format!("{SAME_DOMAIN} AND m.token <= EXCLUDED.token")
        } else {
            format!(
                "{SAME_DOMAIN} AND (m.token < EXCLUDED.token OR (m.token = EXCLUDED.token{repeat}))"
            )
        };
        Self {
            options,
            fence,
            step,
            admits,
        }
    }

    /// An error unless every key is admitted. `token` writes the token that is offered.
    fn or_fail(&self, token: impl Fn(FencingToken) -> String) -> String {
        // It must not be a constant, or the planner would evaluate it for every fence.
        let raised = format!(
            "CASE WHEN {} THEN EXCLUDED.token ELSE ('{REFUSED} ' || m.token::text)::bigint END",
            self.admits
        );
        self.text(token, &raised, "")
    }

    /// A row for each key that is admitted.
    fn returning(&self, returning: &str) -> String {
        let end = format!(" WHERE {} RETURNING {returning}", self.admits);
        self.text(|token| token.to_string(), "EXCLUDED.token", &end)
    }

    fn text(&self, token: impl Fn(FencingToken) -> String, raised: &str, end: &str) -> String {
        let domain = bytes(self.fence.domain().as_bytes());
        let step = self.fence.step().map_or(0, |step| step.get());
        let rows: Vec<String> = (self.fence.marks().iter())
            .map(|mark| {
                let key = bytes(mark.key.as_bytes());
                let token = token(mark.token);
                format!(
                    "({key}, {domain}, {token}, {step}, pg_current_xact_id(), clock_timestamp())"
                )
            })
            .collect();
        format!(
            "INSERT INTO {table} AS m (key, domain, token, step, last_tx, updated_at) \
             VALUES {rows} \
             ON CONFLICT (key) DO UPDATE SET domain = EXCLUDED.domain, token = {raised}, \
             step = {step}, last_tx = EXCLUDED.last_tx, updated_at = EXCLUDED.updated_at{end}",
            table = self.options.table_ref().quoted('"'),
            rows = rows.join(", "),
            step = self.step,
        )
    }
}

/// A constant of bytes, whatever `standard_conforming_strings` says.
fn bytes(bytes: &[u8]) -> String {
    format!("E'\\\\x{}'::bytea", hex(bytes))
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
/// own words, and for a deadlock; in another language a lock timeout is [`Class::Other`]. Of a missing
/// table it says nothing: look for the table.
#[cfg(any(feature = "__diesel", feature = "__diesel-async"))]
pub(crate) fn class_of_text(message: &str, details: Option<&str>) -> Class {
    let says = |text| message.contains(text);
    if says(REFUSED) {
        Class::Refused
    } else if says("could not serialize access") || details.is_some_and(is_deadlock) {
        Class::Transient
    } else if says("due to lock timeout") {
        Class::LockTimeout
    } else {
        Class::Other
    }
}

/// The details of a deadlock have a line for each session, such as "Process 7 waits for ShareLock on
/// transaction 5; blocked by process 6." They are translated, but not the names of the locks.
#[cfg(any(feature = "__diesel", feature = "__diesel-async"))]
fn is_deadlock(details: &str) -> bool {
    let is_lock = |word: &str| word.len() > "Lock".len() && word.ends_with("Lock");
    let waits = |line: &&str| {
        line.split(|char: char| !char.is_alphanumeric())
            .any(is_lock)
    };
    details.lines().filter(waits).count() >= 2
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
/// In the error of [`begin_first`] inside of a transaction.
#[cfg(feature = "tokio-postgres")]
pub(crate) const OPEN_BEFORE: &str = "highwater: a transaction is open since";

#[cfg(test)]
mod tests {
    use highwater_lock::{Domain, FenceKey};

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
        let ours = format!("invalid input syntax for type bigint: \"{REFUSED} 7\"");
        assert_eq!(class("22P02", &ours), Class::Refused);
        assert_eq!(class("22P02", "invalid input syntax"), Class::Other);
        assert_eq!(class("40001", ""), Class::Transient);
    }

    #[cfg(any(feature = "__diesel", feature = "__diesel-async"))]
    #[test]
    fn a_text_is_told_apart_as_its_sqlstate_would_be() {
        let of = |message: &str| class_of_text(message, None);
        let timeout = "canceling statement due to lock timeout";
        assert_eq!(of(timeout), Class::LockTimeout);
        let ours = format!("ungültige Eingabesyntax für Typ bigint: »{REFUSED} 7«");
        assert_eq!(of(&ours), Class::Refused);
        assert_eq!(of("division by zero"), Class::Other);
        for details in [
            "Process 7 waits for ShareLock on transaction 5; blocked by process 6.\n\
             Process 6 waits for AccessExclusiveLock on relation 1 of database 2; blocked by process 7.",
            "Prozess 7 wartet auf ShareLock-Sperre auf Transaktion 5; blockiert von Prozess 6.\n\
             Prozess 6 wartet auf ShareLock-Sperre auf Transaktion 4; blockiert von Prozess 7.",
        ] {
            let class = class_of_text("…", Some(details));
            assert_eq!(class, Class::Transient, "{details}");
        }
        let key = "Key (sku)=(ShareLock) already exists.";
        assert_eq!(class_of_text("…", Some(key)), Class::Other);

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
