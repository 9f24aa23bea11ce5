//! One run of the demonstration: worker processes sell all orders, and one of them is frozen past
//! its lease, between reading the stock and writing it.

use std::collections::VecDeque;
use std::env;
use std::io;
use std::process::Stdio;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::signal::unix;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::Failure;
use crate::orders::Order;
use crate::progress::Progress;
use crate::worker::setting;

/// What all workers of a run share.
pub(crate) struct Setup {
    pub(crate) database_url: String,
    pub(crate) server: String,
    pub(crate) client_token: Option<String>,
    pub(crate) key_prefix: String,
    pub(crate) lease_seconds: u64,
    pub(crate) workers: usize,
    /// How many later orders of the same SKU the others finish before the frozen worker wakes:
    /// all of them by default, and 0 freezes nobody.
    pub(crate) freeze: Option<usize>,
    pub(crate) fencing: bool,
}

/// A write that the database refused.
#[derive(Clone, Debug)]
pub(crate) struct Refusal {
    pub(crate) order: Order,
    pub(crate) offered: String,
    pub(crate) highest: String,
}

/// What happened in a run, as the workers told it.
#[derive(Default)]
pub(crate) struct Told {
    pub(crate) done: usize,
    pub(crate) refused: Vec<Refusal>,
    pub(crate) failed: Vec<(Order, String)>,
    /// The order whose worker was frozen, and for how long.
    pub(crate) frozen: Option<(Order, Duration)>,
}

/// An order is handed out this often before it counts as failed.
const ATTEMPTS: u32 = 5;
/// The longest time without which a step of the demonstration is considered stuck.
const PATIENCE: Duration = Duration::from_secs(30);

/// Sells all orders and tells what happened; the database tells what is true.
pub(crate) async fn run(
    setup: Setup,
    orders: &[Order],
    progress: Progress,
    interrupt: &mut Interrupt,
) -> Result<Told, Failure> {
    let freeze = choose(orders, setup.freeze);
    let mut queue: VecDeque<_> = orders.iter().cloned().map(|order| (order, 1)).collect();
    if let Some(freeze) = &freeze
        && let Some(first) = queue.remove(freeze.at)
    {
        queue.push_front(first);
    }
    let desk = Desk {
        queue: Mutex::new(queue),
        told: Mutex::new(Told::default()),
        open: watch::Sender::new(orders.len()),
        sold_of_frozen_sku: watch::Sender::new(0),
        waits_for_freeze: watch::Sender::new(freeze.is_some()),
        freeze,
        progress,
        setup,
    };
    let desk = std::sync::Arc::new(desk);
    let mut workers = JoinSet::new();
    for number in 0..desk.setup.workers {
        let desk = desk.clone();
        workers.spawn(async move { Worker::start(&desk.setup, number).await?.serve(&desk).await });
    }
    let ended = tokio::select! {
        ended = all(&mut workers) => ended,
        () = interrupt.wait() => Err(Failure::Interrupted),
    };
    desk.progress.finish();
    // After a failure some are still at work; no process outlives this function.
    workers.shutdown().await;
    ended?;
    let told = std::mem::take(&mut *lock(&desk.told));
    Ok(told)
}

async fn all(workers: &mut JoinSet<Result<(), Failure>>) -> Result<(), Failure> {
    while let Some(ended) = workers.join_next().await {
        ended.map_err(io::Error::other)??;
    }
    Ok(())
}

/// Ctrl-C and SIGTERM, from when it was made: the stopped worker and the tables are not left behind.
pub(crate) struct Interrupt {
    interrupt: unix::Signal,
    terminate: unix::Signal,
}

impl Interrupt {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            interrupt: unix::signal(unix::SignalKind::interrupt())?,
            terminate: unix::signal(unix::SignalKind::terminate())?,
        })
    }

    async fn wait(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// Whether there is an order to freeze at.
pub(crate) fn can_freeze(orders: &[Order], later: Option<usize>) -> bool {
    choose(orders, later).is_some()
}

/// The order to freeze at: the first whose SKU has enough later orders to notice the damage.
fn choose(orders: &[Order], later: Option<usize>) -> Option<Freeze> {
    let followers = |at: usize| {
        let sku = &orders[at].sku;
        orders[at + 1..].iter().filter(|o| o.sku == *sku).count()
    };
    let freeze_at = |at: usize, later| Freeze {
        at,
        order: orders[at].clone(),
        later,
    };
    let mut places = 0..orders.len();
    match later {
        Some(0) => None,
        Some(later) => places
            .find(|&at| followers(at) >= later)
            .map(|at| freeze_at(at, later)),
        None => places
            .map(|at| freeze_at(at, followers(at)))
            .find(|freeze| freeze.later > 0),
    }
}

struct Freeze {
    at: usize,
    order: Order,
    later: usize,
}

/// The order queue and the notes: what the worker processes are served from.
struct Desk {
    queue: Mutex<VecDeque<(Order, u32)>>,
    told: Mutex<Told>,
    /// Orders that are neither recorded nor given up.
    open: watch::Sender<usize>,
    freeze: Option<Freeze>,
    /// The order to freeze at is handed out first, and no other before its worker is frozen: so
    /// the demonstration does not depend on who is faster.
    waits_for_freeze: watch::Sender<bool>,
    sold_of_frozen_sku: watch::Sender<usize>,
    progress: Progress,
    setup: Setup,
}

impl Desk {
    /// The next order; waits while others still work, since theirs can come back.
    async fn next(&self) -> Option<(Order, u32)> {
        let mut open = self.open.subscribe();
        let mut waits = self.waits_for_freeze.subscribe();
        loop {
            let left = *open.borrow_and_update();
            if left == 0 {
                return None;
            }
            if let Some(next) = self.take(*waits.borrow_and_update()) {
                return Some(next);
            }
            tokio::select! {
                changed = open.changed() => changed.ok()?,
                changed = waits.changed() => changed.ok()?,
            }
        }
    }

    fn take(&self, waits_for_freeze: bool) -> Option<(Order, u32)> {
        let mut queue = lock(&self.queue);
        if waits_for_freeze {
            let freeze = self.freeze.as_ref()?;
            queue.pop_front_if(|(order, _)| *order == freeze.order)
        } else {
            queue.pop_front()
        }
    }

    fn recorded(&self, order: &Order) {
        lock(&self.told).done += 1;
        self.progress.sold();
        if self
            .freeze
            .as_ref()
            .is_some_and(|freeze| freeze.order.sku == order.sku)
        {
            self.sold_of_frozen_sku.send_modify(|sold| *sold += 1);
        }
        self.open.send_modify(|open| *open -= 1);
    }

    fn refused(&self, order: Order, attempt: u32, offered: &str, highest: &str) {
        self.progress.note(&format!(
            "the database refused order {}: token {offered} is stale, {highest} has written",
            order.id
        ));
        lock(&self.told).refused.push(Refusal {
            order: order.clone(),
            offered: offered.to_owned(),
            highest: highest.to_owned(),
        });
        self.again(order, attempt, "refused as stale");
    }

    /// Hands the order out once more, or gives it up.
    fn again(&self, order: Order, attempt: u32, reason: &str) {
        if attempt < ATTEMPTS {
            let mut queue = lock(&self.queue);
            if *self.waits_for_freeze.borrow() {
                queue.push_front((order, attempt + 1));
            } else {
                queue.push_back((order, attempt + 1));
            }
            drop(queue);
            self.open.send_modify(|_| {});
        } else {
            self.waits_for_freeze.send_replace(false);
            lock(&self.told).failed.push((order, reason.to_owned()));
            self.open.send_modify(|open| *open -= 1);
        }
    }
}

/// One worker process and its pipes. It is killed when this is dropped, frozen or not.
struct Worker {
    number: usize,
    /// The longest silence: a worker may wait for a lease to end.
    patience: Duration,
    process: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Worker {
    async fn start(setup: &Setup, number: usize) -> Result<Self, Failure> {
        let mut command = Command::new(env::current_exe()?);
        command
            .env(setting::WORKER, "1")
            .env(setting::DATABASE_URL, &setup.database_url)
            .env(setting::SERVER, &setup.server)
            .env(setting::KEY_PREFIX, &setup.key_prefix)
            .env(setting::LEASE_SECONDS, setup.lease_seconds.to_string())
            .env(setting::FENCING, if setup.fencing { "on" } else { "off" })
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Ctrl-C is for the parent, which then ends its workers. And should the parent be killed,
            // the system wakes and ends a stopped process that is alone in its group.
            .process_group(0)
            .kill_on_drop(true);
        match &setup.client_token {
            Some(token) => command.env(setting::CLIENT_TOKEN, token),
            None => command.env_remove(setting::CLIENT_TOKEN),
        };
        let mut process = command.spawn()?;
        let (Some(input), Some(output)) = (process.stdin.take(), process.stdout.take()) else {
            return Err(io::Error::other("the worker has no pipes").into());
        };
        let output = BufReader::new(output).lines();
        let mut worker = Self {
            number,
            patience: Duration::from_secs(setup.lease_seconds) + PATIENCE,
            process,
            input,
            output,
        };
        worker.hear("ready").await?;
        Ok(worker)
    }

    /// Serves orders to this process until none is open.
    async fn serve(mut self, desk: &Desk) -> Result<(), Failure> {
        while let Some((order, attempt)) = desk.next().await {
            let Order {
                id, sku, quantity, ..
            } = &order;
            self.say(&format!("sell\t{id}\t{sku}\t{quantity}")).await?;
            let answer = loop {
                let line = self.next_line().await?;
                if !line.starts_with("charge\t") {
                    break line;
                }
                match &desk.freeze {
                    Some(freeze) if freeze.order == order && *desk.waits_for_freeze.borrow() => {
                        self.freeze(desk, freeze).await?;
                    }
                    _ => self.say("charged").await?,
                }
            };
            let fields: Vec<&str> = answer.split('\t').collect();
            match fields[..] {
                ["recorded", _] | ["already"] => desk.recorded(&order),
                ["stale", offered, highest] => desk.refused(order, attempt, offered, highest),
                ["waited"] => desk.again(order, attempt, "its turn did not come"),
                ["failed", reason] => desk.again(order, attempt, reason),
                _ => return Err(Failure::Worker(format!("unexpected answer {answer:?}"))),
            }
        }
        drop(self.input);
        let status = timeout(PATIENCE, self.process.wait())
            .await
            .map_err(|_| Failure::Worker("a worker process does not end".to_owned()))??;
        if !status.success() {
            return Err(Failure::Worker(format!(
                "a worker process ended with {status}"
            )));
        }
        Ok(())
    }

    /// Stops the process while it holds its lock and waits for the payment; the answer lies in the
    /// pipe. It goes on only when others have taken the lock over and written.
    async fn freeze(&mut self, desk: &Desk, freeze: &Freeze) -> Result<(), Failure> {
        let Order { id, sku, .. } = &freeze.order;
        let number = self.number + 1;
        let mut open = desk.open.subscribe();
        let began = tokio::time::Instant::now();
        self.signal(Signal::SIGSTOP)?;
        desk.progress.note(&format!(
            "worker {number} frozen: holds the lock of {sku}, order {id}"
        ));
        self.say("charged").await?;
        desk.waits_for_freeze.send_replace(false);
        // However long the file is: what counts as stuck is that no order at all is done.
        while *desk.sold_of_frozen_sku.borrow() < freeze.later {
            timeout(self.patience, open.changed())
                .await
                .map_err(|_| Failure::Worker(format!("nobody took the lock of {sku} over")))?
                .map_err(io::Error::other)?;
        }
        self.signal(Signal::SIGCONT)?;
        let slept = began.elapsed();
        desk.progress.note(&format!(
            "worker {number} wakes after {:.1} s, {} orders of {sku} later, and writes",
            slept.as_secs_f64(),
            freeze.later
        ));
        lock(&desk.told).frozen = Some((freeze.order.clone(), slept));
        Ok(())
    }

    fn signal(&self, signal: Signal) -> io::Result<()> {
        let pid = self.process.id().and_then(|pid| i32::try_from(pid).ok());
        let pid = pid.ok_or_else(|| io::Error::other("the worker process has ended"))?;
        kill(Pid::from_raw(pid), signal).map_err(io::Error::from)
    }

    async fn say(&mut self, line: &str) -> io::Result<()> {
        self.input.write_all(format!("{line}\n").as_bytes()).await
    }

    async fn hear(&mut self, expected: &str) -> Result<(), Failure> {
        let line = self.next_line().await?;
        if line == expected {
            return Ok(());
        }
        Err(Failure::Worker(format!("{line:?} instead of {expected:?}")))
    }

    async fn next_line(&mut self) -> Result<String, Failure> {
        match timeout(self.patience, self.output.next_line()).await {
            Ok(line) => {
                line?.ok_or_else(|| Failure::Worker("a worker process has ended".to_owned()))
            }
            Err(_) => Err(Failure::Worker(
                "a worker process does not answer".to_owned(),
            )),
        }
    }
}

/// A panic elsewhere does not make the notes wrong.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(id: &str, sku: &str) -> Order {
        Order {
            line: 1,
            id: id.to_owned(),
            sku: sku.to_owned(),
            quantity: 1,
        }
    }

    #[test]
    fn the_frozen_order_is_the_first_with_enough_later_orders_of_its_sku() {
        let orders = [
            order("1", "pear"),
            order("2", "fig"),
            order("3", "fig"),
            order("4", "fig"),
        ];
        let chosen = |later| choose(&orders, later).map(|f| (f.order.id, f.later));
        assert_eq!(chosen(None), Some(("2".to_owned(), 2)));
        assert_eq!(chosen(Some(1)), Some(("2".to_owned(), 1)));
        assert_eq!(chosen(Some(3)), None);
        assert_eq!(chosen(Some(0)), None);
        assert!(choose(&orders[..1], None).is_none());
        assert!(choose(&[], None).is_none());
    }
}
