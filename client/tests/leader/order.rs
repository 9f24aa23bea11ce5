//! What is told of a term comes in its order, also from several threads.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use highwater_client::leader::{
    Backend, BackendError, BoxFuture, Candidacy, Clock, Grant, InProcess, LeaderElector,
    LeaderState, Lease, Occurrence, RenewError,
};
use highwater_client::{Key, Lost, Release};

use crate::{SECOND, happened, options};

/// Stops on its way back from an extension, after it is done and before it is told of.
#[derive(Clone)]
struct Slow {
    inner: Arc<dyn Backend>,
    extended: Arc<AtomicBool>,
    stops: mpsc::Sender<()>,
    goes_on: Arc<Mutex<mpsc::Receiver<()>>>,
}

struct SlowLease {
    lease: Arc<dyn Lease>,
    slow: Slow,
}

impl Backend for Slow {
    fn acquire(
        &self,
        candidacy: Candidacy,
    ) -> BoxFuture<Result<Option<Arc<dyn Lease>>, BackendError>> {
        let (slow, lease) = (self.clone(), self.inner.acquire(candidacy));
        Box::pin(async move {
            let lease = lease.await?;
            Ok(lease.map(|lease| Arc::new(SlowLease { lease, slow }) as Arc<dyn Lease>))
        })
    }

    fn state(&self, name: Key) -> BoxFuture<Result<LeaderState, BackendError>> {
        self.inner.state(name)
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.inner.clock()
    }
}

impl Lease for SlowLease {
    fn grant(&self) -> &Grant {
        self.lease.grant()
    }

    fn remaining(&self) -> Result<Duration, Lost> {
        if self.slow.extended.swap(false, Ordering::SeqCst) {
            self.slow.stops.send(()).unwrap();
            // The release cannot end meanwhile, so this comes to its bound.
            let goes_on = self.slow.goes_on.lock().unwrap();
            let _ = goes_on.recv_timeout(Duration::from_millis(300));
        }
        self.lease.remaining()
    }

    fn lost(&self) -> BoxFuture<Lost> {
        self.lease.lost()
    }

    fn extend(&self, lease: Duration) -> BoxFuture<Result<(), RenewError>> {
        let (extending, extended) = (self.lease.extend(lease), self.slow.extended.clone());
        Box::pin(async move {
            extending.await?;
            extended.store(true, Ordering::SeqCst);
            Ok(())
        })
    }

    fn release(&self) -> BoxFuture<Result<Release, BackendError>> {
        self.lease.release()
    }
}

#[test]
fn an_extension_is_told_of_before_the_end_of_its_term_and_counted_in_its_report() {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(3).enable_time().build().unwrap();
    let ((stops, stopped), (go_on, goes_on)) = (mpsc::channel(), mpsc::channel());
    let slow = Slow {
        inner: Arc::new(InProcess::new()),
        extended: Arc::default(),
        stops,
        goes_on: Arc::new(Mutex::new(goes_on)),
    };
    let a = LeaderElector::new(slow, options("a").build().unwrap());
    let mut events = a.subscribe();
    let guard = runtime.block_on(a.try_acquire("job")).unwrap().unwrap();
    let context = guard.context();
    let extending = runtime.spawn(async move { context.extend(100 * SECOND).await });
    stopped.recv_timeout(20 * SECOND).unwrap();
    let report = runtime.block_on(guard.release());
    let _ = go_on.send(());
    runtime.block_on(extending).unwrap().unwrap();
    assert_eq!(report.extensions, 1);
    let events = happened(&mut events);
    assert!(
        matches!(
            events[..],
            [
                Occurrence::Elected { .. },
                Occurrence::Extended { .. },
                Occurrence::Ended { .. },
            ]
        ),
        "{events:?}"
    );
}
