//! The column of the table of requests and states that cannot be held still over a socket: a lease
//! that is over, and whose end is not decided yet.

use highwater_protocol::{LeaseMillis, LeaseSeconds, Request, SpanMillis};
use tokio::time::advance;

use super::*;

/// A hold whose lease is over, while the machine, which ends one at a time, has not come to it.
#[tokio::test(start_paused = true)]
async fn a_key_whose_end_is_not_decided_is_held_for_all_and_of_no_use_to_its_holder() {
    let set =
        |names: &[&str]| KeySet::new(names.iter().map(|name| Key::new(name).unwrap())).unwrap();
    let lease = LeaseMillis::new(60_000).unwrap();
    let wait = |milliseconds| SpanMillis::new(milliseconds).unwrap();
    let id = number(9);
    let one = set(&["third"]);
    let both = set(&["free", "third"]);
    let base = LeaseSeconds::new(60).unwrap();
    let name = Key::new("third").unwrap();
    let slots = NonZeroU32::new(2).unwrap();
    let acquire = |keys: &KeySet, wait_seconds| Request::Acquire {
        id,
        keys: keys.clone(),
        wait_seconds,
        lease: base,
    };
    let timed = |keys: &KeySet, milliseconds| Request::AcquireTimed {
        id,
        keys: keys.clone(),
        wait: wait(milliseconds),
        lease,
    };
    let release = |keys: &KeySet, token| Request::Release {
        id,
        keys: keys.clone(),
        token,
    };
    let extend = |keys: &KeySet, token| Request::Extend {
        id,
        keys: keys.clone(),
        token,
        lease,
    };
    let retain = |keys: &KeySet, token, milliseconds| Request::Retain {
        id,
        keys: keys.clone(),
        token,
        minimum: wait(milliseconds),
    };
    let token = FencingToken::new(3).unwrap();
    let slot = |milliseconds| Request::AcquireSlot {
        id,
        name: name.clone(),
        slots,
        wait: wait(milliseconds),
        lease,
    };
    let query = Request::Query {
        id,
        key: name.clone(),
        from_slot: 0,
    };
    // Nothing in the second column: it waits in the queue.
    let table = [
        (acquire(&one, 0), "T"),
        (acquire(&one, 60), ""),
        (acquire(&both, 0), "T"),
        (acquire(&both, 60), ""),
        (timed(&one, 0), "T"),
        (timed(&one, 60_000), ""),
        (timed(&both, 0), "T"),
        (timed(&both, 60_000), ""),
        (slot(0), "E10"),
        (slot(60_000), "E10"),
        (release(&one, token), "N"),
        (release(&both, token), "N"),
        (extend(&one, token), "N"),
        (extend(&both, token), "N"),
        (retain(&one, token, 0), "N"),
        (retain(&one, token, 3_600_000), "N"),
        (retain(&both, token, 0), "N"),
        (query, "held 0"),
    ];
    for (request, expected) in table {
        let domain = Domain::from_bytes([7; 32]);
        let limits = Limits {
            expiries_per_apply: 1,
            ..Limits::default()
        };
        let desk = Desk::new(domain, FencingToken::MIN, limits, None, HashSeed::default());
        let (holder, asker) = (peer(&desk), peer(&desk));
        for (id, key) in ["first", "second", "third"].into_iter().enumerate() {
            holder.acquires(&desk, id as u64 + 1, &[key], 0, 1);
            advance(micros(1)).await;
        }
        advance(micros(2_000_000)).await;
        asker.asks(&desk, request.clone());
        let told: Vec<String> = asker.replies().iter().map(words).collect();
        assert_eq!(told.concat(), expected, "{request:?}");
        // When its end is decided, the key goes to whoever waits for it.
        desk.tick();
        desk.tick();
        let waits = expected.is_empty();
        assert_eq!(asker.replies().len(), usize::from(waits), "{request:?}");
        assert_eq!(desk.counts().held_keys > 0, waits, "{request:?}");
    }
}

fn words(reply: &Reply) -> String {
    match reply {
        Reply::TimedOut { .. } => "T".to_owned(),
        Reply::NotHeld { .. } => "N".to_owned(),
        Reply::Error { code, .. } => format!("E{}", code.to_byte()),
        Reply::Status { status, .. } => match status.state {
            KeyState::Held { remaining_ms, .. } => format!("held {remaining_ms}"),
            other => format!("{other:?}"),
        },
        other => format!("{other:?}"),
    }
}
