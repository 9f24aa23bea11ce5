//! A cluster of three nodes that do what a test says. Clients of clusters have no dialer, so these are
//! reached over the loopback interface, in real time.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use highwater_client::{Client, Domain, Key, KeyState, KeyStatus};
use highwater_protocol::handshake::Slot;
use highwater_protocol::{Reply, Request, RequestNumber};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::fake::{Event, Manners, PATIENCE, Peer, serve};
use crate::{domain, token};

pub(crate) struct Nodes {
    addresses: Vec<SocketAddr>,
    /// Who accepts and closes.
    down: Vec<Arc<AtomicBool>>,
    events: mpsc::UnboundedReceiver<(usize, Event)>,
    /// The last connection to each.
    peers: Vec<Option<Peer>>,
}

fn slot(index: usize) -> Slot {
    Slot::new(u8::try_from(index).unwrap()).unwrap()
}

/// "Another node leads."
pub(crate) fn moved(id: RequestNumber, leader: usize) -> Reply {
    let leader = Some(slot(leader));
    Reply::Moved { id, leader }
}

/// What a node says, without being asked, of who leads.
pub(crate) fn leads(leader: usize) -> Reply {
    let leader = Some(slot(leader));
    Reply::Leader { leader }
}

/// What a key is like: held under this token, or free.
pub(crate) fn status(id: RequestNumber, holder: Option<u64>) -> Reply {
    let state = match holder {
        None => KeyState::Free,
        Some(number) => KeyState::Held {
            token: token(number),
            slot: 0,
            remaining_ms: 5_000,
        },
    };
    let status = KeyStatus {
        state,
        waiters: 0,
        slots: None,
        taken: u32::from(holder.is_some()),
    };
    Reply::Status { id, status }
}

impl Nodes {
    /// And a client that is connected to all of them and asks this one.
    pub(crate) async fn led_by(leader: usize) -> (Self, Client) {
        let identity = domain(9);
        let (sender, events) = mpsc::unbounded_channel();
        let mut nodes = Self {
            addresses: Vec::new(),
            down: Vec::new(),
            events,
            peers: vec![None; 3],
        };
        let numbers = Arc::new(AtomicUsize::new(0));
        for index in 0..3 {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            nodes.addresses.push(listener.local_addr().unwrap());
            let down = Arc::new(AtomicBool::new(false));
            nodes.down.push(Arc::clone(&down));
            let (numbers, all) = (Arc::clone(&numbers), sender.clone());
            tokio::spawn(node(listener, index, identity, down, numbers, all));
        }
        let client = Client::cluster(&nodes.addresses, identity).connect().await;
        let client = client.unwrap();
        while nodes.peers.iter().any(Option::is_none) {
            match nodes.event().await {
                (_, Event::Opened(_)) => {}
                _ => panic!("nobody has asked for anything"),
            }
        }
        nodes.question(&client, Some(leader)).await;
        (nodes, client)
    }

    async fn event(&mut self) -> (usize, Event) {
        let (at, event) = self.events.recv().await.unwrap();
        match &event {
            Event::Opened(peer) => self.peers[at] = Some(peer.clone()),
            Event::Closed(number) => {
                self.peers[at].take_if(|peer| peer.number == *number);
            }
            Event::Request(..) => {}
        }
        (at, event)
    }

    /// The next request at any node, however long it takes.
    pub(crate) async fn request_in_peace(&mut self) -> (usize, Peer, Request) {
        loop {
            if let (at, Event::Request(peer, request)) = self.event().await {
                return (at, peer, request);
            }
        }
    }

    /// The next request at any node, which must come.
    pub(crate) async fn request(&mut self) -> (usize, Peer, Request) {
        let request = timeout(PATIENCE, self.request_in_peace()).await;
        request.expect("nobody asks")
    }

    /// Has the client ask something; which node it asks. This says before its answer who leads: then the
    /// client has heard it. Nothing else may be asked meanwhile.
    pub(crate) async fn question(&mut self, client: &Client, leader: Option<usize>) -> usize {
        let client = client.clone();
        let asking = tokio::spawn(async move { client.query(&Key::new("who").unwrap()).await });
        let (at, peer, request) = self.request().await;
        assert!(matches!(request, Request::Query { .. }), "{request:?}");
        if let Some(leader) = leader {
            peer.reply(leads(leader));
        }
        peer.reply(status(request.id(), None));
        asking.await.unwrap().unwrap();
        at
    }

    /// This node closes every connection, from now on or no more.
    pub(crate) fn down(&mut self, node: usize, is_down: bool) {
        self.down[node].store(is_down, Ordering::SeqCst);
        if is_down && let Some(peer) = self.peers[node].take() {
            peer.close();
        }
    }
}

/// Lets clients in, each connection with a number of its own.
async fn node(
    listener: TcpListener,
    index: usize,
    identity: Domain,
    down: Arc<AtomicBool>,
    numbers: Arc<AtomicUsize>,
    all: mpsc::UnboundedSender<(usize, Event)>,
) {
    while let Ok((stream, _)) = listener.accept().await {
        if down.load(Ordering::SeqCst) {
            continue;
        }
        let number = numbers.fetch_add(1, Ordering::SeqCst);
        let (events, mut told) = mpsc::unbounded_channel();
        let manners = Manners::Node(identity, u8::try_from(index).unwrap());
        tokio::spawn(async move {
            if serve(stream, (manners, None), number, &events)
                .await
                .is_some()
            {
                let _ = events.send(Event::Closed(number));
            }
        });
        let all = all.clone();
        tokio::spawn(async move {
            while let Some(event) = told.recv().await {
                let _ = all.send((index, event));
            }
        });
    }
}
