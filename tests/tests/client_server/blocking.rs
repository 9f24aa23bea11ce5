//! The blocking client and a real server.

use std::time::Duration;

use highwater_client::blocking::Client;
use highwater_client::{AcquireError, Release};

use crate::{all_free, key, keys, server, wait};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blocking_client_takes_keeps_and_gives_back() {
    let server = server().await;
    let address = server.local_addr();
    let work = tokio::task::spawn_blocking(move || {
        let client = Client::builder(address).connect().unwrap();
        let lease = Duration::from_secs(1);
        let options = wait(0).lease(lease).auto_extend(Duration::MAX);
        let kept = client.acquire(&key("kept"), options).unwrap();
        let set = client.acquire_set(&keys(&["a", "b"]), wait(0)).unwrap();
        assert!(set.token() > kept.token());
        let error = client.acquire(&key("a"), wait(200)).unwrap_err();
        assert_eq!(error, AcquireError::TimedOut);
        // Longer than the lease.
        assert_eq!(kept.lost(Duration::from_millis(1_500)), None);
        assert_eq!(kept.release(), Ok(Release::Released));
        drop(set);
        client.close();
    });
    work.await.unwrap();
    all_free(&server).await;
}
