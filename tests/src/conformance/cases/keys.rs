//! Keys are bytes: no database folds, pads, cuts or interprets them.

use std::sync::Arc;

use highwater_fencing::{Fence, FenceKey, FenceOptions, Key, Mark};
use highwater_proof::adapter::Verdict;

use crate::conformance::world::{World, domain, fence, token};

/// Raises the mark of the key, and checks that the table has exactly this key for it.
async fn raise(world: &World, key: &[u8], number: u64) {
    world.raise(&fence(key, number)).await;
    assert_eq!(
        world.mark(key).await,
        Some(number),
        "{}",
        key.escape_ascii()
    );
}

/// Gives each key a mark of its own, and then finds every one as it was left.
async fn stay_apart(world: &World, keys: &[Vec<u8>]) {
    for (key, number) in keys.iter().zip(10..) {
        raise(world, key, number).await;
    }
    for (key, number) in keys.iter().zip(10_u64..) {
        assert_eq!(
            world.mark(key).await,
            Some(number),
            "{}",
            key.escape_ascii()
        );
        let refused = world.refusal(&fence(key, number - 1)).await;
        let Verdict::Stale {
            key: named,
            highest,
            ..
        } = refused
        else {
            panic!("{}: {refused:?}", key.escape_ascii());
        };
        assert_eq!(named.as_bytes(), key);
        assert_eq!(highest, token(number));
    }
    let rows = world.number("SELECT COUNT(*) FROM highwater_fence").await;
    assert_eq!(rows, i64::try_from(keys.len()).unwrap());
}

pub(super) async fn every_byte_makes_its_own_key(world: Arc<World>) {
    // In several fences, because that is 256 keys; each byte in the middle and alone.
    let mut marks = Vec::new();
    for byte in 0..=u8::MAX {
        marks.push((vec![byte], u64::from(byte) + 1));
        marks.push((vec![b'a', byte, b'z'], u64::from(byte) + 1000));
    }
    for chunk in marks.chunks(64) {
        let chunk = chunk.iter().map(|(key, number)| Mark {
            key: FenceKey::new(key).unwrap(),
            token: token(*number),
        });
        let fence = Fence::from_marks(domain(), chunk).unwrap();
        world.raise(&FenceOptions::new().apply(fence)).await;
    }
    for (key, number) in &marks {
        assert_eq!(
            world.mark(key).await,
            Some(*number),
            "{}",
            key.escape_ascii()
        );
    }
    assert_eq!(
        world.number("SELECT COUNT(*) FROM highwater_fence").await,
        512
    );
}

pub(super) async fn awkward_keys_are_stored_as_they_are(world: Arc<World>) {
    let texts = [
        "'",
        "''",
        "\"",
        "`",
        "\\",
        "\\'",
        "\\\\",
        "%",
        "_",
        "?",
        "$1",
        ":name",
        "@x",
        ";",
        "--",
        "/*",
        "*/",
        "#",
        "\u{1}",
        "\u{7f}",
        "\t",
        "\0",
        "a\0b",
        "\\0",
        "\\x41",
        "x'41'",
        "NULL",
        "0",
        "-1",
        "1e3",
        "a';DROP/**/TABLE/**/highwater_fence;--",
        "é",
        "日本語",
        "🦀",
        "\u{202e}abc",
        "\u{feff}",
        "{}",
        "{{",
        "%s",
        "$$",
        "E'\\n'",
    ];
    let mut keys: Vec<Vec<u8>> = texts.map(|text| text.as_bytes().to_vec()).into();
    // As locks they must be names: the rule allows every one of them.
    for text in texts {
        let key = Key::new(text).unwrap_or_else(|error| panic!("{text:?}: {error}"));
        assert_eq!(FenceKey::from(key).as_bytes(), text.as_bytes());
    }
    // Not text at all, and what only a fence key may have.
    keys.extend([
        vec![0xff],
        vec![0xff, 0xfe],
        vec![0xc3, 0x28],
        vec![0xed, 0xa0, 0x80],
        b" ".to_vec(),
        b"a b".to_vec(),
        b"\n".to_vec(),
        b"\r\n".to_vec(),
        b"leaders 3".to_vec(),
    ]);
    stay_apart(&world, &keys).await;
}

pub(super) async fn keys_that_differ_only_in_case_padding_or_normalisation_are_different(
    world: Arc<World>,
) {
    let keys: [&[u8]; 22] = [
        b"stock",
        b"Stock",
        b"STOCK",
        b"stock ",
        b"stock  ",
        b" stock",
        b"stock\0",
        b"stock\0\0",
        b"stock\t",
        "straße".as_bytes(),
        "strasse".as_bytes(),
        "STRASSE".as_bytes(),
        "caf\u{e9}".as_bytes(),
        "cafe\u{301}".as_bytes(),
        "cafe".as_bytes(),
        "\u{212b}".as_bytes(),
        "\u{c5}".as_bytes(),
        "A\u{30a}".as_bytes(),
        "i".as_bytes(),
        "ı".as_bytes(),
        "ﬁ".as_bytes(),
        "fi".as_bytes(),
    ];
    stay_apart(&world, &keys.map(<[u8]>::to_vec)).await;
}

pub(super) async fn the_longest_keys_work(world: Arc<World>) {
    let name = "ü".repeat(Key::MAX_BYTES / 2);
    let longest_name = FenceKey::from(Key::new(&name).unwrap());
    let slot = FenceKey::slot(&Key::new(&name).unwrap(), u32::MAX);
    let longest = vec![0xff; FenceKey::MAX_BYTES];
    let mut other_end = longest.clone();
    *other_end.last_mut().unwrap() = 0xfe;
    let keys = [
        longest_name.as_bytes().to_vec(),
        slot.as_bytes().to_vec(),
        longest[..FenceKey::MAX_BYTES - 1].to_vec(),
        longest,
        other_end,
    ];
    stay_apart(&world, &keys).await;
}
