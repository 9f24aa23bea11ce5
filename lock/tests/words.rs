//! The rules of the shared words: keys, sets, tokens, domains, fences.

#![expect(
    clippy::unwrap_used,
    reason = "in a test a panic is the failure report"
)]

use std::collections::HashSet;

use highwater_lock::{
    Domain, DomainError, Fence, FenceError, FenceKey, FencingToken, Grant, Key, KeyError, KeySet,
    KeySetError, Mark, Step, Timestamp, WaiterId,
};

fn key(name: &str) -> Key {
    Key::new(name).unwrap()
}

fn mark(name: &str, token: u64) -> Mark {
    Mark {
        key: FenceKey::new(name).unwrap(),
        token: FencingToken::new(token).unwrap(),
    }
}

#[test]
fn a_key_has_1_to_128_bytes() {
    assert_eq!(Key::new(""), Err(KeyError::Empty));
    assert_eq!(key("x").as_bytes(), b"x");
    assert_eq!(key(&"x".repeat(128)).as_bytes().len(), 128);
    let bytes = 129;
    assert_eq!(Key::new("x".repeat(129)), Err(KeyError::TooLong { bytes }));
    // Bytes count, not characters.
    assert_eq!(key(&"é".repeat(64)).as_bytes().len(), 128);
    let bytes = 130;
    assert_eq!(Key::new("é".repeat(65)), Err(KeyError::TooLong { bytes }));
}

#[test]
fn a_key_has_no_space_or_line_end_and_may_have_any_other_byte() {
    for (name, position) in [("a b", 1), ("\n", 0), ("ab\r", 2), (" ", 0)] {
        assert_eq!(Key::new(name), Err(KeyError::Forbidden { position }));
    }
    for name in ["\0", "\t", "'\"\\%_", "\u{a0}", "日本", "\u{7f}"] {
        assert_eq!(key(name).as_str(), name);
    }
}

#[test]
fn keys_are_compared_by_bytes() {
    assert_ne!(key("Stock"), key("stock"));
    assert_ne!(key("\u{e9}"), key("e\u{301}"), "no normalisation");
    assert!(key("Z") < key("a"));
    assert!(key("z") < key("é"));
}

#[test]
fn sets_are_compared_by_all_their_keys() {
    let set = |names: &[&str]| KeySet::new(names.iter().map(|name| key(name))).unwrap();
    assert_eq!(set(&["b", "a"]), set(&["a", "b"]));
    assert_eq!(set(&["a"]), KeySet::from(key("a")));
    assert_ne!(set(&["a", "b"]), set(&["a", "c"]));
    assert_ne!(set(&["a"]), set(&["a", "b"]));
    assert_ne!(set(&["a"]), set(&["b"]));
    let sorted = [set(&["a"]), set(&["a", "b"]), set(&["a", "c"]), set(&["b"])];
    assert!(sorted.is_sorted_by(|one, next| one < next));
    let equal = HashSet::from([
        set(&["a", "b"]),
        set(&["b", "a"]),
        set(&["a", "c"]),
        set(&["a"]),
    ]);
    assert_eq!(equal.len(), 3);
    assert_eq!(
        size_of::<KeySet>(),
        size_of::<Key>(),
        "one key needs nothing more"
    );
}

#[test]
fn a_set_is_sorted_and_has_no_key_twice() {
    let set = KeySet::new([key("b"), key("a"), key("B")]).unwrap();
    let names: Vec<&str> = set.iter().map(Key::as_str).collect();
    assert_eq!(names, ["B", "a", "b"]);
    let twice = KeySet::new([key("a"), key("b"), key("a")]);
    assert_eq!(twice, Err(KeySetError::Duplicate { key: key("a") }));
    let unsorted = KeySet::from_sorted(vec![key("b"), key("a")]);
    assert_eq!(unsorted, Err(KeySetError::Unsorted));
    assert_eq!(KeySet::new([]), Err(KeySetError::Empty));
    let many = |count: usize| KeySet::new((0..count).map(|number| key(&format!("k{number}"))));
    assert_eq!(many(16).unwrap().len(), 16);
    assert_eq!(many(17), Err(KeySetError::TooMany { keys: 17 }));
}

#[test]
fn zero_is_not_a_token() {
    assert_eq!(FencingToken::new(0), None);
    assert!(FencingToken::try_from(0).is_err());
    assert_eq!(FencingToken::new(u64::MAX), Some(FencingToken::MAX));
    assert!(FencingToken::MIN < FencingToken::MAX);
}

#[test]
fn a_domain_is_written_and_read_as_64_digits() {
    let domain = Domain::from_bytes(core::array::from_fn(|index| index as u8 * 8));
    let text = domain.to_string();
    assert_eq!(text.len(), 64);
    assert!(text.starts_with("00081018"));
    assert_eq!(text.parse(), Ok(domain));
    assert_eq!(text.to_uppercase().parse(), Ok(domain));
    for bad in [
        &text[..62],
        &format!("{text}00"),
        &text.replace('8', "g"),
        "",
    ] {
        assert_eq!(bad.parse::<Domain>(), Err(DomainError::Digits));
    }
}

#[test]
fn a_named_domain_is_unlike_any_other_name() {
    let domain = Domain::named("etcd-1").unwrap();
    assert_eq!(&domain.as_bytes()[..7], b"etcd-1\0");
    assert_ne!(Domain::named("etcd-2").unwrap(), domain);
    assert_eq!(Domain::named(""), Err(DomainError::Length { bytes: 0 }));
    assert!(Domain::named(&"x".repeat(31)).is_ok());
    let bytes = 32;
    assert_eq!(
        Domain::named(&"x".repeat(32)),
        Err(DomainError::Length { bytes })
    );
    assert_eq!(Domain::named("a\0"), Err(DomainError::ZeroByte));
}

#[test]
fn a_fence_has_each_key_once_in_byte_order() {
    let domain = Domain::named("test").unwrap();
    let fence = Fence::from_marks(domain, [mark("b", 2), mark("a", 1), mark("b", 2)]).unwrap();
    assert_eq!(fence.marks(), [mark("a", 1), mark("b", 2)]);
    assert_eq!(Fence::from_marks(domain, []), Err(FenceError::Empty));
    let two = Fence::from_marks(domain, [mark("a", 1), mark("a", 2)]);
    let key = FenceKey::new("a").unwrap();
    assert_eq!(two, Err(FenceError::TwoTokens { key }));
}

#[test]
fn fences_join_only_within_one_domain_and_step() {
    let (one, two) = (Domain::named("one").unwrap(), Domain::named("two").unwrap());
    let fence = |domain, name, token| Fence::from_marks(domain, [mark(name, token)]).unwrap();
    let joined = fence(one, "b", 2).and(fence(one, "a", 1)).unwrap();
    assert_eq!(joined.marks(), [mark("a", 1), mark("b", 2)]);
    let other = fence(one, "a", 1).and(fence(two, "b", 2));
    assert_eq!(other, Err(FenceError::TwoDomains));
    let step = Step::new(3).unwrap();
    let stepped = fence(one, "a", 1).with_step(step);
    assert_eq!(
        stepped.clone().and(fence(one, "b", 2)),
        Err(FenceError::TwoSteps)
    );
    let both = stepped.and(fence(one, "b", 2).with_step(step)).unwrap();
    assert_eq!(both.step(), Some(step));
}

#[test]
fn the_fence_key_of_a_slot_collides_with_no_lock_key() {
    let slot = FenceKey::slot(&key("workers"), 12);
    assert_eq!(slot.as_bytes(), b"workers 12");
    assert!(Key::new("workers 12").is_err());
    let longest = FenceKey::slot(&key(&"x".repeat(128)), u32::MAX);
    assert!(longest.as_bytes().len() <= FenceKey::MAX_BYTES);
    assert!(FenceKey::new("").is_err());
    assert!(FenceKey::new([0; 255]).is_ok());
    assert!(FenceKey::new([0; 256]).is_err());
}

#[test]
fn a_grant_tells_the_fence_keys_of_its_locks_and_of_its_slot() {
    let grant = |slot| Grant {
        waiter: WaiterId::new(1.into(), 1.into()),
        keys: KeySet::from(key("workers")),
        slot,
        token: FencingToken::MIN,
        granted_at: Timestamp::ZERO,
        expires: Timestamp::ZERO,
    };
    assert_eq!(grant(None).fence_keys(), [FenceKey::from(key("workers"))]);
    assert_eq!(
        grant(Some(3)).fence_keys(),
        [FenceKey::slot(&key("workers"), 3)]
    );
}

#[test]
fn timestamps_round_spans_up_and_do_not_overflow() {
    use core::time::Duration;
    let at = Timestamp::from_micros(5);
    assert_eq!(
        at.saturating_add(Duration::from_nanos(1_001)).as_micros(),
        7
    );
    assert_eq!(at.saturating_add(Duration::ZERO), at);
    assert_eq!(at.saturating_add(Duration::MAX).as_micros(), u64::MAX);
    assert_eq!(Timestamp::ZERO.saturating_since(at), Duration::ZERO);
    assert_eq!(
        at.saturating_since(Timestamp::ZERO),
        Duration::from_micros(5)
    );
    assert_eq!(Timestamp::from_micros(1_000_002).to_string(), "1.000002s");
}
