//! The forms of rusqlite: what is special to this driver. What all adapters share stands in the
//! conformance suite.

#![expect(clippy::unwrap_used, reason = "a test fails where it is")]

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::Duration;

use highwater_fencing::rusqlite::{FenceError, Fenced, RusqliteFence as _, poisoned};
use highwater_fencing::{
    Configured, Domain, Fence, FenceKey, FenceOptions, FencingToken, Resolution, Step, TableName,
    migrate,
};
use rusqlite::{Connection, Error, OptionalExtension as _, TransactionBehavior, params};

/// A database file with the table of marks and a table `stock`, gone when dropped.
struct Base {
    path: PathBuf,
    _folder: tempfile::TempDir,
}

impl Base {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let base = Self {
            path: folder.path().join("base.db"),
            _folder: folder,
        };
        let conn = base.connect();
        migrate::rusqlite::run(&conn).unwrap();
        conn.execute_batch("CREATE TABLE stock (sku TEXT PRIMARY KEY, quantity INTEGER NOT NULL)")
            .unwrap();
        base
    }

    /// A connection that does not wait for others.
    fn connect(&self) -> Connection {
        let conn = Connection::open(&self.path).unwrap();
        conn.busy_timeout(Duration::ZERO).unwrap();
        conn
    }

    fn in_wal(&self) -> &Self {
        let conn = self.connect();
        let mode: String = conn
            .query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))
            .unwrap();
        assert_eq!(mode, "wal");
        self
    }

    fn rows(&self) -> i64 {
        let conn = self.connect();
        conn.query_row("SELECT COUNT(*) FROM stock", [], |row| row.get(0))
            .unwrap()
    }

    fn mark(&self) -> Option<i64> {
        let conn = self.connect();
        conn.query_row("SELECT token FROM highwater_fence", [], |row| row.get(0))
            .optional()
            .unwrap()
    }
}

fn fence(token: u64) -> Fence {
    let key = FenceKey::new("apple").unwrap();
    let token = FencingToken::new(token).unwrap();
    Fence::new(Domain::named("test").unwrap(), key, token)
}

/// Tried once only.
fn once(token: u64) -> Configured {
    let options = FenceOptions::new().retry_attempts(NonZeroU32::MIN);
    options.apply(fence(token))
}

fn put(tx: &Fenced<'_>, sku: &str) -> Result<(), Error> {
    tx.execute("INSERT INTO stock VALUES (?1, 1)", [sku])
        .map(drop)
}

/// The connection is outside of a transaction and can commit.
fn assert_clean(conn: &Connection) {
    assert!(conn.is_autocommit());
    conn.execute_batch("CREATE TABLE _probe (x); DROP TABLE _probe")
        .expect("the commit hook is gone");
}

fn wait_for(flag: &AtomicBool) {
    while !flag.load(Ordering::SeqCst) {
        std::thread::yield_now();
    }
}

fn code(error: &Error) -> i32 {
    error.sqlite_error().unwrap().extended_code
}

#[test]
fn a_body_is_called_again_after_a_collision() {
    let base = Base::new();
    let mut conn = base.connect();
    let mut calls = 0;
    let done: Result<u32, FenceError> = fence(7).transaction(&mut conn, |tx| {
        calls += 1;
        put(tx, "apple")?;
        match calls {
            1 => Err(Error::SqliteFailure(rusqlite::ffi::Error::new(5), None).into()),
            _ => Ok(calls),
        }
    });
    assert_eq!(done.unwrap(), 2);
    assert_eq!((base.rows(), base.mark()), (1, Some(7)));
    assert_clean(&conn);
}

#[test]
fn another_writer_is_waited_for_within_the_budget() {
    let base = Base::new();
    let mut conn = base.connect();
    let other = base.connect();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let busy = once(7).transaction(&mut conn, |_tx| Ok::<_, FenceError>(()));
    match busy {
        Err(FenceError::Database(error)) => assert_eq!(code(&error), 5),
        other => panic!("{other:?}"),
    }
    static MET: AtomicBool = AtomicBool::new(false);
    static LEFT: AtomicBool = AtomicBool::new(false);
    conn.busy_handler(Some(|_| {
        MET.store(true, Ordering::SeqCst);
        wait_for(&LEFT);
        false
    }))
    .unwrap();
    let leaves = std::thread::spawn(move || {
        wait_for(&MET);
        other.execute_batch("ROLLBACK").unwrap();
        LEFT.store(true, Ordering::SeqCst);
    });
    fence(7).begin(&mut conn).unwrap().commit().unwrap();
    leaves.join().unwrap();
    assert_eq!(base.mark(), Some(7));
}

#[test]
fn an_error_or_a_panic_of_the_body_leaves_nothing() {
    let base = Base::new();
    let mut conn = base.connect();
    let failed: Result<(), FenceError> = fence(7).transaction(&mut conn, |tx| {
        put(tx, "apple")?;
        Err(Error::InvalidQuery.into())
    });
    assert!(matches!(
        failed,
        Err(FenceError::Database(Error::InvalidQuery))
    ));
    assert_clean(&conn);
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        fence(7).transaction(&mut conn, |tx| -> Result<(), FenceError> {
            put(tx, "apple")?;
            panic!("a bug")
        })
    }));
    panicked.unwrap_err();
    assert_clean(&conn);
    assert_eq!((base.rows(), base.mark()), (0, None));
}

#[test]
fn every_way_to_run_a_statement_poisons() {
    let base = Base::new();
    let mut conn = base.connect();
    type Way = fn(&Fenced<'_>) -> Result<(), Error>;
    let ways: [Way; 7] = [
        |tx| tx.execute("INSERT INTO none VALUES (1)", []).map(drop),
        |tx| tx.execute_batch("INSERT INTO none VALUES (1)"),
        |tx| tx.query_row("SELECT 1 FROM none", [], |_| Ok(())),
        |tx| tx.query_map("SELECT 1 FROM none", [], |_| Ok(())).map(drop),
        |tx| tx.prepare("SELECT 1 FROM none").map(drop),
        |tx| {
            let mut insert = tx.prepare("INSERT INTO stock VALUES (?1, 1)")?;
            insert.execute(["apple"])?;
            insert.execute(["apple"]).map(drop)
        },
        |tx| {
            let mut select = tx.prepare("SELECT abs(-9223372036854775807 - ?1)")?;
            assert_eq!(select.query_map([0], |_| Ok(()))?.len(), 1);
            select.query_row([1], |_| Ok(()))
        },
    ];
    for (number, way) in ways.into_iter().enumerate() {
        let tx = fence(7).begin(&mut conn).unwrap();
        let first = way(&tx).expect_err(&format!("way {number}"));
        let refused = put(&tx, "pear").unwrap_err();
        let refusal = poisoned(&refused).unwrap_or_else(|| panic!("{number}: {refused:?}"));
        assert_eq!(refusal.first(), first.to_string());
        let outcome = tx.commit();
        assert!(
            matches!(outcome, Err(FenceError::Poisoned { .. })),
            "{outcome:?}"
        );
        assert_clean(&conn);
    }
    assert_eq!((base.rows(), base.mark()), (0, None));
}

#[test]
fn a_prepared_statement_is_refused_after_a_failure_elsewhere() {
    let base = Base::new();
    let mut conn = base.connect();
    let tx = fence(7).begin(&mut conn).unwrap();
    let mut insert = tx.prepare("INSERT INTO stock VALUES (?1, 1)").unwrap();
    tx.execute_batch("nonsense").unwrap_err();
    assert!(poisoned(&insert.execute(["apple"]).unwrap_err()).is_some());
    drop(insert);
    tx.commit().unwrap_err();
    assert_eq!(base.rows(), 0);
}

#[test]
fn what_a_query_did_not_find_is_no_failure() {
    let base = Base::new();
    let mut conn = base.connect();
    let tx = fence(7).begin(&mut conn).unwrap();
    let none = tx.query_row("SELECT 1 FROM stock", [], |row| row.get::<_, i64>(0));
    assert_eq!(none.optional().unwrap(), None);
    tx.query_row("SELECT 'text'", [], |row| row.get::<_, i64>(0))
        .unwrap_err();
    tx.query_row("SELECT 300", [], |row| row.get::<_, u8>(0))
        .unwrap_err();
    tx.query_map("SELECT 1", [], |row| row.get::<_, i64>(1))
        .unwrap_err();
    put(&tx, "apple").unwrap();
    assert_eq!(tx.changes(), 1);
    tx.commit().unwrap();
    assert_eq!(base.rows(), 1);
}

#[test]
fn whatever_ends_the_transaction_nothing_after_it_is_kept() {
    let base = Base::new();
    let mut conn = base.connect();
    for end in [
        "COMMIT",
        "ROLLBACK",
        "ROLLBACK; BEGIN",
        "INSERT OR ROLLBACK INTO stock SELECT 'x', NULL",
    ] {
        let tx = fence(7).begin(&mut conn).unwrap();
        put(&tx, "before").unwrap();
        // Past the guard, so that nothing is poisoned.
        let raw = tx.connection();
        let ended = raw.execute_batch(end);
        assert_eq!(ended.is_err(), !end.starts_with("ROLLBACK"), "{ended:?}");
        let late = raw.execute("INSERT INTO stock VALUES ('after', 1)", []);
        if !end.ends_with("BEGIN") {
            assert_eq!(code(&late.unwrap_err()), 531, "the hook refused it");
        }
        let outcome = tx.commit();
        assert!(
            matches!(outcome, Err(FenceError::Ended(_))),
            "{end}: {outcome:?}"
        );
        assert_clean(&conn);
        assert_eq!((base.rows(), base.mark()), (0, None), "{end}");
    }
}

#[test]
fn a_transaction_that_is_open_is_not_fenced_over() {
    let base = Base::new();
    let mut conn = base.connect();
    for open in ["BEGIN", "SAVEPOINT x"] {
        conn.execute_batch(open).unwrap();
        let refused = fence(7).begin(&mut conn).map(drop);
        assert!(matches!(refused, Err(FenceError::InSavepoint)), "{open}");
        conn.execute_batch("ROLLBACK").unwrap();
    }
    let tx = conn.transaction().unwrap();
    tx.execute_batch("ROLLBACK").unwrap();
    let refused = fence(7).admit(tx).map(drop);
    assert!(matches!(refused, Err(FenceError::Ended(_))), "{refused:?}");
    assert_eq!(base.mark(), None, "the fence must not be autocommitted");
    assert_clean(&conn);
}

#[test]
fn a_joined_transaction_rolls_back_whatever_its_drop_behavior_was() {
    let base = Base::new();
    let mut conn = base.connect();
    let mut tx = conn.transaction().unwrap();
    tx.set_drop_behavior(rusqlite::DropBehavior::Commit);
    let tx = fence(7).admit(tx).unwrap();
    put(&tx, "apple").unwrap();
    drop(tx);
    assert_clean(&conn);
    assert_eq!((base.rows(), base.mark()), (0, None));

    let tx = conn.transaction().unwrap();
    let tx = fence(7).admit(tx).unwrap();
    put(&tx, "apple").unwrap();
    tx.commit().unwrap();
    assert_clean(&conn);
    assert_eq!((base.rows(), base.mark()), (1, Some(7)));
}

#[test]
fn a_deferred_transaction_that_has_read_an_old_state_is_refused() {
    let base = Base::new();
    let mut conn = base.in_wal().connect();
    let other = base.connect();
    let tx = conn.transaction().unwrap();
    tx.query_row("SELECT COUNT(*) FROM stock", [], |_| Ok(()))
        .unwrap();
    other
        .execute("INSERT INTO stock VALUES ('pear', 1)", [])
        .unwrap();
    match fence(7).admit(tx) {
        Err(FenceError::Database(error)) => assert_eq!(code(&error), 517),
        other => panic!("{other:?}"),
    }
    assert_clean(&conn);
    // An immediate one cannot get there.
    let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate);
    fence(7).admit(tx.unwrap()).unwrap().commit().unwrap();
}

#[test]
fn a_reader_in_the_way_of_the_commit_is_waited_for() {
    let base = Base::new();
    let mut conn = base.connect();
    let reader = base.connect();
    let tx = fence(7).begin(&mut conn).unwrap();
    put(&tx, "apple").unwrap();
    reader.execute_batch("BEGIN; SELECT * FROM stock").unwrap();
    // In the way to the end.
    match tx.commit() {
        Err(FenceError::Database(error)) => assert_eq!(code(&error), 5),
        other => panic!("{other:?}"),
    }
    reader.execute_batch("COMMIT").unwrap();
    assert_clean(&conn);
    assert_eq!((base.rows(), base.mark()), (0, None));

    // It leaves as soon as the commit has met it, which is then repeated.
    let tx = fence(7).begin(&mut conn).unwrap();
    put(&tx, "apple").unwrap();
    reader.execute_batch("BEGIN; SELECT * FROM stock").unwrap();
    static MET: AtomicBool = AtomicBool::new(false);
    static LEFT: AtomicBool = AtomicBool::new(false);
    tx.connection()
        .busy_handler(Some(|_| {
            MET.store(true, Ordering::SeqCst);
            wait_for(&LEFT);
            false
        }))
        .unwrap();
    let leaves = std::thread::spawn(move || {
        wait_for(&MET);
        reader.execute_batch("COMMIT").unwrap();
        LEFT.store(true, Ordering::SeqCst);
    });
    tx.commit().unwrap();
    leaves.join().unwrap();
    assert_eq!((base.rows(), base.mark()), (1, Some(7)));
}

#[test]
fn a_commit_that_happened_is_never_taken_for_a_collision() {
    let base = Base::new();
    let mut conn = base.in_wal().connect();
    // It runs after the commit, and its error comes in place of the answer.
    for (number, error) in [(1, 5), (2, 6), (3, 261), (4, 13), (5, 7)] {
        static ERROR: AtomicI32 = AtomicI32::new(0);
        ERROR.store(error, Ordering::SeqCst);
        conn.wal_hook(Some(|_, _| {
            let error = rusqlite::ffi::Error::new(ERROR.load(Ordering::SeqCst));
            Err(Error::SqliteFailure(error, None))
        }));
        let mut calls = 0;
        let done = fence(7).transaction(&mut conn, |tx| {
            calls += 1;
            Ok::<_, FenceError>(put(tx, &format!("{number}/{calls}"))?)
        });
        assert!(
            matches!(done, Err(FenceError::Unknown(_))),
            "{error}: {done:?}"
        );
        conn.wal_hook(None);
        assert_clean(&conn);
        assert_eq!((calls, base.rows()), (1, number), "{error}");
    }
}

#[test]
fn what_ended_a_transaction_is_told_with_protected_tables_too() {
    let base = Base::new();
    let mut conn = base.connect();
    let protect = migrate::print_protect(migrate::Dialect::Sqlite, &TableName::DEFAULT);
    conn.execute_batch(&protect).unwrap();
    for end in [
        "ROLLBACK",
        "ROLLBACK; BEGIN",
        "INSERT OR ROLLBACK INTO stock SELECT 'x', NULL",
    ] {
        let tx = fence(7).begin(&mut conn).unwrap();
        tx.connection().execute_batch(end).ok();
        let outcome = tx.commit();
        assert!(
            matches!(outcome, Err(FenceError::Ended(_))),
            "{end}: {outcome:?}"
        );
        assert_clean(&conn);
        assert_eq!(base.mark(), None, "{end}");
    }
}

#[test]
fn a_hook_of_the_users_is_replaced_and_gone_afterwards() {
    let base = Base::new();
    let mut conn = base.connect();
    conn.commit_hook(Some(|| true)).unwrap();
    let tx = fence(7).begin(&mut conn).unwrap();
    put(&tx, "apple").unwrap();
    tx.commit().unwrap();
    assert_clean(&conn);
    assert_eq!(base.rows(), 1);
}

/// Who replaces a hook takes the guard's eyes: it counts as the end, whatever came after.
#[test]
fn a_hook_that_is_replaced_meanwhile_is_never_a_commit() {
    let base = Base::new();
    let mut conn = base.connect();
    let commit = |conn: &Connection| conn.commit_hook(None::<fn() -> bool>);
    let rollback = |conn: &Connection| conn.rollback_hook(None::<fn()>);
    for (replace, then) in [
        (&commit as &dyn Fn(&Connection) -> Result<(), Error>, ""),
        (&rollback, ""),
        (
            &rollback,
            "ROLLBACK; BEGIN; INSERT INTO stock VALUES ('x', 1)",
        ),
        (
            &commit,
            "ROLLBACK; BEGIN; INSERT INTO stock VALUES ('x', 1)",
        ),
    ] {
        let tx = fence(7).begin(&mut conn).unwrap();
        put(&tx, "apple").unwrap();
        replace(tx.connection()).unwrap();
        tx.connection().execute_batch(then).unwrap();
        let outcome = tx.commit();
        assert!(
            matches!(outcome, Err(FenceError::Ended(_))),
            "{then}: {outcome:?}"
        );
        assert_clean(&conn);
        assert_eq!((base.rows(), base.mark()), (0, None), "{then}");
    }
}

#[test]
fn hooks_of_the_user_work_again_after_a_fenced_transaction() {
    static ROLLED_BACK: AtomicI32 = AtomicI32::new(0);
    let base = Base::new();
    let mut conn = base.connect();
    fence(7).begin(&mut conn).unwrap().commit().unwrap();
    fence(7).begin(&mut conn).unwrap().rollback().unwrap();
    let count = || {
        ROLLED_BACK.fetch_add(1, Ordering::SeqCst);
    };
    conn.rollback_hook(Some(count)).unwrap();
    conn.execute_batch("BEGIN; ROLLBACK; BEGIN; COMMIT")
        .unwrap();
    assert_eq!(ROLLED_BACK.load(Ordering::SeqCst), 1);
}

/// A mark that stays what it was is not written: the log of the file does not grow.
#[test]
fn a_fence_that_changes_no_mark_writes_nothing() {
    let base = Base::new();
    let mut conn = base.in_wal().connect();
    fence(7).begin(&mut conn).unwrap().commit().unwrap();
    let forget = "UPDATE highwater_fence SET updated_at = 'before'";
    let step = |number: u64| fence(8).with_step(Step::new(number).unwrap());
    for (fence, written) in [
        (fence(7), false),
        (fence(8), true),
        (fence(8), false),
        (step(1), true),
        (step(2), true),
        (fence(8), false),
    ] {
        conn.execute_batch(forget).unwrap();
        let log = || base.path.with_extension("db-wal").metadata().unwrap().len();
        let before = log();
        fence.begin(&mut conn).unwrap().commit().unwrap();
        let time: String = conn
            .query_row("SELECT updated_at FROM highwater_fence", [], |row| {
                row.get(0)
            })
            .unwrap();
        assert_eq!((log() > before, time != "before"), (written, written));
    }
}

#[test]
fn a_write_with_a_step_is_resolved() {
    let base = Base::new();
    let mut conn = base.connect();
    let with_step = |step| fence(7).with_step(Step::new(step).unwrap());
    let unsure = with_step(1).begin(&mut conn).unwrap();
    drop(unsure);
    let resolved = with_step(1).resolve(&mut conn).unwrap();
    assert_eq!(resolved, Resolution::NotApplied);
    let tx = with_step(1).begin(&mut conn).unwrap();
    put(&tx, "apple").unwrap();
    tx.commit().unwrap();
    let resolved = with_step(1).resolve(&mut conn).unwrap();
    assert_eq!(resolved, Resolution::Applied);
    // Somebody else is writing.
    let other = base.connect();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let options = FenceOptions::new().retry_attempts(NonZeroU32::MIN);
    let resolved = options.apply(with_step(2)).resolve(&mut conn).unwrap();
    assert_eq!(resolved, Resolution::StillUnknown);
    other.execute_batch("ROLLBACK").unwrap();
    let without = fence(7).resolve(&mut conn);
    assert!(matches!(without, Err(FenceError::NoStep)), "{without:?}");
}

#[test]
fn a_missing_table_and_a_foreign_one_are_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let mut conn = Connection::open(folder.path().join("base.db")).unwrap();
    let missing = once(7).begin(&mut conn).map(drop);
    assert!(
        matches!(missing, Err(FenceError::NotMigrated { .. })),
        "{missing:?}"
    );
    assert_clean(&conn);
    conn.execute_batch("CREATE TABLE highwater_fence (x)")
        .unwrap();
    let foreign = migrate::rusqlite::run(&conn);
    assert!(
        matches!(foreign, Err(migrate::MigrateError::ForeignTable { .. })),
        "{foreign:?}"
    );
    conn.execute_batch("DROP TABLE highwater_fence").unwrap();
    let created = migrate::rusqlite::run(&conn).unwrap();
    assert_eq!(created, migrate::Outcome::Created);
    let present = migrate::rusqlite::run(&conn).unwrap();
    assert_eq!(present, migrate::Outcome::Present);
}

#[test]
fn a_connection_works_on_after_a_refusal() {
    let base = Base::new();
    let mut conn = base.connect();
    fence(7).begin(&mut conn).unwrap().commit().unwrap();
    let refused = fence(6).begin(&mut conn).map(drop);
    assert!(
        matches!(refused, Err(FenceError::Stale { .. })),
        "{refused:?}"
    );
    conn.execute("INSERT INTO stock VALUES (?1, ?2)", params!["apple", 1])
        .unwrap();
    assert_clean(&conn);
    assert_eq!(base.mark(), Some(7));
}
