//! One command on one connection: what is read, what is locked, and how it ends.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ::sqlx::Error;
use highwater_lock::{Domain, FenceKey, FencingToken};

use super::source::Link;
use super::text::Text;
use super::{Changes, Floor, MarkRow, Marks, OperateError, Selection};
use crate::TableName;
use crate::migrate::Dialect;
use crate::sql::{Class, StoredMark};

#[derive(Debug)]
pub(super) struct Session {
    pub(super) text: Text,
    link: Link,
    dialect: Dialect,
    table: TableName,
    wait: Duration,
    /// Inside a transaction that may write; a dry run is not.
    writes: bool,
}

impl Session {
    pub(super) async fn to_read(marks: &Marks) -> Result<Self, OperateError> {
        let link = Link::open(&marks.source).await;
        let link = link.map_err(OperateError::Database)?;
        let dialect = link.dialect();
        Ok(Self {
            text: Text::new(dialect, &marks.table),
            link,
            dialect,
            table: marks.table.clone(),
            wait: marks.wait,
            writes: false,
        })
    }

    pub(super) async fn to_write(marks: &Marks) -> Result<Self, OperateError> {
        let mut session = Self::to_read(marks).await?;
        if !marks.dry_run {
            session.run(session.text.begin(marks.wait)).await?;
            session.writes = true;
        }
        Ok(session)
    }

    /// Ends a command that only read.
    pub(super) async fn close<T>(self, done: Result<T, OperateError>) -> Result<T, OperateError> {
        self.link.close().await;
        done
    }

    /// Commits what was done; an error needs no rollback, because the connection is closed.
    pub(super) async fn end<T>(mut self, done: Result<T, OperateError>) -> Result<T, OperateError> {
        let mut done = done;
        #[cfg(feature = "sqlx-sqlite")]
        if self.writes && done.is_ok() && self.dialect == Dialect::Sqlite {
            done = self.close_opened().await.and(done);
        }
        if self.writes
            && done.is_ok()
            && let Err(error) = self.link.run(self.text.commit()).await
        {
            done = Err(OperateError::Unknown(error));
        }
        self.close(done).await
    }

    /// A mark that was moved or raised is not one that this transaction was admitted under.
    #[cfg(feature = "sqlx-sqlite")]
    async fn close_opened(&mut self) -> Result<(), OperateError> {
        if self.rows(Text::has_open(&self.table)).await?.is_empty() {
            return Ok(());
        }
        self.run(Text::close(&self.table)).await
    }

    pub(super) async fn adopt(
        &mut self,
        selection: &Selection,
        to: Domain,
        floor: FencingToken,
    ) -> Result<Changes, OperateError> {
        let marks = self.text.to_adopt(selection, to, self.writes);
        let marks = self.marks(marks).await?;
        let not_below = || marks.iter().filter(|mark| mark.token >= floor);
        if let Some(highest) = not_below().max_by_key(|mark| mark.token) {
            return Err(OperateError::NotBelowFloor {
                count: not_below().count(),
                key: highest.key.clone(),
                highest: highest.token,
                floor,
            });
        }
        if self.writes {
            // In pieces, and by key: a mark that came into being meanwhile was not looked at.
            for part in marks.chunks(PART) {
                let keys: Vec<&FenceKey> = part.iter().map(|mark| &mark.key).collect();
                self.run(self.text.adopt(&keys, to, floor)).await?;
            }
        }
        Ok(Changes {
            changed: marks,
            ..Changes::default()
        })
    }

    pub(super) async fn raise(
        &mut self,
        selection: &Selection,
        domain: Domain,
        floor: FencingToken,
    ) -> Result<Changes, OperateError> {
        let marks = self.text.to_raise(selection, domain, floor, self.writes);
        let marks = self.marks(marks).await?;
        if self.writes {
            for part in marks.chunks(PART) {
                let keys: Vec<&FenceKey> = part.iter().map(|mark| &mark.key).collect();
                self.run(self.text.raise(&keys, domain, floor)).await?;
            }
        }
        Ok(Changes {
            changed: marks,
            ..Changes::default()
        })
    }

    pub(super) async fn raise_keys(
        &mut self,
        keys: &BTreeSet<FenceKey>,
        domain: Domain,
        floor: FencingToken,
    ) -> Result<Changes, OperateError> {
        let mut changes = Changes::default();
        let keys: Vec<&FenceKey> = keys.iter().collect();
        for part in keys.chunks(PART) {
            let before = self.named(part).await?;
            let mut after = BTreeMap::new();
            if self.writes {
                self.run(self.text.raise(part, domain, floor)).await?;
                if before.len() < part.len() {
                    after = self.named(part).await?;
                }
            }
            for key in part {
                match before.get(key) {
                    // A holder of another domain made it first, after it was looked for.
                    None if after.get(key).is_some_and(|mark| mark.domain != domain) => {
                        changes.foreign.extend(after.remove(key));
                    }
                    None => changes.created.push((*key).clone()),
                    Some(mark) if mark.domain != domain => changes.foreign.push(mark.clone()),
                    Some(mark) if mark.token < floor => changes.changed.push(mark.clone()),
                    Some(_) => {}
                }
            }
        }
        Ok(changes)
    }

    /// The marks of these keys, locked if this session writes.
    async fn named(
        &mut self,
        keys: &[&FenceKey],
    ) -> Result<BTreeMap<FenceKey, MarkRow>, OperateError> {
        let marks = self.text.named(keys, self.writes);
        let marks = self.marks(marks).await?.into_iter();
        Ok(marks.map(|mark| (mark.key.clone(), mark)).collect())
    }

    pub(super) async fn marks(&mut self, query: String) -> Result<Vec<MarkRow>, OperateError> {
        let rows = self.rows(query).await?;
        let marks: Option<Vec<MarkRow>> = rows.into_iter().map(mark_row).collect();
        marks.ok_or(OperateError::Unreadable)
    }

    pub(super) async fn floors(&mut self, query: String) -> Result<Vec<Floor>, OperateError> {
        let rows = self.rows(query).await?;
        let floors: Option<Vec<Floor>> = rows.iter().map(|row| floor(row)).collect();
        let mut floors = floors.ok_or(OperateError::Unreadable)?;
        floors.sort_by_key(|floor| std::cmp::Reverse((floor.highest, floor.domain)));
        Ok(floors)
    }

    async fn rows(&mut self, sql: String) -> Result<Vec<Vec<String>>, OperateError> {
        let rows = self.link.rows(sql).await;
        rows.map_err(|error| self.explain(error))
    }

    async fn run(&mut self, sql: String) -> Result<(), OperateError> {
        let done = self.link.run(sql).await;
        done.map_err(|error| self.explain(error))
    }

    fn explain(&self, error: Error) -> OperateError {
        match Link::class(self.dialect, &error) {
            Class::NoTable => OperateError::NotMigrated {
                table: self.table.clone(),
            },
            Class::LockTimeout | Class::Transient => OperateError::Held {
                waited: self.wait,
                source: error,
            },
            Class::Refused | Class::Other => OperateError::Database(error),
        }
    }
}

fn mark_row(row: Vec<String>) -> Option<MarkRow> {
    let [key, domain, token, step, updated_at]: [String; 5] = row.try_into().ok()?;
    let (token, step) = (token.parse().ok()?, step.parse().ok()?);
    let stored = StoredMark::from_columns(&key, &domain, token, step)?;
    Some(MarkRow {
        key: stored.key,
        domain: stored.domain,
        token: stored.token,
        step: stored.step,
        updated_at,
    })
}

fn floor(row: &[String]) -> Option<Floor> {
    let [domain, highest, marks] = row else {
        return None;
    };
    Some(Floor {
        domain: domain.parse().ok()?,
        highest: FencingToken::new(highest.parse().ok()?)?,
        marks: marks.parse().ok()?,
    })
}

/// How many keys one statement names.
const PART: usize = 500;
