//! Which tokens a mark admits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use highwater_fencing::sqlx::{FenceError, SqlxFence};
use highwater_fencing::{Configured, Domain, DomainPolicy, Fence, FenceKey, FenceOptions};

use crate::conformance::backend::Backend;
use crate::conformance::database::Database;
use crate::conformance::world::{STOCK, World, deduct, domain, fence, token};

/// Deducts ten apples behind the fence.
async fn deduct_ten<D: Database>(
    world: &World<D>,
    fence: &impl SqlxFence,
) -> Result<i64, FenceError> {
    let pool = &world.pool;
    fence
        .transaction(pool, async |tx| Ok(deduct::<D>(tx, "apple", 10).await?))
        .await
}

pub(super) async fn the_first_use_of_a_key_sets_its_mark<D: Database>(world: Arc<World<D>>) {
    assert_eq!(world.mark("stock/apple").await, None);
    let left = deduct_ten(&world, &fence("stock/apple", 1)).await.unwrap();
    assert_eq!(left, STOCK - 10);
    assert_eq!(world.quantity("apple").await, STOCK - 10);
    assert_eq!(world.mark("stock/apple").await, Some(1));
}

pub(super) async fn a_higher_token_is_admitted_and_raises_the_mark<D: Database>(
    world: Arc<World<D>>,
) {
    for number in [5, 6, 900] {
        deduct_ten(&world, &fence("stock/apple", number))
            .await
            .unwrap();
        assert_eq!(world.mark("stock/apple").await, Some(number));
    }
    assert_eq!(world.quantity("apple").await, STOCK - 30);
}

pub(super) async fn an_equal_token_is_admitted_again<D: Database>(world: Arc<World<D>>) {
    for _ in 0..3 {
        deduct_ten(&world, &fence("stock/apple", 5)).await.unwrap();
    }
    assert_eq!(world.mark("stock/apple").await, Some(5));
    assert_eq!(world.quantity("apple").await, STOCK - 30);
}

pub(super) async fn a_lower_token_is_refused_with_both_tokens<D: Database>(world: Arc<World<D>>) {
    deduct_ten(&world, &fence("stock/apple", 7)).await.unwrap();
    for number in [6, 1] {
        let refused = deduct_ten(&world, &fence("stock/apple", number)).await;
        let Err(FenceError::Stale {
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

pub(super) async fn a_refused_fence_runs_no_statement_of_the_body<D: Database>(
    world: Arc<World<D>>,
) {
    deduct_ten(&world, &fence("stock/apple", 7)).await.unwrap();
    let ran = AtomicBool::new(false);
    let stale = fence("stock/apple", 6);
    let refused: Result<(), FenceError> = stale
        .transaction(&world.pool, async |_tx| {
            ran.store(true, Ordering::SeqCst);
            Ok(())
        })
        .await;
    assert!(
        matches!(refused, Err(FenceError::Stale { .. })),
        "{refused:?}"
    );
    assert!(!ran.load(Ordering::SeqCst));
    let refused = stale.begin(&world.pool).await;
    assert!(
        matches!(refused, Err(FenceError::Stale { .. })),
        "{refused:?}"
    );
    world.until_nobody_is_in_a_transaction().await;
}

pub(super) async fn another_domain_is_refused_whatever_its_token<D: Database>(
    world: Arc<World<D>>,
) {
    deduct_ten(&world, &fence("stock/apple", 7)).await.unwrap();
    let rebuilt = Domain::named("rebuilt").unwrap();
    let key = FenceKey::new("stock/apple").unwrap();
    for number in [1, 7, 8, 1 << 62] {
        let foreign = Fence::new(rebuilt, key.clone(), token(number));
        let refused = deduct_ten(&world, &foreign).await;
        let Err(FenceError::DomainMismatch {
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

pub(super) async fn with_adopt_higher_only_a_strictly_higher_token_of_another_domain_is_admitted<
    D: Database,
>(
    world: Arc<World<D>>,
) {
    deduct_ten(&world, &fence("stock/apple", 7)).await.unwrap();
    for number in [6, 7] {
        let refused = deduct_ten(&world, &adopting("stock/apple", number)).await;
        assert!(
            matches!(refused, Err(FenceError::DomainMismatch { .. })),
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

pub(super) async fn with_adopt_higher_the_old_domain_is_refused_afterwards<D: Database>(
    world: Arc<World<D>>,
) {
    deduct_ten(&world, &fence("stock/apple", 7)).await.unwrap();
    deduct_ten(&world, &adopting("stock/apple", 9))
        .await
        .unwrap();
    for number in [7, 9, 10] {
        let refused = deduct_ten(&world, &fence("stock/apple", number)).await;
        assert!(
            matches!(refused, Err(FenceError::DomainMismatch { .. })),
            "{refused:?}"
        );
    }
    // The new domain goes on as usual.
    deduct_ten(&world, &adopting("stock/apple", 9))
        .await
        .unwrap();
    let refused = deduct_ten(&world, &adopting("stock/apple", 8)).await;
    assert!(
        matches!(refused, Err(FenceError::Stale { .. })),
        "{refused:?}"
    );
    assert_eq!(world.quantity("apple").await, STOCK - 30);
}

pub(super) async fn with_adopt_higher_one_key_that_refuses_refuses_all<D: Database>(
    world: Arc<World<D>>,
) {
    deduct_ten(&world, &fence("low", 3)).await.unwrap();
    deduct_ten(&world, &fence("high", 30)).await.unwrap();
    let low = adopting("low", 20).fence().clone();
    let both = low.and(adopting("high", 20).fence().clone()).unwrap();
    let options = FenceOptions::new().domain_policy(DomainPolicy::AdoptHigher);
    let refused = deduct_ten(&world, &options.apply(both)).await;
    assert!(
        matches!(refused, Err(FenceError::DomainMismatch { .. })),
        "{refused:?}"
    );
    assert_eq!(world.mark("low").await, Some(3));
    assert_eq!(world.mark("high").await, Some(30));
    deduct_ten(&world, &fence("low", 3)).await.unwrap();
}

pub(super) async fn the_highest_token_is_i64_max_and_more_is_refused_before_anything_is_sent<
    D: Database,
>(
    world: Arc<World<D>>,
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
    assert!(
        matches!(refused, Err(FenceError::Stale { .. })),
        "{refused:?}"
    );

    // With the pool closed, whatever is sent gives another error.
    let closed = world.another_pool(1).await;
    closed.close().await;
    for number in [edge + 1, u64::MAX] {
        let fence = fence("stock/apple", number);
        let refused = fence.begin(&closed).await;
        let Err(FenceError::TokenOutOfRange { token: named }) = refused else {
            panic!("{refused:?}");
        };
        assert_eq!(named, token(number));
        let refused: Result<(), FenceError> = fence.transaction(&closed, async |_tx| Ok(())).await;
        assert!(
            matches!(refused, Err(FenceError::TokenOutOfRange { .. })),
            "{refused:?}"
        );
        let mut conn = world.pool.acquire().await.unwrap();
        let refused = fence.begin_on(&mut conn).await;
        assert!(
            matches!(refused, Err(FenceError::TokenOutOfRange { .. })),
            "{refused:?}"
        );
        let tx = world.pool.begin().await.unwrap();
        let refused = fence.admit(tx).await;
        assert!(
            matches!(refused, Err(FenceError::TokenOutOfRange { .. })),
            "{refused:?}"
        );
    }
    assert_eq!(world.quantity("apple").await, STOCK - 20);
    D::Db::run(&world.pool, "UPDATE stock SET quantity = 0")
        .await
        .unwrap();
    assert_eq!(world.quantity("apple").await, 0);
}
