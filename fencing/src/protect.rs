//! Tables that the database itself protects: a write without an admitted fence for the row's key, in
//! the same transaction, is refused, whichever program it comes from.
//!
//! Prints SQL and runs nothing: put it into your migrations, or let `highwater protect` run it. How
//! each database tells, and what slips through, stands in `docs/forms.md`.
//!
//! ```
//! use highwater_fencing::protect::{Protection, RowKey};
//! use highwater_fencing::{TableName, migrate::Dialect};
//!
//! // The fence of a row of `stock` has the key `stock/` followed by the SKU.
//! let key = RowKey::sql("'stock/' || {sku}")?;
//! let stock = Protection::new(TableName::new("stock")?, key);
//! let sql = stock.install(Dialect::Postgres);
//! assert!(sql.contains("highwater_protect"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::fmt;

use crate::TableName;
use crate::migrate::Dialect;

/// A table, and how the key of the fence of one of its rows is formed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Protection {
    table: TableName,
    key: RowKey,
    marks: TableName,
}

impl Protection {
    /// Protects `table` with the marks in the default table.
    pub fn new(table: TableName, key: RowKey) -> Self {
        Self {
            table,
            key,
            marks: TableName::DEFAULT,
        }
    }

    /// Uses the marks of another table. On SQLite it must be in the same schema as the table.
    #[must_use]
    pub fn marks(mut self, marks: TableName) -> Self {
        self.marks = marks;
        self
    }

    /// The SQL that protects the table, to be run by its owner in a database where
    /// [`print_protect`](crate::migrate::print_protect) was applied. It can be run again, also with
    /// another key.
    ///
    /// On MySQL and MariaDB it is not one transaction; the table is locked meanwhile, and a program
    /// that dies half-way leaves it less protected than before: run it again. There the name of the
    /// table may have 47 bytes. On SQLite run it inside a transaction.
    pub fn install(&self, dialect: Dialect) -> String {
        match dialect {
            Dialect::Postgres => format!(
                "SELECT highwater_protect({}::regclass, {}, {}::regclass);\n",
                literal(&self.table.quoted('"')),
                literal(&self.key.of(|column| format!("\"{column}\""))),
                literal(&self.marks.quoted('"')),
            ),
            Dialect::MySql => self.install_mysql(),
            Dialect::Sqlite => self.install_sqlite(),
        }
    }

    /// The SQL that takes the protection off.
    pub fn remove(&self, dialect: Dialect) -> String {
        remove(dialect, &self.table)
    }

    fn install_mysql(&self) -> String {
        let table = self.table.quoted('`');
        let marks = self.marks.quoted('`');
        let key = |row: &str| {
            let key = self.key.of(|column| format!("{row}.`{column}`"));
            // Bytes as they are; text as UTF-8, whatever the column has; numbers in decimal.
            format!(
                "CAST(IF(CHARSET({key}) = 'binary', CAST({key} AS BINARY), \
                 CONVERT({key} USING utf8mb4)) AS BINARY)"
            )
        };
        // Of the mark itself stands who stamped it; what is asked is whether that is still open, here.
        let unfenced = |marks: &str| {
            format!(
                "NOT EXISTS (SELECT 1 FROM {marks} AND e.state = 'ACTIVE' \
                 /*!80016 AND e.thread_id = @highwater_thread */)"
            )
        };
        let of_one = |row| {
            unfenced(&format!(
                "{marks} AS m JOIN {MYSQL_OPEN} WHERE m.`key` = {}",
                key(row)
            ))
        };
        // One look for both, which are mostly the same.
        let of_both = unfenced(&format!(
            "{marks} AS m JOIN {marks} AS o ON o.tx = m.tx JOIN {MYSQL_OPEN} \
             WHERE m.`key` = {} AND o.`key` = {}",
            key("NEW"),
            key("OLD")
        ));
        let mut sql = format!("LOCK TABLES {table} WRITE;\n");
        let events = [
            ("insert", of_one("NEW")),
            ("update", of_both),
            ("delete", of_one("OLD")),
        ];
        for (event, unfenced) in events {
            let trigger = in_schema(&self.table, &trigger(event, &self.table), '`');
            sql.push_str(&format!(
                "DROP TRIGGER IF EXISTS {trigger};\n\
                 CREATE TRIGGER {trigger} AFTER {verb} ON {table} FOR EACH ROW\n    \
                 IF {unfenced} THEN\n        \
                 SIGNAL SQLSTATE '45000' SET MYSQL_ERRNO = 1644, CONSTRAINT_NAME = \
                 'highwater_protected', TABLE_NAME = '{name}', MESSAGE_TEXT = \
                 'no fence was admitted in this transaction for the key of this row';\n    \
                 END IF;\n",
                verb = event.to_uppercase(),
                name = self.table.name(),
            ));
        }
        sql + "UNLOCK TABLES;\n"
    }

    fn install_sqlite(&self) -> String {
        let open = in_schema(&self.marks, &open_name(&self.marks), '"');
        let open = open.rsplit_once('.').map_or(&*open, |(_, name)| name);
        let table = self.table.quoted('"');
        let on = format!("\"{}\"", self.table.name());
        let of_one = |row: &str| {
            let key = self.key.of(|column| format!("{row}.\"{column}\""));
            format!("NOT EXISTS (SELECT 1 FROM {open} WHERE \"key\" = CAST({key} AS BLOB))")
        };
        let events = [
            ("insert", of_one("NEW")),
            ("update", format!("{} OR {}", of_one("OLD"), of_one("NEW"))),
            ("delete", of_one("OLD")),
        ];
        // A trigger is created whatever columns it names, so they are looked for first.
        let key = self.key.of(|column| format!("{on}.\"{column}\""));
        let mut sql = format!("SELECT {key} FROM {table} LIMIT 0;\n");
        for (event, unfenced) in events {
            let trigger = in_schema(&self.table, &trigger(event, &self.table), '"');
            sql.push_str(&format!(
                "DROP TRIGGER IF EXISTS {trigger};\n\
                 CREATE TRIGGER {trigger} AFTER {verb} ON {on}\nWHEN {unfenced} BEGIN\n    \
                 SELECT RAISE(ABORT, 'highwater_protected: no fence was admitted in this \
                 transaction for the key of this row of {table_text}');\nEND;\n",
                verb = event.to_uppercase(),
                table_text = table.replace('"', ""),
            ));
        }
        sql
    }
}

/// The SQL that takes the protection off a table.
///
/// Stop nothing for it, but know that from then on programs that do not fence can write.
pub fn remove(dialect: Dialect, table: &TableName) -> String {
    if dialect == Dialect::Postgres {
        let table = literal(&table.quoted('"'));
        return format!("SELECT highwater_unprotect({table}::regclass);\n");
    }
    let quote = dialect.quote();
    ["insert", "update", "delete"]
        .map(|event| in_schema(table, &trigger(event, table), quote))
        .map(|trigger| format!("DROP TRIGGER IF EXISTS {trigger};\n"))
        .concat()
}

/// Where SQLite notes which keys are open in the running transaction.
pub(crate) fn open_name(marks: &TableName) -> String {
    if marks.name() == TableName::DEFAULT.name() {
        "highwater_open".to_owned()
    } else {
        format!("{}_open", marks.name())
    }
}

fn trigger(event: &str, table: &TableName) -> String {
    format!("highwater_{event}_{}", table.name())
}

/// A name beside a table.
pub(crate) fn in_schema(table: &TableName, name: &str, quote: char) -> String {
    match table.schema() {
        Some(schema) => format!("{quote}{schema}{quote}.{quote}{name}{quote}"),
        None => format!("{quote}{name}{quote}"),
    }
}

/// A text literal of PostgreSQL, right under every setting of `standard_conforming_strings`.
fn literal(text: &str) -> String {
    format!("E'{}'", text.replace('\\', "\\\\").replace('\'', "''"))
}

/// SQL over the columns of a row that gives the key of its fence, as text or bytes.
///
/// A column is written in braces: `{sku}`. The rest is SQL of the database it is meant for, and
/// is **code**: it becomes part of triggers and runs with the rights of the table's owner. Never
/// put text from outside into it. It has to give the same for the same row, always.
///
/// ```
/// use highwater_fencing::protect::RowKey;
///
/// RowKey::column("sku")?;                       // every database
/// RowKey::sql("'stock/' || {sku}")?;            // PostgreSQL, SQLite
/// RowKey::sql("CONCAT('stock/', {sku})")?;      // MySQL, MariaDB
/// RowKey::sql("{tenant}::text || '/' || {id}")?;
/// # Ok::<(), highwater_fencing::protect::RowKeyError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RowKey {
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Part {
    Sql(String),
    Column(String),
}

impl RowKey {
    /// The value of one column.
    ///
    /// # Errors
    /// The name is not of letters, digits and underscores.
    pub fn column(name: impl AsRef<str>) -> Result<Self, RowKeyError> {
        Self::sql(format!("{{{}}}", name.as_ref()))
    }

    /// An expression.
    ///
    /// # Errors
    /// It names no column, or what is between two braces is not the name of one. On PostgreSQL and
    /// SQLite the database checks the rest when the protection is installed; MySQL and MariaDB check
    /// the names of columns then, and the types at the first write.
    pub fn sql(expression: impl AsRef<str>) -> Result<Self, RowKeyError> {
        let text = expression.as_ref();
        let error = || RowKeyError {
            expression: text.into(),
        };
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('{') {
            let (column, after) = after.split_once('}').ok_or_else(error)?;
            if before.contains('}') || !is_column(column) {
                return Err(error());
            }
            parts.push(Part::Sql(before.to_owned()));
            parts.push(Part::Column(column.to_owned()));
            rest = after;
        }
        if rest.contains('}') || parts.is_empty() {
            return Err(error());
        }
        parts.push(Part::Sql(rest.to_owned()));
        Ok(Self { parts })
    }

    /// The SQL, with each column as `column` writes it.
    fn of(&self, column: impl Fn(&str) -> String) -> String {
        let part = |part: &Part| match part {
            Part::Sql(sql) => sql.clone(),
            Part::Column(name) => column(name),
        };
        self.parts.iter().map(part).collect()
    }
}

impl fmt::Display for RowKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.of(|column| format!("{{{column}}}")))
    }
}

impl std::str::FromStr for RowKey {
    type Err = RowKeyError;

    fn from_str(expression: &str) -> Result<Self, RowKeyError> {
        Self::sql(expression)
    }
}

pub(crate) fn is_column(name: &str) -> bool {
    let word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    (1..=TableName::MAX_BYTES).contains(&name.len())
        && name.bytes().all(word)
        && !name.as_bytes()[0].is_ascii_digit()
}

/// A text that does not give a key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{expression:?} does not give a key: write each column in braces, as in {{sku}}, and name one at \
     least"
)]
pub struct RowKeyError {
    expression: String,
}

/// The transaction that a mark `m` was stamped in, as in the migration, if the server still counts it
/// as the last one of its thread.
const MYSQL_OPEN: &str = "performance_schema.events_transactions_current AS e ON m.tx = \
     CONCAT(CONNECTION_ID(), '-', e.thread_id, '-', e.event_id, '-', e.timer_start)";

#[cfg(test)]
mod tests {
    use super::*;

    fn stock(key: &str) -> Protection {
        Protection::new(
            TableName::new("app.stock").unwrap(),
            RowKey::sql(key).unwrap(),
        )
    }

    #[test]
    fn a_key_names_its_columns_in_braces() {
        let key = RowKey::sql("'a' || {sku} || {id}").unwrap();
        assert_eq!(key.of(|name| format!("<{name}>")), "'a' || <sku> || <id>");
        assert_eq!(key.to_string(), "'a' || {sku} || {id}");
        assert_eq!(RowKey::column("sku").unwrap().to_string(), "{sku}");
        for bad in [
            "", "sku", "{}", "{a b}", "{a", "a}", "}{a}", "{a\"}", "{{a}}", "{1}", "{a}}",
        ] {
            assert!(RowKey::sql(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_quote_in_the_expression_stays_inside_the_literal() {
        let sql = stock(r"E'\'' || {sku}").install(Dialect::Postgres);
        let argument = r#"E'E''\\'''' || "sku"'"#;
        assert!(sql.contains(argument), "{sql}");
    }

    #[test]
    fn what_is_installed_is_what_is_removed() {
        let stock = stock("{sku}");
        for (dialect, quote) in [(Dialect::MySql, '`'), (Dialect::Sqlite, '"')] {
            for event in ["insert", "update", "delete"] {
                let trigger = format!("{quote}app{quote}.{quote}highwater_{event}_stock{quote}");
                let created = format!("CREATE TRIGGER {trigger} AFTER");
                let dropped = format!("DROP TRIGGER IF EXISTS {trigger};");
                let installed = stock.install(dialect);
                assert!(installed.contains(&created), "{installed}");
                assert!(installed.contains(&dropped), "{installed}");
                assert!(stock.remove(dialect).contains(&dropped));
            }
        }
    }

    #[test]
    fn an_update_needs_the_fences_of_both_keys() {
        for dialect in [Dialect::MySql, Dialect::Sqlite] {
            let sql = stock("{sku}").install(dialect);
            let update = sql.split("CREATE TRIGGER").nth(2).unwrap();
            assert!(
                update.contains("OLD.") && update.contains("NEW."),
                "{update}"
            );
        }
    }
}
