//! Every frame and the handshake against bytes written by hand from the protocol's tables.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use core::num::NonZeroU32;
use highwater_protocol::handshake::{Challenge, HelloError, Node, Nonce, Slot};

use highwater_protocol::{
    Domain, ErrorCode, Extensions, FencingToken, Incoming, Key, KeySet, KeyState, KeyStatus,
    LeaseMillis, LeaseSeconds, Reply, ReplyDecoder, Request, RequestDecoder, RequestNumber, Secret,
    Shape, SpanMillis,
};

fn id(number: u64) -> RequestNumber {
    RequestNumber::new(number).unwrap()
}

fn token(number: u64) -> FencingToken {
    FencingToken::new(number).unwrap()
}

fn keys(names: &[&str]) -> KeySet {
    KeySet::new(names.iter().map(|name| Key::new(name).unwrap())).unwrap()
}

#[track_caller]
fn check_request(bytes: &[u8], request: Request) {
    let mut encoded = Vec::new();
    request.encode(&mut encoded);
    assert_eq!(encoded, bytes);
    let mut chunk = bytes;
    let decoded = RequestDecoder::new().next(&mut chunk).unwrap();
    assert_eq!(decoded, Some(Incoming::Valid(request)));
    assert!(chunk.is_empty());
}

#[track_caller]
fn check_reply(bytes: &[u8], reply: Reply) {
    let mut encoded = Vec::new();
    reply.encode(&mut encoded);
    assert_eq!(encoded, bytes);
    let mut chunk = bytes;
    let decoded = ReplyDecoder::new().next(&mut chunk).unwrap();
    assert_eq!(decoded, Some(reply));
    assert!(chunk.is_empty());
}

#[test]
fn acquire_of_one_key() {
    check_request(
        b"A\x00\x0d\x01\x02\x03\x04\x05\x06\x07\x08\x05\x1esku",
        Request::Acquire {
            id: id(0x0102_0304_0506_0708),
            keys: keys(&["sku"]),
            wait_seconds: 5,
            lease: LeaseSeconds::new(30).unwrap(),
        },
    );
}

#[test]
fn acquire_of_a_set() {
    check_request(
        b"S\x00\x13\x00\x00\x00\x00\x00\x00\x00\x02\xff\xfa\x02\x01a\x05sku/1",
        Request::Acquire {
            id: id(2),
            keys: keys(&["sku/1", "a"]),
            wait_seconds: 255,
            lease: LeaseSeconds::new(250).unwrap(),
        },
    );
}

#[test]
fn release_of_one_key() {
    check_request(
        b"R\x00\x13\x00\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00\x00\x00\x00\x01\x00sku",
        Request::Release {
            id: id(3),
            keys: keys(&["sku"]),
            token: token(256),
        },
    );
}

#[test]
fn release_of_a_set() {
    check_request(
        b"G\x00\x15\xff\xff\xff\xff\xff\xff\xff\xff\x00\x00\x00\x00\x00\x00\x00\x09\x02\x01a\x01b",
        Request::Release {
            id: id(u64::MAX),
            keys: keys(&["a", "b"]),
            token: token(9),
        },
    );
}

#[test]
fn extension_requests() {
    check_request(
        b"d\x00\x08\x00\x00\x00\x00\x00\x00\x00\x01",
        Request::Domain { id: id(1) },
    );
    check_request(
        b"x\x00\x17\x00\x00\x00\x00\x00\x00\x00\x04\x00\x00\x00\x00\x00\x00\x00\x09\x00\x00\x75\x30\x01\x01a",
        Request::Extend {
            id: id(4),
            keys: keys(&["a"]),
            token: token(9),
            lease: LeaseMillis::new(30_000).unwrap(),
        },
    );
    check_request(
        b"c\x00\x10\x00\x00\x00\x00\x00\x00\x00\x05\x00\x00\x00\x00\x00\x00\x00\x04",
        Request::Cancel {
            id: id(5),
            acquire: id(4),
        },
    );
}

#[test]
fn acquires_in_milliseconds() {
    let lease = LeaseMillis::new(30_000).unwrap();
    check_request(
        b"a\x00\x13\x00\x00\x00\x00\x00\x00\x00\x06\x00\x00\x01\xf4\x00\x00\x75\x30\x01\x01a",
        Request::AcquireTimed {
            id: id(6),
            keys: keys(&["a"]),
            wait: SpanMillis::new(500).unwrap(),
            lease,
        },
    );
    check_request(
        b"a\x00\x16\x00\x00\x00\x00\x00\x00\x00\x06\x00\x00\x00\x00\x00\x36\xee\x80\x02\x01a\x02bc",
        Request::AcquireTimed {
            id: id(6),
            keys: keys(&["a", "bc"]),
            wait: SpanMillis::ZERO,
            lease: LeaseMillis::new(3_600_000).unwrap(),
        },
    );
    check_request(
        b"n\x00\x17\x00\x00\x00\x00\x00\x00\x00\x07\x00\x36\xee\x80\x00\x00\x75\x30\x00\x00\x01\x02sku",
        Request::AcquireSlot {
            id: id(7),
            name: Key::new("sku").unwrap(),
            slots: NonZeroU32::new(258).unwrap(),
            wait: SpanMillis::new(3_600_000).unwrap(),
            lease,
        },
    );
}

#[test]
fn release_with_a_minimum_hold() {
    check_request(
        b"h\x00\x17\x00\x00\x00\x00\x00\x00\x00\x08\x00\x00\x00\x00\x00\x00\x00\x09\x00\x00\x07\xd0\x01\x01a",
        Request::Retain {
            id: id(8),
            keys: keys(&["a"]),
            token: token(9),
            minimum: SpanMillis::new(2_000).unwrap(),
        },
    );
    check_reply(
        b"h\x00\x08\x00\x00\x00\x00\x00\x00\x00\x08",
        Reply::Retained { id: id(8) },
    );
}

#[test]
fn query() {
    check_request(
        b"q\x00\x0f\x00\x00\x00\x00\x00\x00\x00\x09\x00\x00\x00\x03sku",
        Request::Query {
            id: id(9),
            key: Key::new("sku").unwrap(),
            from_slot: 3,
        },
    );
    let status = |state, waiters, slots, taken| Reply::Status {
        id: id(9),
        status: KeyStatus {
            state,
            waiters,
            slots: NonZeroU32::new(slots),
            taken,
        },
    };
    let head = b"q\x00\x25\x00\x00\x00\x00\x00\x00\x00\x09";
    check_reply(
        &[
            &head[..],
            &[0; 17],
            b"\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00\x00",
        ]
        .concat(),
        status(KeyState::Free, 2, 0, 0),
    );
    check_reply(
        &[
            &head[..],
            b"\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x2a\x00\x00\x75\x30",
            b"\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01",
        ]
        .concat(),
        status(
            KeyState::Held {
                token: token(42),
                slot: 0,
                remaining_ms: 30_000,
            },
            0,
            0,
            1,
        ),
    );
    check_reply(
        &[
            &head[..],
            b"\x02\x00\x00\x00\x03\x00\x00\x00\x00\x00\x00\x00\x2a\x00\x00\x00\x00",
            b"\x00\x00\x00\x07\x00\x00\x00\x04\x00\x00\x00\x02",
        ]
        .concat(),
        status(
            KeyState::Retained {
                token: token(42),
                slot: 3,
                remaining_ms: 0,
            },
            7,
            4,
            2,
        ),
    );
}

#[test]
fn replies_to_acquires_in_milliseconds() {
    check_reply(
        b"a\x00\x14\x00\x00\x00\x00\x00\x00\x00\x06\x00\x00\x00\x00\x00\x00\x00\x2a\x00\x00\x01\xf4",
        Reply::GrantedTimed {
            id: id(6),
            token: token(42),
            waited_ms: 500,
        },
    );
    check_reply(
        b"n\x00\x18\x00\x00\x00\x00\x00\x00\x00\x07\x00\x00\x00\x00\x00\x00\x00\x2a\x00\x00\x01\xf4\x00\x00\x01\x01",
        Reply::GrantedSlot {
            id: id(7),
            token: token(42),
            waited_ms: 500,
            slot: 257,
        },
    );
}

#[test]
fn replies_to_acquires() {
    check_reply(
        b"A\x00\x10\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x2a",
        Reply::Granted {
            id: id(1),
            shape: Shape::One,
            token: token(42),
        },
    );
    check_reply(
        b"S\x00\x10\x00\x00\x00\x00\x00\x00\x00\x01\xff\xff\xff\xff\xff\xff\xff\xff",
        Reply::Granted {
            id: id(1),
            shape: Shape::Set,
            token: token(u64::MAX),
        },
    );
    check_reply(
        b"T\x00\x08\x00\x00\x00\x00\x00\x00\x00\x01",
        Reply::TimedOut { id: id(1) },
    );
    check_reply(
        b"B\x00\x08\x00\x00\x00\x00\x00\x00\x00\x01",
        Reply::Busy { id: id(1) },
    );
}

#[test]
fn replies_to_releases() {
    check_reply(
        b"R\x00\x08\x00\x00\x00\x00\x00\x00\x00\x01",
        Reply::Released {
            id: id(1),
            shape: Shape::One,
        },
    );
    check_reply(
        b"G\x00\x08\x00\x00\x00\x00\x00\x00\x00\x01",
        Reply::Released {
            id: id(1),
            shape: Shape::Set,
        },
    );
    check_reply(
        b"N\x00\x08\x00\x00\x00\x00\x00\x00\x00\x01",
        Reply::NotHeld { id: id(1) },
    );
}

#[test]
fn replies_to_anything() {
    check_reply(
        b"M\x00\x09\x00\x00\x00\x00\x00\x00\x00\x01\xff",
        Reply::Moved {
            id: id(1),
            leader: None,
        },
    );
    check_reply(
        b"M\x00\x09\x00\x00\x00\x00\x00\x00\x00\x01\x04",
        Reply::Moved {
            id: id(1),
            leader: Slot::new(4),
        },
    );
    check_reply(
        b"I\x00\x08\x00\x00\x00\x00\x00\x00\x00\x01",
        Reply::Indeterminate { id: id(1) },
    );
    for (byte, code) in [
        (1, ErrorCode::BadKey),
        (2, ErrorCode::BadLease),
        (3, ErrorCode::NotActive),
        (4, ErrorCode::NoLeader),
        (5, ErrorCode::BadKeySet),
        (6, ErrorCode::GroupMismatch),
        (7, ErrorCode::BadToken),
        (8, ErrorCode::BadTime),
        (9, ErrorCode::BadSlots),
        (10, ErrorCode::OtherUse),
    ] {
        let mut bytes = *b"E\x00\x09\x00\x00\x00\x00\x00\x00\x00\x01\x00";
        bytes[11] = byte;
        check_reply(&bytes, Reply::Error { id: id(1), code });
    }
    check_reply(b"L\x00\x01\xff", Reply::Leader { leader: None });
    check_reply(
        b"L\x00\x01\x00",
        Reply::Leader {
            leader: Slot::new(0),
        },
    );
}

#[test]
fn extension_replies() {
    let mut bytes = b"d\x00\x2c\x00\x00\x00\x00\x00\x00\x00\x01".to_vec();
    bytes.extend([0xd5; 32]);
    // What a later server may have is kept as it is.
    for (told, extensions) in [
        ([0, 0, 0, 0], Extensions::NONE),
        ([0, 0, 0, 1], Extensions::EXTEND),
        ([0, 0, 0, 2], Extensions::CANCEL),
        ([0, 0, 0, 4], Extensions::ACQUIRE),
        ([0, 0, 0, 8], Extensions::SLOTS),
        ([0, 0, 0, 16], Extensions::MINIMUM_HOLD),
        ([0, 0, 0, 32], Extensions::QUERY),
        ([0, 0, 0, 63], Extensions::ALL),
        ([0x80, 0, 0, 1], Extensions::from_bits(0x8000_0001)),
    ] {
        check_reply(
            &[&bytes[..], &told[..]].concat(),
            Reply::Domain {
                id: id(1),
                domain: Domain::from_bytes([0xd5; 32]),
                extensions,
            },
        );
    }
    check_reply(
        b"x\x00\x0c\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x75\x30",
        Reply::Extended {
            id: id(1),
            remaining_ms: 30_000,
        },
    );
    check_reply(
        b"c\x00\x09\x00\x00\x00\x00\x00\x00\x00\x01\x01",
        Reply::Cancelled {
            id: id(1),
            was_queued: true,
        },
    );
    check_reply(
        b"c\x00\x09\x00\x00\x00\x00\x00\x00\x00\x01\x00",
        Reply::Cancelled {
            id: id(1),
            was_queued: false,
        },
    );
}

/// The nonce of all handshake vectors: 00 01 02 … 0f.
fn nonce() -> Nonce {
    Nonce::from(core::array::from_fn(|index| u8::try_from(index).unwrap()))
}

fn cluster(slot: u8) -> Node {
    Node::Cluster {
        // 40 41 42 … 5f
        identity: core::array::from_fn(|index| 0x40 + u8::try_from(index).unwrap()),
        slot: Slot::new(slot).unwrap(),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

const HELLO_SINGLE: &[u8; 28] =
    b"TCKCLI3\0\x00\x03\x00\xff\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f";
const HELLO_SLOT_2: &[u8; 28] =
    b"TCKCLI3\0\x00\x03\x01\x02\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f";
const TOKEN: &[u8; 24] = b"0123456789abcdef-correct";

#[test]
fn the_hello_is_byte_for_byte_the_published_one() {
    assert_eq!(&Challenge::new(Node::Single, nonce()).hello(), HELLO_SINGLE);
    assert_eq!(&Challenge::new(cluster(2), nonce()).hello(), HELLO_SLOT_2);
    assert_eq!(
        Challenge::from_hello(HELLO_SINGLE, Node::Single),
        Ok(Challenge::new(Node::Single, nonce()))
    );
}

// The three answers and the identity were computed with Python's hmac and hashlib.
#[test]
fn answers_equal_those_of_another_implementation() {
    let secret = Secret::new(*TOKEN).unwrap();
    let single = Challenge::new(Node::Single, nonce());
    assert_eq!(
        hex(&single.answer(&secret)),
        "dfbe6ec52f3bccf1ab0dd509346c046c968add6bcc019993ff5e10b99c96d9f8"
    );
    assert_eq!(
        hex(&single.answer(&Secret::no_auth())),
        "636eb4b3ac6eb63f37f3be250f96035c04409ebf6ae3a7a22d516679500543ac"
    );
    assert_eq!(
        hex(&Challenge::new(cluster(2), nonce()).answer(&secret)),
        "6c44611888205a5baf33f41de0e29c101dd2a6411c0d2b92add55a8066d59571"
    );
    assert_eq!(
        hex(&Node::Single.identity()),
        "ff4d4698ae53ede382f96885dadeba243d2d124ded967b336908d00399c87b97"
    );
}

#[test]
fn an_answer_is_good_for_one_secret_one_nonce_and_one_node() {
    let secret = Secret::new(*TOKEN).unwrap();
    let other = Secret::new(*b"0123456789abcdef-another").unwrap();
    let challenge = Challenge::new(cluster(2), nonce());
    let answer = challenge.answer(&secret);
    assert!(challenge.accepts([&secret], &answer));
    assert!(challenge.accepts([&other, &secret], &answer));
    assert!(challenge.accepts([&secret, &other], &answer));
    assert!(!challenge.accepts([&other], &answer));
    assert!(!challenge.accepts([], &answer));
    assert!(!challenge.accepts([&Secret::no_auth()], &answer));
    for elsewhere in [
        Challenge::new(cluster(2), Nonce::from([9; 16])),
        Challenge::new(cluster(3), nonce()),
        Challenge::new(Node::Single, nonce()),
    ] {
        assert!(!elsewhere.accepts([&secret], &answer));
    }
    for byte in 0..answer.len() {
        for bit in 0..8 {
            let mut wrong = answer;
            wrong[byte] ^= 1 << bit;
            assert!(!challenge.accepts([&secret], &wrong));
        }
    }
}

#[test]
fn a_strange_hello_is_named() {
    let read = |hello: &[u8; 28], expected| Challenge::from_hello(hello, expected).unwrap_err();
    let mut hello = *HELLO_SINGLE;
    hello[0] = b't';
    assert_eq!(read(&hello, Node::Single), HelloError::Magic);
    hello = *HELLO_SINGLE;
    hello[7] = b'0';
    assert_eq!(read(&hello, Node::Single), HelloError::Magic);
    hello = *HELLO_SINGLE;
    hello[9] = 4;
    assert_eq!(
        read(&hello, Node::Single),
        HelloError::Version { version: 4 }
    );
    hello = *HELLO_SINGLE;
    hello[11] = 0;
    assert_eq!(read(&hello, Node::Single), HelloError::Slot { slot: 0 });
    assert_eq!(read(HELLO_SINGLE, cluster(2)), HelloError::Mode { mode: 0 });
    assert_eq!(
        read(HELLO_SLOT_2, Node::Single),
        HelloError::Mode { mode: 1 }
    );
    assert_eq!(read(HELLO_SLOT_2, cluster(1)), HelloError::Slot { slot: 2 });
}
