//! What an operator does with marks, on every database: list, show, adopt, raise, and what has to
//! be done after a backup was restored.
//!
//! The writers are sqlx's; marks are the same for every adapter.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt as _};
use highwater_fencing::operate::{MarkRow, Marks, OperateError, Selection};
use highwater_fencing::{
    Configured, Domain, DomainPolicy, Fence, FenceKey, FenceOptions, FencingToken, Step, TableName,
};
use highwater_proof::adapter::{Adapter, BoxError, Dialect, Source, Verdict, all};
use highwater_tests::databases::{Kind, Server};
use libtest_mimic::{Arguments, Failed, Trial};
use sqlx::{MySqlPool, PgPool, SqlitePool};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::sync::OnceCell;

type Outcome = Result<(), BoxError>;
type Case = for<'w> fn(&'w World) -> BoxFuture<'w, Outcome>;

/// Names the functions, and boxes what they give.
macro_rules! cases {
    ($($name:ident),* $(,)?) => {
        [$((stringify!($name), (|world| $name(world).boxed()) as Case)),*]
    };
}

fn main() -> ExitCode {
    let cases = cases![
        marks_are_listed_in_pages_and_shown,
        the_floor_is_the_highest_token_of_each_domain,
        after_adoption_the_old_domain_is_refused_and_the_new_one_admitted,
        writers_that_adopt_higher_tokens_do_not_take_an_adopted_mark_back,
        a_mark_is_never_lowered_and_then_none_is_moved,
        only_what_was_selected_is_moved_and_only_once,
        a_running_transaction_that_does_not_end_is_reported_and_nothing_changed,
        adoption_sees_what_a_running_transaction_committed,
        raising_refuses_lower_tokens_and_leaves_other_domains_alone,
        raising_named_keys_makes_the_missing_marks,
        a_mark_that_another_domain_makes_meanwhile_is_told,
        a_dry_run_changes_nothing,
        a_protected_table_stays_closed_to_the_operator,
        a_missing_table_is_said_with_the_command,
        a_restored_backup_admits_a_stale_holder_until_the_marks_are_raised,
    ];
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(4);
    let runtime = Arc::new(Runtime::new().expect("a runtime can be started"));
    let servers: BTreeMap<&str, OnceCell<Result<Server, String>>> = KINDS
        .iter()
        .map(|kind| (kind.name(), OnceCell::new()))
        .collect();
    let servers = Arc::new(servers);
    let mut trials = Vec::new();
    for (name, case) in cases {
        let on_file = runtime.clone();
        trials.push(Trial::test(format!("sqlite::{name}"), move || {
            on_file.block_on(async { run(case, &World::on_file().await?).await })
        }));
        for kind in KINDS {
            let (runtime, servers) = (runtime.clone(), servers.clone());
            let trial = Trial::test(format!("{}::{name}", kind.name()), move || {
                runtime.block_on(async {
                    let start = async || Server::obtain(kind).await.map_err(|e| e.to_string());
                    let server = servers[kind.name()].get_or_init(start).await;
                    let server = server.as_ref().map_err(String::as_str)?;
                    run(case, &World::on_server(kind, server).await?).await
                })
            });
            trials.push(trial.with_ignored_flag(kind.skip_reason().is_some()));
        }
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    runtime.block_on(async move { drop(servers) });
    conclusion.exit_code()
}

const KINDS: [Kind; 3] = [Kind::Postgres, Kind::MySql, Kind::MariaDb];
const PATIENCE: Duration = Duration::from_secs(30);

async fn run(case: Case, world: &World) -> Result<(), Failed> {
    case(world).await.map_err(|error| error.to_string().into())
}

/// A database of its own, with marks and a stock.
struct World {
    writers: Arc<dyn Source>,
    marks: Marks,
    dialect: Dialect,
    _folder: Option<TempDir>,
}

impl World {
    async fn on_file() -> Result<Self, BoxError> {
        let folder = tempfile::tempdir()?;
        let url = format!("sqlite://{}?mode=rwc", folder.path().join("d").display());
        // The marks first: whoever comes first creates the file.
        let marks = Marks::new(SqlitePool::connect(&url).await?);
        Self::prepare(&url, marks, Dialect::Sqlite, Some(folder)).await
    }

    async fn on_server(kind: Kind, server: &Server) -> Result<Self, BoxError> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        // Left to the end of the server.
        let name = format!("operate_{}_{number}", std::process::id());
        let url = kind.create_database(server.url(), &name).await?;
        let (marks, dialect) = match kind {
            Kind::Postgres => (Marks::new(PgPool::connect(&url).await?), Dialect::Postgres),
            Kind::MySql | Kind::MariaDb => {
                (Marks::new(MySqlPool::connect(&url).await?), Dialect::MySql)
            }
        };
        Self::prepare(&url, marks, dialect, None).await
    }

    async fn prepare(
        url: &str,
        marks: Marks,
        dialect: Dialect,
        folder: Option<TempDir>,
    ) -> Result<Self, BoxError> {
        let is_meant =
            |adapter: &&&dyn Adapter| adapter.name() == "sqlx" && adapter.dialect() == dialect;
        let adapters = all();
        let adapter = adapters.iter().find(is_meant).ok_or("no adapter")?;
        let writers = adapter.open(url, 4).await?;
        writers.migrate(&TableName::DEFAULT).await?;
        writers
            .run("CREATE TABLE writes (token BIGINT NOT NULL)")
            .await?;
        Ok(Self {
            writers,
            marks: marks.wait_for(PATIENCE),
            dialect,
            _folder: folder,
        })
    }

    /// A fenced transaction that writes its token.
    async fn write(&self, fence: &Configured, token: u64) -> Result<(), Verdict> {
        let mut tx = self.writers.begin(fence).await?;
        let insert = format!("INSERT INTO writes VALUES ({token})");
        tx.run(&insert).await.map_err(Verdict::Database)?;
        tx.commit().await
    }

    async fn admit(&self, domain: &str, key: &str, token: u64) -> Result<(), Verdict> {
        self.write(&fence(domain, key, token), token).await
    }

    async fn number(&self, sql: &str) -> Result<i64, BoxError> {
        let mut tx = self.writers.begin_unfenced().await?;
        let number = tx.number(sql).await?.ok_or("no row")?;
        tx.rollback().await?;
        Ok(number)
    }

    async fn all(&self) -> Result<Vec<MarkRow>, BoxError> {
        Ok(self.marks.list(&Selection::all(), None, 1_000).await?)
    }

    /// Key, domain, token and step of every mark.
    async fn state(&self) -> Result<Vec<(String, String, u64, u64)>, BoxError> {
        let of = |mark: MarkRow| {
            let name = mark.domain.as_bytes().split(|byte| *byte == 0).next();
            let name = String::from_utf8_lossy(name.unwrap_or_default()).into_owned();
            (mark.key.to_string(), name, mark.token.get(), mark.step)
        };
        Ok(self.all().await?.into_iter().map(of).collect())
    }
}

fn token(number: u64) -> FencingToken {
    FencingToken::new(number).expect("not zero")
}

fn domain(name: &str) -> Domain {
    Domain::named(name).expect("a name")
}

fn key(name: impl AsRef<[u8]>) -> FenceKey {
    FenceKey::new(name).expect("a key")
}

fn bare(domain_name: &str, name: &str, number: u64) -> Fence {
    Fence::new(domain(domain_name), key(name), token(number))
}

fn fence(domain_name: &str, name: &str, number: u64) -> Configured {
    FenceOptions::new().apply(bare(domain_name, name, number))
}

fn with_step(fence: Fence, step: u64) -> Configured {
    let step = Step::new(step).expect("not zero");
    FenceOptions::new().apply(fence.with_step(step))
}

fn row(key: &str, domain: &str, token: u64, step: u64) -> (String, String, u64, u64) {
    (key.to_owned(), domain.to_owned(), token, step)
}

#[track_caller]
fn stale(outcome: Result<(), Verdict>, offered: u64, highest: u64) {
    match outcome {
        Err(Verdict::Stale {
            offered: found,
            highest: mark,
            ..
        }) => assert_eq!((found.get(), mark.get()), (offered, highest)),
        other => panic!("not stale: {other:?}"),
    }
}

#[track_caller]
fn mismatch(outcome: Result<(), Verdict>) {
    assert!(
        matches!(outcome, Err(Verdict::DomainMismatch { .. })),
        "{outcome:?}"
    );
}

async fn marks_are_listed_in_pages_and_shown(world: &World) -> Outcome {
    let keys: [&[u8]; 6] = [b"a", b"b\0", b"b\0\x01", b"b\xff", b"b\xff\xff", b"c"];
    for (name, number) in keys.iter().zip(1..) {
        let fence = Fence::new(domain("d"), key(name), token(number));
        world.write(&with_step(fence, number + 10), number).await?;
    }
    let list = async |selection: Selection, after: Option<&[u8]>, limit| {
        let after = after.map(key);
        let marks = world.marks.list(&selection, after.as_ref(), limit).await?;
        Ok::<_, BoxError>(
            marks
                .iter()
                .map(|m| m.key.as_bytes().to_vec())
                .collect::<Vec<_>>(),
        )
    };
    assert_eq!(list(Selection::all(), None, 10).await?, keys);
    assert_eq!(list(Selection::all(), None, 2).await?, keys[..2]);
    assert_eq!(list(Selection::all(), Some(keys[1]), 2).await?, keys[2..4]);
    assert_eq!(
        list(Selection::all().prefix("b"), None, 10).await?,
        keys[1..5]
    );
    assert_eq!(
        list(Selection::all().prefix("b\0"), None, 10).await?,
        keys[1..3]
    );
    let high = Selection::all().prefix(*b"b\xff");
    assert_eq!(list(high, Some(keys[3]), 10).await?, keys[4..5]);
    let other = Selection::all().domain(domain("other"));
    assert!(list(other, None, 10).await?.is_empty());

    let shown = world.marks.show(&key(b"b\0")).await?.ok_or("no mark")?;
    assert_eq!(
        (shown.domain, shown.token, shown.step),
        (domain("d"), token(2), 12)
    );
    let year = shown.updated_at.get(..2).ok_or("no time")?;
    assert!(year == "20" && shown.updated_at.ends_with('Z'), "{shown:?}");
    assert_eq!(world.marks.show(&key("z")).await?, None);
    Ok(())
}

async fn the_floor_is_the_highest_token_of_each_domain(world: &World) -> Outcome {
    assert!(world.marks.floors().await?.is_empty());
    let highest = i64::MAX.unsigned_abs();
    for (name, key, number) in [
        ("old", "a", 9),
        ("old", "b", 12),
        ("new", "c", highest),
        ("new", "d", 3),
    ] {
        // A table of writes holds no such number.
        let begun = world.writers.begin(&fence(name, key, number)).await?;
        begun.commit().await?;
    }
    let floors = world.marks.floors().await?;
    let floors: Vec<_> = floors
        .iter()
        .map(|floor| (floor.domain, floor.highest.get(), floor.marks))
        .collect();
    assert_eq!(
        floors,
        [(domain("new"), highest, 2), (domain("old"), 12, 2)]
    );
    Ok(())
}

async fn after_adoption_the_old_domain_is_refused_and_the_new_one_admitted(
    world: &World,
) -> Outcome {
    world.write(&with_step(bare("old", "k", 7), 5), 7).await?;
    // The successor's lock service gave out 20 first.
    mismatch(world.admit("new", "k", 20).await);
    let moved = world
        .marks
        .adopt(
            &Selection::all().domain(domain("old")),
            domain("new"),
            token(20),
        )
        .await?;
    assert_eq!(moved.changed.len(), 1);
    assert_eq!(moved.changed[0].token, token(7), "as it was before");
    assert_eq!(world.state().await?, [row("k", "new", 20, 0)]);
    for number in [7, 8, 20, 1_000] {
        mismatch(world.admit("old", "k", number).await);
    }
    stale(world.admit("new", "k", 19).await, 19, 20);
    // The first holder of the new service counts its steps from one.
    world.write(&with_step(bare("new", "k", 20), 1), 20).await?;
    world.admit("new", "k", 21).await?;
    stale(world.admit("new", "k", 20).await, 20, 21);
    Ok(())
}

async fn writers_that_adopt_higher_tokens_do_not_take_an_adopted_mark_back(
    world: &World,
) -> Outcome {
    let adopting = |name, number| {
        let options = FenceOptions::new().domain_policy(DomainPolicy::AdoptHigher);
        options.apply(bare(name, "k", number))
    };
    world.write(&adopting("old", 7), 7).await?;
    // The old service gave out 19 as well, to a holder that did not write yet.
    let all = Selection::all();
    world.marks.adopt(&all, domain("new"), token(20)).await?;
    mismatch(world.write(&adopting("old", 19), 19).await);
    mismatch(world.write(&adopting("old", 20), 20).await);
    world.write(&adopting("new", 20), 20).await?;
    Ok(())
}

async fn a_mark_is_never_lowered_and_then_none_is_moved(world: &World) -> Outcome {
    for (name, number) in [("a", 5), ("b", 8), ("c", 9), ("d", 4)] {
        world.admit("old", name, number).await?;
    }
    let before = world.state().await?;
    let all = Selection::all();
    for dry_run in [true, false] {
        let marks = world.marks.clone().dry_run(dry_run);
        let adopted = marks.adopt(&all, domain("new"), token(8));
        let Err(OperateError::NotBelowFloor {
            count,
            key: named,
            highest,
            ..
        }) = adopted.await
        else {
            panic!("it was adopted");
        };
        assert_eq!((count, named, highest), (2, key("c"), token(9)));
        assert_eq!(world.state().await?, before);
    }
    let beyond = token(i64::MAX.unsigned_abs() + 1);
    let adopted = world.marks.adopt(&all, domain("new"), beyond);
    assert!(matches!(
        adopted.await,
        Err(OperateError::TokenOutOfRange { .. })
    ));
    Ok(())
}

async fn only_what_was_selected_is_moved_and_only_once(world: &World) -> Outcome {
    for (name, key, number) in [
        ("old", "a/1", 5),
        ("old", "a/2", 6),
        ("old", "b", 7),
        ("third", "a/3", 8),
        ("new", "a/4", 30),
    ] {
        world.admit(name, key, number).await?;
    }
    let selection = Selection::all().domain(domain("old")).prefix("a/");
    let adopt = async || {
        let moved = world.marks.adopt(&selection, domain("new"), token(20));
        Ok::<_, BoxError>(moved.await?.changed.len())
    };
    assert_eq!(adopt().await?, 2);
    let after = [
        row("a/1", "new", 20, 0),
        row("a/2", "new", 20, 0),
        row("a/3", "third", 8, 0),
        row("a/4", "new", 30, 0),
        row("b", "old", 7, 0),
    ];
    assert_eq!(world.state().await?, after);
    assert_eq!(adopt().await?, 0);
    // What belongs to the new domain already stays, also where it would be lower.
    let one = Selection::all().key(key("a/4"));
    world.marks.adopt(&one, domain("new"), token(20)).await?;
    assert_eq!(world.state().await?, after);
    Ok(())
}

async fn a_running_transaction_that_does_not_end_is_reported_and_nothing_changed(
    world: &World,
) -> Outcome {
    world.admit("old", "a", 5).await?;
    world.admit("old", "b", 5).await?;
    let held = world.writers.begin(&fence("old", "b", 6)).await?;
    let hasty = world.marks.clone().wait_for(Duration::from_millis(300));
    let all = Selection::all();
    let keys = BTreeSet::from([key("a"), key("b")]);
    let outcomes = [
        hasty.adopt(&all, domain("new"), token(20)).await,
        hasty.raise(&all, domain("old"), token(20)).await,
        hasty.raise_keys(&keys, domain("old"), token(20)).await,
    ];
    for outcome in outcomes {
        assert!(
            matches!(outcome, Err(OperateError::Held { .. })),
            "{outcome:?}"
        );
    }
    held.rollback().await?;
    assert_eq!(
        world.state().await?,
        [row("a", "old", 5, 0), row("b", "old", 5, 0)]
    );
    // Nothing is left locked.
    world.admit("old", "a", 6).await?;
    Ok(())
}

async fn adoption_sees_what_a_running_transaction_committed(world: &World) -> Outcome {
    world.admit("old", "k", 5).await?;
    let mut running = world.writers.begin(&fence("old", "k", 9)).await?;
    running.run("INSERT INTO writes VALUES (9)").await?;
    let all = Selection::all();
    let adopt = world.marks.adopt(&all, domain("new"), token(9));
    let mut adopt = Box::pin(adopt);
    still_waits(&mut adopt).await;
    running.commit().await?;
    // Before that commit the mark was 5, and below the floor.
    let refused = adopt.await;
    assert!(
        matches!(refused, Err(OperateError::NotBelowFloor { .. })),
        "{refused:?}"
    );
    assert_eq!(world.state().await?, [row("k", "old", 9, 0)]);
    Ok(())
}

/// What waits for a lock does not end, however long one looks.
async fn still_waits<T: std::fmt::Debug>(future: &mut (impl Future<Output = T> + Unpin)) {
    let looked = tokio::time::timeout(Duration::from_millis(300), future).await;
    assert!(looked.is_err(), "it did not wait: {looked:?}");
}

async fn raising_refuses_lower_tokens_and_leaves_other_domains_alone(world: &World) -> Outcome {
    world.write(&with_step(bare("d", "a", 5), 3), 5).await?;
    world.admit("d", "b", 12).await?;
    world.admit("other", "c", 2).await?;
    let raise = async || {
        let all = Selection::all();
        let raised = world.marks.raise(&all, domain("d"), token(10));
        Ok::<_, BoxError>(raised.await?.changed.len())
    };
    assert_eq!(raise().await?, 1);
    let after = [
        row("a", "d", 10, 0),
        row("b", "d", 12, 0),
        row("c", "other", 2, 0),
    ];
    assert_eq!(world.state().await?, after);
    assert_eq!(raise().await?, 0);
    stale(world.admit("d", "a", 9).await, 9, 10);
    world.write(&with_step(bare("d", "a", 10), 1), 10).await?;
    world.admit("other", "c", 2).await?;
    Ok(())
}

async fn raising_named_keys_makes_the_missing_marks(world: &World) -> Outcome {
    world.admit("d", "low", 5).await?;
    world.admit("d", "high", 12).await?;
    world.admit("other", "foreign", 2).await?;
    let keys: BTreeSet<FenceKey> = ["low", "high", "foreign", "missing"].map(key).into();
    let raised = world
        .marks
        .raise_keys(&keys, domain("d"), token(10))
        .await?;
    assert_eq!(raised.created, [key("missing")]);
    let names = |marks: &[MarkRow]| marks.iter().map(|m| m.key.clone()).collect::<Vec<_>>();
    assert_eq!(names(&raised.changed), [key("low")]);
    assert_eq!(names(&raised.foreign), [key("foreign")]);
    assert_eq!(
        world.state().await?,
        [
            row("foreign", "other", 2, 0),
            row("high", "d", 12, 0),
            row("low", "d", 10, 0),
            row("missing", "d", 10, 0),
        ]
    );
    stale(world.admit("d", "missing", 9).await, 9, 10);
    // More keys than one statement names.
    let many: BTreeSet<FenceKey> = (0..1_203).map(|n| key(format!("many/{n}"))).collect();
    let raised = world
        .marks
        .raise_keys(&many, domain("d"), token(10))
        .await?;
    assert_eq!(raised.created.len(), 1_203);
    let raised = world
        .marks
        .raise_keys(&many, domain("d"), token(11))
        .await?;
    assert_eq!(raised.changed.len(), 1_203);
    assert_eq!(world.marks.floors().await?[0].marks, 1_206);
    Ok(())
}

async fn a_mark_that_another_domain_makes_meanwhile_is_told(world: &World) -> Outcome {
    let mut running = world.writers.begin(&fence("old", "k", 5)).await?;
    running.run("INSERT INTO writes VALUES (5)").await?;
    let keys: BTreeSet<FenceKey> = ["k", "l"].map(key).into();
    let mut raise = Box::pin(world.marks.raise_keys(&keys, domain("new"), token(9)));
    still_waits(&mut raise).await;
    running.commit().await?;
    let raised = raise.await?;
    assert_eq!(raised.created, [key("l")]);
    let foreign: Vec<_> = raised.foreign.iter().map(|mark| &mark.key).collect();
    assert_eq!(foreign, [&key("k")]);
    let after = [row("k", "old", 5, 0), row("l", "new", 9, 0)];
    assert_eq!(world.state().await?, after);
    Ok(())
}

async fn a_dry_run_changes_nothing(world: &World) -> Outcome {
    world.admit("old", "a", 5).await?;
    let before = world.all().await?;
    let marks = world.marks.clone().dry_run(true);
    let all = Selection::all();
    let keys = BTreeSet::from([key("a"), key("missing")]);
    // Nor does it wait for anybody.
    let held = world.writers.begin(&fence("old", "a", 6)).await?;
    let adopted = marks.adopt(&all, domain("new"), token(20)).await?;
    assert_eq!(adopted.changed, before);
    let raised = marks.raise(&all, domain("old"), token(20)).await?;
    assert_eq!(raised.changed, before);
    let raised = marks.raise_keys(&keys, domain("old"), token(20)).await?;
    assert_eq!(
        (raised.changed, raised.created),
        (before.clone(), vec![key("missing")])
    );
    held.rollback().await?;
    assert_eq!(world.all().await?, before);
    Ok(())
}

/// An operator who writes marks is not a holder: the transaction does not count as admitted, and
/// nothing of it is left behind for the next one.
async fn a_protected_table_stays_closed_to_the_operator(world: &World) -> Outcome {
    let dialect = match world.dialect {
        Dialect::Postgres => highwater_fencing::migrate::Dialect::Postgres,
        Dialect::MySql => highwater_fencing::migrate::Dialect::MySql,
        Dialect::Sqlite => highwater_fencing::migrate::Dialect::Sqlite,
    };
    for migration in highwater_fencing::migrate::migrations(dialect, &TableName::DEFAULT) {
        world.writers.run(migration.up()).await?;
    }
    world.admit("old", "a", 5).await?;
    let keys = BTreeSet::from([key("a"), key("b")]);
    world
        .marks
        .raise_keys(&keys, domain("old"), token(7))
        .await?;
    let all = Selection::all();
    let raised = world.marks.raise(&all, domain("old"), token(8));
    assert_eq!(raised.await?.changed.len(), 2);
    let adopted = world.marks.adopt(&all, domain("new"), token(9));
    assert_eq!(adopted.await?.changed.len(), 2);
    let leftovers = match world.dialect {
        Dialect::Postgres => "SELECT COUNT(*) FROM highwater_fence WHERE last_tx <> '0'",
        Dialect::MySql => {
            "SELECT COUNT(*) FROM highwater_fence WHERE `key` = 'b' AND tx IS NOT NULL"
        }
        Dialect::Sqlite => "SELECT COUNT(*) FROM highwater_open",
    };
    assert_eq!(world.number(leftovers).await?, 0);
    world.admit("new", "a", 9).await?;
    Ok(())
}

async fn a_missing_table_is_said_with_the_command(world: &World) -> Outcome {
    world.writers.run("DROP TABLE highwater_fence").await?;
    let all = Selection::all();
    let keys = BTreeSet::from([key("a")]);
    let marks = &world.marks;
    let errors = [
        marks.list(&all, None, 1).await.err(),
        marks.floors().await.err(),
        marks.adopt(&all, domain("new"), token(1)).await.err(),
        marks.raise(&all, domain("new"), token(1)).await.err(),
        marks.raise_keys(&keys, domain("new"), token(1)).await.err(),
    ];
    for error in errors {
        let error = error.ok_or("no error")?;
        assert!(
            matches!(error, OperateError::NotMigrated { .. }),
            "{error:?}"
        );
        assert!(error.to_string().contains("highwater migrate"), "{error}");
    }
    Ok(())
}

/// The procedure of docs/operations.md, and what happens without it.
async fn a_restored_backup_admits_a_stale_holder_until_the_marks_are_raised(
    world: &World,
) -> Outcome {
    let writers = &world.writers;
    world.admit("d", "k", 7).await?;
    for sql in [
        "CREATE TABLE backup_fence AS SELECT * FROM highwater_fence",
        "CREATE TABLE backup_writes AS SELECT * FROM writes",
    ] {
        writers.run(sql).await?;
    }
    // After the backup: a newer holder, and the first one of another key.
    world.admit("d", "k", 9).await?;
    world.admit("d", "young", 10).await?;
    stale(world.admit("d", "k", 8).await, 8, 9);
    let restore = async || {
        for sql in [
            "DELETE FROM highwater_fence",
            "INSERT INTO highwater_fence SELECT * FROM backup_fence",
            "DELETE FROM writes",
            "INSERT INTO writes SELECT * FROM backup_writes",
        ] {
            writers.run(sql).await?;
        }
        Ok::<_, BoxError>(())
    };

    // Without the procedure both stale holders are back in business.
    restore().await?;
    world.admit("d", "k", 8).await?;
    world.admit("d", "young", 6).await?;

    restore().await?;
    // The lock service lives on; a new turn of any key has a token above all that were given out.
    let floor = token(11);
    let all = Selection::all();
    let raised = world.marks.raise(&all, domain("d"), floor);
    assert_eq!(raised.await?.changed.len(), 1);
    // Keys whose marks are younger than the backup come from the application.
    let keys = BTreeSet::from([key("k"), key("young")]);
    let raised = world.marks.raise_keys(&keys, domain("d"), floor).await?;
    assert_eq!(raised.created, [key("young")]);
    for name in ["k", "young"] {
        for number in [6, 8, 9, 10] {
            stale(world.admit("d", name, number).await, number, 11);
        }
        world.admit("d", name, 11).await?;
    }
    assert_eq!(world.number("SELECT COUNT(*) FROM writes").await?, 3);
    Ok(())
}
