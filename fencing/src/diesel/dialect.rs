//! The public face of the supported connections.

use super::driver::Driver;

/// A connection of diesel that has fenced transactions: `PgConnection`, `MysqlConnection` (MariaDB
/// too) or `SqliteConnection`, as far as their features are on.
///
/// Use it as a bound for code that is generic over the database. It is sealed.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no fenced transactions",
    note = "pass a connection from a pool as `&mut *pooled`",
    note = "enable the feature `diesel-postgres`, `diesel-mysql` or `diesel-sqlite` of \
            `highwater-fencing`"
)]
pub trait Dialect: Driver {}

impl<C: Driver> Dialect for C {}
