//! One candidate in the queue. Whoever waits looks at the clock for everybody.

use std::time::Duration;

use highwater_lock::{Domain, Operation, WaiterId};
use tokio::sync::oneshot;

use super::Service;
use crate::leader::{BackendError, Cause};

/// A place in the queue, given up when it is dropped.
pub(super) struct Place<'a> {
    pub(super) service: &'a Service,
    pub(super) domain: Domain,
    pub(super) waiter: WaiterId,
    pub(super) answer: &'a mut oneshot::Receiver<highwater_lock::Grant>,
}

impl Place<'_> {
    pub(super) async fn granted(&mut self) -> Result<Option<highwater_lock::Grant>, BackendError> {
        let mut changes = self.service.changes.subscribe();
        loop {
            let due = self.service.desk(|desk| desk.machine.next_deadline());
            let due = due.map(|due| due.saturating_since(self.service.now()));
            let sleep = self.service.clock.sleep(due.unwrap_or(LOOK));
            tokio::select! {
                biased;
                answer = &mut *self.answer => return match answer {
                    Ok(grant) => Ok(Some(grant)),
                    Err(_) if self.is_forgotten() => Err(BackendError::Indeterminate(
                        Cause::new("the lock service started anew"),
                    )),
                    // The machine timed it out.
                    Err(_) => Ok(None),
                },
                _ = changes.changed() => {}
                () = sleep => {
                    self.service.apply(Operation::Tick);
                }
            }
        }
    }

    fn is_forgotten(&self) -> bool {
        self.service.desk(|desk| desk.domain != self.domain)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.answer.close();
        let (service, waiter) = (self.service, self.waiter);
        // In one step: a token of this domain means something else in the next one.
        let changed = service.desk(|desk| {
            if desk.domain != self.domain {
                return false;
            }
            if desk.waiting.remove(&waiter).is_some() {
                desk.apply(service.now(), Operation::Cancel { waiter });
            } else if let Ok(grant) = self.answer.try_recv() {
                // It was granted, and nobody took it.
                desk.give_back(service.now(), grant);
            } else {
                return false;
            }
            true
        });
        if changed {
            service.changes.send_replace(());
        }
    }
}

/// How long to sleep when nothing is due.
const LOOK: Duration = Duration::from_secs(60);
