//! What the corpora begin with: every frame, and each with one thing wrong.
//!
//! The bytes are put together here from the tables of the protocol, not by the code under test.

use highwater_protocol::Secret;
use highwater_protocol::handshake::{Challenge, Node, Nonce, Slot};

type Inputs = Vec<(String, Vec<u8>)>;

const ID: [u8; 8] = 0x0102_0304_0506_0708_u64.to_be_bytes();
const TOKEN: [u8; 8] = 0x2a_u64.to_be_bytes();
const SPAN: [u8; 4] = 1_500_u32.to_be_bytes();
const SLOTS: [u8; 4] = 5_u32.to_be_bytes();
const TWO_KEYS: &[u8] = b"\x02\x01a\x05sku/1";

fn written(opcode: u8, parts: &[&[u8]]) -> Vec<u8> {
    let body = parts.concat();
    let length = u16::try_from(body.len()).unwrap().to_be_bytes();
    [&[opcode], &length[..], &body].concat()
}

/// 16 keys of 128 bytes, in order.
fn longest_set() -> Vec<u8> {
    let keys = (b'a'..b'a' + 16).map(|first| [vec![128, first], vec![b'x'; 127]].concat());
    [vec![16], keys.collect::<Vec<_>>().concat()].concat()
}

fn requests() -> Inputs {
    let set = longest_set();
    let frames: &[(&str, u8, &[&[u8]])] = &[
        ("acquire", b'A', &[&ID, &[5, 30], b"sku"]),
        ("acquire-longest", b'A', &[&ID, &[255, 250], &[b'k'; 128]]),
        ("acquire-set", b'S', &[&ID, &[0, 1], TWO_KEYS]),
        ("acquire-longest-set", b'S', &[&ID, &[0, 1], &set]),
        ("release", b'R', &[&ID, &TOKEN, b"sku"]),
        ("release-set", b'G', &[&ID, &TOKEN, TWO_KEYS]),
        ("domain", b'd', &[&ID]),
        ("extend", b'x', &[&ID, &TOKEN, &SPAN, TWO_KEYS]),
        ("extend-longest-set", b'x', &[&ID, &TOKEN, &SPAN, &set]),
        ("cancel", b'c', &[&ID, &TOKEN]),
        ("acquire-timed", b'a', &[&ID, &SPAN, &SPAN, TWO_KEYS]),
        ("acquire-slot", b'n', &[&ID, &SPAN, &SPAN, &SLOTS, b"pool"]),
        ("retain", b'h', &[&ID, &TOKEN, &SPAN, TWO_KEYS]),
        ("query", b'q', &[&ID, &SLOTS, b"pool"]),
    ];
    named(frames)
}

fn replies() -> Inputs {
    let frames: &[(&str, u8, &[&[u8]])] = &[
        ("granted", b'A', &[&ID, &TOKEN]),
        ("granted-set", b'S', &[&ID, &TOKEN]),
        ("released", b'R', &[&ID]),
        ("not-held", b'N', &[&ID]),
        ("timed-out", b'T', &[&ID]),
        ("busy", b'B', &[&ID]),
        ("moved", b'M', &[&ID, &[4]]),
        ("indeterminate", b'I', &[&ID]),
        ("error", b'E', &[&ID, &[6]]),
        ("leader", b'L', &[&[255]]),
        ("domain-is", b'd', &[&ID, &[7; 32], &[0xff; 4]]),
        ("extended", b'x', &[&ID, &SPAN]),
        ("cancelled", b'c', &[&ID, &[1]]),
        ("granted-timed", b'a', &[&ID, &TOKEN, &SPAN]),
        ("granted-slot", b'n', &[&ID, &TOKEN, &SPAN, &SLOTS]),
        ("retained", b'h', &[&ID]),
        (
            "status",
            b'q',
            &[&ID, &[1], &SLOTS, &TOKEN, &SPAN, &SPAN, &SLOTS, &SLOTS],
        ),
        (
            "status-free",
            b'q',
            &[
                &ID,
                &[0],
                &[0; 4],
                &[0; 8],
                &[0; 4],
                &[0; 4],
                &[0; 4],
                &[0; 4],
            ],
        ),
    ];
    named(frames)
}

fn named(frames: &[(&str, u8, &[&[u8]])]) -> Inputs {
    let frames = frames.iter();
    frames
        .map(|(name, opcode, parts)| ((*name).to_owned(), written(*opcode, parts)))
        .collect()
}

/// A frame with one thing wrong, by a name for that.
fn wrong(frame: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    let with_length = |difference: i32, frame: &[u8]| {
        let mut frame = frame.to_vec();
        let length = i32::from(u16::from_be_bytes([frame[1], frame[2]])) + difference;
        frame[1..3].copy_from_slice(&u16::try_from(length).unwrap().to_be_bytes());
        frame
    };
    let (whole, cut) = (frame, &frame[..frame.len() - 1]);
    let longer = [frame, b"\0"].concat();
    let mut huge = frame.to_vec();
    huge[1..3].fill(0xff);
    let mut no_id = frame.to_vec();
    no_id[3..11].fill(0);
    vec![
        ("unfinished", cut.to_vec()),
        ("cut", with_length(-1, cut)),
        ("longer", with_length(1, &longer)),
        ("short-length", with_length(-1, whole)),
        ("huge", huge),
        ("zero-id", no_id),
    ]
}

/// Requests that can be followed and ask for nonsense.
fn refused() -> Inputs {
    let frames: &[(&str, u8, &[&[u8]])] = &[
        ("refused-key", b'A', &[&ID, &[5, 30], b"a b"]),
        ("refused-utf8", b'A', &[&ID, &[5, 30], b"\xff\xfe"]),
        ("refused-lease", b'A', &[&ID, &[5, 251], b"sku"]),
        ("refused-order", b'S', &[&ID, &[5, 30], b"\x02\x01b\x01a"]),
        ("refused-twice", b'S', &[&ID, &[5, 30], b"\x02\x01a\x01a"]),
        ("refused-one", b'S', &[&ID, &[5, 30], b"\x01\x01a"]),
        (
            "refused-many",
            b'S',
            &[&ID, &[5, 30], b"\x11", &b"\x01a".repeat(17)],
        ),
        ("refused-empty", b'G', &[&ID, &TOKEN, b"\x02\0\x01a"]),
        ("refused-token", b'R', &[&ID, &[0; 8], b"sku"]),
        ("refused-none", b'x', &[&ID, &TOKEN, &SPAN, b"\0"]),
        ("refused-span", b'h', &[&ID, &TOKEN, &[0xff; 4], TWO_KEYS]),
        (
            "refused-slots",
            b'n',
            &[&ID, &SPAN, &SPAN, &[0; 4], b"pool"],
        ),
    ];
    named(frames)
}

pub(crate) fn message() -> Inputs {
    let mut inputs = [requests(), replies(), refused()].concat();
    for (name, frame) in requests()
        .into_iter()
        .filter(|(name, _)| !name.contains("longest"))
    {
        for (what, bytes) in wrong(&frame) {
            inputs.push((format!("{name}-{what}"), bytes));
        }
    }
    inputs
}

pub(crate) fn frame() -> Inputs {
    let stream = |frames: Inputs| {
        frames
            .into_iter()
            .map(|(_, frame)| frame)
            .collect::<Vec<_>>()
    };
    let requests = stream(requests()).concat();
    let replies = stream(replies()).concat();
    let refused = stream(refused()).concat();
    let mut inputs = Inputs::new();
    for (name, bytes) in [
        ("requests", &requests),
        ("replies", &replies),
        ("refused", &refused),
    ] {
        for cut in [0, 2, 39] {
            inputs.push((format!("{name}-{cut}"), [&[cut], &**bytes].concat()));
        }
    }
    for (what, frame) in wrong(&written(b'A', &[&ID, &[5, 30], b"sku"])) {
        for cut in [0, 12] {
            let bytes = [&[cut], &refused[..40], &*frame, &refused].concat();
            inputs.push((format!("{what}-{cut}"), bytes));
        }
    }
    for opcode in [0, b' ', b'Z', 0xff] {
        inputs.push((format!("opcode-{opcode}"), vec![3, opcode, 0, 8]));
    }
    inputs
}

pub(crate) fn handshake() -> Inputs {
    let slot = |number| Slot::new(number).unwrap();
    let nodes = [
        ("single", Node::Single),
        ("first-slot", cluster(slot(0))),
        ("last-slot", cluster(slot(4))),
    ];
    let secret = b"a secret of some length";
    let mut inputs = Inputs::new();
    for (name, node) in nodes {
        let challenge = Challenge::new(node, Nonce::from([9; 16]));
        let hello = challenge.hello();
        let answer = challenge.answer(&Secret::new(*secret).unwrap());
        let whole = [&hello[..], &answer, secret].concat();
        inputs.push((format!("{name}-hello"), hello.to_vec()));
        for (what, place) in [("nonce", 20), ("answer", 40), ("secret", 61)] {
            let mut wrong = whole.clone();
            wrong[place] ^= 1;
            inputs.push((format!("{name}-other-{what}"), wrong));
        }
        for (what, place, byte) in [
            ("magic", 0, b't'),
            ("version", 9, 2),
            ("mode", 10, 2),
            ("slot", 11, 5),
        ] {
            let mut wrong = whole.clone();
            wrong[place] = byte;
            inputs.push((format!("{name}-wrong-{what}"), wrong));
        }
        inputs.push((format!("{name}-short-secret"), whole[..70].to_vec()));
        inputs.push((name.to_owned(), whole));
    }
    inputs.push(("short".to_owned(), b"TCKCLI3".to_vec()));
    inputs
}

fn cluster(slot: Slot) -> Node {
    let identity = [3; 32];
    Node::Cluster { identity, slot }
}
