//! The attributes `#[leader]` and `#[leader_group]`, in virtual time.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use highwater_client::leader::{
    Backend, BackendError, BoxFuture, Candidacy, Cause, InProcess, LeaderElector, LeaderError,
    LeaderGroupElector, LeaderGroupOptions, LeaderOptions, LeaderState, Lease, NotLeader,
    Occurrence, TermOutcome, leader, leader_group,
};
use highwater_client::{Key, Lost};
use tokio::time::{Instant, advance, sleep};

/// An error of an application.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Leader(#[from] LeaderError),
    #[error(transparent)]
    NotLeader(#[from] NotLeader),
    #[error("the body failed")]
    Body,
}

fn elector(service: &InProcess, node: &str) -> LeaderElector {
    let options = LeaderOptions::builder().node(node).build().unwrap();
    LeaderElector::new(service.clone(), options)
}

/// What a body is to do.
#[derive(Clone, Copy)]
enum Body {
    Value,
    None,
    Fail,
    Panic,
    Sleep(u64),
}

impl Body {
    async fn run(self, runs: &AtomicU32) -> Result<Option<u32>, Error> {
        runs.fetch_add(1, Ordering::Relaxed);
        match self {
            Self::Value => Ok(Some(7)),
            Self::None => Ok(None),
            Self::Fail => Err(Error::Body),
            Self::Panic => panic!("the body panics"),
            Self::Sleep(seconds) => {
                sleep(Duration::from_secs(seconds)).await;
                Ok(Some(8))
            }
        }
    }
}

#[leader(
    name = "close-{region}",
    wait = "PT0.5S",
    lease = "PT10S",
    min_lease = "PT1S",
    auto_extend
)]
async fn close(
    elector: &LeaderElector,
    region: &str,
    body: Body,
    runs: &AtomicU32,
) -> Result<Option<u32>, Error> {
    assert_eq!(ctx.name().as_str(), format!("close-{region}"));
    assert!(ctx.fence().is_some());
    let value = body.run(runs).await?;
    ctx.check()?;
    if value.is_none() {
        return Ok(None);
    }
    Ok(value)
}

#[leader(name = "short", wait = "0s", lease = "2s")]
async fn short(
    elector: Arc<LeaderElector>,
    body: Body,
    runs: &AtomicU32,
) -> Result<Option<u32>, Error> {
    body.run(runs).await
}

#[leader(name = "told", wait = "0s", lease = "2s", on_loss = notify)]
async fn told(elector: LeaderElector, runs: &AtomicU32) -> Result<Option<u32>, Error> {
    let lost = ctx.lost().await;
    assert_eq!(lost, NotLeader::Lost(Lost::Expired));
    runs.fetch_add(1, Ordering::Relaxed);
    Ok(Some(1))
}

#[tokio::test(start_paused = true)]
async fn who_is_elected_runs_and_who_is_not_gives_none() {
    let service = InProcess::new();
    let (a, b, runs) = (
        elector(&service, "a"),
        elector(&service, "b"),
        AtomicU32::new(0),
    );
    let first = close(&a, "eu", Body::Sleep(60), &runs);
    let second = async {
        sleep(Duration::from_secs(30)).await;
        let started = Instant::now();
        assert_eq!(close(&b, "us", Body::Value, &runs).await.unwrap(), Some(7));
        assert_eq!(close(&b, "eu", Body::Value, &runs).await.unwrap(), None);
        assert_eq!(
            started.elapsed(),
            Duration::from_millis(500),
            "the wait of the attribute"
        );
    };
    // Six times its lease: it is extended.
    let (first, ()) = tokio::join!(first, second);
    assert_eq!(first.unwrap(), Some(8));
    assert_eq!(runs.load(Ordering::Relaxed), 2);
    assert_eq!(b.stats().skipped, 1);
}

#[tokio::test(start_paused = true)]
async fn the_minimum_lease_is_that_of_the_attribute() {
    let service = InProcess::new();
    let (a, b, runs) = (
        elector(&service, "a"),
        elector(&service, "b"),
        AtomicU32::new(0),
    );
    assert_eq!(close(&a, "eu", Body::Value, &runs).await.unwrap(), Some(7));
    assert_eq!(close(&b, "eu", Body::Value, &runs).await.unwrap(), None);
    advance(Duration::from_millis(500)).await;
    assert_eq!(close(&b, "eu", Body::Value, &runs).await.unwrap(), Some(7));
}

#[tokio::test(start_paused = true)]
async fn a_body_gives_what_it_gives() {
    let service = InProcess::new();
    let (a, runs) = (elector(&service, "a"), AtomicU32::new(0));
    let mut events = a.subscribe();
    assert_eq!(close(&a, "none", Body::None, &runs).await.unwrap(), None);
    let failed = close(&a, "fail", Body::Fail, &runs).await;
    assert!(matches!(failed, Err(Error::Body)));
    let run = tokio::spawn({
        let a = a.clone();
        async move { close(&a, "panic", Body::Panic, &AtomicU32::new(0)).await }
    });
    assert!(run.await.unwrap_err().is_panic());
    let mut ends = Vec::new();
    while ends.len() < 3 {
        if let Occurrence::Ended { outcome, .. } = events.next().await.unwrap().unwrap().what {
            ends.push(outcome);
        }
    }
    assert_eq!(
        ends,
        [
            TermOutcome::Completed,
            TermOutcome::Failed,
            TermOutcome::Panicked
        ]
    );
    assert_eq!(a.stats().skipped, 0, "a value of `None` is no contention");
}

#[tokio::test(start_paused = true)]
async fn a_lost_lease_is_an_error_whatever_the_body_gave() {
    let service = InProcess::new();
    let (a, runs) = (elector(&service, "a"), AtomicU32::new(0));
    let cut = short(Arc::new(a.clone()), Body::Sleep(5), &runs).await;
    assert!(
        matches!(cut, Err(Error::Leader(LeaderError::LeaseLost { .. }))),
        "{cut:?}"
    );
    let told = told(a, &runs).await;
    assert!(
        matches!(told, Err(Error::Leader(LeaderError::LeaseLost { .. }))),
        "{told:?}"
    );
    assert_eq!(
        runs.load(Ordering::Relaxed),
        2,
        "the first was cut off, the second ran on"
    );
}

#[tokio::test(start_paused = true)]
async fn a_wrong_argument_in_a_name_is_an_error_and_a_tenant_stands_before_it() {
    let service = InProcess::new();
    let (a, runs) = (elector(&service, "a"), AtomicU32::new(0));
    let wrong = close(&a, "e u", Body::Value, &runs).await;
    assert!(
        matches!(wrong, Err(Error::Leader(LeaderError::Name(_)))),
        "{wrong:?}"
    );
    assert_eq!(runs.load(Ordering::Relaxed), 0);

    #[leader(name = "{JOB}-{number:03}", elector = electors.0, context = leading)]
    async fn named(electors: &(LeaderElector,), number: u32) -> Result<Option<Key>, LeaderError> {
        Ok(Some(leading.name().clone()))
    }
    const JOB: &str = "job";
    let electors = (a.for_tenant("acme").unwrap(),);
    let name = named(&electors, 7).await.unwrap().unwrap();
    assert_eq!(name.as_str(), "acme/job-007");
}

struct Workers {
    electors: LeaderGroupElector,
}

impl Workers {
    #[leader_group(name = "work", elector = self.electors, slots = 3, wait = "0s")]
    async fn work<T: Send>(&self, mut values: Vec<T>) -> Result<Option<(u32, T)>, LeaderError> {
        sleep(Duration::from_secs(1)).await;
        let Some(value) = values.pop() else {
            return Ok(None);
        };
        Ok(ctx.slot().map(|slot| (slot, value)))
    }
}

#[tokio::test(start_paused = true)]
async fn a_group_has_its_slots() {
    let service = InProcess::new();
    // The elector has other options; those of the attribute count.
    let electors = LeaderGroupElector::new(service, LeaderGroupOptions::default());
    let workers = Workers { electors };
    let run = || workers.work(vec!["value"]);
    let (a, b, c, d) = tokio::join!(run(), run(), run(), run());
    let mut slots: Vec<u32> = [a, b, c, d]
        .into_iter()
        .filter_map(|ran| Some(ran.unwrap()?.0))
        .collect();
    slots.sort_unstable();
    assert_eq!(slots, [0, 1, 2]);
}

/// A lock service that does not answer.
struct Gone;

impl Backend for Gone {
    fn acquire(&self, _: Candidacy) -> BoxFuture<Result<Option<Arc<dyn Lease>>, BackendError>> {
        Box::pin(async { Err(BackendError::Unavailable(Cause::new("gone"))) })
    }

    fn state(&self, _: Key) -> BoxFuture<Result<LeaderState, BackendError>> {
        Box::pin(async { Err(BackendError::Unavailable(Cause::new("gone"))) })
    }
}

#[leader(name = "a", on_failure = error)]
async fn or_error(elector: &LeaderElector, runs: &AtomicU32) -> Result<Option<bool>, LeaderError> {
    runs.fetch_add(1, Ordering::Relaxed);
    Ok(Some(ctx.fence().is_some()))
}

#[leader(name = "a", on_failure = skip)]
async fn or_skip(elector: &LeaderElector, runs: &AtomicU32) -> Result<Option<bool>, LeaderError> {
    runs.fetch_add(1, Ordering::Relaxed);
    Ok(Some(ctx.fence().is_some()))
}

#[leader(name = "a", on_failure = fail_open)]
async fn or_open(elector: &LeaderElector, runs: &AtomicU32) -> Result<Option<bool>, LeaderError> {
    runs.fetch_add(1, Ordering::Relaxed);
    Ok(Some(ctx.fence().is_some()))
}

#[tokio::test(start_paused = true)]
async fn each_policy_runs_the_body_at_most_once_when_the_service_is_gone() {
    let options = LeaderOptions::default();
    let (gone, runs) = (LeaderElector::new(Gone, options), AtomicU32::new(0));
    let error = or_error(&gone, &runs).await;
    assert!(matches!(error, Err(LeaderError::Backend(_))), "{error:?}");
    assert_eq!(or_skip(&gone, &runs).await.unwrap(), None);
    assert_eq!(runs.load(Ordering::Relaxed), 0);
    assert_eq!(or_open(&gone, &runs).await.unwrap(), Some(false));
    assert_eq!(runs.load(Ordering::Relaxed), 1);
    let well = elector(&InProcess::new(), "a");
    for (number, ran) in [
        or_error(&well, &runs).await,
        or_skip(&well, &runs).await,
        or_open(&well, &runs).await,
    ]
    .into_iter()
    .enumerate()
    {
        assert_eq!(ran.unwrap(), Some(true), "{number}");
    }
    assert_eq!(runs.load(Ordering::Relaxed), 4);
}

/// The bounds that the attributes know are those of the options.
#[tokio::test(start_paused = true)]
async fn what_compiles_is_legal() {
    #[leader(name = "a", wait = "1h", lease = "1h", min_lease = "PT1H")]
    async fn longest(elector: &LeaderElector) -> Result<Option<()>, LeaderError> {
        Ok(Some(()))
    }
    #[leader(name = "b", lease = "300ms", auto_extend = true)]
    async fn shortest(elector: &LeaderElector) -> Result<Option<()>, LeaderError> {
        Ok(Some(()))
    }
    #[leader(name = "c")]
    async fn defaults(elector: &LeaderElector) -> Result<Option<Duration>, LeaderError> {
        Ok(Some(ctx.remaining()))
    }
    let a = elector(&InProcess::new(), "a");
    assert_eq!(longest(&a).await.unwrap(), Some(()));
    assert_eq!(shortest(&a).await.unwrap(), Some(()));
    let remaining = defaults(&a).await.unwrap().unwrap();
    assert_eq!(
        remaining,
        Duration::from_millis(59_500),
        "the default lease is 60 s"
    );
    assert_eq!(
        *LeaderElector::new(InProcess::new(), LeaderOptions::default()).options(),
        LeaderOptions::builder().build().unwrap()
    );
}

fn is_send<T: Send>(value: T) -> T {
    value
}

#[tokio::test(start_paused = true)]
async fn a_guarded_function_can_be_spawned_and_dropped() {
    let service = InProcess::new();
    let a = elector(&service, "a");
    let runs = Arc::new(AtomicU32::new(0));
    let task = tokio::spawn({
        let (a, runs) = (a.clone(), Arc::clone(&runs));
        async move { is_send(close(&a, "eu", Body::Sleep(60), &runs)).await }
    });
    sleep(Duration::from_secs(2)).await;
    task.abort();
    assert!(task.await.unwrap_err().is_cancelled());
    sleep(Duration::from_millis(1)).await;
    assert!(a.state("close-eu").await.unwrap().is_free());
    assert_eq!(runs.load(Ordering::Relaxed), 1);
}
