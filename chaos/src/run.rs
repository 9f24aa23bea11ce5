//! One run: a cluster, its clients, what is done to them, and what came of it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use highwater_client::Client;
use highwater_history::Event;
use highwater_protocol::Secret;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::Failure;
use crate::client_worker::ClientWorker;
use crate::connection::Access;
use crate::database::Database;
use crate::faults::{Drops, Fault, inject};
use crate::network::{Network, PLACES, address};
use crate::nodes::Nodes;
use crate::options::{Inside, Options, Scenario};
use crate::random::Random;
use crate::record::Recorder;
use crate::report::{ASSUMPTIONS, Gaps, judge};
use crate::trace::Trace;
use crate::wire_worker::WireWorker;
use crate::workload::{CLIENT_KEYS, WIRE_KEYS, WIRE_SLOTS};

/// Does all of it, in the namespace of the clients.
///
/// # Errors
/// A promise is broken, a node ended by itself, or the cluster does not recover. Logs and histories
/// are kept then, and it is said where.
pub(crate) async fn run(options: &Options, inside: &Inside) -> Result<(), Failure> {
    let work = std::env::var_os("HIGHWATER_CHAOS_WORK");
    let work = PathBuf::from(work.ok_or("the outer process says where to work")?);
    let seed = options.seed.ok_or("the outer process says which seed")?;
    let kind = if options.volatile {
        "volatile"
    } else {
        "durable"
    };
    println!("seed {seed}, {} {kind} nodes", options.nodes);
    let ended = within(options, inside, seed, &work).await;
    if ended.is_err() {
        let kept = options.keep.join(format!("seed-{seed}"));
        keep(&work, &kept)?;
        println!("logs and histories are in {}", kept.display());
    }
    ended
}

/// Copies what may explain a failure.
fn keep(work: &Path, to: &Path) -> Result<(), Failure> {
    if to.exists() {
        std::fs::remove_dir_all(to)?;
    }
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(work)? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            std::fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
    }
    Ok(())
}

async fn within(options: &Options, inside: &Inside, seed: u64, work: &Path) -> Result<(), Failure> {
    let network = Network::new(inside.outer);
    let recorder = Arc::new(Recorder::new());
    let trace = Arc::new(Trace::default());
    let program = std::fs::canonicalize(&options.program)?;
    let (ours, traced) = (Arc::clone(&recorder), Arc::clone(&trace));
    let random = Random::new(seed, 2);
    let nodes = Nodes::create(network, options, &program, work, random, ours, traced);
    let mut nodes = nodes.await?;
    nodes.begin().await?;
    let database = Database::create(work, nodes.file.identity())?;
    let mut workers = employ(&nodes, &database, &recorder, seed).await?;
    let mut gaps = Gaps::default();
    let broken = break_and_mend(options, seed, &mut nodes, &recorder, &mut gaps).await;
    if broken.is_ok() {
        recorder.heal(keys());
        let enough = Duration::from_micros(ASSUMPTIONS.recovery);
        let begun = Instant::now();
        while recorder.is_healing() && begun.elapsed() < enough {
            sleep(Duration::from_millis(50)).await;
        }
    }
    recorder.end();
    let all = async { while workers.join_next().await.is_some_and(|ended| ended.is_ok()) {} };
    let came_home = timeout(HOMECOMING, all).await.is_ok() && workers.is_empty();
    // They end in an orderly way also if something was wrong before: their logs are wanted whole.
    let ended = nodes.end().await;
    for row in database.dump()? {
        recorder.push(row);
    }
    recorder.push(Event::AllRows);
    println!("{} times broken and mended", gaps.count());
    gaps.print();
    let judged = judge(&recorder.history(), &trace, work);
    broken.and(judged).and(ended)?;
    match came_home {
        true => Ok(()),
        false => Err("a client does not come to an end".into()),
    }
}

/// All keys that are in use.
fn keys() -> impl Iterator<Item = &'static str> {
    WIRE_KEYS
        .into_iter()
        .chain(CLIENT_KEYS)
        .chain([WIRE_SLOTS.0])
}

async fn employ(
    nodes: &Nodes,
    database: &Database,
    recorder: &Arc<Recorder>,
    seed: u64,
) -> Result<JoinSet<()>, Failure> {
    let secret = Secret::from_file_content(std::fs::read(&nodes.token)?)?;
    // Also of those that may come.
    let addresses = (0..PLACES).map(|slot| SocketAddr::from((address(slot), 5225)));
    let access = Access {
        addresses: addresses.collect(),
        identity: *nodes.file.identity().as_bytes(),
        secret: secret.clone(),
    };
    let mut workers = JoinSet::new();
    for number in 0..WIRE_WORKERS {
        let random = Random::new(seed, 100 + number);
        let (access, recorder) = (access.clone(), Arc::clone(recorder));
        let worker = WireWorker::new(access, recorder, random, database.connect()?);
        workers.spawn(worker.work());
    }
    for number in 0..CLIENT_WORKERS {
        let random = Random::new(seed, 200 + number);
        let builder = Client::cluster(&access.addresses, nodes.file.identity());
        let client = builder.token(secret.clone()).connect().await?;
        let worker = ClientWorker::new(client, Arc::clone(recorder), random, database.connect()?);
        workers.spawn(worker.work());
    }
    Ok(workers)
}

/// Breaks the cluster and mends it until the time is over.
async fn break_and_mend(
    options: &Options,
    seed: u64,
    nodes: &mut Nodes,
    recorder: &Arc<Recorder>,
    gaps: &mut Gaps,
) -> Result<(), Failure> {
    let mut random = Random::new(seed, 1);
    let mut drops = Drops::none();
    let begun = Instant::now();
    let mut tour = Fault::ALL.into_iter();
    granted(nodes, recorder, 5).await?;
    loop {
        let faults = match &options.scenario {
            Scenario::Tour => match tour.next() {
                Some(fault) if !options.allows(&[fault]) => continue,
                Some(fault) => vec![fault],
                None => return Ok(()),
            },
            _ if begun.elapsed() > Duration::from_secs(options.seconds) => return Ok(()),
            Scenario::These(faults) => faults.clone(),
            Scenario::Random => several(options, &mut random),
        };
        let names: Vec<&str> = faults.iter().map(|fault| fault.name()).collect();
        // By the clock of the histories and logs.
        let seconds = Duration::from_micros(recorder.now()).as_secs_f64();
        println!("{seconds:>6.1} s: {}", names.join(", "));
        let watch = Watch::begin(recorder);
        for fault in &faults {
            inject(*fault, nodes, &mut drops, &mut random).await?;
            nodes.look()?;
        }
        sleep(random.millis(300..2_500)).await;
        drops.clear(nodes).await?;
        nodes.whole().await?;
        granted(nodes, recorder, 1).await?;
        let (gap, stood_still) = watch.end().await;
        if gap > REMARKABLE {
            println!(
                "          nothing was granted for {:.2} s; this program itself stood still for {:.2} s at most",
                gap.as_secs_f64(),
                stood_still.as_secs_f64()
            );
        }
        gaps.note(&faults, gap);
    }
}

/// One to three faults at the same time.
fn several(options: &Options, random: &mut Random) -> Vec<Fault> {
    let all = Fault::ALL.into_iter();
    let all: Vec<Fault> = all.filter(|fault| options.allows(&[*fault])).collect();
    let first = *random.choose(&all);
    let mut faults = vec![first];
    while first.combines() && faults.len() < 3 && random.percent(40) {
        let next = *random.choose(&all);
        faults.push(next);
        let is_new = !faults[..faults.len() - 1].contains(&next);
        if !is_new || !next.combines() || !options.allows(&faults) {
            faults.pop();
        }
    }
    faults
}

/// Waits until so many more grants have been told.
async fn granted(nodes: &mut Nodes, recorder: &Recorder, more: u64) -> Result<(), Failure> {
    let before = recorder.grants();
    let begun = Instant::now();
    while recorder.grants() < before + more {
        nodes.look()?;
        if begun.elapsed() > Duration::from_micros(ASSUMPTIONS.recovery) {
            return Err("the cluster is whole, and nothing is granted".into());
        }
        sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

/// Looks for the longest time without a grant, and for the longest one in which it could not look: a machine that
/// stands still is not the cluster's doing.
struct Watch {
    stop: tokio::sync::oneshot::Sender<()>,
    longest: tokio::task::JoinHandle<(Duration, Duration)>,
}

impl Watch {
    fn begin(recorder: &Arc<Recorder>) -> Self {
        let recorder = Arc::clone(recorder);
        let (stop, mut stopped) = tokio::sync::oneshot::channel();
        let longest = tokio::spawn(async move {
            let (mut count, mut since) = (recorder.grants(), Instant::now());
            let (mut longest, mut blind) = (Duration::ZERO, Duration::ZERO);
            loop {
                let looked = Instant::now();
                let over = timeout(Duration::from_millis(5), &mut stopped)
                    .await
                    .is_ok();
                longest = longest.max(since.elapsed());
                blind = blind.max(looked.elapsed());
                if recorder.grants() != count {
                    (count, since) = (recorder.grants(), Instant::now());
                }
                if over {
                    return (longest, blind);
                }
            }
        });
        Self { stop, longest }
    }

    async fn end(self) -> (Duration, Duration) {
        // It is there until it is told to stop.
        let _ = self.stop.send(());
        self.longest.await.unwrap_or_default()
    }
}

/// A time without a grant that is told with its faults.
const REMARKABLE: Duration = Duration::from_secs(5);
const WIRE_WORKERS: u64 = 8;
const CLIENT_WORKERS: u64 = 4;
/// How long a client may need to end its last call.
const HOMECOMING: Duration = Duration::from_secs(40);
