//! The connection under a fenced transaction, and whose it is.
//!
//! Ownership decides what may be done with a connection in an unknown state: ours is closed, a
//! lent one is rolled back as well as that can be done without waiting.

use std::ops::{Deref, DerefMut};

use ::sqlx::pool::PoolConnection;
use ::sqlx::{Database, Transaction};

use super::dialect::Dialect;

/// The connection, by the form that the transaction was begun with.
pub(crate) enum Link<'c, Db: Database> {
    /// Taken from a pool for this transaction.
    Owned(PoolConnection<Db>),
    /// A pooled connection of the caller.
    Pooled(&'c mut PoolConnection<Db>),
    /// A bare connection of the caller.
    Bare(&'c mut Db::Connection),
    /// Inside a transaction that the caller began.
    Joined(Transaction<'c, Db>),
}

impl<Db: Database> Link<'_, Db> {
    /// Whether the session may be changed for the time of the transaction.
    pub(crate) fn is_ours(&self) -> bool {
        matches!(self, Self::Owned(_))
    }
}

impl<Db: Database> Deref for Link<'_, Db> {
    type Target = Db::Connection;

    fn deref(&self) -> &Db::Connection {
        match self {
            Self::Owned(conn) => conn,
            Self::Pooled(conn) => conn,
            Self::Bare(conn) => conn,
            Self::Joined(tx) => tx,
        }
    }
}

impl<Db: Database> DerefMut for Link<'_, Db> {
    fn deref_mut(&mut self) -> &mut Db::Connection {
        match self {
            Self::Owned(conn) => conn,
            Self::Pooled(conn) => conn,
            Self::Bare(conn) => conn,
            Self::Joined(tx) => tx,
        }
    }
}

/// A connection that can be lent to [`begin_on`](super::SqlxFence::begin_on): a mutable reference
/// to a pooled connection or to a bare one. Sealed.
///
/// Prefer the pooled one (`&mut conn`, not `&mut *conn`): it can be closed when the transaction is
/// abandoned half-way.
pub trait Lend<'c>: sealed::Lend<'c> {}

impl<'c, L: sealed::Lend<'c>> Lend<'c> for L {}

pub(crate) mod sealed {
    use super::{Dialect, Link};

    #[expect(unnameable_types, reason = "sealed")]
    pub trait Lend<'c>: Send {
        /// The database of the connection.
        type Database: Dialect;

        /// The link over the reference.
        fn link(self) -> Lent<'c, Self::Database>;
    }

    /// Hides the link from the trait's signature.
    #[expect(unnameable_types, reason = "part of a sealed trait")]
    pub struct Lent<'c, Db: Dialect>(pub(crate) Link<'c, Db>);
}

impl<'c, Db: Dialect> sealed::Lend<'c> for &'c mut PoolConnection<Db> {
    type Database = Db;

    fn link(self) -> sealed::Lent<'c, Db> {
        sealed::Lent(Link::Pooled(self))
    }
}

macro_rules! lend_bare {
    ($feature:literal, $connection:ty, $database:ty) => {
        #[cfg(feature = $feature)]
        impl<'c> sealed::Lend<'c> for &'c mut $connection {
            type Database = $database;

            fn link(self) -> sealed::Lent<'c, $database> {
                sealed::Lent(Link::Bare(self))
            }
        }
    };
}

lend_bare!("sqlx-mysql", ::sqlx::MySqlConnection, ::sqlx::MySql);
lend_bare!("sqlx-postgres", ::sqlx::PgConnection, ::sqlx::Postgres);
lend_bare!("sqlx-sqlite", ::sqlx::SqliteConnection, ::sqlx::Sqlite);
