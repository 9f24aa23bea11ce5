//! The fence and the write of one row as one statement, where that is right; and the write alone,
//! for the transaction that is the way everywhere else.
//!
//! A statement that waits for the mark goes on with what it saw before the wait. That is harmless for
//! a row that is named by its key and changed by its own columns, because the database then takes the
//! newest version of the row; it is not for anything else. So nothing else can be said here.

use highwater_lock::Fence;

use crate::migrate::Dialect;
use crate::{FenceOptions, TableName};

/// A write of one row, without its values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    verb: Verb,
    table: TableName,
    /// Columns that name the row.
    keys: Vec<String>,
    sets: Vec<(String, Set)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Update,
    Insert,
    Delete,
}

/// What a column becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Set {
    /// The value.
    To,
    /// What it is, plus the value.
    Plus,
    /// What it is, minus the value.
    Minus,
}

/// A value of a statement, in the order of its placeholders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slot {
    /// The value that names the row in a column of the key.
    Name(usize),
    /// The value of a column that is set.
    Value(usize),
    Key(usize),
    Token(usize),
    Domain,
    /// May be NULL.
    Step,
}

impl Shape {
    pub(crate) fn new(verb: Verb, table: TableName) -> Self {
        Self {
            verb,
            table,
            keys: Vec::new(),
            sets: Vec::new(),
        }
    }

    pub(crate) fn name(&mut self, column: &str) {
        self.keys.push(column.to_owned());
    }

    pub(crate) fn set(&mut self, column: &str, set: Set) {
        self.sets.push((column.to_owned(), set));
    }

    /// Whether it would change anything.
    pub(crate) fn is_complete(&self) -> bool {
        self.verb != Verb::Update || !self.sets.is_empty()
    }

    /// The write alone.
    pub(crate) fn alone(&self, dialect: Dialect) -> (String, Vec<Slot>) {
        let mut text = Text::new(dialect);
        self.write(&mut text, None);
        text.done()
    }

    /// The write alone on PostgreSQL; it fails unless exactly one row was written.
    #[cfg(feature = "__postgres")]
    pub(crate) fn counted(&self) -> (String, Vec<Slot>) {
        let (text, slots) = self.alone(Dialect::Postgres);
        let counted = format!(
            "WITH written AS ({text} RETURNING 1) SELECT CASE WHEN count(*) = 1 THEN 1 \
             ELSE ('{NOT_WRITTEN} ' || count(*))::int END FROM written"
        );
        (counted, slots)
    }

    /// Fence and write in one statement, which fails unless the fence was admitted and exactly one row
    /// was written; `None` where there is no such statement.
    pub(crate) fn with_fence(
        &self,
        dialect: Dialect,
        options: &FenceOptions,
        fence: &Fence,
    ) -> Option<(String, Vec<Slot>)> {
        if options.isolation_level().is_some() {
            // A statement alone has the level of its connection.
            return None;
        }
        match dialect {
            Dialect::Postgres => Some(self.with_fence_postgres(options, fence)),
            // Several marks would be several joins; other domains another condition.
            Dialect::MySql if self.verb == Verb::Update && fence.marks().len() == 1 => {
                (!options.adopts_higher()).then(|| self.with_fence_mysql(options))
            }
            Dialect::MySql | Dialect::Sqlite => None,
        }
    }

    /// The admitted marks are counted before the row is looked for: the condition depends on no row.
    fn with_fence_postgres(&self, options: &FenceOptions, fence: &Fence) -> (String, Vec<Slot>) {
        let mut text = Text::new(Dialect::Postgres);
        let marks = fence.marks().len();
        text.push("WITH fence AS (INSERT INTO ");
        text.push(&options.table_ref().quoted('"'));
        text.push(" AS m (key, domain, token, step, last_tx, updated_at) VALUES ");
        for mark in 0..marks {
            text.push(if mark > 0 { ", (" } else { "(" });
            text.slot(Slot::Key(mark), "::bytea");
            text.push(", ");
            text.slot(Slot::Domain, "::bytea");
            text.push(", ");
            text.slot(Slot::Token(mark), "::bigint");
            text.push(", COALESCE(");
            text.slot(Slot::Step, "::bigint");
            text.push(", 0), pg_current_xact_id(), clock_timestamp())");
        }
        text.push(
            " ON CONFLICT (key) DO UPDATE SET domain = EXCLUDED.domain, token = EXCLUDED.token, \
             step = CASE WHEN m.token = EXCLUDED.token AND ",
        );
        text.slot(Slot::Step, "::bigint");
        text.push(
            " IS NULL THEN m.step ELSE EXCLUDED.step END, last_tx = EXCLUDED.last_tx, \
             updated_at = EXCLUDED.updated_at WHERE ",
        );
        let repeat = |text: &mut Text| {
            text.push("m.domain = EXCLUDED.domain AND m.token = EXCLUDED.token AND (");
            text.slot(Slot::Step, "::bigint");
            text.push(" IS NULL OR m.step < EXCLUDED.step)");
        };
        if options.adopts_higher() {
            text.push("m.token < EXCLUDED.token OR (");
        } else {
            text.push("(m.domain = EXCLUDED.domain AND m.token < EXCLUDED.token) OR (");
        }
        repeat(&mut text);
        text.push(") RETURNING 1), written AS (");
        let admitted = format!("(SELECT count(*) FROM fence) = {marks}");
        self.write(&mut text, Some(&admitted));
        text.push(&format!(
            " RETURNING 1) SELECT CASE WHEN {admitted} AND (SELECT count(*) FROM written) = 1 THEN 1 \
             ELSE ('{NOT_WRITTEN} ' || (SELECT count(*) FROM written))::int END"
        ));
        text.done()
    }

    /// The mark comes first also for the server, so that all writers lock in the same order.
    fn with_fence_mysql(&self, options: &FenceOptions) -> (String, Vec<Slot>) {
        let mut text = Text::new(Dialect::MySql);
        text.push("UPDATE ");
        text.push(&options.table_ref().quoted('`'));
        text.push(" AS m STRAIGHT_JOIN ");
        text.push(&self.table.quoted('`'));
        text.push(" AS t SET m.step = IF(m.token = ");
        text.slot(Slot::Token(0), "");
        text.push(" AND ");
        text.slot(Slot::Step, "");
        text.push(" IS NULL, m.step, COALESCE(");
        text.slot(Slot::Step, "");
        text.push(", 0)), m.token = ");
        text.slot(Slot::Token(0), "");
        text.push(", m.updated_at = UTC_TIMESTAMP(6), ");
        self.sets(&mut text);
        // Where no statement commits by itself, this one does nothing: the transaction will.
        text.push(" WHERE @@autocommit AND m.`key` = ");
        text.slot(Slot::Key(0), "");
        text.push(" AND m.domain = ");
        text.slot(Slot::Domain, "");
        text.push(" AND (m.token < ");
        text.slot(Slot::Token(0), "");
        text.push(" OR (m.token = ");
        text.slot(Slot::Token(0), "");
        text.push(" AND (");
        text.slot(Slot::Step, "");
        text.push(" IS NULL OR m.step < ");
        text.slot(Slot::Step, "");
        text.push("))) AND ");
        self.names(&mut text);
        text.done()
    }

    /// `UPDATE`, `INSERT` or `DELETE`, if `condition` holds.
    fn write(&self, text: &mut Text, condition: Option<&str>) {
        let table = self.table.quoted(text.quote());
        // MySQL has no alias in a DELETE, and SQLite none in an UPDATE before 3.37.
        let alias = match text.dialect {
            Dialect::Postgres => " AS t",
            Dialect::MySql | Dialect::Sqlite => "",
        };
        match self.verb {
            Verb::Update => {
                text.push(&format!("UPDATE {table}{alias} SET "));
                self.sets(text);
            }
            Verb::Delete => text.push(&format!("DELETE FROM {table}{alias}")),
            Verb::Insert => {
                text.push(&format!("INSERT INTO {table} ("));
                let columns = self
                    .keys
                    .iter()
                    .chain(self.sets.iter().map(|(name, _)| name));
                let columns: Vec<String> = columns.map(|name| text.name(name)).collect();
                text.push(&columns.join(", "));
                text.push(") SELECT ");
                for index in 0..self.keys.len() {
                    text.push(if index > 0 { ", " } else { "" });
                    text.slot(Slot::Name(index), "");
                }
                for (index, (_, set)) in self.sets.iter().enumerate() {
                    text.push(if *set == Set::Minus { ", 0 - " } else { ", " });
                    text.slot(Slot::Value(index), "");
                }
                if let Some(condition) = condition {
                    text.push(&format!(" WHERE {condition}"));
                }
                return;
            }
        }
        text.push(" WHERE ");
        self.names(text);
        if let Some(condition) = condition {
            text.push(&format!(" AND {condition}"));
        }
    }

    fn sets(&self, text: &mut Text) {
        for (index, (column, set)) in self.sets.iter().enumerate() {
            text.push(if index > 0 { ", " } else { "" });
            let column = text.name(column);
            // In a joined UPDATE, and where PostgreSQL reads, the column needs its table.
            let (target, source) = match text.dialect {
                Dialect::Postgres => (column.clone(), format!("t.{column}")),
                Dialect::MySql if text.joined => (format!("t.{column}"), format!("t.{column}")),
                Dialect::MySql | Dialect::Sqlite => (column.clone(), column),
            };
            text.push(&format!("{target} = "));
            match set {
                Set::To => {}
                Set::Plus => text.push(&format!("{source} + ")),
                Set::Minus => text.push(&format!("{source} - ")),
            }
            text.slot(Slot::Value(index), "");
        }
    }

    fn names(&self, text: &mut Text) {
        for (index, column) in self.keys.iter().enumerate() {
            let and = if index > 0 { " AND " } else { "" };
            let alias = match text.dialect {
                Dialect::Postgres => "t.",
                Dialect::MySql if text.joined => "t.",
                Dialect::MySql | Dialect::Sqlite => "",
            };
            let column = text.name(column);
            text.push(&format!("{and}{alias}{column} = "));
            text.slot(Slot::Name(index), "");
        }
    }
}

/// A statement that is being put together.
struct Text {
    dialect: Dialect,
    joined: bool,
    sql: String,
    slots: Vec<Slot>,
}

impl Text {
    fn new(dialect: Dialect) -> Self {
        Self {
            dialect,
            joined: false,
            sql: String::new(),
            slots: Vec::new(),
        }
    }

    fn push(&mut self, sql: &str) {
        self.joined |= sql.contains("STRAIGHT_JOIN");
        self.sql.push_str(sql);
    }

    fn slot(&mut self, slot: Slot, cast: &str) {
        self.slots.push(slot);
        match self.dialect {
            Dialect::Postgres => self.sql.push_str(&format!("${}{cast}", self.slots.len())),
            Dialect::MySql | Dialect::Sqlite => self.sql.push('?'),
        }
    }

    fn quote(&self) -> char {
        self.dialect.quote()
    }

    /// A column's name, which may have any characters.
    fn name(&self, column: &str) -> String {
        let quote = self.quote();
        let doubled = column.replace(quote, &format!("{quote}{quote}"));
        format!("{quote}{doubled}{quote}")
    }

    fn done(self) -> (String, Vec<Slot>) {
        (self.sql, self.slots)
    }
}

/// Whether this error of PostgreSQL means that the fence was refused or not exactly one row written.
#[cfg(feature = "__postgres")]
pub(crate) fn is_not_written(sqlstate: &str, message: &str) -> bool {
    sqlstate == "22P02" && message.contains(NOT_WRITTEN)
}

/// Whether it means that no row was written, by a statement without the fence.
#[cfg(feature = "__postgres")]
pub(crate) fn is_no_row(sqlstate: &str, message: &str) -> bool {
    is_not_written(sqlstate, message) && message.contains(&format!("{NOT_WRITTEN} 0"))
}

const NOT_WRITTEN: &str = "highwater: not written";

#[cfg(test)]
mod tests {
    use highwater_lock::{Domain, FenceKey, FencingToken};

    use super::*;

    fn shape(verb: Verb) -> Shape {
        let mut shape = Shape::new(verb, TableName::new("app.stock").unwrap());
        shape.name("sku");
        shape.set("a\"`b", Set::Minus);
        shape
    }

    fn fence() -> Fence {
        let domain = Domain::named("d").unwrap();
        Fence::new(domain, FenceKey::new("k").unwrap(), FencingToken::MIN)
    }

    #[test]
    fn names_are_quoted_and_values_are_not_in_the_text() {
        for (dialect, update) in [
            (
                Dialect::Postgres,
                r#"UPDATE "app"."stock" AS t SET "a""`b" = t."a""`b" - $1 WHERE t."sku" = $2"#,
            ),
            (
                Dialect::MySql,
                r#"UPDATE `app`.`stock` SET `a"``b` = `a"``b` - ? WHERE `sku` = ?"#,
            ),
            (
                Dialect::Sqlite,
                r#"UPDATE "app"."stock" SET "a""`b" = "a""`b" - ? WHERE "sku" = ?"#,
            ),
        ] {
            let (sql, slots) = shape(Verb::Update).alone(dialect);
            assert_eq!(sql, update);
            assert_eq!(slots, [Slot::Value(0), Slot::Name(0)]);
        }
    }

    #[test]
    fn there_are_as_many_values_as_placeholders() {
        let options = FenceOptions::new();
        for verb in [Verb::Update, Verb::Insert, Verb::Delete] {
            for dialect in [Dialect::Postgres, Dialect::MySql, Dialect::Sqlite] {
                let fenced = shape(verb).with_fence(dialect, &options, &fence());
                for (sql, slots) in [Some(shape(verb).alone(dialect)), fenced]
                    .into_iter()
                    .flatten()
                {
                    let placeholders = match dialect {
                        Dialect::Postgres => sql.matches('$').count(),
                        Dialect::MySql | Dialect::Sqlite => sql.matches('?').count(),
                    };
                    assert_eq!(placeholders, slots.len(), "{sql}");
                }
            }
        }
    }

    #[test]
    fn sqlite_has_no_such_statement_and_mysql_only_for_updates_of_one_key() {
        let options = FenceOptions::new();
        let has = |verb, dialect, fence: &Fence| {
            shape(verb).with_fence(dialect, &options, fence).is_some()
        };
        let two = {
            let domain = Domain::named("d").unwrap();
            let other = Fence::new(domain, FenceKey::new("l").unwrap(), FencingToken::MIN);
            fence().and(other).unwrap()
        };
        assert!(!has(Verb::Update, Dialect::Sqlite, &fence()));
        assert!(has(Verb::Update, Dialect::MySql, &fence()));
        assert!(!has(Verb::Insert, Dialect::MySql, &fence()));
        assert!(!has(Verb::Update, Dialect::MySql, &two));
        assert!(has(Verb::Insert, Dialect::Postgres, &two));
    }
}
