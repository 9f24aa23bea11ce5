//! A cluster that changes its leader while somebody asks, waits, or leads.

use std::time::Duration;

use highwater_client::leader::{
    FailurePolicy, Highwater, LeaderElector, LeaderOptions, LeaderOptionsBuilder, LeaderResult,
    LeaseEnd, PolicyResult,
};
use highwater_client::{AcquireError, Client, ErrorCode, Lost, Release};
use highwater_protocol::{Reply, Request};
use tokio::time::{sleep, timeout};

use crate::fake::PATIENCE;
use crate::nodes::{Nodes, leads, moved, status};
use crate::{acquired, acquiring, granted, release_of, released, token, wait};

/// What a call makes of this many turns that lead nowhere: eight at once, and then one in a quarter of a
/// second or more.
const MOST: usize = 8 + 1 + 4 * 2 + 8;

/// The token of an extension.
#[track_caller]
fn extension_of(request: &Request) -> u64 {
    match request {
        Request::Extend { token, .. } => token.get(),
        other => panic!("not an extension: {other:?}"),
    }
}

fn extended(request: &Request) -> Reply {
    match request {
        Request::Extend { id, lease, .. } => Reply::Extended {
            id: *id,
            remaining_ms: lease.get(),
        },
        other => panic!("not an extension: {other:?}"),
    }
}

fn elector(client: &Client, options: LeaderOptionsBuilder) -> LeaderElector {
    let options = options.node("a").build().unwrap();
    LeaderElector::new(Highwater::new(client.clone()), options)
}

#[tokio::test]
async fn an_acquire_in_the_queue_stays_there_until_its_own_node_sends_it_on() {
    for is_granted in [false, true] {
        let (mut nodes, client) = Nodes::led_by(0).await;
        let waiting = acquiring(&client, "job", wait(60_000));
        let (at, old, queued) = nodes.request().await;
        assert_eq!((at, acquired(&queued)), (0, "job".into()));
        // Everything else goes to the new leader from now on. This would be in two queues.
        assert_eq!(nodes.question(&client, Some(1)).await, 0);
        assert_eq!(nodes.question(&client, None).await, 1);
        if is_granted {
            old.reply(granted(&queued, 7));
        } else {
            old.reply(moved(queued.id(), 1));
            let (at, new, again) = nodes.request().await;
            assert_eq!((at, acquired(&again)), (1, "job".into()));
            assert_ne!(again.id(), queued.id());
            new.reply(granted(&again, 7));
        }
        let ticket = waiting.await.unwrap().unwrap();
        assert_eq!(ticket.token(), token(7));
        let releasing = tokio::spawn(ticket.release());
        let (at, peer, release) = nodes.request().await;
        assert_eq!((at, release_of(&release)), (1, ("job".into(), 7)));
        peer.reply(released(&release));
        assert_eq!(releasing.await.unwrap(), Ok(Release::Released));
    }
}

#[tokio::test]
async fn an_acquire_follows_the_leader_from_node_to_node() {
    let (mut nodes, client) = Nodes::led_by(0).await;
    let acquiring = acquiring(&client, "job", wait(60_000));
    for (node, next) in [(0, 1), (1, 2)] {
        let (at, peer, request) = nodes.request().await;
        assert_eq!(at, node);
        peer.reply(moved(request.id(), next));
    }
    let (at, peer, request) = nodes.request().await;
    assert_eq!(at, 2);
    peer.reply(granted(&request, 7));
    assert_eq!(acquiring.await.unwrap().unwrap().token(), token(7));
}

#[tokio::test]
async fn nodes_that_send_an_acquire_round_in_a_circle_are_not_asked_without_end() {
    let (mut nodes, client) = Nodes::led_by(0).await;
    let mut acquiring = acquiring(&client, "job", wait(2_000));
    let mut asked = 0;
    let outcome = loop {
        tokio::select! {
            outcome = &mut acquiring => break outcome.unwrap(),
            (at, peer, request) = nodes.request_in_peace() => {
                asked += 1;
                peer.reply(moved(request.id(), usize::from(at == 0)));
            }
        }
    };
    // It is certain that nothing is held.
    let expected = AcquireError::Rejected(ErrorCode::NoLeader);
    assert_eq!(outcome.unwrap_err(), expected);
    assert!((3..=MOST).contains(&asked), "{asked}");
}

#[tokio::test]
async fn a_named_leader_that_is_down_is_waited_for_and_another_one_is_asked_when_it_leads() {
    // The one that was named comes up, or another one leads.
    for leader in [2, 1] {
        let (mut nodes, client) = Nodes::led_by(0).await;
        nodes.down(2, true);
        let mut acquiring = acquiring(&client, "job", wait(60_000));
        for _ in 0..3 {
            let (at, peer, request) = nodes.request().await;
            assert_ne!(at, 2);
            peer.reply(moved(request.id(), 2));
        }
        nodes.down(2, leader != 2);
        loop {
            let (at, peer, request) = nodes.request().await;
            if at == leader {
                peer.reply(granted(&request, 7));
                break;
            }
            peer.reply(moved(request.id(), leader));
        }
        let ticket = (&mut acquiring).await.unwrap().unwrap();
        assert_eq!(ticket.token(), token(7));
    }
}

#[tokio::test]
async fn a_named_leader_that_never_comes_up_is_no_contention() {
    let (mut nodes, client) = Nodes::led_by(0).await;
    nodes.down(2, true);
    let wait = Duration::from_secs(2);
    let a = elector(&client, LeaderOptions::builder().wait(wait));
    let run = a.run_if_leader("job", |_| async { panic!("it must not run") });
    let mut run = Box::pin(run);
    let mut asked = 0;
    let outcome: Result<Option<()>, _> = loop {
        tokio::select! {
            outcome = &mut run => break outcome,
            (at, peer, request) = nodes.request_in_peace() => {
                assert_ne!(at, 2);
                asked += 1;
                peer.reply(moved(request.id(), 2));
            }
        }
    };
    let error = outcome.unwrap_err();
    assert!(error.is_transient(), "{error:?}");
    assert!((2..=MOST).contains(&asked), "{asked}");
    assert_eq!((a.stats().failed, a.stats().skipped), (1, 0));
}

#[tokio::test]
async fn a_leadership_is_kept_while_the_cluster_changes_its_leader_again_and_again() {
    let (mut nodes, client) = Nodes::led_by(0).await;
    let options = LeaderOptions::builder().lease(Duration::from_secs(3));
    let a = elector(&client, options.auto_extend(true));
    let electing = tokio::spawn({
        let a = a.clone();
        async move { a.try_acquire("job").await }
    });
    let (_, peer, request) = nodes.request().await;
    peer.reply(granted(&request, 7));
    let guard = electing.await.unwrap().unwrap().unwrap();
    let mut leader = 0;
    // Whether the client hears of it before it asks.
    let changes = [false, true, false];
    for (change, is_told) in changes.into_iter().enumerate() {
        let next = (leader + 1) % 3;
        if !is_told {
            // Only the one that has led until now is asked.
            let (at, peer, request) = nodes.request().await;
            assert_eq!((at, extension_of(&request)), (leader, 7));
            peer.reply(moved(request.id(), next));
        }
        let (at, peer, request) = nodes.request().await;
        assert_eq!((at, extension_of(&request)), (next, 7));
        if changes.get(change + 1) == Some(&true) {
            peer.reply(leads((next + 1) % 3));
        }
        peer.reply(extended(&request));
        leader = next;
    }
    let counted = async {
        while a.stats().extended < 3 {
            sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(PATIENCE, counted).await.unwrap();
    assert_eq!(guard.check(), Ok(()));
    let releasing = tokio::spawn(guard.release());
    let (at, peer, release) = nodes.request().await;
    assert_eq!((at, release_of(&release).1), (leader, 7));
    // Now it moves too.
    peer.reply(moved(release.id(), 1));
    let (at, peer, release) = nodes.request().await;
    assert_eq!((at, release_of(&release).1), (1, 7));
    peer.reply(released(&release));
    assert_eq!(releasing.await.unwrap().end, LeaseEnd::Released);
    assert_eq!((a.stats().extended, a.stats().revoked), (3, 0));
}

#[tokio::test]
async fn extensions_that_are_sent_round_in_a_circle_are_bounded_and_end_in_a_loss_that_is_told() {
    let (mut nodes, client) = Nodes::led_by(0).await;
    let options = LeaderOptions::builder().lease(Duration::from_secs(2));
    let a = elector(&client, options.auto_extend(true));
    let run = a.run_if_leader_result("job", |_| std::future::pending::<Result<(), ()>>());
    let mut run = Box::pin(run);
    let mut asked = 0;
    let result = loop {
        tokio::select! {
            result = &mut run => break result.unwrap(),
            (at, peer, request) = nodes.request_in_peace() => match request {
                Request::Extend { id, .. } => {
                    asked += 1;
                    peer.reply(moved(id, usize::from(at == 0)));
                }
                Request::AcquireTimed { .. } => peer.reply(granted(&request, 7)),
                // It is released when it is lost.
                other => peer.reply(Reply::NotHeld { id: other.id() }),
            },
        }
    };
    let LeaderResult::LeaseLost {
        reason, outcome, ..
    } = result
    else {
        panic!("{result:?}");
    };
    assert_eq!((reason, outcome), (Lost::Expired, None));
    assert!((3..=MOST).contains(&asked), "{asked}");
}

/// What becomes of a candidacy whose node is lost, while the wait is not over.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Then {
    /// The one that led before still leads.
    Led,
    /// Somebody else does, perhaps this candidate's own request.
    LedByAnother,
    Free,
}

#[tokio::test]
async fn a_candidate_that_would_fail_open_asks_again_when_the_node_of_its_queue_is_lost() {
    for then in [Then::Led, Then::LedByAnother, Then::Free] {
        let (mut nodes, client) = Nodes::led_by(0).await;
        let wait = Duration::from_secs(60);
        let a = elector(&client, LeaderOptions::builder().wait(wait));
        let run = a.run_with_policy("job", FailurePolicy::FailOpen, |leader| async move {
            Ok::<_, ()>(leader.token())
        });
        let mut run = Box::pin(run);
        let mut candidacies = 0;
        let result = loop {
            let (at, peer, request) = tokio::select! {
                result = &mut run => break result.unwrap(),
                asked = nodes.request() => asked,
            };
            let is_first = candidacies < 2;
            match request {
                Request::Query { id, .. } if is_first => peer.reply(status(id, Some(3))),
                Request::Query { id, .. } => {
                    let token = if then == Then::Led { 3 } else { 4 };
                    peer.reply(status(id, Some(token)));
                }
                Request::AcquireTimed { id, .. } => {
                    candidacies += 1;
                    match then {
                        _ if candidacies == 1 => nodes.down(at, true),
                        Then::Free => peer.reply(granted(&request, 7)),
                        _ => peer.reply(Reply::TimedOut { id }),
                    }
                }
                _ => peer.reply(released(&request)),
            }
        };
        assert_eq!(candidacies, 2, "{then:?}");
        match (then, result) {
            (Then::Led, PolicyResult::Held(LeaderResult::Skipped)) => {}
            (
                Then::LedByAnother,
                PolicyResult::Unprotected {
                    outcome: Ok(None),
                    failure,
                },
            ) if failure.is_outage() => {}
            (Then::Free, PolicyResult::Held(LeaderResult::Elected { value, .. })) => {
                assert_eq!(value, Some(token(7)));
            }
            (then, result) => panic!("{then:?}: {result:?}"),
        }
        let stats = a.stats();
        let expected = match then {
            Then::Led => (1, 0),
            Then::LedByAnother => (0, 1),
            Then::Free => (0, 0),
        };
        assert_eq!((stats.skipped, stats.unprotected), expected, "{stats:?}");
        assert_eq!(stats.failed, 1);
    }
}
