//! `sqlx::Executor` for the guard, so that `.execute(&mut *tx)` stays the habit it is.
//!
//! Each method refuses if a statement failed before, and taps the answer otherwise. One macro
//! writes the implementation per database, because the compiler does not normalise the generic one.

use ::sqlx::{Describe, Either, Error, Execute, Executor, SqlStr};
use futures_core::future::BoxFuture;
use futures_core::stream::BoxStream;
use futures_util::{StreamExt as _, future, stream};

use super::fenced::Fenced;
use super::health::{TappedStream, tap_future};

macro_rules! executor {
    ($feature:literal, $database:ty) => {
        #[cfg(feature = $feature)]
        impl<'t> Executor<'t> for &'t mut Fenced<'_, $database> {
            type Database = $database;

            fn fetch_many<'e, 'q: 'e, E>(
                self,
                query: E,
            ) -> BoxStream<
                'e,
                Result<
                    Either<
                        <$database as ::sqlx::Database>::QueryResult,
                        <$database as ::sqlx::Database>::Row,
                    >,
                    Error,
                >,
            >
            where
                't: 'e,
                E: 'q + Execute<'q, $database>,
            {
                match self.sound_parts() {
                    Ok((conn, health)) => {
                        TappedStream::<$database, _>::new(conn.fetch_many(query), health).boxed()
                    }
                    Err(error) => stream::once(future::ready(Err(error))).boxed(),
                }
            }

            fn fetch_optional<'e, 'q: 'e, E>(
                self,
                query: E,
            ) -> BoxFuture<'e, Result<Option<<$database as ::sqlx::Database>::Row>, Error>>
            where
                't: 'e,
                E: 'q + Execute<'q, $database>,
            {
                match self.sound_parts() {
                    Ok((conn, health)) => {
                        tap_future::<$database, _>(conn.fetch_optional(query), health)
                    }
                    Err(error) => Box::pin(future::ready(Err(error))),
                }
            }

            fn prepare_with<'e>(
                self,
                sql: SqlStr,
                parameters: &'e [<$database as ::sqlx::Database>::TypeInfo],
            ) -> BoxFuture<'e, Result<<$database as ::sqlx::Database>::Statement, Error>>
            where
                't: 'e,
            {
                match self.sound_parts() {
                    Ok((conn, health)) => {
                        tap_future::<$database, _>(conn.prepare_with(sql, parameters), health)
                    }
                    Err(error) => Box::pin(future::ready(Err(error))),
                }
            }

            #[doc(hidden)]
            fn describe<'e>(self, sql: SqlStr) -> BoxFuture<'e, Result<Describe<$database>, Error>>
            where
                't: 'e,
            {
                match self.sound_parts() {
                    Ok((conn, health)) => tap_future::<$database, _>(conn.describe(sql), health),
                    Err(error) => Box::pin(future::ready(Err(error))),
                }
            }
        }
    };
}

executor!("sqlx-mysql", ::sqlx::MySql);
executor!("sqlx-postgres", ::sqlx::Postgres);
executor!("sqlx-sqlite", ::sqlx::Sqlite);
