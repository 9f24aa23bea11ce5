//! What must hold for any bytes. Each function is a fuzz target: it panics on a finding.

use highwater_protocol::handshake::{
    ANSWER_BYTES, Challenge, HELLO_BYTES, HelloError, Node, Nonce, Slot, VERSION,
};
use highwater_protocol::{
    ErrorCode, FrameError, Incoming, MAX_REPLY_BYTES, MAX_REQUEST_BYTES, Reply, ReplyDecoder,
    Request, RequestDecoder, Secret,
};

/// A stream in any chunks: the same messages and the same end, within the same memory.
///
/// The first byte says how the stream is cut.
pub(crate) fn frame(bytes: &[u8]) {
    let Some((cut, stream)) = bytes.split_first() else {
        return;
    };
    let piece = usize::from(*cut % 40) + 1;
    let (messages, failed) = requests(stream, usize::MAX);
    check_end(stream, messages.iter().map(|(_, length)| *length), failed);
    assert_eq!(requests(stream, piece), (messages, failed));
    let (messages, failed) = replies(stream, usize::MAX);
    check_end(stream, messages.iter().map(|(_, length)| *length), failed);
    assert_eq!(replies(stream, piece), (messages, failed));
}

/// The lengths of the messages are those that stand in their headers, and what is left is an error
/// or an unfinished frame.
fn check_end(stream: &[u8], lengths: impl Iterator<Item = usize>, failed: Option<FrameError>) {
    let mut rest = stream;
    for length in lengths {
        let announced = usize::from(u16::from_be_bytes([rest[1], rest[2]]));
        assert_eq!(length, 3 + announced, "a message is its frame");
        rest = &rest[length..];
    }
    let announced = rest
        .get(1..3)
        .map(|pair| u16::from_be_bytes([pair[0], pair[1]]));
    let complete = announced.is_some_and(|length| rest.len() >= 3 + usize::from(length));
    assert!(
        failed.is_some() || !complete,
        "a whole frame is read or refused"
    );
}

macro_rules! reader {
    ($name:ident, $decoder:ident, $message:ty, $most:expr) => {
        /// The messages with the lengths of their frames, and the error at which they end.
        fn $name(stream: &[u8], piece: usize) -> (Vec<($message, usize)>, Option<FrameError>) {
            let mut decoder = $decoder::new();
            let mut messages = Vec::new();
            let mut used = 0;
            for chunk in stream.chunks(piece.min(stream.len().max(1))) {
                let mut rest = chunk;
                loop {
                    let before = rest.len();
                    match decoder.next(&mut rest) {
                        Ok(Some(message)) => {
                            messages.push((message, used + before - rest.len()));
                            used = 0;
                        }
                        Ok(None) => {
                            assert!(rest.is_empty(), "a chunk is used up");
                            used += before;
                            assert_eq!(decoder.is_mid_frame(), used > 0);
                            assert!(decoder.capacity() <= $most, "one frame at most is kept");
                            break;
                        }
                        Err(error) => {
                            let mut more: &[u8] = b"A";
                            assert_eq!(decoder.next(&mut more), Err(error), "an error stays");
                            assert!(decoder.capacity() <= $most, "one frame at most is kept");
                            return (messages, Some(error));
                        }
                    }
                }
            }
            (messages, None)
        }
    };
}

reader!(requests, RequestDecoder, Incoming, MAX_REQUEST_BYTES);
reader!(replies, ReplyDecoder, Reply, MAX_REPLY_BYTES);

/// One frame: what is accepted is written again as the same bytes, what is refused says why.
pub(crate) fn message(bytes: &[u8]) {
    let mut rest = bytes;
    match RequestDecoder::new().next(&mut rest) {
        Ok(Some(Incoming::Valid(request))) => {
            check_request(&request, &bytes[..bytes.len() - rest.len()]);
        }
        Ok(Some(Incoming::Refused { id, code })) => {
            assert_eq!(
                id.get().to_be_bytes(),
                bytes[3..11],
                "the id is that of the frame"
            );
            let by_content = matches!(
                code,
                ErrorCode::BadKey
                    | ErrorCode::BadLease
                    | ErrorCode::BadKeySet
                    | ErrorCode::BadToken
                    | ErrorCode::BadTime
                    | ErrorCode::BadSlots
            );
            assert!(by_content, "{code:?} is no judgement of a frame");
            let is_extension = bytes[0].is_ascii_lowercase();
            let of_extensions = matches!(code, ErrorCode::BadTime | ErrorCode::BadSlots);
            assert!(
                is_extension || !of_extensions,
                "a base client gets {code:?}"
            );
        }
        Ok(None) | Err(_) => {}
    }
    let mut rest = bytes;
    if let Ok(Some(reply)) = ReplyDecoder::new().next(&mut rest) {
        check_reply(&reply, &bytes[..bytes.len() - rest.len()]);
    }
}

fn check_request(request: &Request, frame: &[u8]) {
    let mut again = Vec::new();
    request.encode(&mut again);
    assert_eq!(again, frame, "{request:?}");
    assert_eq!(request.id().get().to_be_bytes(), frame[3..11]);
    let kind = request.kind();
    let id = request.id();
    for code in (0..=255).filter_map(ErrorCode::from_byte) {
        assert_eq!(Reply::Error { id, code }.fits(kind), code.fits(kind));
    }
    assert!(Reply::Indeterminate { id }.fits(kind));
}

fn check_reply(reply: &Reply, frame: &[u8]) {
    let mut again = Vec::new();
    reply.encode(&mut again);
    let mut rest = &*again;
    let second = ReplyDecoder::new().next(&mut rest);
    assert_eq!(second, Ok(Some(*reply)), "a reply survives being written");
    match reply {
        // Bits of extensions that nobody knows are forgotten.
        Reply::Domain { .. } => assert_eq!(again[..43], frame[..43]),
        _ => assert_eq!(again, frame, "{reply:?}"),
    }
    if let Some(id) = reply.id() {
        assert_eq!(id.get().to_be_bytes(), frame[3..11]);
    }
}

/// A hello from anybody, and an answer from anybody: 28 bytes, 32 bytes, and the rest a secret.
pub(crate) fn handshake(bytes: &[u8]) {
    let Some((hello, rest)) = bytes.split_first_chunk::<HELLO_BYTES>() else {
        return;
    };
    let cluster = |slot| Node::Cluster {
        identity: [3; 32],
        slot,
    };
    let slots = (0..Slot::COUNT).filter_map(Slot::new).map(cluster);
    let nodes: Vec<Node> = slots.chain([Node::Single]).collect();
    let mut accepted = nodes
        .iter()
        .filter_map(|node| match Challenge::from_hello(hello, *node) {
            Ok(challenge) => {
                assert_eq!(
                    challenge.hello(),
                    *hello,
                    "what is accepted is what is sent"
                );
                Some(challenge)
            }
            Err(error) => {
                check_refusal(hello, error);
                None
            }
        });
    let challenge = accepted.next();
    assert!(accepted.next().is_none(), "a hello is that of one node");
    let Some((answer, secret)) = rest.split_first_chunk::<ANSWER_BYTES>() else {
        return;
    };
    let nonce = Nonce::from([hello[12]; 16]);
    let challenge = challenge.unwrap_or(Challenge::new(Node::Single, nonce));
    if let Ok(secret) = Secret::new(secret) {
        check_answer(&challenge, &secret, answer);
    }
}

fn check_refusal(hello: &[u8; HELLO_BYTES], error: HelloError) {
    match error {
        HelloError::Magic => assert_ne!(&hello[..8], b"TCKCLI3\0"),
        HelloError::Version { version } => assert_ne!(version, VERSION),
        HelloError::Mode { mode } => assert_eq!(mode, hello[10]),
        HelloError::Slot { slot } => assert_eq!(slot, hello[11]),
        other => panic!("{other:?} is new here"),
    }
}

fn check_answer(challenge: &Challenge, secret: &Secret, answer: &[u8; ANSWER_BYTES]) {
    let right = challenge.answer(secret);
    assert!(challenge.accepts([secret], &right));
    assert_eq!(challenge.accepts([secret], answer), *answer == right);
    assert!(!challenge.accepts([], &right), "no secret accepts nobody");
    let mut wrong = right;
    let bit = usize::from(answer[0]);
    wrong[bit / 8] ^= 1 << (bit % 8);
    assert!(!challenge.accepts([secret], &wrong), "every bit counts");
    // The answer to another challenge is worth nothing.
    let other = Challenge::new(Node::Single, Nonce::from([0xa5; 16]));
    if other != *challenge {
        assert!(!other.accepts([secret], &right), "an answer was replayed");
    }
}
