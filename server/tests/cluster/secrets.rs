//! The peer secret is changed while the cluster works.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use highwater_client::{AcquireError, AcquireOptions, Client, Key, Release};
use highwater_protocol::FencingToken;
use highwater_server::cluster::{self, ClusterError, ClusterFile, OperatorError};
use highwater_server::{Secret, StartError};

use crate::nodes::{LIMIT, Nodes, TOKEN, eventually};
use crate::peer::Peer;

/// The file that `cluster new` has made.
const OLD: &str = "peer.secret";
const NEW: &str = "peer.secret.new";
const NOBODY: [u8; 0] = [];

/// The cluster file with these secrets; where it was, because the marks of the nodes are beside it.
fn naming(folder: &Path, secrets: &[&str]) -> ClusterFile {
    let path = folder.join("cluster.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    let lines = text.lines().map(|line| match line.split_once(" = ") {
        Some((name @ "peer-secret-file", _)) => format!("{name} = {secrets:?}\n"),
        _ => format!("{line}\n"),
    });
    std::fs::write(&path, lines.collect::<String>()).unwrap();
    ClusterFile::read(&path).unwrap()
}

fn options() -> AcquireOptions {
    AcquireOptions::new()
        .wait(Duration::from_secs(30))
        .lease(Duration::from_secs(600))
}

/// Takes one lock after the other and gives it back, until it is told to stop; counts them.
async fn go_on(client: Client, stop: Arc<AtomicBool>, done: Arc<AtomicU64>) {
    let mut highest: Option<FencingToken> = None;
    for number in 0.. {
        if stop.load(Ordering::SeqCst) {
            break;
        }
        let key = Key::new(format!("other/{number}")).unwrap();
        match client.acquire(&key, options()).await {
            Ok(ticket) => {
                assert!(Some(ticket.token()) > highest, "{key:?}");
                highest = Some(ticket.token());
                let _ = ticket.release().await;
                done.fetch_add(1, Ordering::SeqCst);
            }
            // It was with a leader that was being stopped. The next key is another one.
            Err(AcquireError::Indeterminate) => {}
            Err(error) => panic!("{key:?}: {error}"),
        }
    }
}

/// Restarts one node after the other with this file, each when any one may go. Somebody gets locks after each.
async fn restart_all(nodes: &mut Nodes, file: &ClusterFile, done: &AtomicU64) {
    for slot in 0..3 {
        restart(nodes, slot, file).await;
        let before = done.load(Ordering::SeqCst);
        eventually("locks are granted", async || {
            (done.load(Ordering::SeqCst) > before + 1).then_some(())
        })
        .await;
    }
}

async fn restart(nodes: &mut Nodes, slot: u8, file: &ClusterFile) {
    nodes.stop(slot).await;
    nodes.told[usize::from(slot)] = file.clone();
    nodes.start(slot).await;
    eventually("any one may go", async || {
        let leader = nodes.leader().await;
        let status = nodes.server(leader).cluster_status().unwrap();
        status.whole.then_some(())
    })
    .await;
}

/// How many connections each node has whose callers have proved another secret than its first.
fn other_secrets(nodes: &Nodes) -> [u64; 3] {
    [0, 1, 2].map(|slot| {
        let status = nodes.server(slot).cluster_status().unwrap();
        status.other_secrets
    })
}

async fn all_prove_the_first(nodes: &Nodes) {
    eventually("all prove the first secret of all", async || {
        (other_secrets(nodes) == [0; 3]).then_some(())
    })
    .await;
}

/// Which nodes let an operator in who has this file.
async fn admitted(file: &ClusterFile) -> Vec<u8> {
    let mut admitted = Vec::new();
    for slot in 0..3 {
        match cluster::status(file, slot, None).await {
            Ok(_) => admitted.push(slot),
            Err(OperatorError::Unreachable { reason, .. }) => {
                assert!(reason.contains("peer secrets"), "{reason}");
            }
            Err(error) => panic!("{error}"),
        }
    }
    admitted
}

/// Calls the leader as a node that has only the old secret.
async fn with_the_old_secret(nodes: &Nodes) -> Result<Peer, u8> {
    let leader = nodes.leader().await;
    let address = nodes.server(leader).peer_addr().unwrap();
    Peer::open(nodes, address, ((leader + 1) % 3, 1), (leader, 1)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_peer_secret_changes_while_locks_are_held_and_granted() {
    let mut nodes = Nodes::begun(3).await;
    let folder = nodes.files();
    std::fs::write(folder.join(NEW), "a new secret for the nodes").unwrap();
    let builder = Client::cluster(&nodes.addresses, nodes.file.identity());
    let builder = builder.token(Secret::new(TOKEN).unwrap());
    let client = builder.connect_time(LIMIT).connect().await.unwrap();
    let kept = Key::new("kept").unwrap();
    let held = client.acquire(&kept, options()).await.unwrap();
    let (stop, done) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
    let others = go_on(client.clone(), Arc::clone(&stop), Arc::clone(&done));
    let others = tokio::spawn(others);

    let old = nodes.file.clone();
    let both = naming(&folder, &[OLD, NEW]);
    let turned = naming(&folder, &[NEW, OLD]);
    let new = naming(&folder, &[NEW]);
    assert_eq!(admitted(&old).await, [0, 1, 2]);
    assert_eq!(admitted(&new).await, NOBODY);

    restart(&mut nodes, 0, &both).await;
    // The nodes that have the new one already are those that an operator reaches with it.
    assert_eq!(admitted(&turned).await, [0]);
    restart_all(&mut nodes, &both, &done).await;
    assert_eq!(admitted(&turned).await, [0, 1, 2]);
    all_prove_the_first(&nodes).await;

    restart(&mut nodes, 1, &turned).await;
    // The two others prove the old one to this node, and it the new one to them.
    eventually("another secret is proved to each", async || {
        let counts = other_secrets(&nodes);
        counts.iter().all(|count| *count > 0).then_some(())
    })
    .await;
    restart_all(&mut nodes, &turned, &done).await;
    all_prove_the_first(&nodes).await;
    let late = with_the_old_secret(&nodes).await;
    assert!(late.is_ok(), "the old secret opens nothing");
    eventually("it is counted", async || {
        (other_secrets(&nodes) != [0; 3]).then_some(())
    })
    .await;
    drop(late);
    all_prove_the_first(&nodes).await;

    restart_all(&mut nodes, &new, &done).await;
    assert_eq!(admitted(&old).await, NOBODY);
    assert_eq!(admitted(&both).await, NOBODY);
    assert_eq!(admitted(&new).await, [0, 1, 2]);
    let late = with_the_old_secret(&nodes).await;
    assert_eq!(late.err(), Some(0), "the old secret opens");

    stop.store(true, Ordering::SeqCst);
    others.await.unwrap();
    let one_try = options().wait(Duration::ZERO);
    let taken = client.acquire(&kept, one_try).await;
    assert_eq!(taken.err(), Some(AcquireError::TimedOut));
    let token = held.token();
    assert_eq!(held.release().await, Ok(Release::Released));
    let next = client.acquire(&kept, options()).await.unwrap();
    assert!(next.token() > token);
}

/// A process that starts again is a new node there, and has to be let in by those who prove another secret.
#[tokio::test(flavor = "multi_thread")]
async fn a_volatile_cluster_lets_in_who_proves_the_new_secret() {
    let mut nodes = Nodes::volatile(3).await;
    let folder = nodes.files();
    std::fs::write(folder.join(NEW), "a new secret for the nodes").unwrap();
    let token = nodes.lock("kept", 200).await;
    let both = naming(&folder, &[OLD, NEW]);
    let turned = naming(&folder, &[NEW, OLD]);
    restart(&mut nodes, 0, &both).await;
    restart(&mut nodes, 2, &both).await;
    restart(&mut nodes, 1, &turned).await;
    eventually("another secret is proved to each", async || {
        let counts = other_secrets(&nodes);
        counts.iter().all(|count| *count > 0).then_some(())
    })
    .await;
    assert_eq!(admitted(&turned).await, [0, 1, 2]);
    nodes.is_taken("kept").await;
    nodes.unlock("kept", token).await;
}

/// Any of them would make every client a node.
#[tokio::test]
async fn no_client_token_may_be_one_of_several_peer_secrets() {
    let mut nodes = Nodes::fresh(3).await;
    nodes.kill(0);
    let folder = nodes.files();
    std::fs::write(folder.join(NEW), "a new secret for the nodes").unwrap();
    nodes.told[0] = naming(&folder, &[OLD, NEW]);
    for name in [OLD, NEW] {
        let secret = std::fs::read(folder.join(name)).unwrap();
        let secret = Secret::from_file_content(secret).unwrap();
        let same = nodes.builder(0).client_token(secret.clone()).start().await;
        let refused = matches!(same, Err(StartError::Cluster(ClusterError::SameSecret)));
        assert!(refused, "{name}: {same:?}");
    }
    nodes.start(0).await;
    for name in [OLD, NEW] {
        let secret = std::fs::read(folder.join(name)).unwrap();
        let secret = Secret::from_file_content(secret).unwrap();
        let mut tokens = highwater_server::config::Credentials::default();
        tokens.client_tokens = vec![Secret::new(TOKEN).unwrap(), secret];
        let same = nodes.server(0).replace_credentials(&tokens);
        assert_eq!(same, Err(highwater_server::ReloadError::SameSecret));
    }
}
