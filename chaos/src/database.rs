//! A database with rows that are written under the fence.

use std::path::{Path, PathBuf};

use highwater_fencing::rusqlite::{FenceError, RusqliteFence as _};
use highwater_fencing::{Domain, Fence, FenceKey, FencingToken, migrate};
use highwater_history::{Answer, CallId, Event, Request};
use rusqlite::{Connection, OpenFlags};

use crate::Failure;
use crate::record::Recorder;

/// Where the rows are.
#[derive(Clone, Debug)]
pub(crate) struct Database {
    file: PathBuf,
    domain: Domain,
}

impl Database {
    /// A new one.
    pub(crate) fn create(folder: &Path, domain: Domain) -> Result<Self, Failure> {
        let file = folder.join("rows.sqlite");
        let connection = Connection::open(&file)?;
        connection.execute_batch(
            "PRAGMA journal_mode = WAL;
             CREATE TABLE written (
                 place INTEGER PRIMARY KEY AUTOINCREMENT,
                 key TEXT NOT NULL, token INTEGER NOT NULL, call INTEGER NOT NULL)",
        )?;
        migrate::rusqlite::run(&connection)?;
        Ok(Self { file, domain })
    }

    /// A connection of a client's own.
    pub(crate) fn connect(&self) -> Result<Rows, Failure> {
        let connection =
            Connection::open_with_flags(&self.file, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
        connection.busy_timeout(std::time::Duration::from_secs(5))?;
        Ok(Rows {
            connection,
            domain: self.domain,
        })
    }

    /// All rows, in the order in which they were committed: one transaction writes at a time.
    pub(crate) fn dump(&self) -> Result<Vec<Event>, Failure> {
        let connection = Connection::open(&self.file)?;
        let mut select =
            connection.prepare("SELECT key, token, call FROM written ORDER BY place")?;
        let rows = select.query_map([], |row| {
            Ok(Event::Row {
                key: row.get(0)?,
                token: row.get::<_, i64>(1)?.cast_unsigned(),
                call: CallId(row.get::<_, i64>(2)?.cast_unsigned()),
            })
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }
}

/// One client's way to the database.
#[derive(Debug)]
pub(crate) struct Rows {
    connection: Connection,
    domain: Domain,
}

impl Rows {
    /// Writes a row under the fence of this key and token, and notes what came of it.
    pub(crate) fn write(&mut self, recorder: &Recorder, key: &str, token: FencingToken) {
        let call = recorder.call(
            0,
            Request::Write {
                key: key.to_owned(),
                token: token.get(),
            },
        );
        let fence_key = FenceKey::new(key).expect("keys are short");
        let fence = Fence::new(self.domain, fence_key, token);
        let row = (key, token.get().cast_signed(), call.0.cast_signed());
        let written = fence.transaction(&mut self.connection, |tx| {
            let insert = "INSERT INTO written (key, token, call) VALUES (?1, ?2, ?3)";
            tx.execute(insert, row)?;
            Ok::<_, FenceError>(())
        });
        let answer = match written {
            Ok(()) => Answer::Committed,
            Err(FenceError::Stale { highest, .. }) => Answer::Stale {
                highest: highest.get(),
            },
            // Rolled back.
            Err(FenceError::Database(_)) => Answer::NotTaken,
            Err(_) => Answer::Unknown,
        };
        recorder.answer(call, answer);
    }
}
