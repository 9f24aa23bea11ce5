//! One connection of a client that speaks the bytes and decides nothing.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use highwater_history::Event;
use highwater_protocol::handshake::{ACCEPTED, Challenge, HELLO_BYTES, Node, Slot};
use highwater_protocol::{Reply, ReplyDecoder, Request, RequestNumber, Secret};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::Failure;
use crate::record::Recorder;

/// Who waits for which answer. Taken away when the connection has ended.
type Waiting = Arc<Mutex<Option<HashMap<u64, oneshot::Sender<Reply>>>>>;

/// See the module's description.
#[derive(Debug)]
pub(crate) struct Connection {
    /// Its number in the history.
    pub(crate) number: u64,
    writer: OwnedWriteHalf,
    waiting: Waiting,
    requests: u64,
    reader: JoinHandle<()>,
    recorder: Arc<Recorder>,
}

/// What a client has to know of a cluster.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) identity: [u8; 32],
    pub(crate) secret: Secret,
}

/// Which slot leads, as far as somebody has said: shared by the connections of one client.
#[derive(Debug, Default)]
pub(crate) struct Leader(AtomicU8);

impl Leader {
    pub(crate) fn get(&self) -> u8 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn set(&self, slot: u8) {
        self.0.store(slot, Ordering::Relaxed);
    }
}

impl Connection {
    /// Connects to a slot and proves the secret.
    pub(crate) async fn open(
        access: &Access,
        slot: u8,
        leader: &Arc<Leader>,
        recorder: &Arc<Recorder>,
    ) -> Result<Self, Failure> {
        let address = access.addresses[usize::from(slot)];
        let mut stream = timeout(SET_UP, TcpStream::connect(address)).await??;
        stream.set_nodelay(true)?;
        timeout(SET_UP, introduce(&mut stream, access, slot)).await??;
        let (read, writer) = stream.into_split();
        let waiting: Waiting = Arc::new(Mutex::new(Some(HashMap::new())));
        let number = recorder.connection();
        let reader = {
            let (waiting, leader) = (Arc::clone(&waiting), Arc::clone(leader));
            tokio::spawn(async move {
                listen(read, &waiting, &leader).await;
                // Whoever waits hears that nothing comes any more.
                waiting.lock().expect("nobody panics here").take();
            })
        };
        Ok(Self {
            number,
            writer,
            waiting,
            requests: 0,
            reader,
            recorder: Arc::clone(recorder),
        })
    }

    /// Whether it still works, as far as this side knows.
    pub(crate) fn is_open(&self) -> bool {
        self.waiting.lock().expect("nobody panics here").is_some()
    }

    /// Sends a request. Its answer comes later, or the sender goes away.
    pub(crate) async fn send(
        &mut self,
        make: impl FnOnce(RequestNumber) -> Request,
    ) -> (RequestNumber, oneshot::Receiver<Reply>) {
        self.requests += 1;
        let id = RequestNumber::new(self.requests).expect("counted from one");
        let (tell, told) = oneshot::channel();
        if let Some(waiting) = &mut *self.waiting.lock().expect("nobody panics here") {
            waiting.insert(id.get(), tell);
        }
        let mut bytes = Vec::new();
        make(id).encode(&mut bytes);
        let written = timeout(SET_UP, self.writer.write_all(&bytes)).await;
        if !matches!(written, Ok(Ok(()))) {
            // Part of it may have left.
            self.waiting.lock().expect("nobody panics here").take();
        }
        (id, told)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.reader.abort();
        self.recorder.push(Event::ConnectionEnded {
            connection: self.number,
        });
    }
}

async fn introduce(stream: &mut TcpStream, access: &Access, slot: u8) -> Result<(), Failure> {
    let mut hello = [0; HELLO_BYTES];
    stream.read_exact(&mut hello).await?;
    let slot = Slot::new(slot).ok_or("not a slot")?;
    let identity = access.identity;
    let challenge = Challenge::from_hello(&hello, Node::Cluster { identity, slot })?;
    stream.write_all(&challenge.answer(&access.secret)).await?;
    match stream.read_u8().await? {
        ACCEPTED => Ok(()),
        _ => Err("the node refuses the token".into()),
    }
}

async fn listen(mut read: OwnedReadHalf, waiting: &Waiting, leader: &Leader) {
    let mut decoder = ReplyDecoder::new();
    let mut buffer = [0; 4096];
    loop {
        let Ok(count @ 1..) = read.read(&mut buffer).await else {
            return;
        };
        let mut chunk = &buffer[..count];
        loop {
            let reply = match decoder.next(&mut chunk) {
                Ok(Some(reply)) => reply,
                Ok(None) => break,
                Err(_) => return,
            };
            if let Reply::Leader { leader: Some(slot) } = reply {
                leader.set(slot.get());
            }
            let Some(id) = reply.id() else { continue };
            let mut waiting = waiting.lock().expect("nobody panics here");
            let Some(waiting) = &mut *waiting else { return };
            if let Some(tell) = waiting.remove(&id.get()) {
                // It may have given up.
                let _ = tell.send(reply);
            }
        }
    }
}

/// How long a node may take to let a client in, or to take its bytes.
const SET_UP: Duration = Duration::from_millis(800);
