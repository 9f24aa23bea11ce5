//! All messages survive all chunkings, and no bytes can make the decoders panic or grow.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use core::num::NonZeroU32;
use highwater_protocol::handshake::Slot;

use highwater_protocol::{
    Domain, ErrorCode, Extensions, FencingToken, Incoming, Key, KeySet, KeyState, KeyStatus,
    LeaseMillis, LeaseSeconds, MAX_REPLY_BYTES, MAX_REQUEST_BYTES, Reply, ReplyDecoder, Request,
    RequestDecoder, RequestNumber, Shape, SpanMillis,
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

fn span() -> impl Strategy<Value = SpanMillis> {
    (0..=SpanMillis::MAX).prop_map(|span| SpanMillis::new(span).unwrap())
}

fn lease() -> impl Strategy<Value = LeaseMillis> {
    (1..=LeaseMillis::MAX).prop_map(|lease| LeaseMillis::new(lease).unwrap())
}

fn slots() -> impl Strategy<Value = NonZeroU32> {
    (1..=u32::MAX).prop_map(|slots| NonZeroU32::new(slots).unwrap())
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
        (id(), keys(), span(), lease()).prop_map(|(id, keys, wait, lease)| {
            Request::AcquireTimed {
                id,
                keys,
                wait,
                lease,
            }
        }),
        (id(), key(), slots(), span(), lease()).prop_map(|(id, name, slots, wait, lease)| {
            Request::AcquireSlot {
                id,
                name,
                slots,
                wait,
                lease,
            }
        }),
        (id(), keys(), token(), span()).prop_map(|(id, keys, token, minimum)| Request::Retain {
            id,
            keys,
            token,
            minimum
        }),
        (id(), key(), any::<u32>()).prop_map(|(id, key, from_slot)| Request::Query {
            id,
            key,
            from_slot
        }),
    ]
}

fn shape() -> impl Strategy<Value = Shape> {
    prop_oneof![Just(Shape::One), Just(Shape::Set)]
}

fn slot() -> impl Strategy<Value = Option<Slot>> {
    (0..=Slot::COUNT).prop_map(Slot::new)
}

fn status() -> impl Strategy<Value = KeyStatus> {
    let places = prop_oneof![Just(None), slots().prop_map(Some)];
    (
        places,
        token(),
        any::<u32>(),
        any::<u32>(),
        any::<u32>(),
        0..3,
    )
        .prop_map(|(slots, token, number, remaining_ms, waiters, state)| {
            let places = slots.map_or(1, NonZeroU32::get);
            let slot = number % places;
            let state = match state {
                0 => KeyState::Free,
                1 => KeyState::Held {
                    token,
                    slot,
                    remaining_ms,
                },
                _ => KeyState::Retained {
                    token,
                    slot,
                    remaining_ms,
                },
            };
            let taken = if state == KeyState::Free {
                slot
            } else {
                slot + 1
            };
            KeyStatus {
                state,
                waiters,
                slots,
                taken,
            }
        })
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
        (id(), 1..=10_u8).prop_map(|(id, code)| Reply::Error {
            id,
            code: ErrorCode::from_byte(code).unwrap()
        }),
        slot().prop_map(|leader| Reply::Leader { leader }),
        (id(), any::<[u8; 32]>(), any::<u32>()).prop_map(|(id, bytes, bits)| Reply::Domain {
            id,
            domain: Domain::from_bytes(bytes),
            extensions: Extensions::from_bits(bits),
        }),
        (id(), any::<u32>()).prop_map(|(id, remaining_ms)| Reply::Extended { id, remaining_ms }),
        (id(), any::<bool>()).prop_map(|(id, was_queued)| Reply::Cancelled { id, was_queued }),
        (id(), token(), any::<u32>()).prop_map(|(id, token, waited_ms)| Reply::GrantedTimed {
            id,
            token,
            waited_ms
        }),
        (id(), token(), any::<u32>(), any::<u32>()).prop_map(|(id, token, waited_ms, slot)| {
            Reply::GrantedSlot {
                id,
                token,
                waited_ms,
                slot,
            }
        }),
        id().prop_map(|id| Reply::Retained { id }),
        (id(), status()).prop_map(|(id, status)| Reply::Status { id, status }),
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
        prop::sample::select(&b"ARSGdxcanhqANTBMIEL"[..]),
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

    /// So for replies too, of any content.
    #[test]
    fn an_accepted_reply_has_one_spelling(
        opcode in prop::sample::select(&b"ASRGNTBMIELdxcanhq"[..]),
        body in vec(prop_oneof![3 => 0..=2_u8, 1 => any::<u8>()], 0..=48),
    ) {
        let length = match opcode {
            b'L' => 1,
            b'M' | b'E' | b'c' => 9,
            b'A' | b'S' => 16,
            b'd' => 44,
            b'x' => 12,
            b'a' => 20,
            b'n' => 24,
            b'q' => 37,
            _ => 8,
        };
        let mut bytes = vec![opcode, 0, length];
        bytes.extend(body.iter().chain(std::iter::repeat(&1)).take(length.into()));
        if let Ok(Some(reply)) = ReplyDecoder::new().next(&mut &bytes[..]) {
            let mut encoded = Vec::new();
            reply.encode(&mut encoded);
            prop_assert_eq!(encoded, bytes);
        }
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

proptest! {
    // Each case tries every cut of a frame of up to two thousand bytes.
    #![proptest_config(ProptestConfig { cases: 48, ..print_seed() })]

    /// A frame that is cut off anywhere is waited for; with a length that fits the cut it is
    /// refused or means something else, and never panics.
    #[test]
    fn a_truncated_request_is_never_taken_for_the_whole(request in request()) {
        let mut bytes = Vec::new();
        request.encode(&mut bytes);
        for end in 0..bytes.len() {
            let mut decoder = RequestDecoder::new();
            prop_assert_eq!(decoder.next(&mut &bytes[..end]), Ok(None));
            prop_assert_eq!(decoder.is_mid_frame(), end > 0);
            if let Some(length) = end.checked_sub(3) {
                let mut cut = bytes[..end].to_vec();
                cut[1..3].copy_from_slice(&u16::try_from(length).unwrap().to_be_bytes());
                let judged = RequestDecoder::new().next(&mut &cut[..]);
                prop_assert_ne!(judged, Ok(Some(Incoming::Valid(request.clone()))));
            }
        }
    }

    #[test]
    fn a_truncated_reply_is_never_taken_for_the_whole(reply in reply()) {
        let mut bytes = Vec::new();
        reply.encode(&mut bytes);
        for end in 0..bytes.len() {
            let mut decoder = ReplyDecoder::new();
            prop_assert_eq!(decoder.next(&mut &bytes[..end]), Ok(None));
            if let Some(length) = end.checked_sub(3) {
                let mut cut = bytes[..end].to_vec();
                cut[1..3].copy_from_slice(&u16::try_from(length).unwrap().to_be_bytes());
                prop_assert!(ReplyDecoder::new().next(&mut &cut[..]).is_err());
            }
        }
    }
}
