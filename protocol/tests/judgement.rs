//! Which mistakes are answered, and which end the connection.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use highwater_protocol::{
    ErrorCode, FrameError, Incoming, MAX_REPLY_BYTES, MAX_REQUEST_BYTES, Reply, ReplyDecoder,
    Request, RequestDecoder, RequestKind, RequestNumber, Shape,
};

const ID: [u8; 8] = [0, 0, 0, 0, 0, 0, 0, 7];
const TOKEN: [u8; 8] = [0, 0, 0, 0, 0, 0, 0, 9];
/// A lease, a wait, a minimum hold or a number of slots: 1.
const SPAN: [u8; 4] = [0, 0, 0, 1];

fn frame(opcode: u8, parts: &[&[u8]]) -> Vec<u8> {
    let body = parts.concat();
    let mut frame = vec![opcode];
    frame.extend(u16::try_from(body.len()).unwrap().to_be_bytes());
    frame.extend(body);
    frame
}

/// Reads one frame in two ways, whole and byte by byte, which must agree.
fn read(bytes: &[u8]) -> Result<Option<Incoming>, FrameError> {
    let mut whole = bytes;
    let at_once = RequestDecoder::new().next(&mut whole);
    let mut decoder = RequestDecoder::new();
    let mut bytewise = Ok(None);
    for byte in bytes {
        bytewise = decoder.next(&mut std::slice::from_ref(byte));
        if bytewise != Ok(None) {
            break;
        }
    }
    assert_eq!(at_once, bytewise);
    at_once
}

#[track_caller]
fn refused(opcode: u8, parts: &[&[u8]], code: ErrorCode) {
    let id = RequestNumber::new(7).unwrap();
    assert_eq!(
        read(&frame(opcode, parts)),
        Ok(Some(Incoming::Refused { id, code }))
    );
}

#[track_caller]
fn ends(bytes: &[u8], error: FrameError) {
    assert_eq!(read(bytes), Err(error));
}

#[track_caller]
fn valid(bytes: &[u8]) -> Request {
    match read(bytes) {
        Ok(Some(Incoming::Valid(request))) => request,
        other => panic!("not a valid request: {other:?}"),
    }
}

/// A counted list of keys, as in the bodies of sets.
fn list(names: &[&[u8]]) -> Vec<u8> {
    let mut bytes = vec![u8::try_from(names.len()).unwrap()];
    for name in names {
        bytes.push(u8::try_from(name.len()).unwrap());
        bytes.extend(*name);
    }
    bytes
}

#[test]
fn a_bad_key_is_answered_by_1() {
    for key in [&b""[..], b"a b", b"a\nb", b"\r", b" "] {
        refused(b'A', &[&ID, &[5, 30], key], ErrorCode::BadKey);
        refused(b'R', &[&ID, &TOKEN, key], ErrorCode::BadKey);
        let set = list(&[key, b"zz"]);
        refused(b'S', &[&ID, &[5, 30], &set], ErrorCode::BadKey);
        refused(b'G', &[&ID, &TOKEN, &set], ErrorCode::BadKey);
        refused(b'x', &[&ID, &TOKEN, &SPAN, &set], ErrorCode::BadKey);
        refused(b'a', &[&ID, &SPAN, &SPAN, &set], ErrorCode::BadKey);
        refused(b'h', &[&ID, &TOKEN, &SPAN, &set], ErrorCode::BadKey);
        refused(b'n', &[&ID, &SPAN, &SPAN, &SPAN, key], ErrorCode::BadKey);
        refused(b'q', &[&ID, &SPAN, key], ErrorCode::BadKey);
    }
    let long = [b'k'; 129];
    refused(
        b'S',
        &[&ID, &[5, 30], &list(&[b"a", &long])],
        ErrorCode::BadKey,
    );
}

#[test]
fn a_lease_out_of_range_is_answered_by_2() {
    for lease in [0, 251, 255] {
        refused(b'A', &[&ID, &[5, lease], b"k"], ErrorCode::BadLease);
        let set = list(&[b"a", b"b"]);
        refused(b'S', &[&ID, &[5, lease], &set], ErrorCode::BadLease);
    }
    for lease in [1, 250] {
        valid(&frame(b'A', &[&ID, &[0, lease], b"k"]));
    }
    for lease in [0_u32, 3_600_001, u32::MAX] {
        let lease = lease.to_be_bytes();
        refused(
            b'x',
            &[&ID, &TOKEN, &lease, &list(&[b"a"])],
            ErrorCode::BadLease,
        );
        refused(
            b'a',
            &[&ID, &SPAN, &lease, &list(&[b"a"])],
            ErrorCode::BadLease,
        );
        refused(
            b'n',
            &[&ID, &SPAN, &lease, &SPAN, b"k"],
            ErrorCode::BadLease,
        );
    }
    let hour = 3_600_000_u32.to_be_bytes();
    valid(&frame(b'x', &[&ID, &TOKEN, &hour, &list(&[b"a"])]));
    valid(&frame(b'a', &[&ID, &SPAN, &hour, &list(&[b"a"])]));
    valid(&frame(b'n', &[&ID, &SPAN, &hour, &SPAN, b"k"]));
}

#[test]
fn a_wait_or_a_minimum_out_of_range_is_answered_by_8() {
    let one = list(&[b"a"]);
    for span in [3_600_001, u32::MAX].map(u32::to_be_bytes) {
        refused(b'a', &[&ID, &span, &SPAN, &one], ErrorCode::BadTime);
        refused(b'n', &[&ID, &span, &SPAN, &SPAN, b"k"], ErrorCode::BadTime);
        refused(b'h', &[&ID, &TOKEN, &span, &one], ErrorCode::BadTime);
    }
    for span in [0, 3_600_000].map(u32::to_be_bytes) {
        valid(&frame(b'a', &[&ID, &span, &SPAN, &one]));
        valid(&frame(b'n', &[&ID, &span, &SPAN, &SPAN, b"k"]));
        valid(&frame(b'h', &[&ID, &TOKEN, &span, &one]));
    }
}

#[test]
fn no_slots_are_answered_by_9() {
    refused(
        b'n',
        &[&ID, &SPAN, &SPAN, &[0; 4], b"k"],
        ErrorCode::BadSlots,
    );
    valid(&frame(b'n', &[&ID, &SPAN, &SPAN, &[0xff; 4], b"k"]));
}

#[test]
fn of_several_mistakes_the_keys_are_told_first_and_then_the_first_field() {
    let (zero, bad) = ([0; 4], [0xff; 4]);
    let unsorted = list(&[b"b", b"a"]);
    let one = list(&[b"a"]);
    refused(b'a', &[&ID, &bad, &zero, &unsorted], ErrorCode::BadKeySet);
    refused(
        b'a',
        &[&ID, &bad, &zero, &list(&[b" ", b"a"])],
        ErrorCode::BadKey,
    );
    refused(b'a', &[&ID, &bad, &zero, &one], ErrorCode::BadTime);
    refused(b'n', &[&ID, &bad, &zero, &zero, b""], ErrorCode::BadKey);
    refused(b'n', &[&ID, &bad, &zero, &zero, b"k"], ErrorCode::BadTime);
    refused(b'n', &[&ID, &SPAN, &zero, &zero, b"k"], ErrorCode::BadLease);
    refused(b'h', &[&ID, &[0; 8], &bad, &one], ErrorCode::BadToken);
    refused(b'x', &[&ID, &[0; 8], &zero, &one], ErrorCode::BadToken);
}

#[test]
fn a_set_that_is_not_canonical_is_answered_by_5() {
    let seventeen: Vec<[u8; 1]> = (b'a'..=b'q').map(|letter| [letter]).collect();
    let seventeen: Vec<&[u8]> = seventeen.iter().map(|name| &name[..]).collect();
    for set in [
        list(&[]),
        list(&[b"a"]),
        list(&[b"b", b"a"]),
        list(&[b"a", b"a"]),
        list(&[b"a", b"c", b"b"]),
        list(&seventeen),
    ] {
        refused(b'S', &[&ID, &[5, 30], &set], ErrorCode::BadKeySet);
        refused(b'G', &[&ID, &TOKEN, &set], ErrorCode::BadKeySet);
    }
    valid(&frame(b'S', &[&ID, &[5, 30], &list(&seventeen[..16])]));
    valid(&frame(b'G', &[&ID, &TOKEN, &list(&seventeen[..16])]));
    let lease = [0, 0, 0, 1];
    refused(
        b'x',
        &[&ID, &TOKEN, &lease, &list(&[b"b", b"a"])],
        ErrorCode::BadKeySet,
    );
    refused(
        b'x',
        &[&ID, &TOKEN, &lease, &list(&seventeen)],
        ErrorCode::BadKeySet,
    );
    valid(&frame(b'x', &[&ID, &TOKEN, &lease, &list(&[b"a"])]));
    for set in [list(&[]), list(&[b"b", b"a"]), list(&seventeen)] {
        refused(b'a', &[&ID, &SPAN, &SPAN, &set], ErrorCode::BadKeySet);
        refused(b'h', &[&ID, &TOKEN, &SPAN, &set], ErrorCode::BadKeySet);
    }
    for set in [list(&[b"a"]), list(&seventeen[..16])] {
        valid(&frame(b'a', &[&ID, &SPAN, &SPAN, &set]));
        valid(&frame(b'h', &[&ID, &TOKEN, &SPAN, &set]));
    }
}

#[test]
fn a_zero_token_is_answered_by_7() {
    refused(b'R', &[&ID, &[0; 8], b"k"], ErrorCode::BadToken);
    let set = list(&[b"a", b"b"]);
    refused(b'G', &[&ID, &[0; 8], &set], ErrorCode::BadToken);
    refused(
        b'x',
        &[&ID, &[0; 8], &[0, 0, 0, 1], &set],
        ErrorCode::BadToken,
    );
    refused(b'h', &[&ID, &[0; 8], &SPAN, &set], ErrorCode::BadToken);
}

#[test]
fn the_longest_bodies_are_accepted_and_one_byte_more_is_not() {
    let key = [b'k'; 128];
    let names: Vec<Vec<u8>> = (b'a'..=b'p')
        .map(|first| {
            let mut name = key.to_vec();
            name[0] = first;
            name
        })
        .collect();
    let names: Vec<&[u8]> = names.iter().map(|name| &name[..]).collect();
    let set = list(&names);
    for (bytes, longest) in [
        (frame(b'A', &[&ID, &[5, 30], &key]), 138),
        (frame(b'R', &[&ID, &TOKEN, &key]), 144),
        (frame(b'S', &[&ID, &[5, 30], &set]), 2_075),
        (frame(b'G', &[&ID, &TOKEN, &set]), 2_081),
        (frame(b'x', &[&ID, &TOKEN, &[0, 0, 0, 1], &set]), 2_085),
        (frame(b'h', &[&ID, &TOKEN, &SPAN, &set]), 2_085),
        (frame(b'a', &[&ID, &SPAN, &SPAN, &set]), 2_081),
        (frame(b'n', &[&ID, &SPAN, &SPAN, &SPAN, &key]), 148),
        (frame(b'q', &[&ID, &SPAN, &key]), 140),
    ] {
        assert_eq!(bytes.len(), 3 + longest);
        assert!(bytes.len() <= MAX_REQUEST_BYTES);
        valid(&bytes);
        let header = u16::try_from(longest + 1).unwrap().to_be_bytes();
        ends(
            &[bytes[0], header[0], header[1]],
            FrameError::Length {
                opcode: bytes[0],
                bytes: longest + 1,
            },
        );
    }
}

#[test]
fn a_body_too_short_for_its_fixed_fields_ends_the_connection() {
    for (opcode, shortest) in [
        (b'A', 10),
        (b'R', 16),
        (b'S', 11),
        (b'G', 17),
        (b'a', 17),
        (b'n', 20),
        (b'h', 21),
        (b'q', 12),
        (b'd', 8),
        (b'x', 21),
        (b'c', 16),
    ] {
        for bytes in 0..shortest {
            ends(
                &[opcode, 0, bytes],
                FrameError::Length {
                    opcode,
                    bytes: usize::from(bytes),
                },
            );
        }
    }
}

#[test]
fn an_unknown_opcode_ends_the_connection_at_its_first_byte() {
    for opcode in 0..=u8::MAX {
        if !b"ARSGdxcanhq".contains(&opcode) {
            ends(&[opcode], FrameError::Opcode { opcode });
        }
    }
}

#[test]
fn id_zero_ends_the_connection() {
    let zero = [0; 8];
    let set = list(&[b"a", b"b"]);
    for bytes in [
        frame(b'A', &[&zero, &[5, 30], b"k"]),
        frame(b'R', &[&zero, &TOKEN, b"k"]),
        frame(b'S', &[&zero, &[5, 30], &set]),
        frame(b'G', &[&zero, &TOKEN, &set]),
        frame(b'd', &[&zero]),
        frame(b'x', &[&zero, &TOKEN, &[0, 0, 0, 1], &set]),
        frame(b'a', &[&zero, &SPAN, &SPAN, &set]),
        frame(b'n', &[&zero, &SPAN, &SPAN, &SPAN, b"k"]),
        frame(b'h', &[&zero, &TOKEN, &SPAN, &set]),
        frame(b'q', &[&zero, &SPAN, b"k"]),
        frame(b'c', &[&zero, &ID]),
        frame(b'c', &[&ID, &zero]),
    ] {
        ends(&bytes, FrameError::ZeroId);
    }
}

#[test]
fn a_list_that_does_not_end_with_its_body_ends_the_connection() {
    for (set, error) in [
        (&b"\x02\x01a\x01bc"[..], FrameError::LeftOver),
        (b"\x02\x01a\x02b", FrameError::Truncated),
        (b"\x03\x01a\x01b", FrameError::Truncated),
        (b"\x00\x01a", FrameError::LeftOver),
        (b"\x11\x01a\x01b", FrameError::Truncated),
    ] {
        ends(&frame(b'S', &[&ID, &[5, 30], set]), error);
        ends(&frame(b'G', &[&ID, &TOKEN, set]), error);
        ends(&frame(b'x', &[&ID, &TOKEN, &SPAN, set]), error);
        ends(&frame(b'h', &[&ID, &TOKEN, &SPAN, set]), error);
        ends(&frame(b'a', &[&ID, &SPAN, &SPAN, set]), error);
    }
}

#[test]
fn a_key_that_is_not_utf8_ends_the_connection() {
    for key in [&b"\xff"[..], b"\xc3", b"ok\xed\xa0\x80"] {
        ends(&frame(b'A', &[&ID, &[5, 30], key]), FrameError::Utf8);
        ends(&frame(b'R', &[&ID, &TOKEN, key]), FrameError::Utf8);
        ends(
            &frame(b'n', &[&ID, &SPAN, &SPAN, &SPAN, key]),
            FrameError::Utf8,
        );
        ends(&frame(b'q', &[&ID, &SPAN, key]), FrameError::Utf8);
        // Also behind a mistake that alone would have been answered.
        let set = list(&[b"b", b"a", key]);
        ends(&frame(b'S', &[&ID, &[5, 0], &set]), FrameError::Utf8);
    }
}

#[test]
fn an_error_stays() {
    let mut decoder = RequestDecoder::new();
    let mut chunk: &[u8] = b"z";
    assert!(decoder.next(&mut chunk).is_err());
    let good = frame(b'd', &[&ID]);
    assert_eq!(
        decoder.next(&mut &good[..]),
        Err(FrameError::Opcode { opcode: b'z' })
    );
}

#[test]
fn an_idle_decoder_holds_no_memory_and_a_begun_frame_is_visible() {
    let mut decoder = RequestDecoder::new();
    let two = [frame(b'd', &[&ID]), frame(b'd', &[&ID])].concat();
    let mut chunk = &two[..];
    assert!(decoder.next(&mut chunk).unwrap().is_some());
    assert!(decoder.next(&mut chunk).unwrap().is_some());
    assert!(decoder.next(&mut chunk).unwrap().is_none());
    assert_eq!(decoder.capacity(), 0);
    assert!(!decoder.is_mid_frame());
    assert!(decoder.next(&mut &two[..1]).unwrap().is_none());
    assert!(decoder.is_mid_frame());
    assert!(decoder.next(&mut &two[1..11]).unwrap().is_some());
    assert!(!decoder.is_mid_frame());
}

fn read_reply(bytes: &[u8]) -> Result<Option<Reply>, FrameError> {
    ReplyDecoder::new().next(&mut &bytes[..])
}

#[test]
fn a_reply_with_an_impossible_field_ends_the_connection() {
    for bytes in [
        frame(b'A', &[&ID, &[0; 8]]),
        frame(b'S', &[&ID, &[0; 8]]),
        frame(b'E', &[&ID, &[0]]),
        frame(b'E', &[&ID, &[11]]),
        frame(b'a', &[&ID, &[0; 8], &SPAN]),
        frame(b'n', &[&ID, &[0; 8], &SPAN, &SPAN]),
        frame(b'M', &[&ID, &[5]]),
        frame(b'M', &[&ID, &[254]]),
        frame(b'L', &[&[5]]),
        frame(b'c', &[&ID, &[2]]),
    ] {
        assert_eq!(read_reply(&bytes), Err(FrameError::Value), "{bytes:?}");
    }
    for opcode in *b"RGNTBIh" {
        assert_eq!(
            read_reply(&frame(opcode, &[&[0; 8]])),
            Err(FrameError::ZeroId)
        );
    }
}

#[test]
fn a_status_that_contradicts_itself_ends_the_connection() {
    let status = |state: u8, token: u8, [slot, remaining, waiters, slots, taken]: [u8; 5]| {
        let number = |byte: u8| [0, 0, 0, byte];
        let parts: [&[u8]; 8] = [
            &ID,
            &[state],
            &number(slot),
            &[0, 0, 0, 0, 0, 0, 0, token],
            &number(remaining),
            &number(waiters),
            &number(slots),
            &number(taken),
        ];
        read_reply(&frame(b'q', &parts))
    };
    for (state, token, numbers) in [
        // Free, and yet something holds it.
        (0, 9, [0, 0, 0, 0, 0]),
        (0, 0, [1, 0, 0, 4, 2]),
        (0, 0, [0, 1, 0, 0, 0]),
        // Held or retained by nothing, in a slot that does not exist, or by none of the holders.
        (1, 0, [0, 1, 0, 0, 1]),
        (2, 0, [0, 1, 0, 0, 1]),
        (1, 9, [1, 1, 0, 0, 1]),
        (1, 9, [4, 1, 0, 4, 1]),
        (2, 9, [4, 1, 0, 4, 1]),
        (1, 9, [0, 1, 0, 0, 0]),
        (2, 9, [0, 1, 0, 4, 0]),
        // More holders than places.
        (1, 9, [0, 1, 0, 0, 2]),
        (1, 9, [0, 1, 0, 4, 5]),
        (0, 0, [0, 0, 0, 4, 5]),
        // A state that does not exist.
        (3, 9, [0, 1, 0, 0, 1]),
    ] {
        let judged = status(state, token, numbers);
        assert_eq!(
            judged,
            Err(FrameError::Value),
            "{state} {token} {numbers:?}"
        );
    }
    for (state, token, numbers) in [
        (0, 0, [0, 0, 9, 0, 0]),
        (0, 0, [0, 0, 0, 4, 4]),
        (1, 9, [3, 0, 1, 4, 4]),
        (2, 9, [0, 5, 1, 0, 1]),
    ] {
        let judged = status(state, token, numbers);
        assert!(matches!(judged, Ok(Some(_))), "{state} {token} {numbers:?}");
    }
}

#[test]
fn a_reply_of_another_length_ends_the_connection() {
    for (opcode, exactly) in [
        (b'A', 16_u8),
        (b'S', 16),
        (b'R', 8),
        (b'G', 8),
        (b'N', 8),
        (b'T', 8),
        (b'B', 8),
        (b'I', 8),
        (b'M', 9),
        (b'E', 9),
        (b'L', 1),
        (b'd', 44),
        (b'x', 12),
        (b'c', 9),
        (b'a', 20),
        (b'n', 24),
        (b'h', 8),
        (b'q', 37),
    ] {
        assert!(usize::from(exactly) + 3 <= MAX_REPLY_BYTES);
        for bytes in (0..=64).filter(|bytes| *bytes != exactly) {
            assert_eq!(
                read_reply(&[opcode, 0, bytes]),
                Err(FrameError::Length {
                    opcode,
                    bytes: usize::from(bytes)
                })
            );
        }
    }
}

#[test]
fn replies_fit_only_their_kind_of_request() {
    use RequestKind::{
        Acquire, AcquireSlot, AcquireTimed, Cancel, Domain, Extend, Query, Release, Retain,
    };
    let kinds = [
        Acquire(Shape::One),
        Acquire(Shape::Set),
        Release(Shape::One),
        Release(Shape::Set),
        Domain,
        Extend,
        Cancel,
        AcquireTimed,
        AcquireSlot,
        Retain,
        Query,
    ];
    let mut status = [0; 29];
    status[0] = 1;
    status[12] = 9;
    status[28] = 1;
    // One row per reply, one column per kind above.
    for (bytes, expected) in [
        (frame(b'A', &[&ID, &TOKEN]), "y.........."),
        (frame(b'S', &[&ID, &TOKEN]), ".y........."),
        (frame(b'R', &[&ID]), "..y........"),
        (frame(b'G', &[&ID]), "...y......."),
        (frame(b'N', &[&ID]), "..yy.y...y."),
        (frame(b'T', &[&ID]), "yy.....yy.."),
        (frame(b'B', &[&ID]), "yy.....yy.."),
        (frame(b'M', &[&ID, &[255]]), "yyyyyyyyyyy"),
        (frame(b'I', &[&ID]), "yyyyyyyyyyy"),
        (frame(b'E', &[&ID, &[1]]), "yyyy.y.yyyy"),
        (frame(b'E', &[&ID, &[2]]), "yy...y.yy.."),
        (frame(b'E', &[&ID, &[3]]), "yyyyyyyyyyy"),
        (frame(b'E', &[&ID, &[4]]), "yyyyyyyyyyy"),
        (frame(b'E', &[&ID, &[5]]), ".y.y.y.y.y."),
        (frame(b'E', &[&ID, &[6]]), "..yy.y...y."),
        (frame(b'E', &[&ID, &[7]]), "..yy.y...y."),
        (frame(b'E', &[&ID, &[8]]), ".......yyy."),
        (frame(b'E', &[&ID, &[9]]), "........y.."),
        (frame(b'E', &[&ID, &[10]]), ".......yy.."),
        (frame(b'L', &[&[255]]), "..........."),
        (frame(b'd', &[&ID, &[1; 36]]), "....y......"),
        (frame(b'x', &[&ID, &[0; 4]]), ".....y....."),
        (frame(b'c', &[&ID, &[1]]), "......y...."),
        (frame(b'a', &[&ID, &TOKEN, &SPAN]), ".......y..."),
        (frame(b'n', &[&ID, &TOKEN, &SPAN, &SPAN]), "........y.."),
        (frame(b'h', &[&ID]), ".........y."),
        (frame(b'q', &[&ID, &status]), "..........y"),
    ] {
        let reply = read_reply(&bytes).unwrap().unwrap();
        let fits: String = kinds
            .iter()
            .map(|kind| if reply.fits(*kind) { 'y' } else { '.' })
            .collect();
        assert_eq!(fits, expected, "{reply:?}");
    }
    for (kind, expected) in kinds.iter().zip("yy.....yy..".chars()) {
        assert_eq!(kind.is_acquire(), expected == 'y', "{kind:?}");
    }
}
