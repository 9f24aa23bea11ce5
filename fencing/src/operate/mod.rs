//! For operators: looks at the marks, moves them to another domain, and raises them.
//!
//! [`Marks`] is what `highwater fence` is made of. It works through sqlx, on the databases whose
//! sqlx features are enabled, whatever adapter the writers use.
//!
//! # What moving a mark has to do
//! A mark is a domain and a token. After [`Marks::adopt`] the mark is `(new domain, floor)`, and two
//! things have to hold: no holder of the old domain is admitted, and every holder of the new domain
//! is. Writers with [`DomainPolicy::Strict`](crate::DomainPolicy::Strict) compare the domains first,
//! so for them any token would do. Writers with
//! [`DomainPolicy::AdoptHigher`](crate::DomainPolicy::AdoptHigher) admit a *higher* token of any
//! domain: so the floor has to be above every token that the old lock service gave out, also those
//! that never wrote. And holders of the new domain are refused below the floor, so it must not be
//! above the new service's first token. The caller states such a floor; that no mark is at or above
//! it is checked, since a mark's token is never lowered. If one is, nothing is moved: start the new
//! lock service above [`Marks::floors`] instead.
//!
//! # Running transactions
//! A fenced transaction keeps its marks locked to its end. Everything here that writes takes the
//! same locks first, so it waits for running ones, and those that begin later wait for it. The wait
//! is bounded ([`Marks::wait_for`]); then nothing is changed.
//!
//! # Forgetting marks
//! Nothing here deletes a mark, however long it was idle. A key without a mark admits whoever comes
//! first, and no time is long enough: a process in a suspended virtual machine, or in a snapshot of
//! one, can wake up after any time and write under its old token.

mod session;
mod source;
mod text;

use std::collections::BTreeSet;
use std::time::Duration;

use ::sqlx::Error;
use highwater_lock::{Domain, FenceKey, FencingToken};

pub use source::Source;

use crate::TableName;
use crate::sql::HIGHEST;
use session::Session;

/// The marks of one table.
#[derive(Clone, Debug)]
pub struct Marks {
    source: Source,
    table: TableName,
    wait: Duration,
    dry_run: bool,
}

/// Which marks are meant: all of them unless it is narrowed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    domain: Option<Domain>,
    key: Option<FenceKey>,
    prefix: Vec<u8>,
}

impl Selection {
    /// All marks.
    pub fn all() -> Self {
        Self::default()
    }

    /// Only marks of this domain.
    #[must_use]
    pub fn domain(mut self, domain: Domain) -> Self {
        self.domain = Some(domain);
        self
    }

    /// Only the mark of this key.
    #[must_use]
    pub fn key(mut self, key: FenceKey) -> Self {
        self.key = Some(key);
        self
    }

    /// Only marks whose keys begin with these bytes.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<Vec<u8>>) -> Self {
        self.prefix = prefix.into();
        self
    }
}

/// A mark as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MarkRow {
    /// What is protected.
    pub key: FenceKey,
    /// The domain that the token belongs to.
    pub domain: Domain,
    /// The highest token that was admitted.
    pub token: FencingToken,
    /// The highest step that was admitted under it; 0 if none had a step.
    pub step: u64,
    /// When the mark was last written, in UTC by the database's clock. On SQLite a fence that leaves
    /// it as it is does not write it.
    pub updated_at: String,
}

/// The highest token of a domain.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Floor {
    /// The domain.
    pub domain: Domain,
    /// The highest token that any of its marks has.
    ///
    /// The lock service may have given out higher ones that did not write yet.
    pub highest: FencingToken,
    /// How many marks it has.
    pub marks: u64,
}

/// What was changed, or in a dry run what would be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Changes {
    /// The marks that were changed, in the order of their keys, as they were before.
    pub changed: Vec<MarkRow>,
    /// The keys that had no mark and have one now.
    pub created: Vec<FenceKey>,
    /// Marks that were named and left alone, because they belong to another domain.
    pub foreign: Vec<MarkRow>,
}

impl Marks {
    /// The marks in `highwater_fence` of this database, a pool of sqlx.
    ///
    /// What writes does so on a connection that is closed afterwards, so dropping any future here
    /// leaves no open transaction in the pool. A database that lives in the memory of one
    /// connection would be lost with it.
    pub fn new(source: impl Into<Source>) -> Self {
        Self {
            source: source.into(),
            table: TableName::DEFAULT,
            wait: Duration::from_secs(10),
            dry_run: false,
        }
    }

    /// Uses another table.
    #[must_use]
    pub fn table(mut self, table: TableName) -> Self {
        self.table = table;
        self
    }

    /// The longest time to wait for each mark that a running transaction has locked; 10 seconds
    /// unless it is set. MySQL counts in whole seconds.
    #[must_use]
    pub fn wait_for(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// Only says what would be changed. Nothing is locked, so it does not wait either.
    #[must_use]
    pub fn dry_run(mut self, dry_run: bool) -> Self {
        self.dry_run = dry_run;
        self
    }

    /// Gives the marks of the selection in the order of their keys' bytes, at most `limit` of
    /// them, beginning behind the key `after`.
    ///
    /// # Errors
    /// See [`OperateError`].
    pub async fn list(
        &self,
        selection: &Selection,
        after: Option<&FenceKey>,
        limit: u32,
    ) -> Result<Vec<MarkRow>, OperateError> {
        let mut session = Session::to_read(self).await?;
        let query = session.text.list(selection, after, limit);
        let marks = session.marks(query).await;
        session.close(marks).await
    }

    /// Gives the mark of a key. Without one, whoever comes first is admitted for it.
    ///
    /// # Errors
    /// See [`OperateError`].
    pub async fn show(&self, key: &FenceKey) -> Result<Option<MarkRow>, OperateError> {
        let selection = Selection::all().key(key.clone());
        Ok(self.list(&selection, None, 1).await?.pop())
    }

    /// Gives the highest token of every domain, those with the highest first: what a rebuilt lock
    /// service has to start above if its tokens are to be admitted.
    ///
    /// # Errors
    /// See [`OperateError`].
    pub async fn floors(&self) -> Result<Vec<Floor>, OperateError> {
        let mut session = Session::to_read(self).await?;
        let query = session.text.floors();
        let floors = session.floors(query).await;
        session.close(floors).await
    }

    /// Moves the selected marks to the domain `to`, with the token `floor` and no step.
    ///
    /// The caller states that no token of the old domain reaches `floor`, and that the new one
    /// gives out none below it; see [the module](self). All of them are moved or none. Marks that
    /// belong to `to` already are left alone, so it can be repeated.
    ///
    /// # Errors
    /// [`OperateError::NotBelowFloor`] if a mark has such a token, [`OperateError::Held`] if a
    /// transaction did not end in time.
    pub async fn adopt(
        &self,
        selection: &Selection,
        to: Domain,
        floor: FencingToken,
    ) -> Result<Changes, OperateError> {
        check_range(floor)?;
        let mut session = Session::to_write(self).await?;
        let changes = session.adopt(selection, to, floor).await;
        session.end(changes).await
    }

    /// Raises the selected marks of `domain` to the token `floor`: lower tokens are refused from
    /// then on, that of the present holder too.
    ///
    /// Marks that are as high already are left alone, so it can be repeated. A key that has no mark
    /// gets none, and admits whoever comes first; see [`Marks::raise_keys`].
    ///
    /// # Errors
    /// [`OperateError::Held`] if a transaction did not end in time; nothing is changed then.
    pub async fn raise(
        &self,
        selection: &Selection,
        domain: Domain,
        floor: FencingToken,
    ) -> Result<Changes, OperateError> {
        check_range(floor)?;
        let mut session = Session::to_write(self).await?;
        let changes = session.raise(selection, domain, floor).await;
        session.end(changes).await
    }

    /// Raises the marks of these keys as [`Marks::raise`] does, and gives those keys a mark that
    /// have none. Marks of another domain are left alone and told.
    ///
    /// # Errors
    /// [`OperateError::Held`] if a transaction did not end in time; nothing is changed then.
    pub async fn raise_keys(
        &self,
        keys: &BTreeSet<FenceKey>,
        domain: Domain,
        floor: FencingToken,
    ) -> Result<Changes, OperateError> {
        check_range(floor)?;
        let mut session = Session::to_write(self).await?;
        let changes = session.raise_keys(keys, domain, floor).await;
        session.end(changes).await
    }
}

/// Why marks were not read or not changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OperateError {
    /// The table is missing. Run `highwater migrate --database-url …`.
    #[error("table {table} does not exist: run `highwater migrate --database-url …`")]
    NotMigrated {
        /// The missing table.
        table: TableName,
    },
    /// A running transaction holds one of the marks. Nothing was changed: wait for it or end it,
    /// then repeat.
    #[error(
        "a running transaction has locked a mark and did not end within {} s: nothing was changed",
        waited.as_secs_f32()
    )]
    Held {
        /// How long was waited for it.
        waited: Duration,
        /// What the database said.
        source: Error,
    },
    /// Marks to be adopted have tokens that the floor is not above, and a token is never lowered.
    /// Nothing was changed. Start the new lock service above the highest one, or give a higher
    /// floor if its tokens are there already.
    #[error(
        "{count} of the marks are not below the floor {floor} (the highest, of key {key}, is \
         {highest}), and a mark is never lowered: nothing was changed"
    )]
    NotBelowFloor {
        /// How many marks stand at or above the floor.
        count: usize,
        /// The key of the highest of them.
        key: FenceKey,
        /// Its token.
        highest: FencingToken,
        /// The floor that was given.
        floor: FencingToken,
    },
    /// A database stores tokens up to `i64::MAX`. Checked before anything is sent.
    #[error("token {token} is above the highest one a database can store")]
    TokenOutOfRange {
        /// The token that was given.
        token: FencingToken,
    },
    /// The table holds a row that is not a mark: something else wrote to it.
    #[error("a row of the table is not a mark")]
    Unreadable,
    /// The connection failed while the commit was under way. Repeat it: what is done already is
    /// left alone.
    #[error("the outcome of the commit is unknown: repeat the command")]
    Unknown(#[source] Error),
    /// The driver or the database failed. Nothing was changed.
    #[error("the database refused")]
    Database(#[source] Error),
}

fn check_range(token: FencingToken) -> Result<(), OperateError> {
    if token.get() > HIGHEST {
        return Err(OperateError::TokenOutOfRange { token });
    }
    Ok(())
}
