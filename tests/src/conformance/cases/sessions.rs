//! Sessions that are not as they come: other settings, a snapshot that is older than the fence, a
//! savepoint around it.

use std::sync::Arc;

use highwater_fencing::{Configured, Domain, Fence, FenceKey, FenceOptions, Isolation, Mark};
use highwater_proof::adapter::{Dialect, Source, Tx, Verdict};

use crate::conformance::world::{STOCK, World, bare, deduct, domain, fence, set, token};

const KEY: &str = "stock/apple";
const NO_JOIN: &str = "a transaction of the user's cannot be joined";

/// What a source says to a fence in each of the forms, with SQL run on the connection before.
async fn say(
    world: &World,
    source: &dyn Source,
    before: &str,
    fence: &Configured,
) -> Vec<Result<(), Verdict>> {
    async fn end(begun: Result<Box<dyn Tx>, Verdict>) -> Result<(), Verdict> {
        begun?.commit().await
    }
    let mut said = Vec::new();
    // On a source with one connection the setting is still there for the next form, unless the
    // pool resets sessions.
    if world.abilities().lends {
        said.push(end(source.begin_on(before, fence).await).await);
    }
    if world.abilities().joins {
        said.push(end(source.admit(before, fence).await).await);
    }
    if !before.is_empty() {
        source.run(before).await.unwrap();
    }
    said.push(end(source.begin(fence).await).await);
    said
}

/// Every verdict there is, in each form.
async fn judge(world: &World, source: &dyn Source, before: &str) {
    // A quote, a backslash, and bytes that are no text.
    let key = b"a'\\\"\x00\xff".as_slice();
    let offered = |number, step: Option<u64>| {
        let mut fence = bare(key, number);
        if let Some(step) = step {
            fence = fence.with_step(step.try_into().unwrap());
        }
        FenceOptions::new().apply(fence)
    };
    let highest = i64::MAX.unsigned_abs();
    for number in [3, 3, 5, highest - 1] {
        for said in say(world, source, before, &offered(number, None)).await {
            said.unwrap_or_else(|error| panic!("{before}: {number}: {error:?}"));
        }
        assert_eq!(world.mark(key).await, Some(number), "{before}");
    }
    for said in say(world, source, before, &offered(4, None)).await {
        assert!(
            matches!(&said, Err(Verdict::Stale { highest: mark, .. }) if mark.get() == highest - 1),
            "{before}: {said:?}"
        );
    }
    let mut said = say(world, source, before, &offered(highest, Some(7))).await;
    said.remove(0).unwrap();
    said.extend(say(world, source, before, &offered(highest, Some(6))).await);
    for said in said {
        assert!(
            matches!(&said, Err(Verdict::AlreadyApplied { latest, .. }) if latest.get() == 7),
            "{before}: {said:?}"
        );
    }
    let foreign = Fence::new(
        Domain::named("other").unwrap(),
        FenceKey::new(key).unwrap(),
        token(highest),
    );
    let foreign = FenceOptions::new().apply(foreign);
    for said in say(world, source, before, &foreign).await {
        assert!(
            matches!(said, Err(Verdict::DomainMismatch { .. })),
            "{before}: {said:?}"
        );
    }
    // One stale key among several keeps the others as they are.
    let several = |number| {
        let marks = [(key, number), (b"fresh".as_slice(), 1)];
        let marks = marks.map(|(key, number)| Mark {
            key: FenceKey::new(key).unwrap(),
            token: token(number),
        });
        FenceOptions::new().apply(Fence::from_marks(domain(), marks).unwrap())
    };
    for said in say(world, source, before, &several(5)).await {
        assert!(
            matches!(said, Err(Verdict::Stale { .. })),
            "{before}: {said:?}"
        );
    }
    assert_eq!(world.mark("fresh").await, None, "{before}");
    assert_eq!(world.mark(key).await, Some(highest), "{before}");
    for said in say(world, source, before, &several(highest)).await {
        said.unwrap_or_else(|error| panic!("{before}: {error:?}"));
    }
    assert_eq!(world.mark("fresh").await, Some(1), "{before}");
}

pub(super) async fn unusual_settings_change_no_verdict(world: Arc<World>) {
    let settings: &[&str] = match world.database.dialect {
        Dialect::Postgres => &[
            "SET standard_conforming_strings = off; SET escape_string_warning = off",
            "SET bytea_output = escape; SET datestyle = german; SET extra_float_digits = 0",
            "SET plan_cache_mode = force_generic_plan; SET enable_indexscan = off",
        ],
        // Without strict mode a value that does not fit is stored as another one.
        Dialect::MySql => &[
            "SET sql_mode = ''",
            "SET sql_mode = 'ANSI,NO_BACKSLASH_ESCAPES,NO_UNSIGNED_SUBTRACTION,\
             STRICT_ALL_TABLES'",
            "SET NAMES latin1; SET sql_mode = 'IGNORE_SPACE,HIGH_NOT_PRECEDENCE'",
        ],
        Dialect::Sqlite => &[
            "PRAGMA reverse_unordered_selects = ON; PRAGMA recursive_triggers = ON",
            "PRAGMA foreign_keys = OFF; PRAGMA read_uncommitted = ON",
        ],
    };
    for setting in settings {
        let source = world.another_source(1).await;
        judge(&world, &*source, setting).await;
        source.close().await;
        world.run("DELETE FROM highwater_fence").await;
    }
}

pub(super) async fn both_meanings_of_affected_rows_give_the_same_verdicts(world: Arc<World>) {
    for variant in world.adapter.url_variants() {
        let url = format!("{}{variant}", world.url());
        let source = world.source_at(&url, 1).await;
        judge(&world, &*source, "").await;
        if world.adapter.url_variants().len() > 1 {
            // The setting is what it says: MySQL counts rows that were found, or were changed.
            let mut tx = source.begin_unfenced().await.unwrap();
            let same = "UPDATE stock SET quantity = quantity WHERE sku = 'apple'";
            let rows = tx.run(same).await.unwrap();
            tx.rollback().await.unwrap();
            let expected = u64::from(!variant.contains("client_found_rows=false"));
            assert_eq!(rows, expected, "{variant:?}");
        }
        source.close().await;
        world.run("DELETE FROM highwater_fence").await;
    }
}

/// Whether the server refuses to lock a row that changed since the snapshot, by default.
async fn checks_snapshots(world: &World) -> bool {
    if !world.database.name.starts_with("mariadb") {
        return world.database.dialect != Dialect::MySql;
    }
    let set = "SELECT COUNT(*) FROM information_schema.system_variables \
               WHERE variable_name = 'INNODB_SNAPSHOT_ISOLATION' AND global_value = 'ON'";
    world.number(set).await == 1
}

/// A transaction of the user's that reads on a level with one snapshot.
fn reading(world: &World) -> String {
    let read = "SELECT quantity FROM stock WHERE sku = 'apple'";
    match world.database.dialect {
        Dialect::Postgres => format!("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; {read}"),
        // The level is the default of MySQL, and the only one of SQLite.
        Dialect::MySql | Dialect::Sqlite => read.to_owned(),
    }
}

/// Reads, waits with the fence for an older holder who deducts ten apples, and is then admitted, or
/// not.
async fn read_too_early(world: &Arc<World>) -> Result<Box<dyn Tx>, Verdict> {
    let mut older = world.begin(&fence(KEY, 5)).await;
    let joining = {
        let (world, before) = (world.clone(), reading(world));
        tokio::spawn(async move { world.source.admit(&before, &fence(KEY, 7)).await })
    };
    world.until_somebody_waits().await;
    deduct(&mut *older, "apple", 10).await.unwrap();
    older.commit().await.unwrap();
    joining.await.unwrap()
}

pub(super) async fn a_fence_after_a_read_gives_no_wrong_result_unnoticed(world: Arc<World>) {
    if !world.abilities().joins {
        return world.not_applicable(NO_JOIN);
    }
    match read_too_early(&world).await {
        // Serialization failure, snapshot conflict, busy: the user has to begin again.
        Err(refused) => {
            assert!(checks_snapshots(&world).await, "{refused:?}");
            assert!(matches!(refused, Verdict::Database(_)), "{refused:?}");
            assert_eq!(world.quantity("apple").await, STOCK - 10);
            assert_eq!(world.mark(KEY).await, Some(5));
        }
        // InnoDB reads for writing what is current: a write that computes in the database is right.
        Ok(mut tx) => {
            assert!(!checks_snapshots(&world).await, "it noticed nothing");
            let write = "UPDATE stock SET quantity = quantity - 30 WHERE sku = 'apple'";
            tx.run(write).await.unwrap();
            tx.commit().await.unwrap();
            assert_eq!(world.quantity("apple").await, STOCK - 40);
            assert_eq!(world.mark(KEY).await, Some(7));
        }
    }
    world.until_nobody_is_in_a_transaction().await;
}

/// The refusal names the mark that refused, although the transaction's snapshot is older.
pub(super) async fn a_stale_fence_after_a_read_is_told_as_such(world: Arc<World>) {
    if !world.abilities().joins {
        return world.not_applicable(NO_JOIN);
    }
    let newer = world.begin(&fence(KEY, 9)).await;
    let joining = {
        let (world, before) = (world.clone(), reading(&world));
        tokio::spawn(async move { world.source.admit(&before, &fence(KEY, 7)).await.map(drop) })
    };
    world.until_somebody_waits().await;
    newer.commit().await.unwrap();
    match joining.await.unwrap() {
        Err(Verdict::Stale { highest, .. }) => assert_eq!(highest, token(9)),
        // Serialization failure, snapshot conflict, busy: the server was first.
        Err(Verdict::Database(_)) => assert!(checks_snapshots(&world).await),
        other => panic!("{other:?}"),
    }
    assert_eq!(world.mark(KEY).await, Some(9));
    world.until_nobody_is_in_a_transaction().await;
}

/// The reason why the fence has to be the first statement: evidence for what the documentation of
/// `admit` says, on the databases that do not refuse it.
pub(super) async fn a_read_before_the_fence_is_stale_where_the_database_says_nothing(
    world: Arc<World>,
) {
    if !world.abilities().joins {
        return world.not_applicable(NO_JOIN);
    }
    let read = "SELECT quantity FROM stock WHERE sku = 'apple'";
    match read_too_early(&world).await {
        Err(refused) => assert!(matches!(refused, Verdict::Database(_)), "{refused:?}"),
        Ok(mut tx) => {
            assert!(!checks_snapshots(&world).await, "it noticed nothing");
            let seen = tx.number(read).await.unwrap();
            assert_eq!(seen, Some(STOCK), "the snapshot is older than the fence");
            let current = tx.number(&format!("{read} FOR UPDATE")).await.unwrap();
            assert_eq!(current, Some(STOCK - 10));
            tx.rollback().await.unwrap();
        }
    }
    // A fence that is the first statement reads behind it, on every level.
    let mut tx = world.source.admit("", &fence(KEY, 7)).await.unwrap();
    assert_eq!(tx.number(read).await.unwrap(), Some(STOCK - 10));
    tx.rollback().await.unwrap();
}

pub(super) async fn a_conflict_with_the_snapshot_is_no_unfenced_commit(world: Arc<World>) {
    if world.database.server.is_none() {
        return world.not_applicable("a file has one writer, who conflicts with nobody");
    }
    let options = FenceOptions::new().isolation(Isolation::RepeatableRead);
    let mut tx = world.begin(&options.apply(bare(KEY, 5))).await;
    // MariaDB's answer to such a conflict is error 1020, which ends the transaction: the default
    // since 11.6, a setting since 10.11.
    let checks = world.database.name.starts_with("mariadb");
    if checks {
        let snapshot = "SET innodb_snapshot_isolation = ON";
        tx.run(snapshot).await.unwrap();
    }
    tx.run(&set("apple", 1)).await.unwrap();
    let read = "SELECT quantity FROM stock WHERE sku = 'pear'";
    assert_eq!(tx.number(read).await.unwrap(), Some(STOCK));
    world.observer.run(&set("pear", 50)).await.unwrap();
    // The application does not care about the error, and writes on past the guard.
    let write = "UPDATE stock SET quantity = quantity - 1 WHERE sku = 'pear'";
    let conflict = tx.run_past(write).await;
    if checks {
        let error = conflict.as_ref().unwrap_err();
        assert!(error.to_string().contains("Record has changed"), "{error}");
    }
    let late = tx.run_past(&set("plum", 2)).await;
    if late.is_ok() {
        let plums = world.quantity("plum").await;
        assert_eq!(plums, STOCK, "it was committed by itself");
    }
    let outcome = tx.commit().await;
    let found = (
        world.quantity("apple").await,
        world.quantity("pear").await,
        world.quantity("plum").await,
        world.mark(KEY).await,
    );
    if conflict.is_err() {
        assert!(
            matches!(outcome, Err(Verdict::Ended(_) | Verdict::Database(_))),
            "{outcome:?}"
        );
        assert_eq!(found, (STOCK, 50, STOCK, None));
    } else {
        // MySQL updates the current row.
        assert!(world.database.name.starts_with("mysql"), "no conflict");
        outcome.unwrap();
        assert_eq!(found, (1, 49, 2, Some(5)));
    }
    world.until_nobody_is_in_a_transaction().await;
}

pub(super) async fn a_stale_fence_inside_a_raw_savepoint_ends_the_transaction(world: Arc<World>) {
    if !world.abilities().joins {
        return world.not_applicable(NO_JOIN);
    }
    world.raise(&fence(KEY, 7)).await;
    // The user wrote something, and hoped to roll a refusal back to here.
    let before = format!("{}; SAVEPOINT hidden", set("pear", 1));
    let refused = world.source.admit(&before, &fence(KEY, 6)).await.map(drop);
    assert!(
        matches!(refused, Err(Verdict::Stale { .. } | Verdict::InSavepoint)),
        "{refused:?}"
    );
    world.until_nobody_is_in_a_transaction().await;
    assert_eq!(world.quantity("pear").await, STOCK);
    assert_eq!(world.mark(KEY).await, Some(7));
}
