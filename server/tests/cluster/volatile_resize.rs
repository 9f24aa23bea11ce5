//! Volatile clusters of three nodes that become five, and three again: processes come and go, and none of
//! them is taken for another one.

use highwater_protocol::Reply;
use highwater_server::Readiness;
use highwater_server::cluster::{self, ClusterFile, NodeRole, OperatorError};
use tokio::time::{Instant, sleep, timeout};

use crate::nodes::{LIMIT, Nodes, eventually};
use crate::peer::{JOIN, JOIN_BY, Peer};
use crate::volatile::{status, whole};
use crate::volatile_lost::{SOME_SLOW_SURVEYS, SOME_SURVEYS, all_say_that_they_are_dead};

/// Asks the leader until it does it: another one may lead by now.
async fn ask<T>(
    nodes: &Nodes,
    what: &str,
    mut asked: impl AsyncFnMut(u8) -> Result<T, OperatorError>,
) -> T {
    eventually(what, async || {
        let leader = leader(nodes).await;
        match asked(leader).await {
            Ok(done) => Some(done),
            Err(OperatorError::Refused { .. }) => None,
            Err(error) => panic!("{error}"),
        }
    })
    .await
}

/// The one that says that it leads, whatever processes without a part in the cluster know.
pub(crate) async fn leader(nodes: &Nodes) -> u8 {
    eventually("somebody leads", async || {
        let mut slots = nodes.slots();
        slots.find(|slot| status(nodes, *slot).role == NodeRole::Leader)
    })
    .await
}

/// Waits until the leader says that these vote, and nobody else is a member.
pub(crate) async fn vote(nodes: &Nodes, wanted: &[u8]) {
    eventually("the right ones vote", async || {
        let leader = status(nodes, leader(nodes).await);
        let members = leader.members.filter(|_| leader.whole)?;
        let mut voters: Vec<u8> = members.voters[0].iter().map(|place| place.slot).collect();
        voters.sort_unstable();
        (voters == wanted && members.learners.is_empty()).then_some(())
    })
    .await;
}

pub(crate) async fn open_slots(nodes: &Nodes) -> Vec<u64> {
    let told = ask(nodes, "slots are opened", async |leader| {
        cluster::grow(&nodes.file, leader, None).await
    });
    told.await.iter().map(|place| place.generation).collect()
}

/// Three nodes with a file of three, and addresses for two more.
pub(crate) async fn three_that_are_to_be_five() -> Nodes {
    let mut nodes = Nodes::volatile(3).await;
    whole(&nodes).await;
    let old = nodes.file.clone();
    nodes.know_five().await;
    nodes.told[..3].fill(old);
    nodes
}

/// Three nodes with a file of three, one of which lets in whom it does not know, and two that came later. Nobody
/// asks for the two to vote.
pub(crate) async fn grown() -> Nodes {
    let mut nodes = three_that_are_to_be_five().await;
    open_slots(&nodes).await;
    for slot in [3, 4] {
        nodes.start(slot).await;
    }
    vote(&nodes, &[0, 1, 2, 3, 4]).await;
    nodes
}

async fn remove(nodes: &Nodes, gone: [u8; 2]) {
    ask(nodes, "two nodes are removed", async |leader| {
        cluster::remove(&nodes.file, leader, &gone, None).await
    })
    .await;
}

async fn ends_as_removed(nodes: &mut Nodes, slot: u8) {
    let ended = timeout(LIMIT, nodes.server(slot).failed()).await;
    assert!(ended.is_ok(), "slot {slot} goes on");
    assert_eq!(nodes.server(slot).readiness(), Readiness::Removed);
    nodes.kill(slot);
}

async fn is_not_let_in(nodes: &Nodes, slot: u8) {
    eventually(
        "it is told that its slot is not part of the cluster",
        async || {
            let reason = status(nodes, slot).waits_for?;
            reason.contains("not part of the cluster").then_some(())
        },
    )
    .await;
}

/// As the leader has it, whether the node is there or not.
async fn generation_of_voter(nodes: &Nodes, slot: u8) -> u64 {
    let members = status(nodes, leader(nodes).await).members.unwrap();
    let mut voters = members.voters.iter().flatten();
    voters.find(|place| place.slot == slot).unwrap().generation
}

pub(crate) fn generation_of(nodes: &Nodes, slot: u8) -> u64 {
    status(nodes, slot).generation
}

#[tokio::test]
async fn two_processes_come_and_two_go_and_locks_stay() {
    let mut nodes = Nodes::volatile(3).await;
    let kept = {
        let mut client = nodes.client(whole(&nodes).await).await;
        client.lock("kept", 0, 200).await
    };
    let old = nodes.file.clone();
    nodes.know_five().await;
    nodes.told[..3].fill(old);

    // At the door before anybody has asked for them.
    nodes.start(3).await;
    is_not_let_in(&nodes, 3).await;
    vote(&nodes, &[0, 1, 2]).await;
    let opened = open_slots(&nodes).await;
    nodes.start(4).await;
    vote(&nodes, &[0, 1, 2, 3, 4]).await;
    for (slot, opened) in [3, 4].into_iter().zip(opened) {
        assert!(generation_of(&nodes, slot) > opened, "slot {slot}");
    }

    // Five are five: two that lose their memory at once do not matter.
    for slot in [1, 3] {
        nodes.kill(slot);
    }
    let first = generation_of_voter(&nodes, 3).await;
    for slot in [1, 3] {
        nodes.start(slot).await;
    }
    eventually("both are let in", async || {
        let new = generation_of(&nodes, 1) == 2 && generation_of(&nodes, 3) == first + 1;
        new.then_some(())
    })
    .await;
    vote(&nodes, &[0, 1, 2, 3, 4]).await;
    let before: Vec<u64> = (0..5).map(|slot| generation_of(&nodes, slot)).collect();

    // One that was there from the beginning, and one that came.
    remove(&nodes, [0, 3]).await;
    for slot in [0, 3] {
        ends_as_removed(&mut nodes, slot).await;
        nodes.start(slot).await;
        is_not_let_in(&nodes, slot).await;
    }
    vote(&nodes, &[1, 2, 4]).await;
    let mut client = nodes.client(leader(&nodes).await).await;
    let taken = client.acquire("kept", 0, 200).await;
    assert!(matches!(taken, Reply::TimedOut { .. }), "{taken:?}");

    // Those at the door come in as nodes that nobody has been.
    open_slots(&nodes).await;
    vote(&nodes, &[0, 1, 2, 3, 4]).await;
    for slot in [0, 3] {
        let new = generation_of(&nodes, slot);
        assert!(new > before[usize::from(slot)], "slot {slot}: {new}");
    }
    let mut client = nodes.client(leader(&nodes).await).await;
    client.unlock("kept", kept).await;
    assert!(client.lock("kept", 0, 200).await > kept);
}

/// Has one of the two lead that came later.
pub(crate) async fn new_one_leads(nodes: &Nodes) -> u8 {
    eventually("a new node leads", async || {
        let leader = whole(nodes).await;
        if leader > 2 {
            return Some(leader);
        }
        let _ = cluster::step_down(&nodes.file, leader, None).await;
        None
    })
    .await
}

/// The leader is where the file of a process that has lost its memory has nobody.
#[tokio::test]
async fn a_process_with_an_old_file_finds_the_others() {
    let mut nodes = grown().await;
    new_one_leads(&nodes).await;
    nodes.kill(0);
    nodes.start(0).await;
    eventually("it is let in", async || {
        (generation_of(&nodes, 0) == 2).then_some(())
    })
    .await;
    vote(&nodes, &[0, 1, 2, 3, 4]).await;
}

/// Those that are left have a file of three, and those that have lost their memory came later.
#[tokio::test]
async fn five_that_were_three_are_dead_without_three() {
    let mut nodes = grown().await;
    // The one that leads is lost: whoever still hears from it asks nobody.
    let third = Some(leader(&nodes).await).filter(|leader| *leader < 3);
    let third = third.unwrap_or(2);
    for slot in [third, 3, 4] {
        nodes.kill(slot);
    }
    for slot in [3, 4] {
        nodes.start(slot).await;
    }
    // The third one is only silent: it may remember.
    let since = Instant::now();
    while since.elapsed() < SOME_SURVEYS {
        for slot in nodes.slots() {
            assert!(!status(&nodes, slot).dead, "slot {slot}");
        }
        sleep(std::time::Duration::from_millis(20)).await;
    }
    nodes.start(third).await;
    all_say_that_they_are_dead(&nodes).await;
}

/// Two of three are enough to go on and two of three are too many to lose, also with five in the file and two
/// processes at the door.
#[tokio::test]
async fn slots_that_were_removed_do_not_count() {
    let mut nodes = grown().await;
    nodes.told.fill(nodes.file.clone());
    remove(&nodes, [3, 4]).await;
    for slot in [3, 4] {
        ends_as_removed(&mut nodes, slot).await;
        nodes.start(slot).await;
        is_not_let_in(&nodes, slot).await;
    }
    vote(&nodes, &[0, 1, 2]).await;
    nodes.isolate(0);
    nodes.kill(1);
    nodes.start(1).await;
    eventually("nobody leads", async || {
        let leads = |slot: u8| nodes.server(slot).readiness() == Readiness::Ready;
        (!nodes.slots().any(leads)).then_some(())
    })
    .await;
    // Three of five have forgotten, and one of those that vote.
    let since = Instant::now();
    while since.elapsed() < SOME_SLOW_SURVEYS {
        for slot in nodes.slots() {
            assert!(!status(&nodes, slot).dead, "slot {slot}");
        }
        sleep(std::time::Duration::from_millis(20)).await;
    }
    nodes.heal();
    vote(&nodes, &[0, 1, 2]).await;
    for slot in [0, 2] {
        nodes.kill(slot);
    }
    for slot in [0, 2] {
        nodes.start(slot).await;
    }
    all_say_that_they_are_dead(&nodes).await;
}

/// The process that has taken a voter's slot over is gone before it votes, and its machine does not come back. Its
/// slot is removed, as that of a voter would be.
#[tokio::test]
async fn a_slot_that_nobody_comes_back_to_keeps_nobody_from_growing() {
    let mut nodes = Nodes::volatile_and_calm(3).await;
    let leads = whole(&nodes).await;
    let lost = (leads + 1) % 3;
    nodes.kill(lost);
    // It is there to be found, and knocks nowhere: the test does so in its place.
    let path = nodes.files().join("cluster.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    let mut port = 9;
    let nowhere = text.lines().map(|line| match line.starts_with("peers = ") {
        true => {
            port += 1;
            format!("peers = \"127.0.0.1:{port}\"\n")
        }
        false => format!("{line}\n"),
    });
    let nowhere: String = nowhere.collect();
    std::fs::write(&path, nowhere).unwrap();
    let file = std::mem::replace(
        &mut nodes.told[usize::from(lost)],
        ClusterFile::read(&path).unwrap(),
    );
    std::fs::write(&path, text).unwrap();
    nodes.start(lost).await;
    nodes.told[usize::from(lost)] = file;
    let process = status(&nodes, lost).process;
    let let_in = async |kind| {
        let address = nodes.server(leads).peer_addr().unwrap();
        let mut peer = Peer::open(&nodes, address, (lost, 0), (leads, 1)).await;
        eventually("it is let in", async || {
            let peer = peer.as_mut().unwrap();
            peer.call(kind, process.as_bytes()).await.ok()
        })
        .await
    };
    // As older processes ask, and as those of today do.
    assert_eq!(let_in(JOIN).await, 2_u64.to_be_bytes());
    let answer = let_in(JOIN_BY).await;
    assert_eq!((answer.len(), &answer[..8]), (16, &3_u64.to_be_bytes()[..]));
    nodes.kill(lost);

    nodes.know_five().await;
    open_slots(&nodes).await;
    for slot in [3, 4] {
        nodes.start(slot).await;
    }
    eventually("five vote", async || {
        let members = status(&nodes, leader(&nodes).await).members?;
        (members.voters[0].len() == 5 && members.learners.len() == 1).then_some(())
    })
    .await;
    let leads = leader(&nodes).await;
    let other = (0..5).find(|slot| ![lost, leads].contains(slot)).unwrap();
    remove(&nodes, [lost, other]).await;
    ends_as_removed(&mut nodes, other).await;
    let stay: Vec<u8> = (0..5)
        .filter(|slot| ![lost, other].contains(slot))
        .collect();
    vote(&nodes, &stay).await;
}

/// It does not hear that it was removed, and when it hears anything its slot is a newer node's.
#[tokio::test]
async fn a_node_that_was_removed_while_it_was_cut_off_is_no_node_of_the_next_five() {
    let mut nodes = grown().await;
    let leads = whole(&nodes).await;
    let away = [3, 4].into_iter().find(|slot| *slot != leads).unwrap();
    let other = 7 - away;
    let before = generation_of(&nodes, away);
    nodes.isolate(away);
    remove(&nodes, [3, 4]).await;
    ends_as_removed(&mut nodes, other).await;
    nodes.start(other).await;
    let new = nodes.builder(away).start().await.unwrap();
    let old = nodes.put(away, new).unwrap();
    nodes.heal();
    open_slots(&nodes).await;
    vote(&nodes, &[0, 1, 2, 3, 4]).await;
    assert!(generation_of(&nodes, away) > before);
    assert!(timeout(LIMIT, old.failed()).await.is_ok(), "it goes on");
    let end = old.readiness();
    assert!(
        matches!(end, Readiness::Removed | Readiness::Displaced),
        "{end:?}"
    );
}

#[tokio::test]
async fn what_would_be_another_number_of_voters_or_too_little_memory_is_refused() {
    let mut nodes = Nodes::volatile(3).await;
    let leads = whole(&nodes).await;
    let refused = |result: Result<(), OperatorError>, why: &str| {
        let error = result.unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    };
    let three = cluster::grow(&nodes.file, leads, None).await;
    refused(three.map(drop), "five nodes");
    let fewer = cluster::remove(&nodes.file, leads, &[0, 1], None).await;
    refused(fewer, "three voters at least");
    nodes.know_five().await;

    // One of two comes, and is sent away again.
    let opened = open_slots(&nodes).await;
    assert_eq!(open_slots(&nodes).await, opened);
    nodes.start(3).await;
    eventually("it is let in", async || {
        (generation_of(&nodes, 3) > opened[0]).then_some(())
    })
    .await;
    let alone = ask(&nodes, "it is asked for", async |leader| {
        cluster::admit(&nodes.file, leader, None).await
    });
    assert!(!alone.await);
    remove(&nodes, [3, 4]).await;
    ends_as_removed(&mut nodes, 3).await;
    vote(&nodes, &[0, 1, 2]).await;
    let again = open_slots(&nodes).await;
    assert!(again > opened, "{again:?} after {opened:?}");
    for slot in [3, 4] {
        nodes.start(slot).await;
    }
    vote(&nodes, &[0, 1, 2, 3, 4]).await;
    assert!(generation_of(&nodes, 3) > opened[0] + 1);

    // Three that remember would become two.
    let leads = whole(&nodes).await;
    let others: Vec<u8> = nodes.slots().filter(|slot| *slot != leads).collect();
    nodes.kill(others[0]);
    let few = cluster::remove(&nodes.file, leads, &others[2..], None).await;
    refused(few, "too few");
    remove(&nodes, [others[0], others[1]]).await;
    ends_as_removed(&mut nodes, others[1]).await;
    let mut stay = vec![leads, others[2], others[3]];
    stay.sort_unstable();
    vote(&nodes, &stay).await;
}
