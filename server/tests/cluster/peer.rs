//! Somebody who has the peer secret and says whatever a test wants, in the bytes of the peer protocol.

use std::net::SocketAddr;

use highwater_protocol::Secret;
use highwater_server::cluster::{ClusterFile, ClusterMode};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::nodes::{LIMIT, Nodes};

pub(crate) const VOTE: u8 = 2;
pub(crate) const PRE_VOTE: u8 = 3;
pub(crate) const JOIN: u8 = 18;
pub(crate) const JOIN_BY: u8 = 19;

/// Which node: its slot and its generation.
pub(crate) type Name = (u8, u64);

pub(crate) struct Peer {
    stream: TcpStream,
    ends: Vec<u8>,
}

impl Peer {
    /// Opens a connection as one node to another one, whoever is there. Generation 0 is a process that is none.
    pub(crate) async fn open(
        nodes: &Nodes,
        address: SocketAddr,
        from: Name,
        to: Name,
    ) -> Result<Self, u8> {
        timeout(LIMIT, Self::enter(nodes, address, from, to))
            .await
            .unwrap()
    }

    async fn enter(nodes: &Nodes, address: SocketAddr, from: Name, to: Name) -> Result<Self, u8> {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let mut hello = [0; 37];
        stream.read_exact(&mut hello).await.unwrap();
        let role = if from.1 == 0 { 2 } else { 0 };
        let mut answer = vec![0, 1, role];
        put_name(&mut answer, from);
        put_name(&mut answer, to);
        answer.extend(nodes.file.identity().as_bytes());
        answer.extend([9; 16]);
        let (secret, common) = shared(nodes);
        let label = b"HIGHWATER/PEER/INITIATOR/1";
        let proof = secret.prove(&[&common, label, &hello, &answer]);
        answer.extend(proof);
        stream.write_all(&answer).await.unwrap();
        let mut verdict = [0; 33];
        stream.read_exact(&mut verdict).await.unwrap();
        let mut ends = nodes.file.identity().as_bytes().to_vec();
        put_name(&mut ends, from);
        put_name(&mut ends, to);
        match verdict[0] {
            1 => Ok(Self { stream, ends }),
            code => Err(code),
        }
    }

    /// The answer to a request, or why there is none.
    pub(crate) async fn call(&mut self, kind: u8, body: &[u8]) -> Result<Vec<u8>, String> {
        let called = timeout(LIMIT, self.call_unbounded(kind, body)).await;
        called.unwrap()
    }

    async fn call_unbounded(&mut self, kind: u8, body: &[u8]) -> Result<Vec<u8>, String> {
        let mut frame = vec![kind];
        frame.extend(7_u64.to_be_bytes());
        frame.extend(&self.ends);
        frame.extend(body);
        let length = u32::try_from(frame.len()).unwrap();
        self.stream.write_all(&length.to_be_bytes()).await.unwrap();
        self.stream.write_all(&frame).await.unwrap();
        let closed = |error: std::io::Error| format!("closed: {error}");
        let length = self.stream.read_u32().await.map_err(closed)?;
        let mut reply = vec![0; length.try_into().unwrap()];
        self.stream.read_exact(&mut reply).await.map_err(closed)?;
        let body = reply.split_off(59);
        match reply[0] {
            255 => Err(String::from_utf8(body).unwrap()),
            _ => Ok(body),
        }
    }
}

/// A ballot in a term that nobody has reached, of a candidate with the longest log there is, with the
/// word of a leader who hands over.
pub(crate) fn irresistible(candidate: Name) -> Vec<u8> {
    let term = 1_000_u64.to_be_bytes();
    let mut bytes = term.to_vec();
    bytes.extend((candidate.1 << 8 | u64::from(candidate.0)).to_be_bytes());
    bytes.extend([0, 1]);
    bytes.extend(term);
    bytes.extend(u64::MAX.to_be_bytes());
    bytes.push(1);
    bytes
}

fn put_name(bytes: &mut Vec<u8>, (slot, generation): Name) {
    bytes.push(slot);
    bytes.extend(generation.to_be_bytes());
}

/// The peer secret, and what all nodes have in common.
fn shared(nodes: &Nodes) -> (Secret, Vec<u8>) {
    let folder = nodes.files();
    let secret = std::fs::read(folder.join("peer.secret")).unwrap();
    let text = std::fs::read_to_string(folder.join("cluster.toml")).unwrap();
    let first = text
        .lines()
        .find_map(|line| line.strip_prefix("first-token = "));
    let mut common = 1_u32.to_be_bytes().to_vec();
    common.extend(first.unwrap().parse::<u64>().unwrap().to_be_bytes());
    let file: &ClusterFile = &nodes.file;
    if file.mode() == ClusterMode::Volatile {
        common.extend(b"volatile");
    }
    (Secret::from_file_content(secret).unwrap(), common)
}
