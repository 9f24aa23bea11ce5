//! What is told of leaders, and what leads more than once.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use crate::leader::{LeaseEnd, Occurrence, Standing, StreamLease, TermOutcome};
use futures_core::Stream;
use tokio::time::{sleep, timeout};

use super::Service;
use super::world::{PATIENCE, World, next, polled};
use crate::system::now;

pub async fn a_state_tells_who_leads_who_waits_and_what_is_retained(service: impl Service) {
    let world = &World::new(service);
    let options = world.options().min_lease(15 * world.unit);
    let a = world.elector("a", options).await;
    let b = world
        .elector("b", world.options().wait(600 * world.unit))
        .await;
    assert!(a.state("job").await.unwrap().is_free());
    let guard = a.try_acquire("job").await.unwrap().unwrap();
    let waiting = tokio::spawn(async move { b.try_acquire("job").await.unwrap().is_some() });
    world.waiting(&a, "job", 1).await;
    let state = a.state("job").await.unwrap();
    let holder = &state.holders[0];
    assert_eq!(
        (holder.token, holder.slot, state.slots),
        (guard.token(), None, None)
    );
    assert_eq!(holder.node.as_ref().unwrap().as_str(), "a");
    match holder.standing {
        Standing::Held { remaining } => {
            assert!(remaining <= 20 * world.unit && !remaining.is_zero())
        }
        other => panic!("{other:?}"),
    }
    let token = guard.token();
    guard.release().await;
    let state = a.state("job").await.unwrap();
    assert_eq!((state.holders[0].token, state.waiting), (token, 1));
    assert!(
        matches!(state.holders[0].standing, Standing::Retained { .. }),
        "{state:?}"
    );
    assert!(waiting.await.unwrap());
}

/// spring-cloud-kubernetes: a missed event leaves a phantom leader.
pub async fn events_and_levels_tell_of_each_term_once(service: impl Service) {
    let world = &World::new(service);
    let a = world.elector("a", world.options().auto_extend(true)).await;
    let mut events = a.subscribe();
    let mut level = a.watch("job").unwrap();
    let guard = a.try_acquire("job").await.unwrap().unwrap();
    level.changed().await;
    assert_eq!(level.leading()[0].token, guard.token());
    world
        .until("it was extended", async || a.stats().extended >= 1)
        .await;
    world.force_release("job").await;
    timeout(PATIENCE, level.changed()).await.unwrap();
    assert!(!level.is_leader());
    guard.release().await;
    a.run_if_leader("job", |_| async {}).await.unwrap();
    assert!(!level.is_leader());
    let mut seen = Vec::new();
    while let Some(Some(event)) = polled(events.next(), 1, std::time::Duration::ZERO).await {
        let event = event.unwrap();
        assert_eq!((event.name.as_str(), event.node.as_str()), ("job", "a"));
        match event.what {
            Occurrence::Elected { .. } => seen.push("elected"),
            Occurrence::Extended { .. } if seen.last() == Some(&"extended") => {}
            Occurrence::Extended { .. } => seen.push("extended"),
            Occurrence::Revoked { .. } => seen.push("revoked"),
            Occurrence::Ended {
                end: LeaseEnd::Released,
                outcome: TermOutcome::Completed,
                ..
            } => {
                seen.push("ended");
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(seen, ["elected", "extended", "revoked", "elected", "ended"]);
}

pub async fn a_schedule_survives_errors_and_elects_with_higher_tokens(service: impl Service) {
    let world = &World::new(service);
    let a = world.candidate("a").await;
    let tokens = Arc::new(Mutex::new(Vec::new()));
    let schedule = a.schedule("job", world.unit / 10, {
        let tokens = Arc::clone(&tokens);
        move |leader| {
            let runs = {
                let mut tokens = tokens.lock().unwrap();
                tokens.push(leader.token().unwrap());
                tokens.len()
            };
            async move {
                match runs {
                    1 => Err("an error"),
                    2 => panic!("on purpose"),
                    // Until its lease is lost.
                    3 => std::future::pending().await,
                    _ => Ok(()),
                }
            }
        }
    });
    let schedule = schedule.unwrap();
    world
        .until("it ran five times", async || {
            tokens.lock().unwrap().len() >= 5
        })
        .await;
    schedule.stop().await;
    let runs = tokens.lock().unwrap().len();
    assert!(tokens.lock().unwrap().is_sorted_by(|one, next| one < next));
    world.is_free(&a, "job").await;
    assert_eq!(tokens.lock().unwrap().len(), runs);
    let stats = a.stats();
    assert_eq!(
        (stats.actions_failed, stats.panicked, stats.revoked),
        (1, 1, 1)
    );
}

pub async fn a_campaign_goes_on_after_a_loss_with_a_higher_token(service: impl Service) {
    let world = &World::new(service);
    let a = world.elector("a", world.options().auto_extend(true)).await;
    let tokens = Arc::new(Mutex::new(Vec::new()));
    let campaign = tokio::spawn({
        let (a, tokens) = (a.clone(), Arc::clone(&tokens));
        async move {
            a.campaign("job", |leader| {
                let terms = {
                    let mut tokens = tokens.lock().unwrap();
                    tokens.push(leader.token().unwrap());
                    tokens.len()
                };
                async move {
                    if terms == 1 {
                        std::future::pending::<()>().await;
                    }
                    terms
                }
            })
            .await
        }
    });
    world
        .until("it leads", async || !tokens.lock().unwrap().is_empty())
        .await;
    world.force_release("job").await;
    assert_eq!(
        timeout(PATIENCE, campaign).await.unwrap().unwrap().unwrap(),
        2
    );
    let tokens = tokens.lock().unwrap();
    assert!(tokens[1] > tokens[0]);
}

/// Counts for ever.
struct Counting(u32);

impl Stream for Counting {
    type Item = Result<u32, &'static str>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0 += 1;
        Poll::Ready(Some(Ok(self.0)))
    }
}

pub async fn a_stream_leads_as_long_as_it_lives(service: impl Service) {
    let world = &World::new(service);
    let (a, b) = (world.candidate("a").await, world.candidate("b").await);
    let stream = a
        .stream_if_leader("job", StreamLease::AutoExtend, |_| Counting(0))
        .await;
    let mut stream = stream.unwrap().unwrap();
    world
        .until("it was extended", async || {
            assert!(matches!(next(&mut stream).await, Some(Ok(_))));
            assert!(b.try_acquire("job").await.unwrap().is_none());
            a.stats().extended >= 3
        })
        .await;
    drop(stream);
    world.is_free(&b, "job").await;
    // And that is no matter of time.
    let patient = world.elector("a", world.lasting()).await;
    let stream = patient
        .stream_if_leader("job", StreamLease::AutoExtend, |_| Counting(0))
        .await;
    drop(stream.unwrap().unwrap());
    world.is_free(&b, "job").await;
    // A bounded one is ended by its lease.
    let stream = a
        .stream_if_leader("job", StreamLease::Bounded, |_| Counting(0))
        .await;
    let mut stream = stream.unwrap().unwrap();
    let started = now();
    while let Some(Ok(_)) = next(&mut stream).await {
        assert!(started.elapsed() < 21 * world.unit, "it does not end");
        sleep(world.unit / 10).await;
    }
    assert!(next(&mut stream).await.is_none());
    world.is_free(&b, "job").await;
}
