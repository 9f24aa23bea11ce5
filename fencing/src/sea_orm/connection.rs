//! sea-orm's `ConnectionTrait` over the guard, so that entities work in a fenced transaction.

use ::sea_orm::entity::prelude::async_trait::async_trait;
use ::sea_orm::sea_query::Values;
use ::sea_orm::{ConnectionTrait, DbBackend, DbErr, ExecResult, QueryResult, Statement};
use ::sqlx::{AssertSqlSafe, Database, Executor as _, IntoArguments, query::Query, raw_sql};
use sea_query_sqlx::SqlxValues;

use super::error::{exec, query};
use super::fenced::{AnyGuard, Fenced, each};

/// A fenced transaction without the eyes of its guard. See [`Fenced::connection`].
#[derive(Clone, Copy, Debug)]
pub struct PastGuard<'t>(pub(crate) &'t Fenced);

/// Whether the guard sees a statement.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Seen {
    Yes,
    No,
}

/// Runs the same on whichever guard it is, or on the connection under it.
macro_rules! on {
    ($tx:expr, $seen:expr, $executor:ident => $run:expr) => {
        each!(&$tx.guard, tx => {
            let mut tx = tx.lock().await;
            match $seen {
                Seen::Yes => {
                    let $executor = &mut *tx;
                    $run
                }
                Seen::No => {
                    let $executor = tx.connection();
                    $run
                }
            }
        })
    };
}

impl Fenced {
    async fn execute_as(&self, seen: Seen, statement: Statement) -> Result<ExecResult, DbErr> {
        on!(self, seen, executor => {
            bound(&statement).execute(executor).await.map(Into::into).map_err(exec)
        })
    }

    async fn unprepared_as(&self, seen: Seen, sql: &str) -> Result<ExecResult, DbErr> {
        on!(self, seen, executor => {
            let done = raw_sql(AssertSqlSafe(sql)).execute(executor).await;
            done.map(Into::into).map_err(exec)
        })
    }

    async fn one_as(&self, seen: Seen, statement: Statement) -> Result<Option<QueryResult>, DbErr> {
        on!(self, seen, executor => {
            let row = executor.fetch_optional(bound(&statement)).await;
            row.map(|row| row.map(Into::into)).map_err(query)
        })
    }

    async fn all_as(&self, seen: Seen, statement: Statement) -> Result<Vec<QueryResult>, DbErr> {
        on!(self, seen, executor => {
            let rows = executor.fetch_all(bound(&statement)).await;
            rows.map(|rows| rows.into_iter().map(Into::into).collect()).map_err(query)
        })
    }
}

/// The statement for sqlx.
fn bound<Db: Database>(statement: &Statement) -> Query<'_, Db, SqlxValues>
where
    SqlxValues: IntoArguments<Db>,
{
    let values = statement.values.clone().unwrap_or(Values(Vec::new()));
    ::sqlx::query_with(AssertSqlSafe(statement.sql.as_str()), SqlxValues(values))
}

#[async_trait]
impl ConnectionTrait for Fenced {
    fn get_database_backend(&self) -> DbBackend {
        self.backend()
    }

    async fn execute_raw(&self, statement: Statement) -> Result<ExecResult, DbErr> {
        self.execute_as(Seen::Yes, statement).await
    }

    async fn execute_unprepared(&self, sql: &str) -> Result<ExecResult, DbErr> {
        self.unprepared_as(Seen::Yes, sql).await
    }

    async fn query_one_raw(&self, statement: Statement) -> Result<Option<QueryResult>, DbErr> {
        self.one_as(Seen::Yes, statement).await
    }

    async fn query_all_raw(&self, statement: Statement) -> Result<Vec<QueryResult>, DbErr> {
        self.all_as(Seen::Yes, statement).await
    }
}

#[async_trait]
impl ConnectionTrait for PastGuard<'_> {
    fn get_database_backend(&self) -> DbBackend {
        self.0.backend()
    }

    async fn execute_raw(&self, statement: Statement) -> Result<ExecResult, DbErr> {
        self.0.execute_as(Seen::No, statement).await
    }

    async fn execute_unprepared(&self, sql: &str) -> Result<ExecResult, DbErr> {
        self.0.unprepared_as(Seen::No, sql).await
    }

    async fn query_one_raw(&self, statement: Statement) -> Result<Option<QueryResult>, DbErr> {
        self.0.one_as(Seen::No, statement).await
    }

    async fn query_all_raw(&self, statement: Statement) -> Result<Vec<QueryResult>, DbErr> {
        self.0.all_as(Seen::No, statement).await
    }
}
