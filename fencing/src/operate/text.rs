//! The statements of an operator, per dialect.
//!
//! Everything variable stands in the text as digits or hexadecimal digits; every column that is
//! read is made text by the database.

use std::time::Duration;

use highwater_lock::{Domain, FenceKey, FencingToken};

use super::Selection;
use crate::TableName;
use crate::migrate::Dialect;
use crate::sql::hex;

/// The statements about one table.
#[derive(Debug)]
pub(super) struct Text {
    dialect: Dialect,
    table: String,
}

impl Text {
    pub(super) fn new(dialect: Dialect, table: &TableName) -> Self {
        Self {
            dialect,
            table: table.quoted(dialect.quote()),
        }
    }

    /// Opens a transaction that waits a bounded time for locks, and sees the newest rows.
    pub(super) fn begin(&self, wait: Duration) -> String {
        match self.dialect {
            Dialect::Postgres => {
                // Zero would mean no bound.
                let wait = wait.as_millis().clamp(1, i32::MAX.unsigned_abs().into());
                format!("BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = {wait}")
            }
            Dialect::MySql => {
                let wait = wait.as_millis().div_ceil(1_000).clamp(1, 1 << 30);
                format!(
                    "SET innodb_lock_wait_timeout = {wait}; \
                     SET TRANSACTION ISOLATION LEVEL READ COMMITTED; START TRANSACTION"
                )
            }
            Dialect::Sqlite => {
                let wait = wait.as_millis().min(i32::MAX.unsigned_abs().into());
                format!("PRAGMA busy_timeout = {wait}; BEGIN IMMEDIATE")
            }
        }
    }

    pub(super) fn commit(&self) -> String {
        "COMMIT".to_owned()
    }

    /// Asks whether this table has triggers that open what is written, for protected tables.
    #[cfg(feature = "sqlx-sqlite")]
    pub(super) fn has_open(table: &TableName) -> String {
        let master = crate::protect::in_schema(table, "sqlite_master", '"');
        let open = crate::protect::open_name(table);
        format!("SELECT name FROM {master} WHERE name = '{open}'")
    }

    /// Takes back what they opened, as the commit of a fenced transaction does.
    #[cfg(feature = "sqlx-sqlite")]
    pub(super) fn close(table: &TableName) -> String {
        crate::sql::sqlite::close(&crate::FenceOptions::new().table_name(table.clone()))
    }

    /// Marks in the order of their keys.
    pub(super) fn list(
        &self,
        selection: &Selection,
        after: Option<&FenceKey>,
        limit: u32,
    ) -> String {
        let mut conditions = self.conditions(selection);
        if let Some(after) = after {
            let after = self.bytes(after.as_bytes());
            conditions.push(format!("{} > {after}", self.key()));
        }
        let select = self.select(&conditions, false);
        format!("{select} LIMIT {limit}")
    }

    /// The highest token of each domain: domain, token, number of marks.
    pub(super) fn floors(&self) -> String {
        let (domain, highest, count) = (
            self.digits("domain"),
            self.as_text("MAX(token)"),
            self.as_text("COUNT(*)"),
        );
        let table = &self.table;
        format!("SELECT {domain}, {highest}, {count} FROM {table} GROUP BY domain")
    }

    /// The selected marks that do not belong to the domain yet.
    pub(super) fn to_adopt(&self, selection: &Selection, to: Domain, lock: bool) -> String {
        let mut conditions = self.conditions(selection);
        conditions.push(format!("domain <> {}", self.bytes(to.as_bytes())));
        self.select(&conditions, lock)
    }

    /// The selected marks of the domain that are below the floor.
    pub(super) fn to_raise(
        &self,
        selection: &Selection,
        domain: Domain,
        floor: FencingToken,
        lock: bool,
    ) -> String {
        let mut conditions = self.conditions(selection);
        conditions.push(format!("domain = {}", self.bytes(domain.as_bytes())));
        conditions.push(format!("token < {floor}"));
        self.select(&conditions, lock)
    }

    /// The marks of these keys.
    pub(super) fn named(&self, keys: &[&FenceKey], lock: bool) -> String {
        self.select(&[self.among(keys)], lock)
    }

    /// Gives these marks, which are locked, another domain and the token that all tokens of their
    /// old one are below.
    pub(super) fn adopt(&self, keys: &[&FenceKey], to: Domain, floor: FencingToken) -> String {
        format!(
            "UPDATE {} SET domain = {}, token = {floor}, step = 0, {} WHERE {} AND token < {floor}",
            self.table,
            self.bytes(to.as_bytes()),
            self.stamps(),
            self.among(keys),
        )
    }

    /// Raises the marks of these keys that belong to the domain, and makes those that are missing.
    pub(super) fn raise(&self, keys: &[&FenceKey], domain: Domain, floor: FencingToken) -> String {
        let domain = self.bytes(domain.as_bytes());
        let now = self.now();
        let last_tx = match self.dialect {
            Dialect::Postgres => ("last_tx, ", "'0', "),
            Dialect::MySql | Dialect::Sqlite => ("", ""),
        };
        let rows: Vec<String> = (keys.iter())
            .map(|key| {
                let key = self.bytes(key.as_bytes());
                format!("({key}, {domain}, {floor}, 0, {}{now})", last_tx.1)
            })
            .collect();
        let (table, key) = (&self.table, self.key());
        let rows = rows.join(", ");
        let insert = |name: &str| {
            format!(
                "INSERT INTO {table}{name} ({key}, domain, token, step, {}updated_at) VALUES {rows}",
                last_tx.0
            )
        };
        let stamps = self.stamps();
        match self.dialect {
            // An assignment sees the new values of earlier ones, so the token comes last.
            Dialect::MySql => {
                let raised = "domain = VALUES(domain) AND token < VALUES(token)";
                format!(
                    "{} ON DUPLICATE KEY UPDATE step = IF({raised}, 0, step), \
                     updated_at = IF({raised}, VALUES(updated_at), updated_at), \
                     token = IF({raised}, VALUES(token), token)",
                    insert("")
                )
            }
            Dialect::Postgres | Dialect::Sqlite => format!(
                "{} ON CONFLICT ({key}) DO UPDATE SET token = {floor}, step = 0, {stamps} \
                 WHERE m.domain = {domain} AND m.token < {floor}",
                insert(" AS m")
            ),
        }
    }

    fn select(&self, conditions: &[String], lock: bool) -> String {
        let updated_at = match self.dialect {
            Dialect::Postgres => {
                r#"to_char(updated_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')"#
            }
            Dialect::MySql => "DATE_FORMAT(updated_at, '%Y-%m-%dT%H:%i:%s.%fZ')",
            Dialect::Sqlite => "updated_at",
        };
        // SQLite locks the whole file.
        let lock = match self.dialect {
            Dialect::Postgres | Dialect::MySql if lock => " FOR UPDATE",
            _ => "",
        };
        let condition = match conditions {
            [] => String::new(),
            conditions => format!(" WHERE {}", conditions.join(" AND ")),
        };
        format!(
            "SELECT {}, {}, {}, {}, {updated_at} FROM {}{condition} ORDER BY {}{lock}",
            self.digits(self.key()),
            self.digits("domain"),
            self.as_text("token"),
            self.as_text("step"),
            self.table,
            self.key(),
        )
    }

    fn conditions(&self, selection: &Selection) -> Vec<String> {
        let key = self.key();
        let mut conditions = Vec::new();
        if let Some(domain) = &selection.domain {
            conditions.push(format!("domain = {}", self.bytes(domain.as_bytes())));
        }
        if let Some(named) = &selection.key {
            conditions.push(format!("{key} = {}", self.bytes(named.as_bytes())));
        }
        if !selection.prefix.is_empty() {
            conditions.push(format!("{key} >= {}", self.bytes(&selection.prefix)));
        }
        if let Some(end) = behind_prefix(&selection.prefix) {
            conditions.push(format!("{key} < {}", self.bytes(&end)));
        }
        conditions
    }

    fn among(&self, keys: &[&FenceKey]) -> String {
        let keys: Vec<String> = (keys.iter())
            .map(|key| self.bytes(key.as_bytes()))
            .collect();
        format!("{} IN ({})", self.key(), keys.join(", "))
    }

    /// What every change of a mark sets. No transaction has the number 0, so no transaction counts
    /// as the one that was admitted.
    fn stamps(&self) -> String {
        let now = self.now();
        match self.dialect {
            Dialect::Postgres => format!("last_tx = '0', updated_at = {now}"),
            Dialect::MySql | Dialect::Sqlite => format!("updated_at = {now}"),
        }
    }

    fn now(&self) -> &'static str {
        match self.dialect {
            Dialect::Postgres => "clock_timestamp()",
            Dialect::MySql => "UTC_TIMESTAMP(6)",
            Dialect::Sqlite => "strftime('%Y-%m-%dT%H:%M:%fZ', 'now')",
        }
    }

    fn key(&self) -> &'static str {
        match self.dialect {
            Dialect::Postgres => "key",
            Dialect::MySql => "`key`",
            Dialect::Sqlite => "\"key\"",
        }
    }

    fn bytes(&self, bytes: &[u8]) -> String {
        match self.dialect {
            Dialect::Postgres => format!("decode('{}', 'hex')", hex(bytes)),
            Dialect::MySql | Dialect::Sqlite => format!("x'{}'", hex(bytes)),
        }
    }

    /// The bytes of a column as hexadecimal digits.
    fn digits(&self, column: &str) -> String {
        match self.dialect {
            Dialect::Postgres => format!("encode({column}, 'hex')"),
            Dialect::MySql | Dialect::Sqlite => format!("HEX({column})"),
        }
    }

    fn as_text(&self, number: &str) -> String {
        match self.dialect {
            Dialect::MySql => format!("CAST({number} AS CHAR)"),
            Dialect::Postgres | Dialect::Sqlite => format!("CAST({number} AS TEXT)"),
        }
    }
}

/// The first bytes behind all that begin with `prefix`, if there are any.
fn behind_prefix(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|byte| *byte < u8::MAX)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_where_its_last_byte_can_be_raised() {
        assert_eq!(behind_prefix(b"a"), Some(b"b".to_vec()));
        assert_eq!(behind_prefix(b"a\xff\xff"), Some(b"b".to_vec()));
        assert_eq!(behind_prefix(b"\xff"), None);
        assert_eq!(behind_prefix(b""), None);
    }

    #[test]
    fn no_byte_of_a_key_reaches_the_text_unencoded() {
        let key = FenceKey::new("a'; DROP TABLE stock; --").unwrap();
        let domain = Domain::named("it's").unwrap();
        for dialect in [Dialect::Postgres, Dialect::MySql, Dialect::Sqlite] {
            let text = Text::new(dialect, &TableName::DEFAULT);
            let selection = Selection::all().key(key.clone()).prefix(key.as_bytes());
            for sql in [
                text.list(&selection, Some(&key), 1),
                text.adopt(&[&key], domain, FencingToken::MIN),
                text.raise(&[&key], domain, FencingToken::MIN),
            ] {
                assert!(!sql.contains("DROP") && !sql.contains("it's"), "{sql}");
            }
        }
    }
}
