//! `highwater serve` is killed at random instants, some hundred times, while clients take locks:
//! tokens go up over all starts, and the domain stays.
//!
//! What a loss of power does is tested on a model of the disk, in the server's own tests.
#![cfg(unix)]

mod serving;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use highwater_protocol::Secret;
use highwater_protocol::handshake::{Challenge, Node};

use self::serving::highwater;

/// Servers that are started and killed side by side, each on a directory of its own.
const SERVERS: u64 = 3;
const KILLS: usize = 80;
const CLIENTS: u64 = 3;
/// Acquires in one batch of a client.
const BATCH: u64 = 8;

#[test]
fn tokens_go_up_and_the_domain_stays_wherever_the_server_is_killed() {
    let seed = match std::env::var("HIGHWATER_TEST_SEED") {
        Ok(seed) => seed.parse().expect("a number"),
        Err(_) => u64::from(std::process::id()) << 20,
    };
    println!("HIGHWATER_TEST_SEED={seed}");
    let began = Instant::now();
    let servers: Vec<_> = (0..SERVERS)
        .map(|server| thread::spawn(move || torment(seed.wrapping_add(server))))
        .collect();
    let mut tokens = 0;
    for server in servers {
        tokens += server.join().expect("a server kept its promises");
    }
    println!(
        "{} kills, {tokens} tokens, {:?}",
        SERVERS as usize * KILLS,
        began.elapsed()
    );
    assert!(tokens > 1_000, "hardly anything was given out: {tokens}");
}

/// Starts and kills one server again and again; how many tokens its clients got.
fn torment(seed: u64) -> usize {
    let mut dice = Dice(seed);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("data");
    let mut domain = None;
    let (mut highest, mut total) = (0, 0);
    for start in 0..KILLS {
        let mut server = Killed::start(&path);
        let mut tokens = Vec::new();
        if dice.below(4) == 0 {
            // Perhaps before it has started.
            thread::sleep(Duration::from_micros(dice.below(30_000)));
            server.kill();
        } else if let Some((address, _)) = server.line() {
            let clients: Vec<_> = (0..CLIENTS)
                .map(|_| {
                    let seed = dice.next();
                    thread::spawn(move || client(address, seed))
                })
                .collect();
            thread::sleep(Duration::from_micros(dice.below(60_000)));
            server.kill();
            for client in clients {
                let got = client.join().expect("a client ends with its server");
                assert!(got.is_sorted_by(|one, next| one < next), "seed {seed}");
                tokens.extend(got);
            }
        } else {
            panic!("seed {seed}: start {start} was refused: {}", server.log());
        }
        if let Some((_, now)) = server.line() {
            let known = domain.get_or_insert_with(|| now.clone());
            assert_eq!(*known, now, "seed {seed}: start {start} is another domain");
        }
        tokens.sort_unstable();
        let all = tokens.len();
        tokens.dedup();
        assert_eq!(tokens.len(), all, "seed {seed}: a token came twice");
        if let (Some(lowest), Some(last)) = (tokens.first(), tokens.last()) {
            assert!(
                *lowest > highest,
                "seed {seed}: start {start} gave out {lowest}, {highest} was given out before"
            );
            highest = *last;
        }
        total += all;
    }
    total
}

/// Takes and gives back locks until the server is gone; the tokens in the order of arrival.
fn client(address: SocketAddr, seed: u64) -> Vec<u64> {
    let mut tokens = Vec::new();
    // The end of the server is the end of the client.
    let _ = take_locks(address, &mut Dice(seed), &mut tokens);
    tokens
}

fn take_locks(address: SocketAddr, dice: &mut Dice, tokens: &mut Vec<u64>) -> std::io::Result<()> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    let mut hello = [0; 28];
    stream.read_exact(&mut hello)?;
    let challenge = Challenge::from_hello(&hello, Node::Single).expect("a hello");
    stream.write_all(&challenge.answer(&Secret::no_auth()))?;
    stream.read_exact(&mut [0])?;
    let name = dice.next();
    loop {
        let mut batch = Vec::new();
        for id in 1..=BATCH {
            // Now and then a lease that is longer than all before.
            let lease = match dice.below(10) {
                0 => u8::try_from(1 + dice.below(250)).expect("up to 250"),
                _ => 1,
            };
            let key = format!("{name}/{id}");
            let mut body = id.to_be_bytes().to_vec();
            body.extend([5, lease]);
            body.extend(key.as_bytes());
            batch.extend(frame(b'A', &body));
        }
        stream.write_all(&batch)?;
        let mut releases = Vec::new();
        for _ in 0..BATCH {
            let (opcode, body) = reply(&mut stream)?;
            assert_eq!(opcode, b'A', "not granted: {body:?}");
            let id = u64::from_be_bytes(body[..8].try_into().expect("an id"));
            tokens.push(u64::from_be_bytes(body[8..].try_into().expect("a token")));
            let mut release = id.to_be_bytes().to_vec();
            release.extend(&body[8..]);
            release.extend(format!("{name}/{id}").as_bytes());
            releases.extend(frame(b'R', &release));
        }
        stream.write_all(&releases)?;
        for _ in 0..BATCH {
            assert_eq!(reply(&mut stream)?.0, b'R');
        }
    }
}

fn frame(opcode: u8, body: &[u8]) -> Vec<u8> {
    let length = u16::try_from(body.len()).expect("a short body");
    let mut frame = vec![opcode];
    frame.extend(length.to_be_bytes());
    frame.extend(body);
    frame
}

fn reply(stream: &mut TcpStream) -> std::io::Result<(u8, Vec<u8>)> {
    let mut header = [0; 3];
    stream.read_exact(&mut header)?;
    let mut body = vec![0; usize::from(u16::from_be_bytes([header[1], header[2]]))];
    stream.read_exact(&mut body)?;
    Ok((header[0], body))
}

/// A server that does not live long.
struct Killed {
    process: Child,
    line: Option<Option<(SocketAddr, String)>>,
}

impl Killed {
    fn start(path: &Path) -> Self {
        let mut command = highwater(&["serve", "--no-auth", "--listen", "127.0.0.1:0"]);
        // Small blocks, so that it writes all the time; and no old leases to wait for.
        command.args(["--token-block", "40", "--after-restart", "trust-fencing"]);
        command.arg("--data-dir").arg(path);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Self {
            process: command.spawn().expect("starts"),
            line: None,
        }
    }

    /// Where it listens and its domain, or `None` if it ended before it said so.
    fn line(&mut self) -> Option<(SocketAddr, String)> {
        let stdout = &mut self.process.stdout;
        let read = || {
            let mut line = String::new();
            BufReader::new(stdout.take()?).read_line(&mut line).ok()?;
            let words: Vec<&str> = line.split_whitespace().collect();
            match words.as_slice() {
                [.., "on", address, "domain", domain] if line.ends_with('\n') => {
                    Some((address.parse().ok()?, (*domain).to_owned()))
                }
                _ => None,
            }
        };
        self.line.get_or_insert_with(read).clone()
    }

    fn kill(&mut self) {
        self.process.kill().expect("a process of ours");
        self.process.wait().expect("a process of ours");
    }

    fn log(&mut self) -> String {
        let mut log = String::new();
        if let Some(stderr) = &mut self.process.stderr {
            let _ = stderr.read_to_string(&mut log);
        }
        log
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// splitmix64, see Steele, Lea and Flood (2014).
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}
