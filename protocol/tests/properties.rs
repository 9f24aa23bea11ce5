//! All messages survive all chunkings, and no bytes can make the decoders panic or grow.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use highwater_protocol::handshake::Slot;
use highwater_protocol::{
    Domain, ErrorCode, FencingToken, Incoming, Key, KeySet, LeaseMillis, LeaseSeconds,
    MAX_REPLY_BYTES, MAX_REQUEST_BYTES, Reply, ReplyDecoder, Request, RequestDecoder,
    RequestNumber, Shape,
};
use proptest::collection::{btree_set, vec};
use proptest::prelude::*;

fn id() -> impl Strategy<Value = RequestNumber> {
    any::<u64>().prop_map(|number| RequestNumber::new(number | 1).unwrap())
}

fn token() -> impl Strategy<Value = FencingToken> {
    any::<u64>().prop_map(|number| FencingToken::new(number.max(1)).unwrap())
}

/// Keys of every legal length, of one-byte to four-byte characters.
fn key() -> impl Strategy<Value = Key> {
    vec(any::<char>(), 1..=128).prop_map(|characters| {
        let mut name = String::new();
        for character in characters {
            let character = match character {
                ' ' | '\n' | '\r' => '_',
                other => other,
            };
            if name.len() + character.len_utf8() > Key::MAX_BYTES {
                break;
            }
            name.push(character);
        }
        Key::new(name).unwrap()
    })
}

fn keys() -> impl Strategy<Value = KeySet> {
    btree_set(key(), 1..=16).prop_map(|keys| KeySet::new(keys).unwrap())
}

fn request() -> impl Strategy<Value = Request> {
    prop_oneof![
        (id(), keys(), any::<u8>(), 1..=LeaseSeconds::MAX).prop_map(
            |(id, keys, wait_seconds, lease)| Request::Acquire {
                id,
                keys,
                wait_seconds,
                lease: LeaseSeconds::new(lease).unwrap(),
            }
        ),
        (id(), keys(), token()).prop_map(|(id, keys, token)| Request::Release { id, keys, token }),
        id().prop_map(|id| Request::Domain { id }),
        (id(), keys(), token(), 1..=LeaseMillis::MAX).prop_map(|(id, keys, token, lease)| {
            Request::Extend {
                id,
                keys,
                token,
                lease: LeaseMillis::new(lease).unwrap(),
            }
        }),
        (id(), id()).prop_map(|(id, acquire)| Request::Cancel { id, acquire }),
    ]
}

fn shape() -> impl Strategy<Value = Shape> {
    prop_oneof![Just(Shape::One), Just(Shape::Set)]
}

fn slot() -> impl Strategy<Value = Option<Slot>> {
    (0..=Slot::COUNT).prop_map(Slot::new)
}

fn reply() -> impl Strategy<Value = Reply> {
    prop_oneof![
        (id(), shape(), token()).prop_map(|(id, shape, token)| Reply::Granted { id, shape, token }),
        (id(), shape()).prop_map(|(id, shape)| Reply::Released { id, shape }),
        id().prop_map(|id| Reply::NotHeld { id }),
        id().prop_map(|id| Reply::TimedOut { id }),
        id().prop_map(|id| Reply::Busy { id }),
        id().prop_map(|id| Reply::Indeterminate { id }),
        (id(), slot()).prop_map(|(id, leader)| Reply::Moved { id, leader }),
        (id(), 1..=7_u8).prop_map(|(id, code)| Reply::Error {
            id,
            code: ErrorCode::from_byte(code).unwrap()
        }),
        slot().prop_map(|leader| Reply::Leader { leader }),
        (id(), any::<[u8; 32]>()).prop_map(|(id, bytes)| Reply::Domain {
            id,
            domain: Domain::from_bytes(bytes)
        }),
        (id(), any::<u32>()).prop_map(|(id, remaining_ms)| Reply::Extended { id, remaining_ms }),
        (id(), any::<bool>()).prop_map(|(id, was_queued)| Reply::Cancelled { id, was_queued }),
    ]
}

/// Cuts bytes into chunks whose lengths come from `cuts`, over and over; zero is an empty chunk.
fn chunks<'a>(mut bytes: &'a [u8], cuts: &[usize]) -> Vec<&'a [u8]> {
    let mut chunks = Vec::new();
    for cut in cuts.iter().chain([&1]).cycle() {
        if bytes.is_empty() {
            break;
        }
        let (chunk, rest) = bytes.split_at((*cut).min(bytes.len()));
        chunks.push(chunk);
        bytes = rest;
    }
    chunks
}

/// Bytes that often look like the beginning of a frame.
fn noise() -> impl Strategy<Value = Vec<u8>> {
    let header = (
        prop::sample::select(&b"ARSGdxcANTBMIEL"[..]),
        prop_oneof![0..=45_u16, 2_070..=2_090_u16, any::<u16>()],
        vec(any::<u8>(), 0..=60),
    )
        .prop_map(|(opcode, length, body)| {
            let mut bytes = vec![opcode];
            bytes.extend(length.to_be_bytes());
            bytes.extend(body);
            bytes
        });
    prop_oneof![
        vec(any::<u8>(), 0..4_000),
        vec(header, 0..50).prop_map(|frames| frames.concat())
    ]
}

fn print_seed() -> ProptestConfig {
    // A failure prints its minimal input, which replays it; nothing is written to the disk.
    ProptestConfig {
        cases: 512,
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(print_seed())]

    #[test]
    fn requests_survive_every_chunking(
        requests in vec(request(), 0..8),
        cuts in vec(0..=700_usize, 0..12),
    ) {
        let mut bytes = Vec::new();
        for request in &requests {
            let start = bytes.len();
            request.encode(&mut bytes);
            prop_assert!(bytes.len() - start <= MAX_REQUEST_BYTES);
        }
        let mut decoder = RequestDecoder::new();
        let mut decoded = Vec::new();
        for mut chunk in chunks(&bytes, &cuts) {
            while let Some(incoming) = decoder.next(&mut chunk).unwrap() {
                decoded.push(incoming);
            }
            prop_assert!(chunk.is_empty());
            prop_assert!(decoder.capacity() <= MAX_REQUEST_BYTES);
        }
        let expected: Vec<Incoming> = requests.into_iter().map(Incoming::Valid).collect();
        prop_assert_eq!(decoded, expected);
        prop_assert!(!decoder.is_mid_frame());
    }

    #[test]
    fn replies_survive_every_chunking(
        replies in vec(reply(), 0..40),
        cuts in vec(0..=50_usize, 0..12),
    ) {
        let mut bytes = Vec::new();
        for reply in &replies {
            let start = bytes.len();
            reply.encode(&mut bytes);
            prop_assert!(bytes.len() - start <= MAX_REPLY_BYTES);
        }
        let mut decoder = ReplyDecoder::new();
        let mut decoded = Vec::new();
        for mut chunk in chunks(&bytes, &cuts) {
            while let Some(reply) = decoder.next(&mut chunk).unwrap() {
                decoded.push(reply);
            }
            prop_assert!(chunk.is_empty());
            prop_assert!(decoder.capacity() <= MAX_REPLY_BYTES);
        }
        prop_assert_eq!(decoded, replies);
        prop_assert!(!decoder.is_mid_frame());
    }

    #[test]
    fn no_bytes_make_a_decoder_panic_or_grow(
        bytes in noise(),
        cuts in vec(0..=3_000_usize, 0..12),
    ) {
        let mut requests = RequestDecoder::new();
        let mut replies = ReplyDecoder::new();
        for chunk in chunks(&bytes, &cuts) {
            let mut rest = chunk;
            while let Ok(Some(_)) = requests.next(&mut rest) {}
            prop_assert!(requests.capacity() <= MAX_REQUEST_BYTES);
            let mut rest = chunk;
            while let Ok(Some(_)) = replies.next(&mut rest) {}
            prop_assert!(replies.capacity() <= MAX_REPLY_BYTES);
        }
    }

    #[test]
    fn chunking_never_changes_a_judgement(
        bytes in noise(),
        cuts in vec(0..=3_000_usize, 0..12),
    ) {
        fn judge(chunks: &[&[u8]]) -> Vec<Result<Incoming, highwater_protocol::FrameError>> {
            let mut decoder = RequestDecoder::new();
            let mut judged = Vec::new();
            for mut chunk in chunks.iter().copied() {
                loop {
                    match decoder.next(&mut chunk) {
                        Ok(Some(incoming)) => judged.push(Ok(incoming)),
                        Ok(None) => break,
                        Err(error) => {
                            judged.push(Err(error));
                            return judged;
                        }
                    }
                }
            }
            judged
        }
        prop_assert_eq!(judge(&[&bytes]), judge(&chunks(&bytes, &cuts)));
    }

    /// What a decoder accepts, the encoder writes back byte for byte: there is one way to say it.
    #[test]
    fn an_accepted_frame_has_one_spelling(bytes in noise()) {
        let mut decoder = RequestDecoder::new();
        let mut rest = &bytes[..];
        loop {
            let before = rest;
            match decoder.next(&mut rest) {
                Ok(Some(Incoming::Valid(request))) => {
                    let mut encoded = Vec::new();
                    request.encode(&mut encoded);
                    prop_assert_eq!(&encoded[..], &before[..before.len() - rest.len()]);
                }
                Ok(Some(Incoming::Refused { .. })) => {}
                Ok(None) | Err(_) => break,
            }
        }
    }
}
