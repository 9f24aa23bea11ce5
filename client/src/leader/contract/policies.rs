//! What the policies do: each of them against everything that can happen. The action runs at most once
//! in every cell.

use std::sync::atomic::{AtomicU32, Ordering};

use super::Service;
use super::faulty::Fault;
use super::world::{World, at_once};
use crate::leader::schedule::caught;
use crate::leader::{
    BackendError, FailurePolicy, LeaderError, LeaderResult, LossPolicy, PolicyResult,
};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Cell {
    Contention,
    /// Nobody reaches the service.
    Outage,
    /// It elects, and its answer is lost.
    Unanswered,
    Busy,
    TooLate,
    /// The name is in use with another number of slots.
    Rejected,
    Ok,
    Error,
    Panic,
    Cancel,
    LeaseLost,
    /// Nobody notices before the release.
    LostAtRelease,
}

const CELLS: [Cell; 12] = [
    Cell::Contention,
    Cell::Outage,
    Cell::Unanswered,
    Cell::Busy,
    Cell::TooLate,
    Cell::Rejected,
    Cell::Ok,
    Cell::Error,
    Cell::Panic,
    Cell::Cancel,
    Cell::LeaseLost,
    Cell::LostAtRelease,
];

const POLICIES: [FailurePolicy; 3] = [
    FailurePolicy::Error,
    FailurePolicy::Skip,
    FailurePolicy::FailOpen,
];

/// What has to come of a cell, and how often the action begins.
fn expected(cell: Cell, policy: FailurePolicy, loss: LossPolicy) -> (&'static str, u32) {
    match (cell, policy, loss) {
        (Cell::Contention, ..) => ("skipped", 0),
        (Cell::Outage | Cell::Unanswered, FailurePolicy::Error, _) => ("outage", 0),
        (Cell::Outage | Cell::Unanswered, FailurePolicy::Skip, _) => ("skipped by failure", 0),
        (Cell::Outage | Cell::Unanswered, FailurePolicy::FailOpen, _) => ("unprotected", 1),
        // The service works, so no policy has a say.
        (Cell::Busy, ..) => ("busy", 0),
        (Cell::TooLate, ..) => ("too late", 0),
        (Cell::Rejected, ..) => ("rejected", 0),
        (Cell::Ok, ..) => ("elected", 1),
        (Cell::Error, ..) => ("action failed", 1),
        (Cell::Panic, ..) => ("panicked", 1),
        (Cell::Cancel, ..) => ("cancelled", 1),
        (Cell::LeaseLost, _, LossPolicy::Cancel) => ("lost and cut off", 1),
        (Cell::LeaseLost, _, LossPolicy::Notify) => ("lost and told", 1),
        (Cell::LostAtRelease, ..) => ("lost at the release", 1),
    }
}

pub async fn every_policy_against_everything_that_can_happen(service: impl Service) {
    let world = &World::new(service);
    // Connected while it can be reached.
    world.candidate("a").await;
    for cell in CELLS {
        if cell == Cell::Outage {
            world.service().outage(true).await;
        }
        let mut plays = Vec::new();
        for policy in POLICIES {
            for loss in [LossPolicy::Cancel, LossPolicy::Notify] {
                plays.push(async move {
                    let seen = play(world, cell, policy, loss).await;
                    let expected = expected(cell, policy, loss);
                    assert_eq!(seen, expected, "{cell:?} {policy:?} {loss:?}");
                });
            }
        }
        at_once(plays).await;
        if cell == Cell::Outage {
            world.service().outage(false).await;
            let a = world.candidate("a").await;
            world
                .until("it is reached again", async || a.state("job").await.is_ok())
                .await;
        }
    }
}

async fn play<S: Service>(
    world: &World<S>,
    cell: Cell,
    policy: FailurePolicy,
    loss: LossPolicy,
) -> (&'static str, u32) {
    let name = format!("{cell:?}-{policy:?}-{loss:?}");
    let options = match cell {
        // These wait for the end of a lease.
        Cell::Unanswered | Cell::LeaseLost => world.options().lease(5 * world.unit),
        _ => world.lasting(),
    };
    let options = options.on_loss(loss);
    let fault = match cell {
        Cell::Unanswered => Fault::Unanswered,
        Cell::Busy => Fault::Busy,
        Cell::TooLate => Fault::Late,
        _ => Fault::None,
    };
    let a = world.with_fault("a", options, fault).await;
    let (mut rival, mut group) = (None, None);
    match cell {
        Cell::Contention => {
            let b = world.elector("b", world.options()).await;
            rival = b.try_acquire(&name).await.unwrap();
        }
        Cell::Rejected => group = world.group("b", 2).await.try_acquire(&name).await.unwrap(),
        _ => {}
    }
    let runs = AtomicU32::new(0);
    let run = a.run_with_policy(&name, policy, |leader| {
        let (runs, name) = (&runs, &name);
        async move {
            runs.fetch_add(1, Ordering::Relaxed);
            match (cell, loss) {
                (Cell::Error, _) => return Err("the action failed"),
                (Cell::Panic, _) => panic!("on purpose"),
                (Cell::Cancel, _) | (Cell::LeaseLost, LossPolicy::Cancel) => {
                    std::future::pending().await
                }
                (Cell::LeaseLost, LossPolicy::Notify) => {
                    leader.lost().await;
                    // It goes on, behind the end of its lease.
                    world.pass(1).await;
                }
                (Cell::LostAtRelease, _) => world.force_release(name).await,
                _ => {}
            }
            Ok(leader.fence().is_some())
        }
    });
    let begun = async || runs.load(Ordering::Relaxed) > 0;
    let cancelled = async {
        match cell {
            Cell::Cancel => world.until("it begins", begun).await,
            _ => std::future::pending().await,
        }
    };
    let outcome = tokio::select! {
        biased;
        outcome = caught(run) => Ok(outcome),
        () = cancelled => Err(()),
    };
    let seen = match outcome {
        Err(()) => "cancelled",
        Ok(Err(_)) => "panicked",
        Ok(Ok(Ok(result))) => ran(result),
        Ok(Ok(Err(LeaderError::Backend(error)))) => match error {
            error if error.is_outage() => "outage",
            BackendError::Busy(_) => "busy",
            BackendError::TooLate => "too late",
            error if !error.is_transient() => "rejected",
            error => panic!("{cell:?} {policy:?}: {error:?}"),
        },
        Ok(Ok(Err(other))) => panic!("{cell:?} {policy:?}: {other:?}"),
    };
    drop((rival, group));
    // Whatever there was of a lease is given back, or ends.
    if cell != Cell::Outage {
        world.is_free(&a, &name).await;
    }
    assert!(!a.watch(&name).unwrap().is_leader());
    (seen, runs.load(Ordering::Relaxed))
}

fn ran(result: PolicyResult<bool, &str>) -> &'static str {
    match result {
        PolicyResult::Held(LeaderResult::Elected { value: true, .. }) => "elected",
        PolicyResult::Held(LeaderResult::Skipped) => "skipped",
        PolicyResult::Held(LeaderResult::ActionFailed { .. }) => "action failed",
        PolicyResult::Held(LeaderResult::LeaseLost {
            reason, outcome, ..
        }) => match (reason, outcome) {
            (crate::Lost::Expired, None) => "lost and cut off",
            (crate::Lost::Expired, Some(Ok(true))) => "lost and told",
            (crate::Lost::NotHeld, Some(Ok(true))) => "lost at the release",
            other => panic!("{other:?}"),
        },
        PolicyResult::SkippedByFailure { failure } if failure.is_outage() => "skipped by failure",
        PolicyResult::Unprotected {
            outcome: Ok(false),
            failure,
        } if failure.is_outage() => "unprotected",
        other => panic!("{other:?}"),
    }
}
