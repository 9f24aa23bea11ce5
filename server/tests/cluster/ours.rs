//! Our own client against our cluster.

use std::time::Duration;

use highwater_client::{AcquireError, AcquireOptions, Client, ConnectError, Key, Release, Secret};

use crate::nodes::{LIMIT, Nodes, TOKEN};

async fn client(nodes: &Nodes) -> Client {
    let builder = Client::cluster(&nodes.addresses, nodes.file.identity());
    let builder = builder.token(Secret::new(TOKEN).unwrap());
    builder.connect_time(LIMIT).connect().await.unwrap()
}

fn options() -> AcquireOptions {
    AcquireOptions::new()
        .wait(Duration::from_secs(20))
        .lease(Duration::from_secs(60))
}

#[tokio::test(flavor = "multi_thread")]
async fn it_follows_the_leader_and_keeps_its_ticket() {
    let mut nodes = Nodes::begun(3).await;
    let client = client(&nodes).await;
    let key = Key::new("kept").unwrap();
    let kept = client.acquire(&key, options()).await.unwrap();
    let mut highest = kept.token();
    for round in 0..3 {
        let leader = nodes.leader().await;
        match round {
            0 => nodes.stop(leader).await,
            _ => nodes.kill(leader),
        }
        // Nobody waits for the next leader here: that is the client's business.
        let mut tries = 0..;
        let ticket = loop {
            let other = Key::new(format!("other/{round}/{:?}", tries.next())).unwrap();
            match client.acquire(&other, options()).await {
                Ok(ticket) => break ticket,
                // It may have gone out to the leader that was just killed.
                Err(AcquireError::Indeterminate) if round > 0 => {}
                Err(error) => panic!("round {round}: {error}"),
            }
        };
        assert!(ticket.token() > highest, "round {round}");
        highest = ticket.token();
        assert_eq!(ticket.release().await, Ok(Release::Released));
        kept.extend(Duration::from_secs(60)).await.unwrap();
        nodes.start(leader).await;
        nodes.leader().await;
    }
    assert_eq!(kept.domain(), nodes.file.identity());
    let one_try = options().wait(Duration::ZERO);
    let taken = client.acquire(&key, one_try).await;
    assert_eq!(taken.unwrap_err(), AcquireError::TimedOut);
    assert_eq!(kept.release().await, Ok(Release::Released));
    client.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_this_cluster_is_refused() {
    let nodes = Nodes::begun(3).await;
    let secret = || Secret::new(TOKEN).unwrap();
    let identity = nodes.file.identity();
    let time = Duration::from_secs(5);
    let two = Client::cluster(&nodes.addresses[..2], identity)
        .connect()
        .await;
    assert!(matches!(
        two,
        Err(ConnectError::InvalidCluster { nodes: 2 })
    ));
    let mut mixed = nodes.addresses.clone();
    mixed.rotate_left(1);
    let mixed = Client::cluster(&mixed, identity).token(secret());
    let mixed = mixed.connect_time(time).connect().await;
    assert!(
        matches!(mixed, Err(ConnectError::WrongServer(_))),
        "{mixed:?}"
    );
    let single = Client::builder(nodes.addresses[0]).token(secret());
    let single = single.connect_time(time).connect().await;
    assert!(
        matches!(single, Err(ConnectError::WrongServer(_))),
        "{single:?}"
    );
    let other = highwater_client::Domain::from_bytes([1; 32]);
    let other = Client::cluster(&nodes.addresses, other).token(secret());
    let other = other.connect_time(time).connect().await;
    assert!(
        matches!(other, Err(ConnectError::Unauthenticated)),
        "{other:?}"
    );
}
