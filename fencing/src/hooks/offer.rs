//! How hooks that stay on a connection learn which transaction to watch, without a request of its own.
//!
//! The driver's thread is asked with a request, and each costs two changes of threads; so the fence's
//! own statement says it, by comparing the name of an offered watch under a collation of that
//! connection, whose function is ours. The names of a process are its own, so that a second copy of
//! this crate in one program does not take them for its own.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher as _;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use super::{Line, State, Watch};

/// The watches that a statement under way may name, and what it says of them.
type Names = HashMap<String, (Says, Arc<State>)>;

static OFFERED: LazyLock<Mutex<Names>> = LazyLock::new(Mutex::default);

/// What a statement says with a name.
#[derive(Clone, Copy, Debug)]
enum Says {
    /// This is to be watched.
    Watch,
    /// One of its keys is closed.
    Closed,
}

fn offered() -> MutexGuard<'static, Names> {
    OFFERED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A name that statements can say, until this is dropped.
#[derive(Debug)]
pub(crate) struct Offered(String);

impl Offered {
    fn new(says: Says, watch: &Watch) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        static COPY: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one(()));
        let name = format!("{:x}-{}", *COPY, NEXT.fetch_add(1, SeqCst));
        offered().insert(name.clone(), (says, Arc::clone(&watch.0)));
        Self(name)
    }

    /// The name.
    pub(crate) fn name(&self) -> &str {
        &self.0
    }
}

impl Drop for Offered {
    fn drop(&mut self) {
        offered().remove(&self.0);
    }
}

impl Watch {
    /// A name for the statement of the fence.
    pub(crate) fn offer(&self) -> Offered {
        Offered::new(Says::Watch, self)
    }

    /// A name for the statement that closes this many keys. No commit passes before it did.
    pub(crate) fn expect_closed(&self, keys: usize) -> Offered {
        self.0.open.store(keys, SeqCst);
        Offered::new(Says::Closed, self)
    }

    /// Whether keys were not closed.
    pub(crate) fn is_unclosed(&self) -> bool {
        self.0.open.load(SeqCst) > 0
    }

    /// Whether hooks watch it.
    pub(crate) fn is_watched(&self) -> bool {
        self.0.watched.load(SeqCst)
    }
}

impl Line {
    /// The function of the collation, which hears the names. It watches nothing once a hook is gone.
    pub(crate) fn collation(&self) -> impl Fn(&str, &str) -> Ordering + Send + Sync + use<> {
        let line = self.clone();
        move |name, _| {
            let named = offered().get(name).cloned();
            match named {
                Some((Says::Watch, state)) if !line.0.cut.load(SeqCst) => line.watch(&Watch(state)),
                Some((Says::Closed, state)) => {
                    let one_less = |open: usize| Some(open.saturating_sub(1));
                    state.open.fetch_update(SeqCst, SeqCst, one_less).ok();
                }
                _ => {}
            }
            Ordering::Equal
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_named_is_watched() {
        let line = Line::default();
        let (mut may_pass, mut rolled_back) = line.hooks();
        let compare = line.collation();
        let (first, second) = (Watch::default(), Watch::default());
        let (offered, other) = (first.offer(), second.offer());
        compare("no such name", "");
        assert!(may_pass() && !first.is_watched());
        compare(offered.name(), "");
        assert!(!may_pass() && first.is_watched() && !second.is_watched());
        first.let_all_pass();
        compare(other.name(), "");
        rolled_back();
        assert!(second.has_ended() && !first.has_ended());
    }

    #[test]
    fn an_offer_ends_with_its_drop_and_a_line_with_its_hooks() {
        let line = Line::default();
        let compare = line.collation();
        let (may_pass, _rolled_back) = line.hooks();
        let watch = Watch::default();
        let name = watch.offer().name().to_owned();
        compare(&name, "");
        assert!(!watch.is_watched(), "the offer was withdrawn");
        drop(may_pass);
        let offered = watch.offer();
        compare(offered.name(), "");
        assert!(!watch.is_watched(), "a hook is gone");
    }

    #[test]
    fn a_commit_waits_for_every_key_to_be_closed() {
        let line = Line::default();
        let compare = line.collation();
        let (mut may_pass, _rolled_back) = line.hooks();
        let watch = Watch::default();
        let offered = watch.offer();
        compare(offered.name(), "");
        watch.let_ours_pass();
        let closing = watch.expect_closed(2);
        for _ in 0..2 {
            assert!(!may_pass() && watch.is_unclosed());
            compare(closing.name(), "");
        }
        compare(closing.name(), "one that was left open before");
        assert!(may_pass() && !watch.is_unclosed());
    }
}
