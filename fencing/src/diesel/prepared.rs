//! The statements of the fence on SQLite that diesel keeps prepared.
//!
//! What `sql_query` makes is prepared each time, which takes longer than running it.

use ::diesel::RunQueryDsl;
use ::diesel::query_builder::{AstPass, Query, QueryFragment, QueryId};
use ::diesel::result::QueryResult;
use ::diesel::sql_types::{BigInt, Binary, Bool, Nullable};
use ::diesel::sqlite::{Sqlite, SqliteConnection};

/// The upsert of one key. Gives a row if it was admitted, and in it whether there may be protected
/// tables.
pub(crate) struct Admit<'a> {
    pub(crate) text: String,
    pub(crate) key: &'a [u8],
    pub(crate) domain: &'a [u8],
    pub(crate) token: i64,
    pub(crate) step: Option<i64>,
}

impl QueryFragment<Sqlite> for Admit<'_> {
    fn walk_ast<'b>(&'b self, mut out: AstPass<'_, 'b, Sqlite>) -> QueryResult<()> {
        // diesel writes a `?` of its own for a value, and SQLite counts on from the one before. So
        // each takes the place of the first use of its number, in order.
        let rest = before(&self.text, "?1", &mut out);
        out.push_bind_param::<Binary, _>(&self.key)?;
        let rest = before(rest, "?2", &mut out);
        out.push_bind_param::<Binary, _>(&self.domain)?;
        let rest = before(rest, "?3", &mut out);
        out.push_bind_param::<BigInt, _>(&self.token)?;
        let rest = before(rest, "?4", &mut out);
        out.push_bind_param::<Nullable<BigInt>, _>(&self.step)?;
        out.push_sql(rest);
        Ok(())
    }
}

/// Writes what is before the first use of a number, and gives what is behind it.
fn before<'s>(text: &'s str, number: &str, out: &mut AstPass<'_, '_, Sqlite>) -> &'s str {
    let (before, behind) = text.split_once(number).expect("the statement has it");
    out.push_sql(before);
    behind
}

/// Two of them may have different texts, so they are told apart by these.
impl QueryId for Admit<'_> {
    type QueryId = ();
    const HAS_STATIC_QUERY_ID: bool = false;
}

impl Query for Admit<'_> {
    type SqlType = Bool;
}

impl RunQueryDsl<SqliteConnection> for Admit<'_> {}

/// A statement without values.
pub(crate) struct Bare<'a>(pub(crate) &'a str);

impl QueryFragment<Sqlite> for Bare<'_> {
    fn walk_ast<'b>(&'b self, mut out: AstPass<'_, 'b, Sqlite>) -> QueryResult<()> {
        out.push_sql(self.0);
        Ok(())
    }
}

impl QueryId for Bare<'_> {
    type QueryId = ();
    const HAS_STATIC_QUERY_ID: bool = false;
}

impl RunQueryDsl<SqliteConnection> for Bare<'_> {}
