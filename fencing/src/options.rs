//! What can be chosen about a fenced transaction, and the names of tables.
//!
//! Nothing here talks to a database: the adapters read these values.

use std::borrow::Cow;
use std::fmt;
use std::num::NonZeroU32;
use std::time::Duration;

use highwater_lock::Fence;

/// The name of a table of marks: an identifier, with a schema before it if needed.
///
/// Both parts are 1 to 63 ASCII letters, digits and underscores and do not start with a digit.
/// They are always quoted in SQL, so on PostgreSQL capital letters count. MySQL creates tables of
/// up to 58 only, because it derives the names of their checks. Without a schema PostgreSQL searches
/// the `search_path`, which must then be the same for all writers.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct TableName {
    schema: Option<Cow<'static, str>>,
    name: Cow<'static, str>,
}

impl TableName {
    /// The longest schema or table name, in bytes.
    pub const MAX_BYTES: usize = 63;
    /// The table that is used when none is chosen: `highwater_fence`.
    pub const DEFAULT: Self = Self {
        schema: None,
        name: Cow::Borrowed("highwater_fence"),
    };

    /// Reads `table` or `schema.table`.
    ///
    /// # Errors
    /// A part is not an identifier as described above.
    pub fn new(name: impl AsRef<str>) -> Result<Self, TableNameError> {
        let text = name.as_ref();
        let error = || TableNameError { name: text.into() };
        let (schema, name) = match text.split_once('.') {
            Some((schema, name)) => (Some(schema), name),
            None => (None, text),
        };
        if !schema.is_none_or(is_identifier) || !is_identifier(name) {
            return Err(error());
        }
        Ok(Self {
            schema: schema.map(|schema| Cow::Owned(schema.to_owned())),
            name: Cow::Owned(name.to_owned()),
        })
    }

    /// The schema, if one was given. On MySQL it is a database.
    pub fn schema(&self) -> Option<&str> {
        self.schema.as_deref()
    }

    /// The name without the schema.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The name for SQL, each part between two `quote` characters, which no part contains.
    pub(crate) fn quoted(&self, quote: char) -> String {
        match &self.schema {
            Some(schema) => format!("{quote}{schema}{quote}.{quote}{}{quote}", self.name),
            None => format!("{quote}{}{quote}", self.name),
        }
    }
}

impl Default for TableName {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl std::str::FromStr for TableName {
    type Err = TableNameError;

    fn from_str(name: &str) -> Result<Self, TableNameError> {
        Self::new(name)
    }
}

impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.schema {
            Some(schema) => write!(f, "{schema}.{}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

impl fmt::Debug for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TableName({self})")
    }
}

fn is_identifier(part: &str) -> bool {
    let word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    (1..=TableName::MAX_BYTES).contains(&part.len())
        && part.bytes().all(word)
        && !part.as_bytes()[0].is_ascii_digit()
}

/// A text that is not the name of a table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{name:?} is not a table name: use letters, digits and underscores, at most 63 of them, and \
     one dot after a schema"
)]
pub struct TableNameError {
    name: String,
}

/// The isolation level of a fenced transaction.
///
/// The fence is right on every level. From `RepeatableRead` on PostgreSQL answers a collision
/// with a serialization failure, which is retried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Isolation {
    /// Each statement sees what was committed before it.
    ReadCommitted,
    /// All statements see one state. On MySQL that state is taken behind the fence.
    RepeatableRead,
    /// As if the transactions ran one after another.
    Serializable,
}

impl Isolation {
    /// The words of SQL for it.
    #[cfg(any(feature = "__mysql", feature = "__postgres"))]
    pub(crate) fn sql(self) -> &'static str {
        match self {
            Self::ReadCommitted => "READ COMMITTED",
            Self::RepeatableRead => "REPEATABLE READ",
            Self::Serializable => "SERIALIZABLE",
        }
    }
}

/// What happens when a mark belongs to another domain than the fence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum DomainPolicy {
    /// The fence is refused with [`FenceError::DomainMismatch`](crate::FenceError), until an
    /// operator moves the mark on purpose.
    #[default]
    Strict,
    /// A fence of another domain is admitted if, and only if, its token is **strictly higher** than
    /// the mark, which then belongs to the new domain. Every other one is refused with
    /// [`FenceError::DomainMismatch`](crate::FenceError), and so are holders of the old domain
    /// from then on.
    ///
    /// For lock services that are a new domain at every start and begin their tokens at the time of
    /// the start, as `highwater serve --in-memory` does (in microseconds). The assumption it rests
    /// on: the wall clock of the service's host does not go back over a restart by more than the
    /// service was away, and no other service protects the same keys.
    AdoptHigher,
}

/// The table, the retry budget and the isolation level of fenced transactions.
///
/// ```
/// use std::time::Duration;
/// use highwater_fencing::FenceOptions;
///
/// let options = FenceOptions::new()
///     .table("app.fence")?
///     .retry_for(Duration::from_secs(3));
/// # Ok::<(), highwater_fencing::TableNameError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FenceOptions {
    table: TableName,
    retry_attempts: NonZeroU32,
    retry_for: Duration,
    isolation: Option<Isolation>,
    domain_policy: DomainPolicy,
    resolve_for: Duration,
    lock_wait: Option<Duration>,
}

impl FenceOptions {
    /// The table `highwater_fence`, at most 20 attempts within 10 seconds, the isolation level that
    /// the connection has, one domain per mark, and at most 5 seconds for `resolve` to wait.
    pub const fn new() -> Self {
        Self {
            table: TableName::DEFAULT,
            retry_attempts: NonZeroU32::new(20).expect("20 is not zero"),
            retry_for: Duration::from_secs(10),
            isolation: None,
            domain_policy: DomainPolicy::Strict,
            resolve_for: Duration::from_secs(5),
            lock_wait: None,
        }
    }

    /// Uses another table; `schema.table` is allowed.
    ///
    /// All writers of one key must use the same table.
    ///
    /// # Errors
    /// See [`TableName::new`].
    pub fn table(self, name: impl AsRef<str>) -> Result<Self, TableNameError> {
        Ok(self.table_name(TableName::new(name)?))
    }

    /// Uses another table whose name was checked before.
    #[must_use]
    pub fn table_name(mut self, table: TableName) -> Self {
        self.table = table;
        self
    }

    /// The most times one transaction is tried, the first one included. One means: no retry.
    #[must_use]
    pub fn retry_attempts(mut self, attempts: NonZeroU32) -> Self {
        self.retry_attempts = attempts;
        self
    }

    /// No new attempt starts later than this after the first one began. Choose less than what is
    /// left of the lease: a retry after it will only be refused.
    #[must_use]
    pub fn retry_for(mut self, time: Duration) -> Self {
        self.retry_for = time;
        self
    }

    /// Begins transactions on this level instead of the connection's own.
    ///
    /// SQLite is always serializable and ignores it. A joined transaction keeps its own level. The
    /// write of one row then is a transaction too.
    #[must_use]
    pub fn isolation(mut self, isolation: Isolation) -> Self {
        self.isolation = Some(isolation);
        self
    }

    /// Decides about marks of another domain.
    #[must_use]
    pub fn domain_policy(mut self, policy: DomainPolicy) -> Self {
        self.domain_policy = policy;
        self
    }

    /// How long `resolve` waits on the server for an old transaction that still holds the mark,
    /// before it answers [`Resolution::StillUnknown`](crate::Resolution::StillUnknown). MySQL and
    /// MariaDB round up to whole seconds; SQLite waits as long as the connection's `busy_timeout`.
    #[must_use]
    pub fn resolve_for(mut self, time: Duration) -> Self {
        self.resolve_for = time;
        self
    }

    /// Ties these options to a fence; the result has the same methods as the fence.
    pub fn apply(&self, fence: Fence) -> Configured {
        Configured {
            fence,
            options: self.clone(),
        }
    }

    #[cfg(feature = "__adapter")]
    pub(crate) fn table_ref(&self) -> &TableName {
        &self.table
    }

    #[cfg(feature = "__adapter")]
    pub(crate) fn budget(&self) -> (NonZeroU32, Duration) {
        (self.retry_attempts, self.retry_for)
    }

    #[cfg(feature = "__adapter")]
    pub(crate) fn isolation_level(&self) -> Option<Isolation> {
        self.isolation
    }

    /// The same options for the one fence statement of `resolve`.
    #[cfg(feature = "__adapter")]
    #[allow(dead_code, reason = "SQLite waits as its connections say")]
    pub(crate) fn for_resolving(&self) -> Self {
        Self {
            lock_wait: Some(self.resolve_for),
            ..self.clone()
        }
    }

    /// How long the fence statement may wait for the mark, if that is bounded.
    #[cfg(feature = "__adapter")]
    #[allow(dead_code, reason = "SQLite waits as its connections say")]
    pub(crate) fn lock_wait(&self) -> Option<Duration> {
        self.lock_wait
    }

    #[cfg(feature = "__adapter")]
    pub(crate) fn adopts_higher(&self) -> bool {
        self.domain_policy == DomainPolicy::AdoptHigher
    }
}

impl Default for FenceOptions {
    fn default() -> Self {
        Self::new()
    }
}

/// A fence with its own options. See [`FenceOptions::apply`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Configured {
    fence: Fence,
    options: FenceOptions,
}

impl Configured {
    /// The fence.
    pub fn fence(&self) -> &Fence {
        &self.fence
    }

    /// The options.
    pub fn options(&self) -> &FenceOptions {
        &self.options
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_name_is_one_or_two_identifiers() {
        for good in ["fence", "_f", "app.fence", "A1.b_2", &"x".repeat(63)] {
            assert_eq!(TableName::new(good).unwrap().to_string(), good);
        }
        let long = "x".repeat(64);
        for bad in [
            "", ".", "a.", ".a", "a.b.c", "1a", "a b", "a\"b", "a`b", "a;b", "ä", "a-b", &long,
        ] {
            assert!(TableName::new(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn both_parts_of_a_name_are_quoted() {
        let name = TableName::new("app.fence").unwrap();
        assert_eq!(name.quoted('"'), "\"app\".\"fence\"");
        assert_eq!(TableName::DEFAULT.quoted('`'), "`highwater_fence`");
    }
}
