//! The statements for SQLite 3.37 and later, and its result codes.
//!
//! Values are bound, because a call costs no round trip.

use std::time::Duration;

use super::{Class, Failed};
use crate::protect::{in_schema, open_name};
use crate::{FenceOptions, TableName};

/// Waits for the write lock at the start: a transaction that upgrades later gets BUSY at once.
pub(crate) const BEGIN: &str = "BEGIN IMMEDIATE";

/// The upsert of one key, with key, domain, token and step (which may be NULL) to bind. Gives a
/// row if it was admitted, and in it, as `protected`, whether there may be protected tables: then
/// [`close`] has to run before the commit.
///
/// It is long, and preparing it takes several times as long as running it: adapters keep it prepared.
/// A mark that stays what it was keeps its time too, because SQLite writes no page whose bytes are
/// the same. The schema is asked through a pragma, which looks a name up; reading `sqlite_master`
/// reads all of it.
pub(crate) fn admit(options: &FenceOptions) -> String {
    const REPEAT: &str = "m.token = excluded.token AND (?4 IS NULL OR m.step < ?4)";
    const SAME_DOMAIN: &str = "m.domain = excluded.domain";
    let admitted = if options.adopts_higher() {
        format!("m.token < excluded.token OR ({REPEAT} AND {SAME_DOMAIN})")
    } else {
        format!("{SAME_DOMAIN} AND (m.token < excluded.token OR ({REPEAT}))")
    };
    format!(
        "INSERT INTO {} AS m (\"key\", domain, token, step, updated_at) \
         VALUES (?1, ?2, ?3, COALESCE(?4, 0), strftime('%Y-%m-%dT%H:%M:%fZ', 'now')) \
         ON CONFLICT (\"key\") DO UPDATE SET domain = excluded.domain, token = excluded.token, \
         step = CASE WHEN m.token = excluded.token AND ?4 IS NULL THEN m.step ELSE excluded.step END, \
         updated_at = CASE WHEN m.token = excluded.token AND ?4 IS NULL THEN m.updated_at \
         ELSE excluded.updated_at END \
         WHERE {admitted} \
         RETURNING EXISTS (SELECT 1 FROM pragma_table_info({})) AS protected",
        options.table_ref().quoted('"'),
        arguments(options.table_ref()),
    )
}

/// The name of the table of open keys, and its schema if it has one, as arguments. Names have no
/// character that ends a literal.
fn arguments(marks: &TableName) -> String {
    let name = open_name(marks);
    match marks.schema() {
        Some(schema) => format!("'{name}', '{schema}'"),
        None => format!("'{name}'"),
    }
}

/// Takes back what the fence opened for the triggers of protected tables. The last statement before
/// the marker is released: afterwards such tables refuse every write.
pub(crate) fn close(options: &FenceOptions) -> String {
    let table = options.table_ref();
    format!("DELETE FROM {}", in_schema(table, &open_name(table), '"'))
}

/// Reads the mark of one key to bind: key, domain, token, step; the first two as digits.
pub(crate) fn read(table: &TableName) -> String {
    format!(
        "SELECT hex(\"key\"), hex(domain), token, step FROM {} WHERE \"key\" = ?1",
        table.quoted('"'),
    )
}

/// What an extended result code means for the transaction in which it happened.
pub(crate) fn class(code: i32, message: &str) -> Class {
    match code & 0xff {
        // SQLITE_BUSY and SQLITE_LOCKED with all their extensions
        5 | 6 => Class::Transient,
        // SQLITE_ERROR is all there is for a missing table.
        1 if message.starts_with("no such table") => Class::NoTable,
        _ => Class::Other,
    }
}

/// What an error means that came instead of the answer to `RELEASE marker` (`acknowledged` = 0) or
/// to `COMMIT` (1).
pub(crate) fn failed(code: i32, message: &str, acknowledged: u32) -> Failed {
    match code & 0xff {
        1 if acknowledged == 0 && message.starts_with("no such savepoint") => Failed::Ended,
        // The hook refused: a statement before the release (see `close`), which outside of a
        // transaction is one of its own, or the commit of another transaction than the fenced one.
        _ if code == COMMIT_HOOK => Failed::Ended,
        _ if acknowledged == 0 => Failed::RolledBack,
        // busy, full disk, deferred constraint, interrupted, locked: a transaction that is still open or was rolled back
        5 | 6 | 9 | 13 | 19 => Failed::RolledBack,
        // Above all SQLITE_IOERR, which may come after the commit record was written. SQLITE_NOMEM
        // may come from a WAL hook, which runs after the commit; other errors of such a hook come
        // as SQLITE_ERROR.
        _ => Failed::Unknown,
    }
}

/// Whether `COMMIT` may be repeated: a reader was in the way and the transaction is still open.
pub(crate) fn is_busy(code: i32) -> bool {
    code & 0xff == 5
}

/// How often `COMMIT` is tried, and how long to wait in between: it is too late to run everything
/// again.
pub(crate) const COMMIT_TRIES: u32 = 5;
pub(crate) const COMMIT_PAUSE: Duration = Duration::from_millis(20);
/// SQLITE_CONSTRAINT_COMMITHOOK
const COMMIT_HOOK: i32 = 531;
/// Why a commit was not even tried: see [`hooks`](crate::hooks).
#[cfg(any(feature = "rusqlite", feature = "sqlx-sqlite"))]
pub(crate) const ENDED: &str = "the fenced transaction was rolled back, or a hook was replaced that \
     would tell of it";
/// Why nobody knows what a commit did.
#[cfg(any(feature = "rusqlite", feature = "sqlx-sqlite"))]
pub(crate) const UNSEEN: &str = "the commit did not pass the hook of the fence";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extended_codes_count_as_their_family() {
        for code in [5, 6, 261, 262, 517] {
            assert_eq!(class(code, ""), Class::Transient, "{code}");
        }
        assert_eq!(class(2067, ""), Class::Other);
        assert_eq!(class(1, "no such table: highwater_fence"), Class::NoTable);
        assert_eq!(class(1, "near \"x\""), Class::Other);
    }

    #[test]
    fn only_a_plain_answer_means_not_committed() {
        assert_eq!(failed(1, "no such savepoint: hw_1", 0), Failed::Ended);
        assert_eq!(failed(531, "constraint failed", 0), Failed::Ended);
        assert_eq!(failed(787, "", 0), Failed::RolledBack);
        assert_eq!(failed(787, "", 1), Failed::RolledBack);
        assert_eq!(failed(531, "", 1), Failed::Ended);
        assert_eq!(failed(7, "", 1), Failed::Unknown);
        assert_eq!(failed(10, "", 1), Failed::Unknown);
        assert_eq!(failed(1034, "", 1), Failed::Unknown);
    }
}
