//! Why a fenced transaction did not commit, the same for every driver.

use highwater_lock::{Domain, FenceKey, FencingToken, Step};

use crate::TableName;

/// Why a fenced transaction was refused or not committed; `D` is the driver's error.
///
/// Unless a variant says otherwise nothing of the transaction is in the database.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FenceError<D> {
    /// A newer holder was admitted for this key. Abandon the work: a retry can never succeed.
    #[error("token {offered} is stale for key {key}: {highest} was already admitted")]
    Stale {
        /// The key that refused.
        key: FenceKey,
        /// The token of this fence.
        offered: FencingToken,
        /// The mark in the database.
        highest: FencingToken,
    },
    /// The mark belongs to tokens of another lock service, so the numbers are not comparable.
    ///
    /// Happens after a lock service was rebuilt, or when two of them protect one key. An operator
    /// must move the mark on purpose (`highwater fence adopt`); until then every writer of the new
    /// domain is refused. For lock services that are a new domain at every start see
    /// [`DomainPolicy::AdoptHigher`](crate::DomainPolicy::AdoptHigher).
    #[error(
        "the mark of key {key} belongs to domain {found}, not to {offered}: the lock service was \
         rebuilt or is another one (see DomainPolicy)"
    )]
    DomainMismatch {
        /// The key that refused.
        key: FenceKey,
        /// The domain of this fence.
        offered: Domain,
        /// The domain of the mark.
        found: Domain,
    },
    /// This step, or a later one, was admitted under this token before: the write is in already.
    #[error("step {step} of token {token} was already applied for key {key}")]
    AlreadyApplied {
        /// The key that refused.
        key: FenceKey,
        /// The token of this fence.
        token: FencingToken,
        /// The step of this fence.
        step: Step,
        /// The last step that was admitted under this token: this one, or a later one.
        latest: Step,
    },
    /// A fence without a step cannot be resolved: an equal token is simply admitted again. Give
    /// every write a step with [`Fence::with_step`](crate::Fence::with_step).
    #[error("only a fence with a step can be resolved")]
    NoStep,
    /// A database stores tokens up to `i64::MAX`. Checked before anything is sent.
    #[error("token {token} is above the highest one a database can store")]
    TokenOutOfRange {
        /// The offered token.
        token: FencingToken,
    },
    /// A database stores steps up to `i64::MAX`. Checked before anything is sent.
    #[error("step {step} is above the highest one a database can store")]
    StepOutOfRange {
        /// The offered step.
        step: Step,
    },
    /// The connection is inside a transaction or savepoint, where a fence could be rolled back
    /// alone. Begin outside of one; join a transaction before its first savepoint.
    #[error("a fence must be taken outside of a savepoint, at the start of the transaction")]
    InSavepoint,
    /// A statement failed, or was abandoned half-way, and the body went on and asked for a commit.
    /// The transaction was rolled back. Let the error of the statement leave the body.
    #[error("a statement failed before the commit, so the transaction was rolled back: {first}")]
    Poisoned {
        /// The first failure, as text.
        first: String,
    },
    /// Something else ended the transaction, or rolled its fence back, before the commit: a raw
    /// `COMMIT` or `ROLLBACK`, DDL on MySQL, or `ROLLBACK TO` an earlier savepoint.
    ///
    /// What was written *before* that may be in the database; it was covered by the fence. What was
    /// written *after* a raw `COMMIT` or `ROLLBACK` is in too, **uncovered**, on PostgreSQL, and in
    /// a lent or joined transaction on MySQL and MariaDB, and on SQLite through diesel, which has no
    /// commit hook; elsewhere it is rolled back.
    #[error("the transaction was ended, or its fence rolled back, by another statement")]
    Ended(#[source] D),
    /// The connection failed while the commit was under way: it may have happened or not.
    ///
    /// Do not repeat the work blindly. Give every write a step and ask with `resolve`, or look for
    /// its traces in the database, in a fenced transaction.
    #[error("the outcome of the commit is unknown")]
    Unknown(#[source] D),
    /// The table is missing. Run `highwater migrate --database-url …`, or call
    /// [`migrate`](crate::migrate) from the program, or add its SQL to your own migrations.
    #[error(
        "table {table} does not exist: run `highwater migrate --database-url …` or call \
         highwater_fencing::migrate"
    )]
    NotMigrated {
        /// The missing table.
        table: TableName,
    },
    /// The driver or the database failed, and the transaction was rolled back.
    #[error("the fenced transaction was rolled back")]
    Database(#[source] D),
}

impl<D> FenceError<D> {
    /// The same verdict over another driver's error.
    pub fn map_driver<E>(self, map: impl FnOnce(D) -> E) -> FenceError<E> {
        match self {
            Self::Stale {
                key,
                offered,
                highest,
            } => FenceError::Stale {
                key,
                offered,
                highest,
            },
            Self::DomainMismatch {
                key,
                offered,
                found,
            } => FenceError::DomainMismatch {
                key,
                offered,
                found,
            },
            Self::AlreadyApplied {
                key,
                token,
                step,
                latest,
            } => FenceError::AlreadyApplied {
                key,
                token,
                step,
                latest,
            },
            Self::NoStep => FenceError::NoStep,
            Self::TokenOutOfRange { token } => FenceError::TokenOutOfRange { token },
            Self::StepOutOfRange { step } => FenceError::StepOutOfRange { step },
            Self::InSavepoint => FenceError::InSavepoint,
            Self::Poisoned { first } => FenceError::Poisoned { first },
            Self::Ended(error) => FenceError::Ended(map(error)),
            Self::Unknown(error) => FenceError::Unknown(map(error)),
            Self::NotMigrated { table } => FenceError::NotMigrated { table },
            Self::Database(error) => FenceError::Database(map(error)),
        }
    }
}

// Here, because both adapters of diesel have the same error.
#[cfg(any(feature = "__diesel", feature = "__diesel-async"))]
impl From<::diesel::result::Error> for FenceError<::diesel::result::Error> {
    /// For bodies that need no error type of their own: a driver error rolled back.
    fn from(error: ::diesel::result::Error) -> Self {
        Self::Database(error)
    }
}
