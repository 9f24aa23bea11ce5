//! Which tokens a mark admits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use highwater_fencing::{Configured, Domain, DomainPolicy, Fence, FenceKey, FenceOptions};
use highwater_proof::adapter::{Verdict, body};

use crate::conformance::world::{STOCK, World, domain, fence, token};

/// Deducts ten apples behind the fence.
async fn deduct_ten(world: &World, fence: &Configured) -> Result<i64, Verdict> {
    world.sell(fence, "apple", 10).await
}

pub(super) async fn the_first_use_of_a_key_sets_its_mark(world: Arc<World>) {
    assert_eq!(world.mark("stock/apple").await, None);
    let left = deduct_ten(&world, &fence("stock/apple", 1)).await.unwrap();
    assert_eq!(left, STOCK - 10);
    assert_eq!(world.quantity("apple").await, STOCK - 10);
    assert_eq!(world.mark("stock/apple").await, Some(1));
}

pub(super) async fn a_higher_token_is_admitted_and_raises_the_mark(world: Arc<World>) {
    for number in [5, 6, 900] {
        deduct_ten(&world, &fence("stock/apple", number))
            .await
            .unwrap();
        assert_eq!(world.mark("stock/apple").await, Some(number));
    }
    assert_eq!(world.quantity("apple").await, STOCK - 30);
}

pub(super) async fn an_equal_token_is_admitted_again(world: Arc<World>) {
    for _ in 0..3 {
        deduct_ten(&world, &fence("stock/apple", 5)).await.unwrap();
    }
    assert_eq!(world.mark("stock/apple").await, Some(5));
    assert_eq!(world.quantity("apple").await, STOCK - 30);
}

pub(super) async fn a_lower_token_is_refused_with_both_tokens(world: Arc<World>) {
    deduct_ten(&world, &fence("stock/apple", 7)).await.unwrap();
    for number in [6, 1] {
        let refused = deduct_ten(&world, &fence("stock/apple", number)).await;
        let Err(Verdict::Stale {
            key,
            offered,
            highest,
        }) = refused
        else {
            panic!("{refused:?}");
        };
        assert_eq!(key, FenceKey::new("stock/apple").unwrap());
        assert_eq!((offered, highest), (token(number), token(7)));
    }
    assert_eq!(world.mark("stock/apple").await, Some(7));
    assert_eq!(world.quantity("apple").await, STOCK - 10);
}

pub(super) async fn a_refused_fence_runs_no_statement_of_the_body(world: Arc<World>) {
    deduct_ten(&world, &fence("stock/apple", 7)).await.unwrap();
    let ran = Arc::new(AtomicBool::new(false));
    let body = {
        let ran = ran.clone();
        body(move |_tx| {
            ran.store(true, Ordering::SeqCst);
            Box::pin(async { Ok(0) })
        })
    };
    let stale = fence("stock/apple", 6);
    let refused = world.transaction(&stale, body).await;
    assert!(matches!(refused, Err(Verdict::Stale { .. })), "{refused:?}");
    assert!(!ran.load(Ordering::SeqCst));
    for refused in world.verdicts(&stale).await {
        assert!(matches!(refused, Err(Verdict::Stale { .. })), "{refused:?}");
    }
    world.until_nobody_is_in_a_transaction().await;
}

pub(super) async fn another_domain_is_refused_whatever_its_token(world: Arc<World>) {
    deduct_ten(&world, &fence("stock/apple", 7)).await.unwrap();
    let rebuilt = Domain::named("rebuilt").unwrap();
    let key = FenceKey::new("stock/apple").unwrap();
    for number in [1, 7, 8, 1 << 62] {
        let foreign = Fence::new(rebuilt, key.clone(), token(number));
        let foreign = FenceOptions::new().apply(foreign);
        let refused = deduct_ten(&world, &foreign).await;
        let Err(Verdict::DomainMismatch {
            key: named,
            offered,
            found,
        }) = refused
        else {
            panic!("{refused:?}");
        };
        assert_eq!((named, offered, found), (key.clone(), rebuilt, domain()));
    }
    assert_eq!(world.mark("stock/apple").await, Some(7));
    assert_eq!(world.quantity("apple").await, STOCK - 10);
}

/// A fence of another domain that may adopt marks with lower tokens.
fn adopting(key: &str, number: u64) -> Configured {
    let fence = Fence::new(
        Domain::named("restarted").unwrap(),
        FenceKey::new(key).unwrap(),
        token(number),
    );
    let options = FenceOptions::new().domain_policy(DomainPolicy::AdoptHigher);
    options.apply(fence)
}

pub(super) async fn with_adopt_higher_only_a_strictly_higher_token_of_another_domain_is_admitted(
    world: Arc<World>,
) {
    deduct_ten(&world, &fence("stock/apple", 7)).await.unwrap();
    for number in [6, 7] {
        let refused = deduct_ten(&world, &adopting("stock/apple", number)).await;
        assert!(
            matches!(refused, Err(Verdict::DomainMismatch { .. })),
            "{refused:?}"
        );
    }
    assert_eq!(world.quantity("apple").await, STOCK - 10);
    deduct_ten(&world, &adopting("stock/apple", 8))
        .await
        .unwrap();
    assert_eq!(world.mark("stock/apple").await, Some(8));
    assert_eq!(world.quantity("apple").await, STOCK - 20);
}

pub(super) async fn with_adopt_higher_the_old_domain_is_refused_afterwards(world: Arc<World>) {
    deduct_ten(&world, &fence("stock/apple", 7)).await.unwrap();
    deduct_ten(&world, &adopting("stock/apple", 9))
        .await
        .unwrap();
    for number in [7, 9, 10] {
        let refused = deduct_ten(&world, &fence("stock/apple", number)).await;
        assert!(
            matches!(refused, Err(Verdict::DomainMismatch { .. })),
            "{refused:?}"
        );
    }
    // The new domain goes on as usual.
    deduct_ten(&world, &adopting("stock/apple", 9))
        .await
        .unwrap();
    let refused = deduct_ten(&world, &adopting("stock/apple", 8)).await;
    assert!(matches!(refused, Err(Verdict::Stale { .. })), "{refused:?}");
    assert_eq!(world.quantity("apple").await, STOCK - 30);
}

pub(super) async fn with_adopt_higher_one_key_that_refuses_refuses_all(world: Arc<World>) {
    deduct_ten(&world, &fence("low", 3)).await.unwrap();
    deduct_ten(&world, &fence("high", 30)).await.unwrap();
    let low = adopting("low", 20).fence().clone();
    let both = low.and(adopting("high", 20).fence().clone()).unwrap();
    let options = FenceOptions::new().domain_policy(DomainPolicy::AdoptHigher);
    let refused = deduct_ten(&world, &options.apply(both)).await;
    assert!(
        matches!(refused, Err(Verdict::DomainMismatch { .. })),
        "{refused:?}"
    );
    assert_eq!(world.mark("low").await, Some(3));
    assert_eq!(world.mark("high").await, Some(30));
    deduct_ten(&world, &fence("low", 3)).await.unwrap();
}

pub(super) async fn the_highest_token_is_i64_max_and_more_is_refused_before_anything_is_sent(
    world: Arc<World>,
) {
    let edge = i64::MAX.unsigned_abs();
    deduct_ten(&world, &fence("stock/apple", edge - 1))
        .await
        .unwrap();
    deduct_ten(&world, &fence("stock/apple", edge))
        .await
        .unwrap();
    assert_eq!(world.mark("stock/apple").await, Some(edge));
    let refused = deduct_ten(&world, &fence("stock/apple", edge - 1)).await;
    assert!(matches!(refused, Err(Verdict::Stale { .. })), "{refused:?}");

    // Whatever is sent now gives another error.
    world.run("DROP TABLE highwater_fence").await;
    let closed = world.another_source(1).await;
    closed.close().await;
    for number in [edge + 1, u64::MAX] {
        let fence = fence("stock/apple", number);
        let mut verdicts = world.verdicts(&fence).await;
        // An adapter that takes the connection itself does not even do that. One that blocks is
        // handed it by its caller.
        if world.abilities().pools && world.abilities().cancels {
            verdicts.push(closed.begin(&fence).await.map(drop));
        }
        for refused in verdicts {
            let Err(Verdict::TokenOutOfRange { token: named }) = refused else {
                panic!("{refused:?}");
            };
            assert_eq!(named, token(number));
        }
    }
    world.run("UPDATE stock SET quantity = 0").await;
    assert_eq!(world.quantity("apple").await, 0);
}
