//! The token in a column of the business row itself, without a table of marks.
//!
//! A row keeps the token of its last writer, and an update says that this must not be higher than its
//! own. That is one statement in autocommit, on every database and isolation level, also behind a
//! pooler: while it waits for the row, another may raise the token, and then the condition is looked
//! at again.
//!
//! ```sql
//! UPDATE stock SET quantity = quantity - 1, fence_token = 33
//! WHERE sku = 'apple' AND fence_token <= 33
//! ```
//!
//! No row means: stale, or no such row. Read `fence_token` afterwards to tell, since it never goes
//! back.
//!
//! It protects *that row*, and nothing else. What it cannot do:
//! - **Several rows.** A stale holder still writes the rows which the newer one has not written yet,
//!   so nothing holds *between* rows, such as a total.
//! - **Inserts and deletes.** A row that is not there has no token. What was deleted, a stale holder
//!   inserts again; mark rows as deleted instead.
//! - **Another lock service.** Tokens of another [`Domain`](crate::Domain) are compared as if they
//!   were of the same one.
//! - **Steps and unknown outcomes.** There is no `resolve`.
//! - **Values from earlier reads.** As everywhere, only what is read behind the fence is safe: let the
//!   row change by itself (`quantity - 1`), or read it in the same transaction after the update.
//!
//! For all of these take [`transaction`](crate#what-is-where).
//!
//! **MySQL and MariaDB** report as affected the rows that were found or those that changed, as the
//! connection was opened. An update with the token that the row has already, and which changes
//! nothing else, then affects 0 rows and looks stale. sqlx and diesel ask for the rows found;
//! `mysql_async` does not, unless its option `client_found_rows` is set.

#[cfg(any(feature = "__diesel", feature = "__diesel-async"))]
mod diesel;
#[cfg(feature = "__sqlx")]
mod sqlx;

use std::fmt;

use highwater_lock::{Fence, FencingToken};

use crate::TableName;
use crate::migrate::Dialect;

#[cfg(any(feature = "__diesel", feature = "__diesel-async"))]
pub use self::diesel::{is_admitted, is_set};
#[cfg(feature = "__sqlx")]
pub use self::sqlx::PushRowToken;

/// The column that the helpers use.
pub const COLUMN: &str = "fence_token";

/// The SQL that gives a table the column, for your own migrations. Rows that are there get 0, which
/// is lower than every token.
pub fn print(dialect: Dialect, table: &TableName) -> String {
    // `bigint` is read by all of them, and the column stores what the others of the crate store.
    format!(
        "ALTER TABLE {} ADD COLUMN {COLUMN} bigint NOT NULL DEFAULT 0;\n",
        table.quoted(dialect.quote()),
    )
}

/// A fencing token as a column stores it: at most `i64::MAX`.
///
/// It can be bound to a statement of sqlx and used in expressions of diesel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RowToken(i64);

impl RowToken {
    /// The token.
    ///
    /// # Errors
    /// It is above `i64::MAX`.
    pub fn new(token: FencingToken) -> Result<Self, RowTokenError> {
        match i64::try_from(token.get()) {
            Ok(number) => Ok(Self(number)),
            Err(_) => Err(RowTokenError::OutOfRange { token }),
        }
    }

    /// The token of a fence of one key.
    ///
    /// # Errors
    /// There are several keys, and so several tokens; or it is above `i64::MAX`.
    pub fn of(fence: &Fence) -> Result<Self, RowTokenError> {
        match fence.marks() {
            [mark] => Self::new(mark.token),
            _ => Err(RowTokenError::SeveralKeys),
        }
    }

    /// The number.
    pub fn get(self) -> i64 {
        self.0
    }
}

impl fmt::Display for RowToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Why a token cannot be that of a row.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RowTokenError {
    /// A database stores tokens up to `i64::MAX`.
    #[error("token {token} is above the highest one a database can store")]
    OutOfRange {
        /// The token.
        token: FencingToken,
    },
    /// Take the token of the key that protects the row: [`RowToken::new`].
    #[error("a fence of several keys has several tokens")]
    SeveralKeys,
}

#[cfg(test)]
mod tests {
    use highwater_lock::{Domain, FenceKey};

    use super::*;

    fn fence(key: &str, token: u64) -> Fence {
        let token = FencingToken::new(token).unwrap();
        Fence::new(
            Domain::named("d").unwrap(),
            FenceKey::new(key).unwrap(),
            token,
        )
    }

    #[test]
    fn a_row_has_the_token_of_one_key_if_a_database_can_store_it() {
        assert_eq!(RowToken::of(&fence("a", 5)).unwrap().get(), 5);
        let edge = i64::MAX.unsigned_abs();
        assert_eq!(RowToken::of(&fence("a", edge)).unwrap().get(), i64::MAX);
        let above = RowToken::of(&fence("a", edge + 1));
        assert!(matches!(above, Err(RowTokenError::OutOfRange { .. })));
        let both = fence("a", 5).and(fence("b", 6)).unwrap();
        assert_eq!(RowToken::of(&both), Err(RowTokenError::SeveralKeys));
    }

    #[test]
    fn the_column_is_added_to_the_quoted_table() {
        let table = TableName::new("app.stock").unwrap();
        let sql = print(Dialect::MySql, &table);
        assert_eq!(
            sql,
            "ALTER TABLE `app`.`stock` ADD COLUMN fence_token bigint NOT NULL DEFAULT 0;\n"
        );
    }
}
