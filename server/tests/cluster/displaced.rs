//! A durable node that was out of reach while an operator has replaced it.

use highwater_server::Readiness;
use highwater_server::cluster::{self, OperatorError};

use crate::nodes::{LIMIT, Nodes, eventually};

#[tokio::test]
async fn a_node_that_was_replaced_while_it_was_cut_off_ends_when_it_hears_of_it() {
    let mut nodes = Nodes::calm(3).await;
    let leader = nodes.leader().await;
    let slot = nodes.slots().find(|slot| *slot != leader).unwrap();
    nodes.isolate(slot);
    let generation = eventually(
        "the slot can be taken over",
        async || match cluster::replace(&nodes.file, leader, slot, None).await {
            Ok(generation) => Some(generation),
            Err(OperatorError::Refused { .. }) => None,
            Err(error) => panic!("{error}"),
        },
    )
    .await;
    nodes.generations[usize::from(slot)] = generation;
    let new = nodes.builder(slot).start().await.unwrap();
    let old = nodes.put(slot, new).unwrap();
    nodes.heal();
    eventually("the new node votes", async || {
        let leader = nodes.leader().await;
        let done = cluster::promote(&nodes.file, leader, slot, None).await;
        done.unwrap().then_some(())
    })
    .await;
    let ended = tokio::time::timeout(LIMIT, old.failed()).await;
    assert!(ended.is_ok(), "a displaced node goes on");
    assert_eq!(old.readiness(), Readiness::Displaced);
    nodes.leader().await;
}
