//! Futures that are dropped at every point at which they can stop, or are kept there without being polled
//! any more. Whatever they were in the middle of, nothing of it stays.

use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::sleep;

use super::Service;
use super::world::{World, next, once, polled};
use crate::leader::events::{Events, Occurrence};
use crate::leader::{
    BoxFuture, Candidates, FailurePolicy, Fifo, LeaderElector, LeaderError, LeaderGuard,
    StrategicElector, StreamLease,
};

/// What is in the middle of something.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Acquire,
    Run,
    RunWithPolicy,
    Strategic,
    Stream,
    StreamItems,
    Campaign,
    Schedule,
    Release,
    ReleaseAfterLoss,
    Extend,
}

const KINDS: [Kind; 11] = [
    Kind::Acquire,
    Kind::Run,
    Kind::RunWithPolicy,
    Kind::Strategic,
    Kind::Stream,
    Kind::StreamItems,
    Kind::Campaign,
    Kind::Schedule,
    Kind::Release,
    Kind::ReleaseAfterLoss,
    Kind::Extend,
];

/// More polls than any of them needs to be at rest.
const STEPS: usize = 16;

pub async fn what_is_dropped_at_any_step_leaves_nothing_behind(service: impl Service) {
    every_step(&World::new(service), Stop::Dropped).await;
}

pub async fn what_is_kept_and_not_polled_any_more_keeps_nobody_out_for_ever(service: impl Service) {
    every_step(&World::new(service), Stop::Kept).await;
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Stop {
    Dropped,
    /// For a while, and then dropped.
    Kept,
}

async fn every_step<S: Service>(world: &World<S>, stop: Stop) {
    // Where time is real, with so many at once the machine would be what is tested.
    let at_once = if world.is_virtual() { KINDS.len() } else { 3 };
    for kinds in KINDS.chunks(at_once) {
        every_step_of(world, kinds, stop).await;
    }
}

async fn every_step_of<S: Service>(world: &World<S>, kinds: &[Kind], stop: Stop) {
    let mut all = JoinSet::new();
    for kind in kinds.iter().copied() {
        for steps in 0..STEPS {
            let name = format!("{kind:?}/{steps}");
            // What is dropped would be extended for ever by a task that was left behind; or it would stay
            // held. Where time is real a service that is busy may leave a lease to its end.
            let stays = stop == Stop::Dropped && steps % 2 == 1 && world.is_virtual();
            let a = match stays {
                true => world.lasting(),
                false => world.options().lease(10 * world.unit),
            };
            let a = a
                .wait(60 * world.unit)
                .auto_extend(stop == Stop::Dropped && !stays);
            let a = world.elector("a", a).await;
            let b = world.elector("b", world.options().wait(90 * world.unit));
            let (b, unit) = (b.await, world.unit);
            all.spawn(async move {
                one(kind, stop, steps, &name, &a, &b, unit).await;
                (a, name)
            });
        }
    }
    let mut electors = Vec::new();
    while let Some(over) = all.join_next().await {
        let (a, name) = over.unwrap();
        world.is_free(&a, &name).await;
        electors.push((a, name));
    }
    let extended = |electors: &[(LeaderElector, String)]| {
        let counts = electors.iter().map(|(a, _)| a.stats().extended);
        counts.sum::<u64>()
    };
    let before = extended(&electors);
    world.pass(10).await;
    assert_eq!(extended(&electors), before, "somebody renews");
}

/// One of them, stopped after so many steps.
async fn one(
    kind: Kind,
    stop: Stop,
    steps: usize,
    name: &str,
    a: &LeaderElector,
    b: &LeaderElector,
    unit: Duration,
) {
    let what = format!("{kind:?}, {stop:?} after {steps} steps");
    let mut events = a.subscribe();
    let level = a.watch(name).unwrap();
    let mut work = begin(kind, name, a, b, unit).await;
    let mut is_over = false;
    for _ in 0..steps {
        if once(work.as_mut()).await.is_ready() {
            is_over = true;
            break;
        }
        sleep(unit / 50).await;
    }
    if stop == Stop::Kept && !is_over {
        // Nobody polls it, and nobody waits for it for longer than a lease or two.
        let next = led(b, name).await;
        assert_eq!(next.check(), Ok(()), "{what}");
        next.release().await;
    }
    drop(work);
    // The task of a schedule is told, and ends behind this.
    assert!(
        kind == Kind::Schedule || !level.is_leader(),
        "{what}: a phantom"
    );
    // Each term is over, and was told of once.
    let (mut elected, mut over) = (Vec::new(), Vec::new());
    for _ in 0..3_000 {
        happened(&mut events, &mut elected, &mut over).await;
        let stats = a.stats();
        let ended = stats.released + stats.retained + stats.revoked + stats.release_unknown;
        if stats.elected == ended && elected.len() == over.len() {
            break;
        }
        sleep(unit / 100).await;
    }
    sleep(unit / 10).await;
    happened(&mut events, &mut elected, &mut over).await;
    elected.sort_unstable();
    over.sort_unstable();
    assert_eq!(elected, over, "{what}: {:?}", a.stats());
    let stats = a.stats();
    let ended = stats.released + stats.retained + stats.revoked + stats.release_unknown;
    assert_eq!(stats.elected, ended, "{what}: {stats:?}");
    assert_eq!(stats.elected, elected.len() as u64, "{what}: {stats:?}");
    assert!(!level.is_leader(), "{what}: a phantom");
}

/// What was told of so far: the tokens of terms that began, and of those that are over.
async fn happened(events: &mut Events, elected: &mut Vec<u64>, over: &mut Vec<u64>) {
    while let Some(Some(event)) = polled(events.next(), 1, Duration::ZERO).await {
        match event.unwrap().what {
            Occurrence::Elected { token, .. } => elected.push(token.get()),
            Occurrence::Ended { token, .. } | Occurrence::Revoked { token, .. } => {
                over.push(token.get());
            }
            _ => {}
        }
    }
}

/// For candidates somebody else leads at first, and gives the lease back while they wait.
async fn begin(
    kind: Kind,
    name: &str,
    a: &LeaderElector,
    b: &LeaderElector,
    unit: Duration,
) -> BoxFuture<()> {
    let (a, name) = (a.clone(), name.to_owned());
    match kind {
        Kind::StreamItems | Kind::Release | Kind::ReleaseAfterLoss | Kind::Extend => {}
        _ => {
            let holder = led(b, &name).await;
            tokio::spawn(async move {
                sleep(unit / 10).await;
                holder.release().await;
            });
        }
    }
    match kind {
        Kind::Acquire => Box::pin(async move {
            if let Some(guard) = elected(a.try_acquire(name).await) {
                guard.release().await;
            }
        }),
        Kind::Run => Box::pin(async move {
            let run = a.run_if_leader(name, |leader| steps(leader, unit));
            let _ = elected(run.await);
        }),
        Kind::RunWithPolicy => Box::pin(async move {
            let run = a.run_with_policy(name, FailurePolicy::Error, |leader| async move {
                steps(leader, unit).await;
                Ok::<(), ()>(())
            });
            let _ = elected(run.await.map(Some));
        }),
        Kind::Strategic => Box::pin(async move {
            let registry = Candidates::new(3_600 * unit);
            let strategic = StrategicElector::new(a, registry, Fifo);
            let run = strategic.run_if_leader_result(name, |leader| async move {
                steps(leader, unit).await;
                Ok::<(), ()>(())
            });
            let _ = elected(run.await.map(Some));
        }),
        Kind::Stream => Box::pin(async move {
            let stream = a.stream_if_leader(name, StreamLease::Bounded, |_| Slow::new(unit));
            if let Some(mut stream) = elected(stream.await) {
                while next(&mut stream).await.is_some() {}
            }
        }),
        Kind::StreamItems => {
            let mut stream = loop {
                let slow = |_| Slow::new(unit);
                let stream = a.stream_if_leader(&name, StreamLease::Bounded, slow);
                if let Some(stream) = elected(stream.await) {
                    break stream;
                }
            };
            Box::pin(async move { while next(&mut stream).await.is_some() {} })
        }
        Kind::Campaign => Box::pin(async move {
            let campaign = a.campaign(name, |leader| steps(leader, unit));
            drop(campaign.await);
        }),
        Kind::Schedule => Box::pin(async move {
            let schedule = a.schedule(name, unit / 10, move |leader| async move {
                steps(leader, unit).await;
                Ok::<(), ()>(())
            });
            let schedule = schedule.unwrap();
            sleep(unit / 5).await;
            schedule.stop().await;
        }),
        Kind::Release => {
            let guard = led(&a, &name).await;
            Box::pin(async move { drop(guard.release().await) })
        }
        Kind::ReleaseAfterLoss => {
            let guard = led(&a, &name).await;
            // What is left of a lost lease is kept for this part of the work.
            let context = AssertUnwindSafe(guard.context());
            guard.term().lose(crate::Lost::Expired);
            Box::pin(async move {
                drop(guard.release().await);
                drop(context);
            })
        }
        Kind::Extend => {
            let guard = Arc::new(led(&a, &name).await);
            Box::pin(async move {
                let _ = guard.extend(5 * unit).await;
            })
        }
    }
}

/// What came of an election in which everybody else is patient. A service that is busy may have an outage.
fn elected<T>(outcome: Result<Option<T>, LeaderError>) -> Option<T> {
    match outcome {
        Ok(elected) => Some(elected.expect("it waits for long enough")),
        Err(LeaderError::LeaseLost { .. }) => None,
        Err(error) if error.is_transient() => None,
        Err(error) => panic!("{error:?}"),
    }
}

async fn led(a: &LeaderElector, name: &str) -> LeaderGuard {
    loop {
        if let Some(guard) = elected(a.try_acquire(name).await) {
            return guard;
        }
    }
}

/// An action of a few steps, with one part in a task of its own that stops when it is told.
async fn steps(leader: crate::leader::LeaderContext, unit: Duration) {
    let part = leader.clone();
    tokio::spawn(async move {
        part.lost().await;
    });
    for _ in 0..3 {
        sleep(unit / 50).await;
        let _ = leader.check();
    }
}

/// Three items with a pause before each.
struct Slow {
    left: u32,
    pause: Duration,
    sleep: Option<Pin<Box<tokio::time::Sleep>>>,
}

impl Slow {
    fn new(unit: Duration) -> Self {
        Self {
            left: 3,
            pause: unit / 50,
            sleep: None,
        }
    }
}

impl futures_core::Stream for Slow {
    type Item = Result<u32, ()>;

    fn poll_next(
        mut self: Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        let pause = self.pause;
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(sleep(pause)));
        std::task::ready!(sleep.as_mut().poll(context));
        self.sleep = None;
        let left = self.left.checked_sub(1);
        self.left = left.unwrap_or_default();
        std::task::Poll::Ready(left.map(Ok))
    }
}
