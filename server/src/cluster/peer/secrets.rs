//! The peer secrets of one node.
//!
//! There is more than one only while the secret of a cluster is being changed. The first is the one with which
//! this node calls others; whoever calls it may prove any. So nodes that differ in the order, or know one secret
//! more, talk to each other.

use highwater_protocol::Secret;
use subtle::{ConditionallySelectable as _, ConstantTimeEq as _};

/// See the module's description. None of them is there twice.
#[derive(Clone, Debug)]
pub(in crate::cluster) struct PeerSecrets {
    first: Secret,
    others: Vec<Secret>,
}

impl PeerSecrets {
    /// How many there may be: whoever answers a call tries all of them. A change needs two; more are for one
    /// that was begun before another one was over.
    pub(in crate::cluster) const MOST: usize = 4;

    pub(in crate::cluster) fn new(first: Secret) -> Self {
        let others = Vec::new();
        Self { first, others }
    }

    /// Takes one more that callers may prove, behind the others.
    pub(in crate::cluster) fn add(&mut self, other: Secret) -> Result<(), NotAdded> {
        if self.has(&other) {
            return Err(NotAdded::Twice);
        }
        if self.others.len() + 1 >= Self::MOST {
            return Err(NotAdded::TooMany);
        }
        self.others.push(other);
        Ok(())
    }

    /// The one that this node proves when it calls.
    pub(in crate::cluster) fn first(&self) -> &Secret {
        &self.first
    }

    /// Whether this is one of them.
    pub(in crate::cluster) fn has(&self, secret: &Secret) -> bool {
        let label: &[&[u8]] = &[b"same"];
        self.find(label, &secret.prove(label)).is_some()
    }

    /// The secret with which this was proved, and its place. All are tried, whichever it is, and each comparison
    /// takes the same time.
    pub(super) fn find(&self, parts: &[&[u8]], proof: &[u8]) -> Option<(usize, &Secret)> {
        let mut found = NOWHERE;
        for (place, secret) in (0_u8..).zip(self.all()) {
            let is_it = secret.prove(parts).ct_eq(proof);
            found.conditional_assign(&place, is_it);
        }
        // NOWHERE is behind the last one.
        self.all().enumerate().nth(found.into())
    }

    fn all(&self) -> impl Iterator<Item = &Secret> {
        std::iter::once(&self.first).chain(&self.others)
    }
}

const NOWHERE: u8 = u8::MAX;

/// Why a secret was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cluster) enum NotAdded {
    /// It is there already.
    Twice,
    TooMany,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(number: usize) -> Secret {
        Secret::new(format!("peer secret number {number}")).unwrap()
    }

    #[test]
    fn each_is_found_by_its_proof_and_no_other_is() {
        let mut secrets = PeerSecrets::new(secret(0));
        for number in 1..PeerSecrets::MOST {
            assert_eq!(secrets.add(secret(number)), Ok(()));
        }
        let parts: &[&[u8]] = &[b"a label", b"and more"];
        let place = |proof: &[u8]| secrets.find(parts, proof).map(|(place, _)| place);
        for number in 0..PeerSecrets::MOST {
            let proof = secret(number).prove(parts);
            assert_eq!(place(&proof), Some(number));
            assert_eq!(place(&proof[..31]), None);
            assert_eq!(place(&secret(number).prove(&parts[..1])), None);
            assert!(secrets.has(&secret(number)));
        }
        let other = secret(PeerSecrets::MOST);
        assert_eq!(place(&other.prove(parts)), None);
        assert!(!secrets.has(&other));
    }

    #[test]
    fn none_is_taken_twice_and_no_more_than_the_bound() {
        let mut secrets = PeerSecrets::new(secret(0));
        for number in 1..PeerSecrets::MOST {
            for known in 0..number {
                assert_eq!(secrets.add(secret(known)), Err(NotAdded::Twice));
            }
            assert_eq!(secrets.add(secret(number)), Ok(()));
        }
        let more = secrets.add(secret(PeerSecrets::MOST));
        assert_eq!(more, Err(NotAdded::TooMany));
        assert_eq!(secrets.all().count(), PeerSecrets::MOST);
    }
}
