//! The server ends and another one takes its place, under a running application.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use highwater_client::{AcquireError, Client, Domain, Lost, Release};
use highwater_server::Server;
use highwater_tests::wait::eventually;

use crate::{PATIENCE, acquiring, client_of, key, queued, server, server_at, wait};

/// A new server at the address of the old one.
async fn again(address: SocketAddr) -> Server {
    eventually("the address is free again", PATIENCE, async || {
        server_at(address).await.ok()
    })
    .await
}

#[tokio::test]
async fn an_old_ticket_is_lost_and_cannot_touch_the_new_servers_locks() {
    let first = server().await;
    let address = first.local_addr();
    let client = client_of(&first).await;
    let old = client.acquire(&key("k"), wait(5_000)).await.unwrap();
    // Without a goodbye, as in a crash.
    drop(first);
    let second = again(address).await;
    // From here on the client knows, and sends nothing to where the first one was.
    let lost = tokio::time::timeout(PATIENCE, old.lost()).await;
    assert_eq!(lost, Ok(Lost::DomainChanged));
    let new = client.acquire(&key("k"), wait(15_000)).await.unwrap();
    assert_eq!(new.domain(), second.domain());
    assert_ne!(new.domain(), old.domain());
    // Even for clients that cannot tell the domains apart the order holds.
    assert!(new.token() > old.token());
    assert_eq!(old.release().await, Ok(Release::NotCurrent));
    let error = client.acquire(&key("k"), wait(0)).await.unwrap_err();
    assert_eq!(error, AcquireError::TimedOut);
    assert_eq!(new.release().await, Ok(Release::Released));
}

#[tokio::test]
async fn who_stands_in_the_queue_when_the_server_drains_is_served_by_the_next_one() {
    let first = server().await;
    let address = first.local_addr();
    let client = client_of(&first).await;
    let held = client.acquire(&key("k"), wait(5_000)).await.unwrap();
    let waiting = acquiring(&client, "k", wait(30_000));
    queued(&first, 1).await;
    let stopping = tokio::spawn(first.shutdown());
    held.release().await.unwrap();
    stopping.await.unwrap();
    let second = again(address).await;
    let ticket = waiting.await.unwrap().unwrap();
    assert_eq!(ticket.domain(), second.domain());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_running_application_goes_on_in_the_new_domain() {
    let mut running = server().await;
    let address = running.local_addr();
    let client = client_of(&running).await;
    let stop = Arc::new(AtomicBool::new(false));
    let mut workers = Vec::new();
    let mut logs = Vec::new();
    for number in 0..6 {
        let log = Log::default();
        let work = work(client.clone(), number % 2, stop.clone(), log.clone());
        workers.push(tokio::spawn(work));
        logs.push(log);
    }
    let mut domains = vec![running.domain()];
    all_work_in(&logs, running.domain()).await;
    for round in 0..4 {
        if round % 2 == 0 {
            running.shutdown().await;
        } else {
            drop(running);
        }
        running = again(address).await;
        assert!(!domains.contains(&running.domain()));
        domains.push(running.domain());
        all_work_in(&logs, running.domain()).await;
    }
    stop.store(true, Ordering::SeqCst);
    for worker in workers {
        worker.await.unwrap();
    }
    // Every worker saw every domain, in order, and none after it was over.
    for log in logs {
        assert_eq!(*log.lock().unwrap(), domains);
    }
    client.close().await;
}

/// The domains in which a worker has worked, without repetitions.
type Log = Arc<Mutex<Vec<Domain>>>;

fn note(log: &Log, domain: Domain) {
    let mut log = log.lock().unwrap();
    if log.last() != Some(&domain) {
        log.push(domain);
    }
}

async fn all_work_in(logs: &[Log], domain: Domain) {
    eventually("everybody works in the domain", PATIENCE, async || {
        let last = |log: &Log| log.lock().unwrap().last().copied();
        logs.iter()
            .all(|log| last(log) == Some(domain))
            .then_some(())
    })
    .await;
}

/// Takes and releases one of two locks over and over.
async fn work(client: Client, lock: usize, stop: Arc<AtomicBool>, log: Log) {
    let key = key(&format!("work-{lock}"));
    let mut token = None;
    while !stop.load(Ordering::SeqCst) {
        match client.acquire(&key, wait(2_000)).await {
            Ok(ticket) => {
                assert!(Some(ticket.token()) > token, "tokens go on upwards");
                token = Some(ticket.token());
                note(&log, ticket.domain());
                // Whatever comes of it, the work goes on.
                let _ = ticket.release().await;
            }
            Err(
                AcquireError::Indeterminate
                | AcquireError::NotConnected
                | AcquireError::Rejected(_)
                | AcquireError::TimedOut,
            ) => {}
            Err(other) => panic!("{other:?}"),
        }
    }
}
