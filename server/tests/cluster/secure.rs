//! Who is let in as a node or an operator.

use std::sync::Arc;
use std::time::Duration;

use highwater_client::{AcquireOptions, Client, ClientTls, Key, Secret};
use highwater_protocol::handshake::HELLO_BYTES;
use highwater_server::cluster::{self, ClusterError, OperatorError};
use highwater_server::{StartError, tls_client_from_pem_file, tls_from_pem_files};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::ClientConfig;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::nodes::{LIMIT, Nodes, TOKEN, Tls};

/// A certificate for the loopback, and how to know it.
fn tls() -> Tls {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let authority_key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new([]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = params.self_signed(&authority_key).unwrap();
    let issuer = Issuer::new(params, authority_key);
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
    let certificate = params.signed_by(&key, &issuer).unwrap();
    std::fs::write(path("ca"), authority.pem()).unwrap();
    std::fs::write(path("cert"), certificate.pem()).unwrap();
    std::fs::write(path("key"), key.serialize_pem()).unwrap();
    let accept = tls_from_pem_files(path("cert"), path("key")).unwrap();
    (accept, tls_client_from_pem_file(path("ca")).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_encrypt_talk_to_nobody_else() {
    let own = tls();
    let nodes = Nodes::fresh_with(3, Some(own.clone())).await;
    let strangers = tls().1;
    for wrong in [None, Some(strangers)] {
        let refused = cluster::init(&nodes.file, 0, wrong).await.unwrap_err();
        assert!(
            matches!(refused, OperatorError::Unreachable { .. }),
            "{refused}"
        );
    }
    cluster::init(&nodes.file, 0, Some(own.1.clone()))
        .await
        .unwrap();
    nodes.leader().await;
    let tls = ClientTls::from_config(Arc::<ClientConfig>::clone(&own.1));
    let client = Client::cluster(&nodes.addresses, nodes.file.identity())
        .token(Secret::new(TOKEN).unwrap())
        .tls(tls)
        .connect_time(LIMIT);
    let client = client.connect().await.unwrap();
    let options = AcquireOptions::new().wait(Duration::from_secs(20));
    let ticket = client.acquire(&Key::new("k").unwrap(), options).await;
    ticket.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn tls_for_clients_alone_is_refused() {
    let mut nodes = Nodes::fresh(3).await;
    nodes.kill(0);
    let alone = nodes.builder(0).tls(tls().0).start().await;
    let refused = matches!(alone, Err(StartError::Cluster(ClusterError::PeerTls)));
    assert!(refused, "{alone:?}");
}

/// The file of another cluster, and one that differs in what decides tokens, open no door.
#[tokio::test]
async fn only_the_same_file_and_secret_make_an_operator() {
    let nodes = Nodes::fresh(3).await;
    let other = tempfile::tempdir().unwrap();
    let files = nodes.data_dir(0);
    let files = files.parent().unwrap().join("files");
    let text = std::fs::read_to_string(files.join("cluster.toml")).unwrap();
    let secret = std::fs::read_to_string(files.join("peer.secret")).unwrap();
    let mut wrong_secret = secret.clone();
    wrong_secret.replace_range(..1, if secret.starts_with('0') { "1" } else { "0" });
    let domain = nodes.file.identity().to_string();
    let first = text
        .lines()
        .find(|line| line.starts_with("first-token"))
        .unwrap();
    for (text, secret) in [
        (text.clone(), wrong_secret),
        (text.replace(&domain, &"7".repeat(64)), secret.clone()),
        (text.replace(first, "first-token = 7"), secret.clone()),
    ] {
        std::fs::write(other.path().join("cluster.toml"), text).unwrap();
        std::fs::write(other.path().join("peer.secret"), secret).unwrap();
        let file = cluster::ClusterFile::read(other.path().join("cluster.toml")).unwrap();
        let refused = cluster::status(&file, 0, None).await.unwrap_err();
        assert!(
            matches!(refused, OperatorError::Unreachable { .. }),
            "{refused}"
        );
    }
    cluster::status(&nodes.file, 0, None).await.unwrap();
}

/// Whatever somebody sends to the listener for peers, the node goes on.
#[tokio::test]
async fn garbage_at_the_door_of_peers_harms_nobody() {
    let nodes = Nodes::calm(3).await;
    let leader = nodes.leader().await;
    let peers = nodes.server(leader).peer_addr().unwrap();
    for byte in [0, 1, 0xff] {
        let mut stream = TcpStream::connect(peers).await.unwrap();
        let mut hello = [0; HELLO_BYTES + 9];
        stream.read_exact(&mut hello).await.unwrap();
        stream.write_all(&[byte; 1_000]).await.unwrap();
        // A verdict, and nothing more.
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest).await;
        assert!(rest.len() <= 33, "{rest:?}");
    }
    let mut client = nodes.client(leader).await;
    client.lock("k", 0, 10).await;
}

/// New certificates are taken over without a restart, between nodes too.
#[tokio::test(flavor = "multi_thread")]
async fn certificates_of_nodes_change_while_they_run() {
    let (old, new) = (tls(), tls());
    let nodes = Nodes::fresh_with(3, Some(old.clone())).await;
    let known_by = async |tls: &Tls| {
        let status = cluster::status(&nodes.file, 0, Some(Arc::clone(&tls.1))).await;
        status.is_ok()
    };
    assert!(known_by(&old).await && !known_by(&new).await);
    for slot in 0..3 {
        let mut credentials = highwater_server::config::Credentials::default();
        credentials.client_tokens = vec![highwater_server::Secret::new(TOKEN).unwrap()];
        credentials.tls = Some(Arc::clone(&new.0));
        credentials.peer_tls = Some(Arc::clone(&new.1));
        nodes
            .server(slot)
            .replace_credentials(&credentials)
            .unwrap();
    }
    assert!(known_by(&new).await && !known_by(&old).await);
    // They know each other by them.
    let begun = cluster::init(&nodes.file, 0, Some(Arc::clone(&new.1))).await;
    begun.unwrap();
    nodes.leader().await;
}
