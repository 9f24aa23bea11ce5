//! Commits whose answer never came: the truth from `resolve`, and every deduction exactly once.
//!
//! - On the servers a proxy cuts connections: before `COMMIT` reached the server, after the server
//!   committed and before its answer came back, and at random, a thousand times per database.
//! - SQLite has no connection to lose. There the writer is a process, and it is killed.
//!
//! All of it runs over every adapter of the build. The seed is printed; `HIGHWATER_TEST_SEED` sets
//! it.

use std::collections::BTreeMap;
use std::env;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::Duration;

use highwater_fencing::{
    Configured, Domain, Fence, FenceKey, FenceOptions, FencingToken, Resolution, Step, TableName,
};
use highwater_proof::adapter::{Adapter, Body, Dialect, DriverError, Source, Verdict, all, body};
use highwater_tests::databases::{Kind, Server};
use highwater_tests::wait::eventually;
use highwater_tests::wire::{Plan, Wire, in_the_clear, random};
use libtest_mimic::{Arguments, Failed, Trial};
use tokio::runtime::Runtime;
use tokio::sync::OnceCell;

/// The kills per database, shared by its adapters.
const KILLS: usize = 1_000;
/// How long something may take that must happen.
const PATIENCE: Duration = Duration::from_secs(30);
/// The time for one adapter's random kills.
const LIMIT: Duration = Duration::from_secs(240);
/// Stock at the start: more than is ever deducted.
const STOCK: i64 = 1_000_000;
/// Tells a process of this program that it is a writer on SQLite.
const WRITER: &str = "HIGHWATER_TEST_WRITER";

type Outcome = Result<(), Failed>;

fn main() -> ExitCode {
    if let Ok(orders) = env::var(WRITER) {
        return writer(&orders);
    }
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(3);
    let seed = env::var("HIGHWATER_TEST_SEED").ok();
    let seed = seed.and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| u64::from(std::process::id()));
    println!("HIGHWATER_TEST_SEED={seed}");

    let runtime = Arc::new(Runtime::new().expect("a runtime can be started"));
    let servers: Arc<BTreeMap<&str, OnceCell<Result<Server, String>>>> = Arc::new(
        KINDS
            .iter()
            .map(|kind| (kind.name(), OnceCell::new()))
            .collect(),
    );
    let mut trials = Vec::new();
    for kind in KINDS {
        let adapters = of_dialect(dialect(kind));
        let kills = KILLS.div_ceil(adapters.len().max(1));
        for (number, adapter) in adapters.into_iter().enumerate() {
            let seed = random(seed.wrapping_add(number as u64));
            let mut add = |name: &str, case: Case| {
                let (runtime, servers) = (runtime.clone(), servers.clone());
                let name = format!("{}/{}::{name}", kind.name(), adapter.name());
                let trial = Trial::test(name, move || {
                    runtime.block_on(async {
                        let started =
                            async || Server::obtain(kind).await.map_err(|e| e.to_string());
                        let server = servers[kind.name()].get_or_init(started).await;
                        let server = server.as_ref().map_err(String::as_str)?;
                        let world = World::on_server(adapter, kind, server, seed).await?;
                        case.run(&world, kills).await
                    })
                });
                trials.push(trial.with_ignored_flag(kind.skip_reason().is_some()));
            };
            add("a_commit_that_never_reached_the_server", Case::Before);
            add("a_commit_whose_answer_never_came", Case::After);
            add("every_deduction_once_over_random_kills", Case::Random);
        }
    }
    let on_files = of_dialect(Dialect::Sqlite);
    let kills = KILLS.div_ceil(on_files.len().max(1));
    for adapter in on_files {
        let runtime = runtime.clone();
        let name = format!(
            "sqlite/{}::every_deduction_once_over_killed_writers",
            adapter.name()
        );
        trials.push(Trial::test(name, move || {
            runtime.block_on(killed_writers(adapter, kills, seed))
        }));
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    runtime.block_on(async move { drop(servers) });
    conclusion.exit_code()
}

const KINDS: [Kind; 3] = [Kind::Postgres, Kind::MySql, Kind::MariaDb];

fn dialect(kind: Kind) -> Dialect {
    match kind {
        Kind::Postgres => Dialect::Postgres,
        Kind::MySql | Kind::MariaDb => Dialect::MySql,
    }
}

fn of_dialect(dialect: Dialect) -> Vec<&'static dyn Adapter> {
    let mut adapters = all();
    adapters.retain(|adapter| adapter.dialect() == dialect);
    adapters
}

/// The one key, fenced for its only holder, at one of its writes.
fn write_number(number: u64) -> Configured {
    let domain = Domain::named("unknown").expect("a name");
    let key = FenceKey::new("stock/apple").expect("a key");
    let fence = Fence::new(domain, key, FencingToken::new(7).expect("not zero"));
    let fence = fence.with_step(Step::new(number).expect("counted from one"));
    FenceOptions::new().resolve_for(PATIENCE).apply(fence)
}

/// Deducts one unit, the way that loses units if it runs twice or half: reads, computes, writes.
/// Its order has the number of the write as its key, so that one that is done twice is seen.
fn deduction(number: u64) -> Body {
    body(move |tx| {
        Box::pin(async move {
            let left = tx
                .number("SELECT quantity FROM stock WHERE sku = 'apple'")
                .await?;
            let left = left.ok_or("no stock")? - 1;
            tx.run(&format!(
                "UPDATE stock SET quantity = {left} WHERE sku = 'apple'"
            ))
            .await?;
            tx.run(&format!("INSERT INTO orders (id) VALUES ({number})"))
                .await?;
            Ok(left)
        })
    })
}

/// One adapter on a database of its own.
struct World {
    adapter: &'static dyn Adapter,
    /// Leads past the proxy.
    observer: Arc<dyn Source>,
    wire: Wire,
    seed: u64,
}

impl World {
    async fn on_server(
        adapter: &'static dyn Adapter,
        kind: Kind,
        server: &Server,
        seed: u64,
    ) -> Result<Self, Failed> {
        use std::sync::atomic::{AtomicU32, Ordering};
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        // Left to the end of the server.
        let name = format!("unknown_{}_{number}", std::process::id());
        let url = kind.create_database(server.url(), &name).await?;
        let url = in_the_clear(adapter, &url);
        let observer = prepare(adapter, &url).await?;
        let wire = Wire::start(&url, seed).await?;
        Ok(Self {
            adapter,
            observer,
            wire,
            seed,
        })
    }

    async fn through_the_proxy(&self) -> Result<Arc<dyn Source>, DriverError> {
        self.adapter.open(self.wire.url(), 1).await
    }
}

/// The table of marks, the stock, and a table of orders whose key is the number of the write.
async fn prepare(adapter: &'static dyn Adapter, url: &str) -> Result<Arc<dyn Source>, DriverError> {
    let source = adapter.open(url, 2).await?;
    source.migrate(&TableName::DEFAULT).await?;
    for sql in [
        "CREATE TABLE stock (sku VARCHAR(60) NOT NULL PRIMARY KEY, quantity BIGINT NOT NULL)",
        "CREATE TABLE orders (id BIGINT NOT NULL PRIMARY KEY)",
        &format!("INSERT INTO stock VALUES ('apple', {STOCK})"),
    ] {
        source.run(sql).await?;
    }
    Ok(source)
}

async fn number(source: &Arc<dyn Source>, sql: &str) -> Result<i64, Failed> {
    let mut tx = source.begin_unfenced().await?;
    let number = tx.number(sql).await?.ok_or("no row")?;
    tx.rollback().await?;
    Ok(number)
}

/// Whether the write is in, as another session sees it.
async fn is_in(source: &Arc<dyn Source>, write: u64) -> Result<bool, Failed> {
    let sql = format!("SELECT COUNT(*) FROM orders WHERE id = {write}");
    Ok(number(source, &sql).await? == 1)
}

/// Every write up to `last` is in, once, and its unit is gone, once.
async fn assert_exact(source: &Arc<dyn Source>, last: u64) -> Outcome {
    let orders = number(source, "SELECT COUNT(*) FROM orders").await?;
    let left = number(source, "SELECT quantity FROM stock WHERE sku = 'apple'").await?;
    let last = i64::try_from(last)?;
    if (orders, left) == (last, STOCK - last) {
        return Ok(());
    }
    Err(format!(
        "{orders} of {last} orders, and {} units deducted",
        STOCK - left
    )
    .into())
}

#[derive(Clone, Copy)]
enum Case {
    Before,
    After,
    Random,
}

impl Case {
    async fn run(self, world: &World, kills: usize) -> Outcome {
        match self {
            Self::Before => never_reached(world).await,
            Self::After => never_answered(world).await,
            Self::Random => random_kills(world, kills).await,
        }
    }
}

/// The verdict that an error of the closure form holds.
fn verdict<'e>(error: &'e (dyn std::error::Error + Send + Sync + 'static)) -> Option<&'e Verdict> {
    error.downcast_ref()
}

async fn never_reached(world: &World) -> Outcome {
    let source = world.through_the_proxy().await?;
    source.transaction(&write_number(1), deduction(1)).await?;
    world.wire.plan(Plan::CutBeforeCommit);
    let lost = source.transaction(&write_number(2), deduction(2)).await;
    let lost = lost
        .err()
        .ok_or("a commit that was not even sent was reported as done")?;
    // Some drivers send the release of the marker first and learn in time that the connection is
    // gone; either way nothing is claimed.
    if !matches!(
        verdict(&*lost),
        Some(Verdict::Unknown(_) | Verdict::Database(_))
    ) {
        return Err(format!("{lost:?}").into());
    }
    world.wire.plan(Plan::Pass);
    let resolved = world.observer.resolve(&write_number(2)).await?;
    if resolved != Resolution::NotApplied || is_in(&world.observer, 2).await? {
        return Err(format!("{resolved:?}").into());
    }
    // So it is done again, with the same step.
    world
        .observer
        .transaction(&write_number(2), deduction(2))
        .await?;
    assert_exact(&world.observer, 2).await
}

async fn never_answered(world: &World) -> Outcome {
    let source = world.through_the_proxy().await?;
    source.transaction(&write_number(1), deduction(1)).await?;
    world.wire.plan(Plan::SwallowFromCommit);
    let commit =
        tokio::spawn(async move { source.transaction(&write_number(2), deduction(2)).await });
    eventually("the commit reached the server", PATIENCE, async || {
        is_in(&world.observer, 2).await.ok()?.then_some(())
    })
    .await;
    if commit.is_finished() {
        return Err("it answered without an answer".into());
    }
    world.wire.plan(Plan::Closed);
    let lost = commit
        .await?
        .err()
        .ok_or("a commit without an answer was reported as done")?;
    if !matches!(verdict(&*lost), Some(Verdict::Unknown(_))) {
        return Err(format!("{lost:?}").into());
    }
    let resolved = world.observer.resolve(&write_number(2)).await?;
    if resolved != Resolution::Applied {
        return Err(format!("{resolved:?}").into());
    }
    assert_exact(&world.observer, 2).await
}

/// A worker that retries: it goes on to the next write when, and only when, the last one is in.
async fn random_kills(world: &World, kills: usize) -> Outcome {
    let source = world.through_the_proxy().await?;
    world.wire.plan(Plan::Random);
    let work = async {
        let (mut write, mut counts) = (0, [0; 3]);
        while world.wire.cuts() < kills {
            write += 1;
            until_it_is_in(world, &source, write, &mut counts).await?;
        }
        let [unknown, applied, repeated] = counts;
        println!(
            "{}: {write} deductions, {} kills, {unknown} outcomes unknown of which {applied} were in, \
             {repeated} repeated as already applied; seed {}",
            world.adapter.name(),
            world.wire.cuts(),
            world.seed,
        );
        // Otherwise the run has shown nothing.
        if applied == 0 || repeated == 0 || applied + repeated >= unknown {
            return Err("the kills never hit a commit on both sides".into());
        }
        assert_exact(&world.observer, write).await
    };
    match tokio::time::timeout(LIMIT, work).await {
        Ok(outcome) => outcome,
        Err(_) => Err(format!("{} of {kills} kills in {LIMIT:?}", world.wire.cuts()).into()),
    }
}

/// Repeats one write until it is known to be in.
async fn until_it_is_in(
    world: &World,
    source: &Arc<dyn Source>,
    write: u64,
    [unknown, applied, repeated]: &mut [u32; 3],
) -> Outcome {
    let fence = write_number(write);
    loop {
        let error = match source.transaction(&fence, deduction(write)).await {
            Ok(_) => return Ok(()),
            Err(error) => error,
        };
        match verdict(&*error) {
            Some(Verdict::Unknown(_)) => {
                *unknown += 1;
                // Now and then it does not ask, and simply does it again with the same step.
                if *unknown % 4 == 0 {
                    continue;
                }
            }
            Some(Verdict::AlreadyApplied { .. }) => {
                *repeated += 1;
                if !is_in(&world.observer, write).await? {
                    return Err(format!("write {write} is not in, but was said to be").into());
                }
                return Ok(());
            }
            // The connection died before the commit: nothing is in, do it again.
            Some(Verdict::Database(_)) => continue,
            Some(other) => return Err(format!("write {write}: {other:?}").into()),
            // A statement of the body failed; the same.
            None if error.downcast_ref::<DriverError>().is_some() => continue,
            None => return Err(format!("write {write}: {error:?}").into()),
        }
        // Asked through the proxy, so that the question itself is killed as well.
        let resolved = loop {
            match source.resolve(&fence).await {
                Ok(resolved) => break resolved,
                Err(Verdict::Database(_)) => {}
                Err(other) => return Err(format!("write {write}: {other:?}").into()),
            }
        };
        let truth = is_in(&world.observer, write).await?;
        match (resolved, truth) {
            (Resolution::Applied, true) => {
                *applied += 1;
                return Ok(());
            }
            (Resolution::NotApplied, false) => {}
            _ => return Err(format!("write {write}: {resolved:?}, but in: {truth}").into()),
        }
    }
}

/// Parent of the writers on SQLite: kills each at a random instant and asks what became of its last
/// write.
async fn killed_writers(adapter: &'static dyn Adapter, kills: usize, seed: u64) -> Outcome {
    let folder = tempfile::tempdir()?;
    let url = format!("sqlite://{}/stock.db?mode=rwc", folder.path().display());
    let observer = prepare(adapter, &url).await?;
    observer.run("PRAGMA journal_mode = WAL").await?;
    let mut done = 0;
    let (mut applied, mut not_applied) = (0, 0);
    for kill in 0..kills {
        let pause = Duration::from_micros(random(seed.wrapping_add(kill as u64)) % 10_000);
        let (acknowledged, begun) = run_writer(adapter, &url, done + 1, pause)?;
        done = acknowledged.max(done);
        for write in done + 1..=begun {
            let resolved = observer.resolve(&write_number(write)).await?;
            let truth = is_in(&observer, write).await?;
            match (resolved, truth) {
                (Resolution::Applied, true) => {
                    applied += 1;
                    done = write;
                }
                (Resolution::NotApplied, false) => not_applied += 1,
                _ => return Err(format!("write {write}: {resolved:?}, but in: {truth}").into()),
            }
        }
    }
    println!(
        "{} on sqlite: {done} deductions, {kills} kills, {applied} last writes were in, \
         {not_applied} were not; seed {seed}",
        adapter.name()
    );
    if not_applied == 0 || done == 0 {
        return Err("the kills never hit a write".into());
    }
    assert_exact(&observer, done).await
}

/// Runs a writer from write `first` on, kills it `pause` after its first message, and gives the
/// last write it acknowledged and the last one it began.
fn run_writer(
    adapter: &dyn Adapter,
    url: &str,
    first: u64,
    pause: Duration,
) -> Result<(u64, u64), Failed> {
    let mut writer = Command::new(env::current_exe()?);
    writer.env(WRITER, format!("{} {first} {url}", adapter.name()));
    let writer = writer.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let mut writer = Killed(writer);
    let said = writer.0.stdout.take().ok_or("no pipe")?;
    let (mut acknowledged, mut begun) = (0, 0);
    let mut killed = false;
    // What it said before it died is still in the pipe.
    for line in BufReader::new(said).lines() {
        let line = line?;
        let (word, number) = line.split_once(' ').ok_or("half a line")?;
        match word {
            "begin" => begun = number.parse()?,
            "done" => acknowledged = number.parse()?,
            _ => return Err(format!("the writer said: {line}").into()),
        }
        if !killed {
            std::thread::sleep(pause);
            writer.0.kill()?;
            killed = true;
        }
    }
    if !killed {
        return Err("the writer did not begin".into());
    }
    Ok((acknowledged, begun))
}

/// A child that does not outlive its test.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The writer: says before each write that it begins, and after it that it is done.
fn writer(orders: &str) -> ExitCode {
    let write = async || -> Result<(), highwater_proof::adapter::BoxError> {
        let mut words = orders.splitn(3, ' ');
        let (name, first, url) = (words.next(), words.next(), words.next());
        let first: u64 = first.ok_or("which write?")?.parse()?;
        let mut adapters = of_dialect(Dialect::Sqlite);
        adapters.retain(|adapter| Some(adapter.name()) == name);
        let adapter = adapters.first().ok_or("no such adapter")?;
        let source = adapter.open(url.ok_or("which database?")?, 1).await?;
        for number in first.. {
            say("begin", number)?;
            source
                .transaction(&write_number(number), deduction(number))
                .await?;
            say("done", number)?;
        }
        Ok(())
    };
    let runtime = Runtime::new().expect("a runtime can be started");
    if let Err(error) = runtime.block_on(write()) {
        println!("failed {error}");
    }
    ExitCode::FAILURE
}

fn say(word: &str, number: u64) -> std::io::Result<()> {
    let mut out = std::io::stdout();
    writeln!(out, "{word} {number}")?;
    out.flush()
}
