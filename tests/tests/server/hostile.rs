//! Peers that send whatever they like: nobody else notices, and nothing stays behind.
//!
//! Every request is cut, stretched and bent at every place, in one burst and byte by byte. What
//! each comes to is worked out here from the table of lengths, not with the code under test.

use highwater_server::Server;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::wire::*;

/// One request of every opcode, with the length of its fixed fields and what stands behind them.
struct Sample {
    frame: Vec<u8>,
    fixed: usize,
    rest: Rest,
    longest: usize,
    /// The opcode of the answer to the whole frame.
    answer: char,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rest {
    /// A key of any length.
    Key,
    /// A count and as many keys.
    List,
    Nothing,
}

fn samples() -> Vec<Sample> {
    let sample = |frame, fixed, rest, longest, answer| Sample {
        frame,
        fixed,
        rest,
        longest,
        answer,
    };
    let two = ["free", "other"];
    vec![
        sample(acquire(7, 0, 60, "held"), 10, Rest::Key, 138, 'T'),
        sample(release(7, 9, "free"), 16, Rest::Key, 144, 'N'),
        sample(
            acquire_set(7, 0, 60, &["held", "hem"]),
            11,
            Rest::List,
            2_075,
            'T',
        ),
        sample(release_set(7, 9, &two), 17, Rest::List, 2_081, 'N'),
        sample(domain(7), 8, Rest::Nothing, 8, 'd'),
        sample(extend(7, 9, 5, &two), 21, Rest::List, 2_085, 'N'),
        sample(cancel(7, 9), 16, Rest::Nothing, 16, 'c'),
        sample(
            acquire_timed(7, 0, 5, &["held", "hem"]),
            17,
            Rest::List,
            2_081,
            'T',
        ),
        sample(acquire_slot(7, 0, 5, 1, "group"), 20, Rest::Key, 148, 'T'),
        sample(retain(7, 9, 5, &two), 21, Rest::List, 2_085, 'N'),
        sample(query(7, 1, "free"), 12, Rest::Key, 140, 'q'),
    ]
}

/// The frame with another length in its header.
fn with_length(frame: &[u8], length: usize) -> Vec<u8> {
    let length = u16::try_from(length).expect("a length of a frame");
    let mut bent = frame.to_vec();
    bent[1..3].copy_from_slice(&length.to_be_bytes());
    bent
}

/// What one sent piece must come to.
#[derive(Debug)]
enum Fate {
    /// One of these answers, and the connection goes on.
    Answered(&'static str),
    /// The connection ends without an answer.
    Ends,
    /// Nothing, for as long as nothing more comes.
    Waits,
}

struct Attack {
    name: String,
    bytes: Vec<u8>,
    fate: Fate,
}

fn attacks() -> Vec<Attack> {
    let mut attacks = Vec::new();
    let mut attack = |name: String, bytes: Vec<u8>, fate| {
        attacks.push(Attack { name, bytes, fate });
    };
    for sample in samples() {
        let opcode = char::from(sample.frame[0]);
        let body = sample.frame.len() - 3;
        // Cut off anywhere.
        for end in 1..sample.frame.len() {
            let cut = sample.frame[..end].to_vec();
            attack(format!("{opcode} cut at {end}"), cut, Fate::Waits);
        }
        // Cut off anywhere, with a length that says so.
        for length in 0..body {
            let bytes = with_length(&sample.frame[..3 + length], length);
            let fate = match sample.rest {
                _ if length < sample.fixed => Fate::Ends,
                Rest::Key if length == sample.fixed => Fate::Answered("E"),
                // A shorter name, which nobody has.
                Rest::Key => Fate::Answered("ANnq"),
                Rest::List | Rest::Nothing => Fate::Ends,
            };
            attack(format!("{opcode} of {length} bytes"), bytes, fate);
        }
        // One byte too many behind it.
        let mut longer = with_length(&sample.frame, body + 1);
        longer.push(b'k');
        let fate = match sample.rest {
            Rest::Key => Fate::Answered("ANnq"),
            Rest::List | Rest::Nothing => Fate::Ends,
        };
        attack(format!("{opcode} and a byte"), longer, fate);
        // A length that no body of it can have is enough to end it.
        for length in [sample.longest + 1, 0x7fff, 0xffff] {
            let header = with_length(&sample.frame[..3], length);
            attack(format!("{opcode} of {length} bytes"), header, Fate::Ends);
        }
        // The longest length there is, and never all of its bytes.
        let mut endless = with_length(&sample.frame, sample.longest);
        if sample.longest > body {
            endless.resize(3 + sample.longest - 1, b'k');
            attack(format!("{opcode} without an end"), endless, Fate::Waits);
        }
        let mut zero = sample.frame.clone();
        zero[3..11].fill(0);
        attack(format!("{opcode} with id 0"), zero, Fate::Ends);
        if sample.rest != Rest::Nothing {
            let mut not_utf8 = sample.frame.clone();
            *not_utf8.last_mut().expect("a key") = 0xc3;
            attack(format!("{opcode} without UTF-8"), not_utf8, Fate::Ends);
        }
        if sample.rest == Rest::List {
            for count in [0, 1, 3, 255] {
                let mut other = sample.frame.clone();
                other[2 + sample.fixed] = count;
                attack(format!("{opcode} of {count} keys"), other, Fate::Ends);
            }
            let mut overlong = sample.frame.clone();
            overlong[3 + sample.fixed] = 255;
            attack(
                format!("{opcode} with a key beyond it"),
                overlong,
                Fate::Ends,
            );
        }
        let whole = sample.frame.clone();
        // One of each kind of answer, so that the samples are what they should be.
        let fate = match sample.answer {
            'T' => Fate::Answered("T"),
            'N' => Fate::Answered("N"),
            'd' => Fate::Answered("d"),
            'c' => Fate::Answered("c"),
            _ => Fate::Answered("q"),
        };
        attack(format!("{opcode} whole"), whole, fate);
    }
    for opcode in (0..=u8::MAX).filter(|byte| !b"ARSGdxcanhq".contains(byte)) {
        attack(format!("opcode {opcode}"), vec![opcode], Fate::Ends);
    }
    attacks
}

/// A client like any other, which works all the time and must not notice anything.
struct Bystander {
    stop: oneshot::Sender<()>,
    rounds: JoinHandle<u64>,
}

impl Bystander {
    async fn start(server: &Server) -> Self {
        let mut wire = Wire::open(server).await;
        let (stop, mut stopped) = oneshot::channel();
        let rounds = tokio::spawn(async move {
            let mut rounds = 0;
            let mut last = 0;
            while stopped.try_recv().is_err() {
                let token = wire.take(1, "bystander").await;
                assert!(token > last, "{token} after {last}");
                last = token;
                wire.expect(&release(2, token, "bystander"), released(2))
                    .await;
                rounds += 1;
                tokio::task::yield_now().await;
            }
            rounds
        });
        Self { stop, rounds }
    }

    async fn stop(self) -> u64 {
        let _ = self.stop.send(());
        within(self.rounds).await.expect("nothing went wrong")
    }
}

/// A server where `held` and the only slot of `group` are somebody's.
async fn target() -> (Server, Wire) {
    let server = counted_server_with(|_| {}).await;
    let mut holder = Wire::open(&server).await;
    holder.take(1, "held").await;
    let request = acquire_slot(2, 0, 600_000, 1, "group");
    holder.ask(&request).await.timed('n', 2);
    (server, holder)
}

#[derive(Clone, Copy)]
enum Pace {
    Burst,
    ByteByByte,
}

async fn run(pace: Pace) {
    let (server, holder) = target().await;
    let bystander = Bystander::start(&server).await;
    let attacks = attacks();
    println!("{} attacks", attacks.len());
    let all = attacks.len() as u64;
    let ends = attacks
        .iter()
        .filter(|attack| matches!(attack.fate, Fate::Ends));
    let ends = ends.count() as u64;
    for Attack { name, bytes, fate } in attacks {
        let mut wire = Wire::open(&server).await;
        match pace {
            Pace::Burst => {
                // In one piece with something good before it, which is still served.
                let sent = [release(1, 7, "free"), bytes].concat();
                wire.send(&sent).await;
                assert_eq!(wire.answer().await, not_held(1), "{name}");
            }
            Pace::ByteByByte => {
                for byte in bytes {
                    use tokio::io::AsyncWriteExt as _;
                    // The server may have closed before the last one.
                    if wire.stream.write_all(&[byte]).await.is_err() {
                        break;
                    }
                }
            }
        }
        match fate {
            Fate::Answered(opcodes) => {
                let answer = wire.answer().await;
                assert!(opcodes.contains(answer.opcode), "{name}: {answer:?}");
                assert_eq!(answer.id, 7, "{name}");
                let token = match answer.opcode {
                    'A' | 'n' => u64::from_be_bytes(answer.rest[..8].try_into().expect("8")),
                    _ => 0,
                };
                assert_eq!(wire.ask(&domain(8)).await.opcode, 'd', "{name}");
                // The names are short and come again.
                if token > 0 {
                    let names = [
                        "h", "he", "hel", "heldk", "g", "gr", "gro", "grou", "groupk",
                    ];
                    for name in names {
                        wire.ask(&release(9, token, name)).await;
                    }
                }
            }
            Fate::Ends => {
                // After a close with bytes unread, the end may come as a reset.
                assert_eq!(wire.answers_until_end().await, [], "{name}");
            }
            Fate::Waits => {
                use tokio::io::AsyncWriteExt as _;
                let _ = wire.stream.shutdown().await;
                assert_eq!(wire.answers_until_end().await, [], "{name}");
            }
        }
    }
    // Nothing is left of any of them.
    eventually(|| server.counts().connections == 2).await;
    let rounds = bystander.stop().await;
    assert!(rounds > 0, "the bystander worked meanwhile");
    println!("the bystander had {rounds} rounds");
    eventually(|| server.counts().connections == 1).await;
    // Each end is counted by its reason; the bystander closed its own.
    eventually_counted(
        &server,
        r#"connections_closed_total{reason="malformed"}"#,
        ends,
    )
    .await;
    let by_peer = all - ends + 1;
    eventually_counted(
        &server,
        r#"connections_closed_total{reason="by_peer"}"#,
        by_peer,
    )
    .await;
    assert_eq!(counter(&server, "connections").await, 1);
    assert_eq!(server.counts().waiters, 0);
    assert_eq!(server.counts().held_keys, 2);
    drop(holder);
}

#[tokio::test]
async fn frames_that_are_cut_stretched_or_bent_in_one_burst() {
    run(Pace::Burst).await;
}

#[tokio::test]
async fn frames_that_are_cut_stretched_or_bent_byte_by_byte() {
    run(Pace::ByteByByte).await;
}

/// Splitmix64.
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

#[tokio::test]
async fn noise_before_and_after_the_challenge() {
    let seed = 20_240_611;
    println!("seed {seed}");
    let mut state = seed;
    let (server, holder) = target().await;
    let bystander = Bystander::start(&server).await;
    for round in 0..300 {
        let length = random(&mut state) % 3_000;
        let mut bytes: Vec<u8> = (0..length).map(|_| random(&mut state) as u8).collect();
        let mut wire = if round % 2 == 0 {
            // Something that looks like the beginning of a frame more often than by chance.
            if let Some(first) = bytes.first_mut() {
                *first = b"ARSGdxcanhq"[*first as usize % 11];
            }
            Wire::open(&server).await
        } else {
            Wire::dial(server.local_addr()).await
        };
        use tokio::io::AsyncWriteExt as _;
        let _ = within(wire.stream.write_all(&bytes)).await;
        let _ = within(wire.stream.shutdown()).await;
        let mut rest = Vec::new();
        let _ = within(tokio::io::AsyncReadExt::read_to_end(
            &mut wire.stream,
            &mut rest,
        ))
        .await;
    }
    eventually(|| server.counts().connections == 2).await;
    assert!(bystander.stop().await > 0);
    eventually(|| server.counts().connections == 1).await;
    assert_eq!((server.counts().waiters, server.counts().held_keys), (0, 2));
    drop(holder);
}

/// Each combination of two requests on one id: the second one while the first is queued.
#[tokio::test]
async fn every_request_on_an_id_that_is_in_use_ends_the_connection() {
    let (server, holder) = target().await;
    let bystander = Bystander::start(&server).await;
    let queueing = [
        acquire(7, 60, 60, "held"),
        acquire_set(7, 60, 60, &["held", "hem"]),
        acquire_timed(7, 60_000, 5, &["held"]),
        acquire_slot(7, 60_000, 5, 1, "group"),
    ];
    let refused = [
        acquire(7, 0, 0, "free"),
        extend(7, 0, 5, &["free"]),
        acquire_slot(7, 0, 5, 0, "free"),
    ];
    let mut pairs = 0;
    for first in &queueing {
        let second = samples().into_iter().map(|sample| sample.frame);
        for second in second.chain(queueing.clone()).chain(refused.clone()) {
            let mut wire = Wire::open(&server).await;
            wire.send(&[first.clone(), second].concat()).await;
            wire.expect_end().await;
            eventually(|| server.counts().waiters == 0).await;
            pairs += 1;
        }
    }
    println!("{pairs} pairs");
    eventually_counted(
        &server,
        r#"connections_closed_total{reason="id_in_use"}"#,
        pairs,
    )
    .await;
    assert!(bystander.stop().await > 0);
    assert_eq!(server.counts().held_keys, 2);
    drop(holder);
}
