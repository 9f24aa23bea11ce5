//! Statements as a part of the message that begins or ends a fenced transaction.
//!
//! Why one message, and not requests that are sent one behind the other without waiting: a request
//! is worked off even if the one before it failed. A cancel or a `statement_timeout` that hits the
//! message with `BEGIN` just before it takes effect would leave the next statement outside of any
//! transaction, where it commits by itself, without the fence. The rest of a message is skipped.

use ::tokio_postgres::SimpleQueryRow;
use ::tokio_postgres::types::{ToSql, Type};

use super::literal::{literal, name};
use crate::sql::Marker;

/// A statement with its parameters and their types, as for the driver's
/// [`execute_typed`](::tokio_postgres::Client::execute_typed).
///
/// One `SELECT`, `INSERT`, `UPDATE`, `DELETE`, `MERGE` or `VALUES`, with `$1` for the first
/// parameter. The types may be `bool`, `int2`, `int4`, `int8`, `oid`, `float4`, `float8`, `text`,
/// `varchar`, `bpchar`, `name`, `bytea`, `uuid`, `json`, `jsonb`, `date`, `timestamp`,
/// `timestamptz`, enums, domains over these, and arrays of them; another one is an error before
/// anything is sent.
#[derive(Clone, Copy, Debug)]
pub struct Query<'q> {
    sql: &'q str,
    params: &'q [(&'q (dyn ToSql + Sync), Type)],
}

impl<'q> Query<'q> {
    /// Ties the parameters to the statement.
    pub const fn new(sql: &'q str, params: &'q [(&'q (dyn ToSql + Sync), Type)]) -> Self {
        Self { sql, params }
    }
}

/// What the server said to a [`Query`].
#[derive(Debug)]
#[non_exhaustive]
pub struct Answer {
    /// How many rows were written, or given by a `SELECT`.
    pub rows_affected: u64,
    /// The rows, with every column as text.
    pub rows: Vec<SimpleQueryRow>,
}

/// Queries as text.
#[derive(Debug)]
pub(crate) struct Rendered {
    /// All of them, each as [`STATEMENTS`] statements, with a semicolon at the end.
    pub(crate) text: String,
    /// Removes from the session what is left if they are not worked off to their end.
    pub(crate) cleanup: String,
}

/// How many statements each query becomes.
pub(crate) const STATEMENTS: usize = 3;

impl Rendered {
    /// Renders the queries, with the marker in the names of what they leave for a moment.
    ///
    /// The server finds the parameters in the SQL: it is told to prepare the statement, and to
    /// execute it with literals.
    pub(crate) fn new(queries: &[Query<'_>], marker: Marker) -> Result<Self, Unrendered> {
        let mut text = String::new();
        let mut names = Vec::new();
        for (index, query) in queries.iter().enumerate() {
            let statement = format!("{marker}_{index}");
            let (types, values) = query.rendered_params()?;
            // The line break ends a comment.
            text += &format!(
                "PREPARE {statement}{types} AS {}\n; EXECUTE {statement}{values}; \
                 DEALLOCATE {statement}; ",
                query.sql
            );
            names.push(format!("'{statement}'"));
        }
        let names = names.join(", ");
        // Without an error for those that are not there.
        let cleanup = format!(
            "DO $$ DECLARE left_over text; BEGIN FOR left_over IN SELECT name FROM \
             pg_prepared_statements WHERE name IN ({names}) LOOP EXECUTE 'DEALLOCATE ' || \
             left_over; END LOOP; END $$"
        );
        Ok(Self { text, cleanup })
    }
}

impl Query<'_> {
    /// The list of types and the list of values, or nothing without parameters.
    fn rendered_params(&self) -> Result<(String, String), Unrendered> {
        if self.sql.contains('\0') {
            return Err(Unrendered {
                why: "the statement contains a zero byte".to_owned(),
            });
        }
        if self.params.is_empty() {
            return Ok((String::new(), String::new()));
        }
        let mut types = Vec::new();
        let mut values = Vec::new();
        for (index, (value, ty)) in self.params.iter().enumerate() {
            types.push(name(ty));
            let value = literal(*value, ty);
            values.push(value.map_err(|why| Unrendered {
                why: format!("parameter ${}: {why}", index + 1),
            })?);
        }
        Ok((
            format!("({})", types.join(", ")),
            format!("({})", values.join(", ")),
        ))
    }
}

/// Why a query cannot be a part of a message.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{why}")]
pub(crate) struct Unrendered {
    why: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_becomes_three_statements() {
        let query = Query::new("SELECT $1 -- the first", &[(&7_i32, Type::INT4)]);
        let marker = Marker::new();
        let rendered = Rendered::new(&[query, query], marker).unwrap();
        assert_eq!(
            rendered.text.matches("; ").count(),
            2 * STATEMENTS,
            "{}",
            rendered.text
        );
        let first = format!(
            "PREPARE {marker}_0(\"pg_catalog\".\"int4\") AS SELECT $1 -- the first\n; EXECUTE \
             {marker}_0(('7')::\"pg_catalog\".\"int4\"); DEALLOCATE {marker}_0; "
        );
        assert!(rendered.text.starts_with(&first), "{}", rendered.text);
    }

    #[test]
    fn what_cannot_be_rendered_says_which_parameter() {
        let query = Query::new(
            "SELECT $1, $2",
            &[(&7_i32, Type::INT4), (&7_i32, Type::TEXT)],
        );
        let error = Rendered::new(&[query], Marker::new()).unwrap_err();
        assert!(error.to_string().starts_with("parameter $2: "), "{error}");
        let zero = Query::new("SELECT '\0'", &[]);
        assert!(Rendered::new(&[zero], Marker::new()).is_err());
    }
}
