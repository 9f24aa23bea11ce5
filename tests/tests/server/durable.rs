//! A server with a data directory, restarted in the middle of everything.

use std::num::NonZeroU32;
use std::path::Path;
use std::time::{Duration, Instant};

use highwater_server::{
    AfterRestart, Builder, Limits, Readiness, Server, StartError, StorageError,
};

use crate::wire::*;

fn on(folder: &Path) -> Builder {
    builder().data_dir(folder).no_auth()
}

async fn start(builder: Builder) -> Server {
    builder.start().await.expect("starts")
}

/// Starts on the directory of a server that was dropped, once it has let go of it.
async fn start_again(builder: impl Fn() -> Builder) -> Server {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match builder().start().await {
            Ok(server) => return server,
            Err(StartError::Storage(StorageError::InUse { .. })) => {
                assert!(Instant::now() < deadline, "the directory is not let go");
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            Err(error) => panic!("{error:?}"),
        }
    }
}

#[tokio::test]
async fn after_a_crash_the_domain_stays_tokens_go_up_and_old_leases_are_waited_for() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut domains = Vec::new();
    let mut last_token = 0;
    for _ in 0..3 {
        let before = Instant::now();
        let server = start_again(|| on(folder.path())).await;
        let began = Instant::now();
        let mut wire = Wire::open(&server).await;
        if last_token > 0 {
            let Readiness::OldLeases { remaining } = server.readiness() else {
                panic!("{:?}", server.readiness());
            };
            assert!(remaining <= Duration::from_secs(1));
            // A key that nobody held: which ones are held is not known.
            wire.expect(&acquire(1, 0, 1, "pear"), error(1, 3)).await;
            let n = wire.ask(&release(2, last_token, "apple")).await;
            assert_eq!(n, not_held(2));
        }
        let token = wire.ask(&acquire(3, 60, 1, "apple")).await.token('A', 3);
        assert!(token > last_token, "{token} after {last_token}");
        if last_token > 0 {
            let waited = before.elapsed();
            assert!(waited >= Duration::from_secs(1), "granted after {waited:?}");
            assert_eq!(server.readiness(), Readiness::Ready);
        }
        assert!(began.elapsed() < PATIENCE);
        last_token = token;
        domains.push(server.domain());
        drop(server);
    }
    domains.dedup();
    assert_eq!(domains.len(), 1);
}

#[tokio::test]
async fn who_trusts_fencing_grants_at_once_after_a_crash() {
    let folder = tempfile::tempdir().expect("a folder");
    let builder = || on(folder.path()).after_restart(AfterRestart::TrustFencing);
    let first = start(builder()).await;
    let old = Wire::open(&first).await.take(1, "apple").await;
    drop(first);
    let second = start_again(builder).await;
    assert_eq!(second.readiness(), Readiness::Ready);
    let new = Wire::open(&second).await.take(1, "apple").await;
    assert!(new > old);
}

#[tokio::test]
async fn an_orderly_end_leaves_the_directory_and_waits_for_nothing_that_was_given_back() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut last_token = None;
    for _ in 0..5 {
        let server = start(on(folder.path())).await;
        let mut wire = Wire::open(&server).await;
        let token = wire.take(1, "apple").await;
        if let Some(last) = last_token {
            assert_eq!(token, last + 1, "no token is left out");
        }
        last_token = Some(token);
        wire.expect(&release(2, token, "apple"), released(2)).await;
        within(server.shutdown()).await;
    }
}

#[tokio::test]
async fn an_orderly_end_remembers_the_leases_that_are_left() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut no_patience = Limits::default();
    no_patience.drain_time = Duration::ZERO;
    let server = start(on(folder.path()).limits(no_patience)).await;
    let mut wire = Wire::open(&server).await;
    wire.take(1, "apple").await;
    within(server.shutdown()).await;
    let server = start(on(folder.path())).await;
    let Readiness::OldLeases { remaining } = server.readiness() else {
        panic!("{:?}", server.readiness());
    };
    // `take` asks for 60 s, of which some have passed.
    assert!(remaining <= Duration::from_secs(60), "{remaining:?}");
    assert!(
        remaining > Duration::from_secs(60) - PATIENCE,
        "{remaining:?}"
    );
}

#[tokio::test]
async fn a_second_server_is_refused_and_leaves_the_first_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let first = start(on(folder.path())).await;
    let refused = on(folder.path()).start().await.expect_err("in use");
    assert!(
        matches!(refused, StartError::Storage(StorageError::InUse { .. })),
        "{refused}"
    );
    Wire::open(&first).await.take(1, "apple").await;
}

#[tokio::test]
async fn the_disk_is_written_once_per_block_and_not_once_per_grant() {
    let folder = tempfile::tempdir().expect("a folder");
    let block = NonZeroU32::new(50).expect("not zero");
    let server = start(on(folder.path()).token_block(block)).await;
    let mut wire = Wire::open(&server).await;
    let mut tokens = Vec::new();
    for id in 1..=500 {
        let token = wire.ask(&acquire(id, 5, 60, "apple")).await.token('A', id);
        wire.expect(&release(id, token, "apple"), released(id))
            .await;
        tokens.push(token);
    }
    let first = tokens[0];
    assert!(tokens.into_iter().eq(first..first + 500), "a gap");
    let counts = server.storage_counts();
    assert!((10..=12).contains(&counts.blocks), "{counts:?}");
    // One record for each block, and one for the lease of 60 s.
    assert!(counts.records <= counts.blocks + 1, "{counts:?}");
    // The first one brings a note along.
    assert_eq!(counts.syncs, 2 * counts.records + 2);
}

#[tokio::test]
async fn a_directory_that_is_taken_away_ends_all_granting_but_not_releases() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("data");
    let server = start(on(&path)).await;
    let (mut holder, mut waiter) = (Wire::open(&server).await, Wire::open(&server).await);
    let token = holder.take(1, "apple").await;
    waiter.send(&acquire(1, 200, 60, "apple")).await;
    eventually(|| server.counts().waiters == 1).await;
    std::fs::remove_dir_all(&path).expect("removes");
    // Longer than any lease before: it has to be stored.
    waiter.send(&acquire(2, 200, 250, "pear")).await;
    let mut told = [waiter.answer().await, waiter.answer().await];
    told.sort_by_key(|answer| answer.id);
    assert_eq!(told, [error(1, 3), error(2, 3)]);
    assert_eq!(server.readiness(), Readiness::StorageFailed);
    waiter.expect(&acquire(3, 0, 1, "plum"), error(3, 3)).await;
    holder
        .expect(&release(2, token, "apple"), released(2))
        .await;
    within(server.shutdown()).await;
    assert!(!path.exists(), "nothing is made up");
}
