//! The cluster file: what all nodes and operators of a cluster are told in common.
//!
//! ```toml
//! identity = "9c…41"              # 64 hexadecimal digits: the fencing domain, and what clients check
//! first-token = 1764528000000000
//! peer-secret-file = "peer.secret" # beside this file, if it is no absolute path; or a list
//! mode = "durable"                # or "volatile"
//!
//! [[node]]
//! slot = 0
//! clients = "10.0.0.1:5225"
//! peers = "10.0.0.1:5227"
//! ```

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use highwater_lock::{Domain, FencingToken};
use highwater_protocol::handshake::Slot;
use highwater_protocol::{Secret, SecretError};
use toml::de::{DeTable, DeValue};

use super::peer::secrets::{NotAdded, PeerSecrets};
use super::rules::RULES;
use crate::config::read_secret;
use crate::system;

/// A cluster's identity, its peer secrets, and the addresses of its nodes.
#[derive(Clone, Debug)]
pub struct ClusterFile {
    path: PathBuf,
    identity: Domain,
    first_token: FencingToken,
    peer_secrets: PeerSecrets,
    mode: ClusterMode,
    nodes: Vec<FileNode>,
}

/// What the nodes of a cluster keep on disk; the same for all of them, and for its whole life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ClusterMode {
    /// The log, the votes and the locks, in a data directory: they survive the end of all processes.
    #[default]
    Durable,
    /// Nothing but a mark: locks survive as long as a majority of the processes does, and a process
    /// that starts again is a new node, which takes its slot over by itself.
    Volatile,
}

impl ClusterMode {
    const ALL: [Self; 2] = [Self::Durable, Self::Volatile];

    const fn name(self) -> &'static str {
        match self {
            Self::Durable => "durable",
            Self::Volatile => "volatile",
        }
    }
}

/// One line of the file.
#[derive(Clone, Debug)]
pub(super) struct FileNode {
    pub(super) slot: Slot,
    pub(super) addresses: NodeAddresses,
}

/// Where a node is reached, each `HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeAddresses {
    /// By clients.
    pub clients: String,
    /// By the other nodes and by operators.
    pub peers: String,
}

/// The files of a new cluster.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NewCluster {
    /// The cluster file.
    pub file: PathBuf,
    /// The secret of the nodes, beside it.
    pub peer_secret: PathBuf,
    /// A client token, beside it.
    pub client_token: PathBuf,
    /// What clients check.
    pub identity: Domain,
}

impl ClusterFile {
    /// Reads the file, and the secrets that it names. With the first of them a node or an operator calls others;
    /// a node lets in who knows any of them.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, ClusterFileError> {
        let path = path.as_ref();
        let text = fs::read_to_string(path).map_err(|source| unreadable(path, source))?;
        let parsed = parse(&text).map_err(|reason| ClusterFileError::Wrong {
            path: path.to_owned(),
            reason,
        })?;
        let folder = path.parent().unwrap_or(Path::new(""));
        let peer_secrets = read_secrets(folder, &parsed.secrets)?;
        Ok(Self {
            path: path.to_owned(),
            identity: parsed.identity,
            first_token: parsed.first_token,
            peer_secrets,
            mode: parsed.mode,
            nodes: parsed.nodes,
        })
    }

    /// Makes the files of a new durable cluster in a directory: `cluster.toml`, `peer.secret` and
    /// `client.token`, with an identity and secrets that nobody has had before. The nodes get the
    /// slots 0, 1, 2 and so on in their order.
    ///
    /// # Errors
    /// There are not 3 or 5 nodes, two of them have an address in common, a file is there already,
    /// or it cannot be written.
    pub fn create(
        folder: impl AsRef<Path>,
        nodes: &[NodeAddresses],
    ) -> Result<NewCluster, ClusterFileError> {
        Self::create_as(ClusterMode::Durable, folder, nodes)
    }

    /// The same, for a cluster of this mode.
    ///
    /// # Errors
    /// Those of [`ClusterFile::create`].
    pub fn create_as(
        mode: ClusterMode,
        folder: impl AsRef<Path>,
        nodes: &[NodeAddresses],
    ) -> Result<NewCluster, ClusterFileError> {
        let folder = folder.as_ref();
        let random = |error| unreadable(folder, io::Error::other(error));
        let identity = system::new_domain().map_err(random)?;
        // Whoever takes all clusters for one compares tokens across them; see `Builder::in_memory`.
        let first_token = system::unix_micros().and_then(FencingToken::new);
        let first_token = first_token.unwrap_or(FencingToken::MIN);
        let text = render(identity, first_token, mode, nodes);
        let paths = NewCluster {
            file: folder.join("cluster.toml"),
            peer_secret: folder.join("peer.secret"),
            client_token: folder.join("client.token"),
            identity,
        };
        parse(&text).map_err(|reason| ClusterFileError::Wrong {
            path: paths.file.clone(),
            reason,
        })?;
        let mut builder = DirBuilder::new();
        builder.recursive(true);
        builder
            .create(folder)
            .map_err(|source| unreadable(folder, source))?;
        for path in [&paths.peer_secret, &paths.client_token] {
            let secret: [u8; 32] = system::random().map_err(random)?;
            write_new(path, &hex(&secret))?;
        }
        write_new(&paths.file, &text)?;
        Ok(paths)
    }

    /// The fencing domain of the cluster, and what its clients check.
    pub fn identity(&self) -> Domain {
        self.identity
    }

    /// What its nodes keep on disk.
    pub fn mode(&self) -> ClusterMode {
        self.mode
    }

    /// The slots and addresses, by slot.
    pub fn nodes(&self) -> impl Iterator<Item = (u8, &NodeAddresses)> {
        let nodes = self.nodes.iter();
        nodes.map(|node| (node.slot.get(), &node.addresses))
    }

    pub(super) fn first_token(&self) -> FencingToken {
        self.first_token
    }

    /// What every node must have in common: peers that differ in it refuse each other.
    pub(super) fn common(&self) -> Vec<u8> {
        let mut common = RULES.to_be_bytes().to_vec();
        common.extend_from_slice(&self.first_token.get().to_be_bytes());
        if self.mode != ClusterMode::Durable {
            common.extend_from_slice(self.mode.name().as_bytes());
        }
        common
    }

    pub(super) fn peer_secrets(&self) -> &PeerSecrets {
        &self.peer_secrets
    }

    pub(super) fn all(&self) -> &[FileNode] {
        &self.nodes
    }

    pub(super) fn node(&self, slot: u8) -> Option<&FileNode> {
        self.nodes.iter().find(|node| node.slot.get() == slot)
    }

    /// The file that says that a node of this slot has been part of the cluster.
    pub(super) fn marker(&self, slot: Slot) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(format!(".slot-{}.used", slot.get()));
        name.into()
    }
}

/// The files of the secrets, of which there is at least one.
struct Secrets {
    first: PathBuf,
    others: Vec<PathBuf>,
}

struct Parsed {
    identity: Domain,
    first_token: FencingToken,
    secrets: Secrets,
    mode: ClusterMode,
    nodes: Vec<FileNode>,
}

fn parse(text: &str) -> Result<Parsed, String> {
    let table = DeTable::parse(text).map_err(|error| error.message().to_owned())?;
    let table = table.get_ref();
    let known = [
        "identity",
        "first-token",
        "peer-secret-file",
        "mode",
        "node",
    ];
    for (name, _) in table.iter() {
        if !known.contains(&&**name.get_ref()) {
            return Err(format!("{} means nothing here", name.get_ref()));
        }
    }
    let identity = text_of(table, "identity")?;
    let identity = identity.parse::<Domain>();
    let identity = identity.map_err(|_| "identity is not 64 hexadecimal digits".to_owned())?;
    let first = number_of(table, "first-token")?;
    let first_token = Some(first).filter(|number| *number <= i64::MAX.unsigned_abs());
    let first_token = first_token.and_then(FencingToken::new);
    let first_token = first_token.ok_or("first-token is not a token".to_owned())?;
    let Some(DeValue::Array(list)) = table.get("node").map(|value| value.get_ref()) else {
        return Err("there is no [[node]]".to_owned());
    };
    let nodes = list.iter().map(|value| match value.get_ref() {
        DeValue::Table(node) => parse_node(node),
        _ => Err("node is not a list of tables".to_owned()),
    });
    let mut nodes: Vec<FileNode> = nodes.collect::<Result<_, _>>()?;
    nodes.sort_by_key(|node| node.slot);
    check(&nodes)?;
    Ok(Parsed {
        identity,
        first_token,
        secrets: secrets_of(table)?,
        mode: match table.get("mode") {
            None => ClusterMode::Durable,
            Some(_) => {
                let name = text_of(table, "mode")?;
                let mode = ClusterMode::ALL
                    .into_iter()
                    .find(|mode| mode.name() == name);
                mode.ok_or("mode is durable or volatile".to_owned())?
            }
        },
        nodes,
    })
}

fn parse_node(table: &DeTable<'_>) -> Result<FileNode, String> {
    let slot = number_of(table, "slot")?;
    let slot = u8::try_from(slot).ok().and_then(Slot::new);
    let addresses = NodeAddresses {
        clients: text_of(table, "clients")?,
        peers: text_of(table, "peers")?,
    };
    Ok(FileNode {
        slot: slot.ok_or("a slot is a number from 0 to 4".to_owned())?,
        addresses,
    })
}

fn check(nodes: &[FileNode]) -> Result<(), String> {
    if !matches!(nodes.len(), 3 | 5) {
        let count = nodes.len();
        return Err(format!("a cluster has 3 or 5 nodes, and this has {count}"));
    }
    let mut addresses = BTreeSet::new();
    for (place, node) in nodes.iter().enumerate() {
        let slot = node.slot.get();
        if usize::from(slot) != place {
            return Err(format!("the slots are 0 to {}, each once", nodes.len() - 1));
        }
        let NodeAddresses { clients, peers } = &node.addresses;
        for address in [clients, peers] {
            let port = address
                .rsplit_once(':')
                .map(|(_, port)| port.parse::<u16>());
            if !matches!(port, Some(Ok(1..))) {
                return Err(format!("{address:?} of slot {slot} is not HOST:PORT"));
            }
            if !addresses.insert(address) {
                return Err(format!("the address {address} is there twice"));
            }
        }
    }
    Ok(())
}

fn secrets_of(table: &DeTable<'_>) -> Result<Secrets, String> {
    let name = "peer-secret-file";
    let Some(DeValue::Array(list)) = table.get(name).map(|value| value.get_ref()) else {
        let (first, others) = (text_of(table, name)?.into(), Vec::new());
        return Ok(Secrets { first, others });
    };
    let mut files = list.iter().map(|value| match value.get_ref() {
        DeValue::String(text) => Ok(PathBuf::from(&**text)),
        _ => Err(format!(
            "{name} has something in it that is not a text in quotes"
        )),
    });
    let first = files.next().ok_or(format!("{name} names no file"))??;
    let others = files.collect::<Result<_, _>>()?;
    Ok(Secrets { first, others })
}

fn read_secrets(folder: &Path, files: &Secrets) -> Result<PeerSecrets, ClusterFileError> {
    let mut secrets = PeerSecrets::new(read_peer_secret(&folder.join(&files.first))?);
    for path in &files.others {
        let path = folder.join(path);
        let added = secrets.add(read_peer_secret(&path)?);
        added.map_err(|error| match error {
            NotAdded::Twice => ClusterFileError::SecretTwice { path },
            NotAdded::TooMany => ClusterFileError::TooManySecrets,
        })?;
    }
    Ok(secrets)
}

fn read_peer_secret(path: &Path) -> Result<Secret, ClusterFileError> {
    let bytes = read_secret(path).map_err(|source| unreadable(path, source))?;
    let secret = Secret::from_file_content(bytes);
    secret.map_err(|source| ClusterFileError::Secret {
        path: path.to_owned(),
        source,
    })
}

fn text_of(table: &DeTable<'_>, name: &str) -> Result<String, String> {
    match table.get(name).map(|value| value.get_ref()) {
        Some(DeValue::String(text)) => Ok(text.to_string()),
        Some(_) => Err(format!("{name} is not a text in quotes")),
        None => Err(format!("there is no {name}")),
    }
}

fn number_of(table: &DeTable<'_>, name: &str) -> Result<u64, String> {
    match table.get(name).map(|value| value.get_ref()) {
        Some(DeValue::Integer(number)) if number.radix() == 10 => {
            let digits = number.as_str().replace('_', "");
            digits
                .parse()
                .map_err(|_| format!("{name} is out of range"))
        }
        Some(_) => Err(format!("{name} is not a number")),
        None => Err(format!("there is no {name}")),
    }
}

fn render(
    identity: Domain,
    first_token: FencingToken,
    mode: ClusterMode,
    nodes: &[NodeAddresses],
) -> String {
    let mode = mode.name();
    let mut text = format!(
        "# A Highwater cluster. This file is the same on all of its nodes.\n\
         identity = \"{identity}\"\n\
         first-token = {first_token}\n\
         peer-secret-file = \"peer.secret\"\n\
         mode = \"{mode}\"\n"
    );
    for (slot, node) in nodes.iter().enumerate() {
        let NodeAddresses { clients, peers } = node;
        text.push_str(&format!(
            "\n[[node]]\nslot = {slot}\nclients = {clients:?}\npeers = {peers:?}\n"
        ));
    }
    text
}

fn hex(bytes: &[u8]) -> String {
    let mut text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    text.push('\n');
    text
}

fn write_new(path: &Path, text: &str) -> Result<(), ClusterFileError> {
    let mut options = File::options();
    options.write(true).create_new(true);
    only_for_us(&mut options);
    let written = options.open(path).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.sync_all()
    });
    written.map_err(|source| unreadable(path, source))
}

#[cfg(unix)]
fn only_for_us(options: &mut fs::OpenOptions) {
    use std::os::unix::fs::OpenOptionsExt as _;
    options.mode(0o600);
}

#[cfg(not(unix))]
fn only_for_us(_options: &mut fs::OpenOptions) {}

fn unreadable(path: &Path, source: io::Error) -> ClusterFileError {
    ClusterFileError::Io {
        path: path.to_owned(),
        source,
    }
}

/// Why there is no cluster file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterFileError {
    /// A file cannot be read or written. See what the system says.
    #[error("{} cannot be read or written", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The file says something that cannot be. Correct it, on all nodes.
    #[error("{}: {reason}", path.display())]
    Wrong {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A peer secret is not one. Use the one that was made with the cluster, or a new one that all nodes have.
    #[error("{} holds no secret", path.display())]
    Secret {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: SecretError,
    },
    /// A peer secret is named twice, perhaps by two files that hold the same. Leave one of them out.
    #[error("{} holds a peer secret that is there already", path.display())]
    SecretTwice {
        /// The file that was read last.
        path: PathBuf,
    },
    /// Nobody needs so many peer secrets. Leave those out that no node proves any more.
    #[error("there are more than {} peer secrets", PeerSecrets::MOST)]
    TooManySecrets,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(number: u16) -> NodeAddresses {
        NodeAddresses {
            clients: format!("127.0.0.1:{}", 5000 + number),
            peers: format!("127.0.0.1:{}", 6000 + number),
        }
    }

    #[test]
    fn a_new_cluster_is_read_as_it_was_made_and_never_made_twice() {
        let folder = tempfile::tempdir().unwrap();
        let nodes = [node(0), node(1), node(2)];
        let new = ClusterFile::create(folder.path(), &nodes).unwrap();
        let file = ClusterFile::read(&new.file).unwrap();
        assert_eq!(file.identity(), new.identity);
        let read: Vec<_> = file.nodes().map(|(_, node)| node.clone()).collect();
        assert_eq!(read, nodes);
        let again = ClusterFile::create(folder.path(), &nodes);
        assert!(matches!(again, Err(ClusterFileError::Io { .. })));
        assert_eq!(file.mode(), ClusterMode::Durable);
        let other = tempfile::tempdir().unwrap();
        let volatile = ClusterMode::Volatile;
        let new = ClusterFile::create_as(volatile, other.path(), &nodes).unwrap();
        let other = ClusterFile::read(&new.file).unwrap();
        assert_eq!(other.mode(), volatile);
        // Nodes of the two modes are strangers.
        assert_ne!(other.common().len(), file.common().len());
    }

    #[test]
    fn what_cannot_be_a_cluster_is_refused_with_the_reason() {
        let domain = Domain::from_bytes([7; 32]);
        let refusal = |nodes: &[NodeAddresses]| {
            let text = render(domain, FencingToken::MIN, ClusterMode::Durable, nodes);
            parse(&text).err().unwrap_or_default()
        };
        assert_eq!(refusal(&[node(0), node(1), node(2)]), "");
        for count in [0, 1, 2, 4, 6] {
            let nodes: Vec<_> = (0..count).map(node).collect();
            assert!(!refusal(&nodes).is_empty(), "{count}");
        }
        let twice = refusal(&[node(0), node(1), node(1)]);
        assert_eq!(twice, "the address 127.0.0.1:5001 is there twice");
        let mut wrong = node(2);
        wrong.peers = "nowhere".to_owned();
        let wrong = refusal(&[node(0), node(1), wrong]);
        assert_eq!(wrong, "\"nowhere\" of slot 2 is not HOST:PORT");
        let nodes = [node(0), node(1), node(2)];
        let text = render(domain, FencingToken::MIN, ClusterMode::Volatile, &nodes);
        assert!(parse(&text.replace("slot = 2", "slot = 1")).is_err());
        let other = text.replace("\"volatile\"", "\"careless\"");
        assert_eq!(
            parse(&other).err().unwrap_or_default(),
            "mode is durable or volatile"
        );
    }

    #[test]
    fn several_peer_secrets_are_read_in_their_order_and_each_once() {
        let folder = tempfile::tempdir().unwrap();
        let new = ClusterFile::create(folder.path(), &[node(0), node(1), node(2)]).unwrap();
        let text = fs::read_to_string(&new.file).unwrap();
        let secret = |number: usize| format!("peer secret number {number}");
        for number in 0..=PeerSecrets::MOST {
            let path = folder.path().join(number.to_string());
            // White space does not belong to it.
            fs::write(path, format!("{}\n", secret(number))).unwrap();
        }
        fs::write(folder.path().join("again"), secret(1)).unwrap();
        let read = |files: &str| {
            let named = text.replace("\"peer.secret\"", files);
            assert_ne!(named, text);
            fs::write(&new.file, named).unwrap();
            ClusterFile::read(&new.file)
        };
        let secret = |number| Secret::new(secret(number)).unwrap();
        for (files, known, first) in [
            ("\"1\"", &[1][..], 1),
            ("[\"1\"]", &[1], 1),
            ("[\"2\", \"1\"]", &[1, 2], 2),
            ("[\"0\", \"1\", \"2\", \"3\"]", &[0, 1, 2, 3], 0),
        ] {
            let secrets = read(files).unwrap().peer_secrets().clone();
            let found = (0..=PeerSecrets::MOST).filter(|number| secrets.has(&secret(*number)));
            assert_eq!(found.collect::<Vec<_>>(), known, "{files}");
            let label: &[&[u8]] = &[b"first"];
            let proof = secrets.first().prove(label);
            assert_eq!(proof, secret(first).prove(label), "{files}");
        }
        for twice in ["[\"1\", \"0\", \"again\"]", "[\"again\", \"again\"]"] {
            let refused = read(twice).unwrap_err();
            let named = folder.path().join("again");
            let is_it =
                matches!(&refused, ClusterFileError::SecretTwice { path } if *path == named);
            assert!(is_it, "{refused}");
        }
        let many = read("[\"0\", \"1\", \"2\", \"3\", \"4\"]").unwrap_err();
        assert!(matches!(many, ClusterFileError::TooManySecrets), "{many}");
        for (wrong, reason) in [
            ("[]", "peer-secret-file names no file"),
            ("7", "peer-secret-file is not a text in quotes"),
            (
                "[\"1\", 7]",
                "peer-secret-file has something in it that is not a text in quotes",
            ),
        ] {
            let refused = read(wrong).unwrap_err().to_string();
            assert!(refused.ends_with(reason), "{refused}");
        }
        let missing = read("[\"1\", \"missing\"]").unwrap_err();
        assert!(matches!(missing, ClusterFileError::Io { .. }), "{missing}");
        let empty = folder.path().join("empty");
        fs::write(&empty, "").unwrap();
        let short = read("[\"1\", \"empty\"]").unwrap_err();
        assert!(matches!(short, ClusterFileError::Secret { path, .. } if path == empty));
    }
}
