//! What the cases say and wait for, over the service under test.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use futures_core::Stream;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use super::faulty::{Fault, Faulty};
use super::{Memory, Service};
use crate::Key;
use crate::leader::{
    LeaderElector, LeaderGroupElector, LeaderGroupOptions, LeaderGuard, LeaderOptions,
    LeaderOptionsBuilder,
};
use crate::system::now;

/// How long something may take that must happen, where time is real.
pub(super) const PATIENCE: Duration = Duration::from_secs(90);

pub(super) struct World<S> {
    service: S,
    /// A length of time that is short, and long enough for the service to answer in.
    pub(super) unit: Duration,
}

impl<S: Service> World<S> {
    pub(super) fn new(service: S) -> Self {
        let unit = service.unit();
        Self { service, unit }
    }

    /// One try, a lease of 20 units.
    pub(super) fn options(&self) -> LeaderOptionsBuilder {
        let options = LeaderOptions::builder().wait(Duration::ZERO);
        options.lease(20 * self.unit)
    }

    /// One try, a lease that lasts for far longer than anything is waited for: a name that is free before
    /// its end was given back, and has not just run out.
    pub(super) fn lasting(&self) -> LeaderOptionsBuilder {
        self.options().lease(self.lasting_lease())
    }

    pub(super) fn lasting_lease(&self) -> Duration {
        match self.is_virtual() {
            true => 10 * self.patience(),
            false if self.service.may_leave_leases() => PATIENCE / 3,
            false => 10 * PATIENCE,
        }
    }

    fn patience(&self) -> Duration {
        match self.is_virtual() {
            true => 100 * self.unit,
            false => PATIENCE,
        }
    }

    pub(super) async fn elector(&self, node: &str, options: LeaderOptionsBuilder) -> LeaderElector {
        let options = options.node(node).build().unwrap();
        LeaderElector::new(self.service.backend(node).await, options)
    }

    /// The same, and what makes its calls fail.
    pub(super) async fn faulty(
        &self,
        node: &str,
        options: LeaderOptionsBuilder,
    ) -> (LeaderElector, Faulty) {
        let faulty = Faulty::new(self.service.backend(node).await);
        let options = options.node(node).build().unwrap();
        (LeaderElector::new(faulty.clone(), options), faulty)
    }

    pub(super) async fn candidate(&self, node: &str) -> LeaderElector {
        self.elector(node, self.options()).await
    }

    pub(super) async fn group(&self, node: &str, slots: u32) -> LeaderGroupElector {
        let options = LeaderGroupOptions::builder().slots(slots);
        let options = options.wait(Duration::ZERO).lease(20 * self.unit);
        let options = options.node(node).build().unwrap();
        LeaderGroupElector::new(self.service.backend(node).await, options)
    }

    pub(super) fn service(&self) -> &S {
        &self.service
    }

    /// Ends whatever holds a name, as an operator does.
    pub(super) async fn force_release(&self, name: &str) {
        self.service.force_release(&Key::new(name).unwrap()).await;
    }

    pub(super) async fn restart(&self) -> Memory {
        self.service.restart().await
    }

    /// Waits until nothing holds a name and nobody waits for it.
    pub(super) async fn is_free(&self, elector: &LeaderElector, name: &str) {
        self.until(&format!("{name} is free"), async || {
            let state = elector.state(name).await;
            state.is_ok_and(|state| state.is_free() && state.waiting == 0)
        })
        .await;
    }

    /// Waits until so many candidates stand in the queue.
    pub(super) async fn waiting(&self, elector: &LeaderElector, name: &str, waiting: u32) {
        self.until("so many wait", async || {
            elector.state(name).await.unwrap().waiting == waiting
        })
        .await;
    }

    /// Waits for a condition; in virtual time each look takes a hundredth of a unit.
    pub(super) async fn until(&self, what: &str, mut condition: impl AsyncFnMut() -> bool) {
        let started = now();
        while !condition().await {
            assert!(started.elapsed() < self.patience(), "not in time: {what}");
            sleep(self.unit / 100).await;
        }
    }

    pub(super) fn is_virtual(&self) -> bool {
        self.service.is_virtual()
    }

    /// Lets so many units pass.
    pub(super) async fn pass(&self, units: u32) {
        sleep(units * self.unit).await;
    }

    /// An elector whose backend has this fault from now on.
    pub(super) async fn with_fault(
        &self,
        node: &str,
        options: LeaderOptionsBuilder,
        fault: Fault,
    ) -> LeaderElector {
        let (elector, faulty) = self.faulty(node, options).await;
        faulty.acquire(fault);
        elector
    }
}

/// What a future gives if it is polled so many times, with a pause of this length between.
pub(super) async fn polled<F: Future>(
    future: F,
    times: usize,
    pause: Duration,
) -> Option<F::Output> {
    let mut future = pin!(future);
    for time in 0..times {
        if time > 0 {
            sleep(pause).await;
        }
        if let Poll::Ready(output) = once(future.as_mut()).await {
            return Some(output);
        }
    }
    None
}

/// Drops a run when its action has begun, which says so and does not end.
pub(super) async fn dropped_when<T: std::fmt::Debug>(
    run: impl Future<Output = T>,
    begun: oneshot::Receiver<()>,
) {
    tokio::select! {
        biased;
        ran = run => panic!("it is over: {ran:?}"),
        begun = timeout(PATIENCE, begun) => begun.unwrap().unwrap(),
    }
}

/// Polls a future once.
pub(super) async fn once<F: Future + ?Sized>(mut future: Pin<&mut F>) -> Poll<F::Output> {
    poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await
}

/// The next item of a stream.
pub(super) async fn next<S: Stream + Unpin>(stream: &mut S) -> Option<S::Item> {
    poll_fn(|context| Pin::new(&mut *stream).poll_next(context)).await
}

/// Runs all of them, side by side in this task.
pub(super) async fn at_once<F: Future<Output = ()>>(futures: Vec<F>) {
    let mut futures: Vec<_> = futures.into_iter().map(Box::pin).collect();
    poll_fn(|context| {
        futures.retain_mut(|future| future.as_mut().poll(context).is_pending());
        match futures.is_empty() {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    })
    .await;
}

/// Elected in the end: a service that has trouble of its own may tell a candidate that it has no answer.
pub(super) async fn elected(elector: &LeaderElector) -> LeaderGuard {
    let started = now();
    loop {
        match elector.try_acquire("job").await {
            Ok(guard) => return guard.unwrap(),
            Err(error) => assert!(error.is_transient(), "{error:?}"),
        }
        assert!(started.elapsed() < PATIENCE);
        sleep(Duration::from_millis(20)).await;
    }
}
