//! How a cluster begins, and what is refused.

use highwater_server::cluster::{self, ClusterError, NodeRole, OperatorError};
use highwater_server::{Secret, StartError};

use crate::nodes::Nodes;

#[tokio::test]
async fn a_cluster_begins_once_and_only_when_all_nodes_are_there() {
    let mut nodes = Nodes::fresh(3).await;
    let status = cluster::status(&nodes.file, 1, None).await.unwrap();
    assert_eq!((status.begun, status.role), (false, NodeRole::Leaderless));

    nodes.kill(2);
    let missing = cluster::init(&nodes.file, 0, None).await.unwrap_err();
    assert!(
        matches!(missing, OperatorError::Refused { .. }),
        "{missing}"
    );
    nodes.start(2).await;
    cluster::init(&nodes.file, 0, None).await.unwrap();
    nodes.leader().await;
    for slot in 0..3 {
        let again = cluster::init(&nodes.file, slot, None).await.unwrap_err();
        assert!(matches!(again, OperatorError::Refused { .. }), "{again}");
        let status = cluster::status(&nodes.file, slot, None).await.unwrap();
        assert_eq!((status.begun, status.voters), (true, vec![0, 1, 2]));
    }
}

/// A node that has promised and stored things must not come back as if it had not.
#[tokio::test]
async fn a_node_that_lost_its_memory_is_refused() {
    let mut nodes = Nodes::begun(3).await;
    let folder = nodes.data_dir(1);
    nodes.stop(1).await;
    let kept = folder.with_extension("kept");
    std::fs::rename(&folder, &kept).unwrap();
    let error = nodes.builder(1).start().await.unwrap_err();
    let forgotten = matches!(error, StartError::Cluster(ClusterError::Forgotten { .. }));
    assert!(forgotten, "{error:?}");
    std::fs::remove_dir_all(&folder).unwrap();

    std::fs::rename(&kept, &folder).unwrap();
    let log = folder.join("log");
    std::fs::rename(&log, folder.with_extension("log")).unwrap();
    let error = nodes.builder(1).start().await.unwrap_err();
    assert!(
        matches!(error, StartError::Cluster(ClusterError::Gap)),
        "{error:?}"
    );
    std::fs::rename(folder.with_extension("log"), &log).unwrap();
    nodes.start(1).await;
    nodes.leader().await;
}

#[tokio::test]
async fn what_cannot_be_safe_does_not_start() {
    let mut nodes = Nodes::fresh(3).await;
    nodes.kill(0);
    let refused = async |builder: highwater_server::Builder| match builder.start().await {
        Err(StartError::Cluster(error)) => error,
        Err(other) => panic!("{other:?}"),
        Ok(_) => panic!("it started"),
    };
    let files = nodes.data_dir(0);
    let files = files.parent().unwrap().join("files");
    let secret = std::fs::read(files.join("peer.secret")).unwrap();
    let secret = Secret::from_file_content(secret).unwrap();
    let same = refused(nodes.builder(0).client_token(secret)).await;
    assert!(matches!(same, ClusterError::SameSecret), "{same:?}");
    let memory = refused(nodes.builder(0).in_memory()).await;
    assert!(matches!(memory, ClusterError::InMemory), "{memory:?}");
    let any = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
    let seven = nodes.builder(0).cluster(nodes.file.clone(), 3).listen(any);
    let seven = refused(seven).await;
    assert!(
        matches!(seven, ClusterError::NoSuchSlot { slot: 3 }),
        "{seven:?}"
    );
    let other = tempfile::tempdir().unwrap();
    std::fs::write(other.path().join("precious"), "data").unwrap();
    let foreign = refused(nodes.builder(0).data_dir(other.path())).await;
    assert!(
        matches!(foreign, ClusterError::Foreign { .. }),
        "{foreign:?}"
    );
    let used = refused(nodes.builder(0).data_dir(nodes.data_dir(1))).await;
    assert!(matches!(used, ClusterError::InUse { .. }), "{used:?}");
    let mut limits = highwater_server::Limits::default();
    limits.locks.keys = 7;
    let rules = refused(nodes.builder(0).limits(limits)).await;
    assert!(matches!(rules, ClusterError::Rules), "{rules:?}");
}
