//! What comes back late: a leader that was cut off while a successor was elected, and a release that was
//! under way while its own process was elected again.

use tokio::time::timeout;

use super::Service;
use super::faulty::Fault;
use super::world::{PATIENCE, World, elected};
use crate::leader::{LeaseEnd, NotLeader, RenewError};
use crate::{Lost, Release};

/// curator: the old leader is connected again, and both take themselves for the leader.
pub async fn a_leader_that_comes_back_behind_its_successor_changes_nothing(service: impl Service) {
    let world = &World::new(service);
    let options = world.options().auto_extend(true);
    let (a, way) = world.faulty("a", options).await;
    let b = world
        .elector("b", world.lasting().wait(600 * world.unit))
        .await;
    let level = a.watch("job").unwrap();
    let old = a.try_acquire("job").await.unwrap().unwrap();
    way.cut(true);
    let context = old.context();
    let next = tokio::spawn(async move {
        let guard = elected(&b).await;
        assert!(context.check().is_err(), "two lead");
        guard
    });
    let lost = timeout(PATIENCE, old.lost()).await.unwrap();
    assert_eq!(lost, NotLeader::Lost(Lost::Expired));
    let new = next.await.unwrap();
    assert!(new.token() > old.token());
    way.cut(false);
    world
        .until("it is connected again", async || {
            a.state("job").await.is_ok()
        })
        .await;
    // It stays lost, and somebody else leads.
    let asked = way.extensions();
    assert_eq!(old.check(), Err(lost));
    assert!(!level.is_leader());
    let refused = old.extend(100 * world.unit).await.unwrap_err();
    assert!(
        matches!(refused, RenewError::NotLeader(reason) if reason == lost),
        "{refused:?}"
    );
    assert!(a.try_acquire("job").await.unwrap().is_none());
    // Two times what is between extensions.
    world.pass(14).await;
    assert_eq!(way.extensions(), asked, "it is extended");
    assert_eq!(old.release().await.end, LeaseEnd::NotHeld);
    assert_eq!(new.check(), Ok(()));
    let state = a.state("job").await.unwrap();
    assert_eq!(state.holders[0].token, new.token());
    assert_eq!((a.stats().elected, a.stats().revoked), (1, 1));
    assert_eq!(new.release().await.end, LeaseEnd::Released);
}

/// curator: what a process sends for its earlier leadership ends its next one.
pub async fn a_release_that_comes_late_touches_no_later_term_of_the_same_process(
    service: impl Service,
) {
    let world = &World::new(service);
    let options = world.options().lease(5 * world.unit);
    let (a, way) = world.faulty("a", options).await;
    let lasting = world.lasting().wait(600 * world.unit).build().unwrap();
    let again = a.with_options(lasting);
    let level = a.watch("job").unwrap();
    // One that is under way until its lease is over and the next term has begun.
    let old = a.try_acquire("job").await.unwrap().unwrap();
    let mut token = old.token();
    way.release(Fault::Hangs);
    drop(old);
    let new = elected(&again).await;
    assert!(new.token() > token);
    way.release(Fault::None);
    world
        .until("the release is answered", async || {
            !way.released().is_empty()
        })
        .await;
    // Unknown, where an earlier attempt had no answer.
    let released = way.released();
    assert!(
        released.len() == 1 && released[0] != Ok(Release::Released),
        "{released:?}"
    );
    assert_eq!(new.check(), Ok(()));
    let state = a.state("job").await.unwrap();
    assert_eq!(state.holders[0].token, new.token());
    new.extend(world.lasting_lease()).await.unwrap();
    // Those that are under way while the next candidacy is.
    let mut leading = new;
    for _ in 0..20 {
        token = leading.token();
        drop(leading);
        leading = elected(&again).await;
        assert!(leading.token() > token);
        assert_eq!(leading.check(), Ok(()));
        let led = level.leading();
        assert_eq!((led.len(), led[0].token), (1, leading.token()));
    }
    world
        .until("all earlier terms are over", async || {
            let stats = a.stats();
            stats.elected == 1 + stats.released + stats.revoked + stats.release_unknown
        })
        .await;
    let state = a.state("job").await.unwrap();
    assert_eq!(state.holders[0].token, leading.token());
    assert_eq!(leading.release().await.end, LeaseEnd::Released);
    world.is_free(&a, "job").await;
}
