//! The public face of the supported databases.

use super::write::Write;

/// A database of sqlx that has fenced transactions: `Postgres`, `MySql` (MariaDB too) or `Sqlite`,
/// as far as their features are on.
///
/// Use it as a bound for code that is generic over the database. It is sealed.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no fenced transactions",
    note = "enable the feature `sqlx-postgres`, `sqlx-mysql` or `sqlx-sqlite` of \
            `highwater-fencing`; `sqlx::Any` is not supported"
)]
pub trait Dialect: Write {}

impl<Db: Write> Dialect for Db {}
