//! The public face of the supported connections.

use super::driver::Driver;

/// A connection of diesel-async that has fenced transactions: `AsyncPgConnection` or
/// `AsyncMysqlConnection`, as far as their features are on.
///
/// Use it as a bound for code that is generic over the database. It is sealed.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no fenced transactions",
    note = "if it comes from a pool, lend the connection inside: `&mut *pooled`",
    note = "enable the feature `diesel-async-postgres` or `diesel-async-mysql` of \
            `highwater-fencing`; for SQLite use diesel itself"
)]
pub trait Connection: Driver {}

impl<C: Driver> Connection for C {}
