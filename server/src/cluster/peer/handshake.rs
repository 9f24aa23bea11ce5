//! The opening of a connection between peers.
//!
//! ```text
//! acceptor:  "HWPEER\0\0" · lowest version u16 · highest version u16 · slot u8 · generation u64 · nonce 16
//! initiator: version u16 · role u8 (0 node, 1 operator, 2 process) · slot u8 · generation u64
//!            · slot u8 and generation u64 of the acceptor · domain 32 · nonce 16 · proof 32
//! acceptor:  verdict u8 · proof 32
//! ```
//! A proof is HMAC-SHA256 with a peer secret over what all nodes must have in common, a label of
//! the side and everything that has been said, the verdict included. The initiator takes the first of its
//! [secrets](super::secrets), and the acceptor proves the same one, or its own first if it has not got it. Both nonces are fresh, so nothing can be replayed, and the
//! labels differ from each other and from those of clients, so no answer serves in another place.
//! An operator has slot 255 and generation 0, and a process that speaks for no node, because it may not be one
//! yet, has its slot and generation 0. Both may name generation 0 for whichever node there is.
//! A verdict other than 1 says why not: 0 wrong secret, 2 another domain, 3 for another node, 4
//! version.

use std::fmt;

use highwater_protocol::Secret;
use highwater_protocol::handshake::Slot;
use subtle::ConstantTimeEq as _;

use super::Trust;
use crate::cluster::bytes::{Malformed, Put as _, Reader};
use crate::cluster::types::Member;

/// The peer protocol that this version speaks. A node speaks the one before it too, once there is
/// one, so that a cluster can be upgraded node by node.
pub(in crate::cluster) const VERSION: u16 = 1;
pub(in crate::cluster) const LOWEST_VERSION: u16 = 1;

pub(in crate::cluster) const HELLO_BYTES: usize = 37;
pub(in crate::cluster) const ANSWER_BYTES: usize = 101;
pub(in crate::cluster) const VERDICT_BYTES: usize = 33;
const MAGIC: &[u8; 8] = b"HWPEER\0\0";
const INITIATOR: &[u8] = b"HIGHWATER/PEER/INITIATOR/1";
const ACCEPTOR: &[u8] = b"HIGHWATER/PEER/ACCEPTOR/1";
const OPERATOR_SLOT: u8 = 255;

/// Who opens a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cluster) enum Caller {
    Node(Member),
    /// The command of an operator, who has the cluster's files.
    Operator,
    /// The process in this slot, whichever node it is or will be.
    Process(Slot),
}

impl Caller {
    /// Whether it may ask for whichever node there is.
    fn takes_any(self) -> bool {
        !matches!(self, Self::Node(_))
    }
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(member) => member.fmt(f),
            Self::Operator => f.write_str("an operator"),
            Self::Process(slot) => write!(f, "the process of slot {}", slot.get()),
        }
    }
}

/// Who was let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cluster) struct Entrant {
    pub(in crate::cluster) caller: Caller,
    /// Whether it has proved the secret with which this node calls others, and not another one.
    pub(in crate::cluster) proved_first: bool,
}

/// Whom a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cluster) struct Callee {
    pub(in crate::cluster) slot: Slot,
    /// `None` is whichever node has the slot.
    pub(in crate::cluster) generation: Option<u64>,
}

impl From<Member> for Callee {
    fn from(member: Member) -> Self {
        Self {
            slot: member.slot,
            generation: Some(member.generation),
        }
    }
}

/// Why there is no connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(in crate::cluster) enum Refused {
    #[error("it does not speak the protocol of peers")]
    NotAPeer,
    #[error("the peer secrets or the cluster files differ")]
    Secret,
    #[error("it belongs to another cluster")]
    Domain,
    #[error("another node is there")]
    Node,
    #[error("the versions are too far apart")]
    Version,
}

impl Refused {
    fn code(self) -> u8 {
        match self {
            Self::NotAPeer | Self::Secret => 0,
            Self::Domain => 2,
            Self::Node => 3,
            Self::Version => 4,
        }
    }

    fn from_code(code: u8) -> Self {
        match code {
            2 => Self::Domain,
            3 => Self::Node,
            4 => Self::Version,
            _ => Self::Secret,
        }
    }
}

impl From<Malformed> for Refused {
    fn from(_: Malformed) -> Self {
        Self::NotAPeer
    }
}

/// The acceptor's first bytes.
pub(in crate::cluster) fn hello(own: Member, nonce: [u8; 16]) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.u16(LOWEST_VERSION);
    bytes.u16(VERSION);
    bytes.u8(own.slot.get());
    bytes.u64(own.generation);
    bytes.put(&nonce);
    bytes
}

/// The initiator's answer to a hello, and who is there.
pub(in crate::cluster) fn answer(
    hello: &[u8; HELLO_BYTES],
    caller: Caller,
    callee: Callee,
    trust: &Trust,
    nonce: [u8; 16],
) -> Result<(Vec<u8>, Member), Refused> {
    let mut reader = Reader::new(hello, "peer hello");
    if reader.take(8)? != MAGIC {
        return Err(Refused::NotAPeer);
    }
    let versions = reader.u16()?..=reader.u16()?;
    if !versions.contains(&VERSION) {
        return Err(Refused::Version);
    }
    let slot = Slot::new(reader.u8()?).ok_or(Refused::NotAPeer)?;
    let generation = reader.u64()?;
    let there = Member { slot, generation };
    if slot != callee.slot || callee.generation.is_some_and(|wanted| wanted != generation) {
        return Err(Refused::Node);
    }
    let mut bytes = Vec::with_capacity(ANSWER_BYTES);
    bytes.u16(VERSION);
    match caller {
        Caller::Node(own) => {
            bytes.u8(0);
            bytes.u8(own.slot.get());
            bytes.u64(own.generation);
        }
        Caller::Operator => {
            bytes.u8(1);
            bytes.u8(OPERATOR_SLOT);
            bytes.u64(0);
        }
        Caller::Process(slot) => {
            bytes.u8(2);
            bytes.u8(slot.get());
            bytes.u64(0);
        }
    }
    bytes.u8(slot.get());
    bytes.u64(callee.generation.unwrap_or(0));
    bytes.put(trust.domain.as_bytes());
    bytes.put(&nonce);
    let proof = (trust.secrets.first()).prove(&trust.proved(&[INITIATOR, hello, &bytes]));
    bytes.put(&proof);
    Ok((bytes, there))
}

/// The acceptor's judgement of an answer: the bytes to send, and who is there if anybody may be.
pub(in crate::cluster) fn judge(
    hello: &[u8],
    answer: &[u8; ANSWER_BYTES],
    own: Member,
    trust: &Trust,
) -> (Vec<u8>, Result<Entrant, Refused>) {
    let (said, proof) = answer.split_at(ANSWER_BYTES - 32);
    let proved = trust.proved(&[INITIATOR, hello, said]);
    let (judged, secret) = match trust.secrets.find(&proved, proof) {
        Some((place, secret)) => {
            let entrant = |caller| Entrant {
                caller,
                proved_first: place == 0,
            };
            (judged(said, own, trust).map(entrant), secret)
        }
        None => (Err(Refused::Secret), trust.secrets.first()),
    };
    let code = judged.map_or_else(Refused::code, |_| 1);
    let mut bytes = vec![code];
    bytes.put(&verdict(hello, answer, &[code], trust, secret));
    (bytes, judged)
}

/// The acceptor's proof.
fn verdict(hello: &[u8], answer: &[u8], code: &[u8], trust: &Trust, secret: &Secret) -> [u8; 32] {
    secret.prove(&trust.proved(&[ACCEPTOR, hello, answer, code]))
}

/// Who says this, after it has proved a secret.
fn judged(said: &[u8], own: Member, trust: &Trust) -> Result<Caller, Refused> {
    let mut reader = Reader::new(said, "peer answer");
    let version = reader.u16()?;
    if !(LOWEST_VERSION..=VERSION).contains(&version) {
        return Err(Refused::Version);
    }
    let (role, slot, generation) = (reader.u8()?, reader.u8()?, reader.u64()?);
    let caller = match (role, Slot::new(slot)) {
        (0, Some(slot)) => Caller::Node(Member { slot, generation }),
        (1, None) => Caller::Operator,
        (2, Some(slot)) => Caller::Process(slot),
        _ => return Err(Refused::NotAPeer),
    };
    let (slot, generation) = (reader.u8()?, reader.u64()?);
    let any = caller.takes_any() && generation == 0;
    if slot != own.slot.get() || (generation != own.generation && !any) {
        return Err(Refused::Node);
    }
    if reader.take(32)? != trust.domain.as_bytes() {
        return Err(Refused::Domain);
    }
    Ok(caller)
}

/// The initiator's check of the verdict.
pub(in crate::cluster) fn check(
    hello: &[u8],
    answer: &[u8],
    verdict: &[u8; VERDICT_BYTES],
    trust: &Trust,
) -> Result<(), Refused> {
    let (code, proof) = verdict.split_at(1);
    let expected = self::verdict(hello, answer, code, trust, trust.secrets.first());
    if !bool::from(expected.ct_eq(proof)) {
        return Err(Refused::Secret);
    }
    match code {
        [1] => Ok(()),
        _ => Err(Refused::from_code(code[0])),
    }
}

#[cfg(test)]
mod tests {
    use highwater_lock::Domain;

    use super::*;
    use crate::cluster::peer::secrets::PeerSecrets;

    const DOMAIN: Domain = Domain::from_bytes([1; 32]);
    const OURS: &str = "a peer secret, ours";

    fn member(slot: u8, generation: u64) -> Member {
        let slot = Slot::new(slot).unwrap();
        Member { slot, generation }
    }

    fn trust(texts: &[&str], domain: Domain) -> Trust {
        let secret = |text: &str| Secret::new(text.as_bytes()).unwrap();
        let mut secrets = PeerSecrets::new(secret(texts[0]));
        for text in &texts[1..] {
            secrets.add(secret(text)).unwrap();
        }
        Trust {
            domain,
            secrets,
            common: vec![1],
            accept: None,
            connect: None,
        }
    }

    /// What the one who is called makes of the caller, and the caller of that.
    type Outcome = (Result<Entrant, Refused>, Result<(), Refused>);

    fn run(caller: Caller, callee: Callee, theirs: &Trust, ours: &Trust) -> Outcome {
        let own = member(1, 4);
        let hello: [u8; HELLO_BYTES] = hello(own, [7; 16]).try_into().unwrap();
        let (answer, _) = match answer(&hello, caller, callee, theirs, [8; 16]) {
            Ok(answer) => answer,
            Err(refused) => return (Err(refused), Err(refused)),
        };
        let answer: [u8; ANSWER_BYTES] = answer.try_into().unwrap();
        let (verdict, judged) = judge(&hello, &answer, own, ours);
        let verdict = verdict.try_into().unwrap();
        (judged, check(&hello, &answer, &verdict, theirs))
    }

    fn entered(caller: Caller, proved_first: bool) -> Outcome {
        let entrant = Entrant {
            caller,
            proved_first,
        };
        (Ok(entrant), Ok(()))
    }

    #[test]
    fn only_who_knows_the_secret_and_means_this_node_gets_in() {
        let ours = trust(&[OURS], DOMAIN);
        let caller = Caller::Node(member(0, 2));
        let callee = Callee::from(member(1, 4));
        let any = Callee {
            generation: None,
            ..callee
        };
        let process = Caller::Process(Slot::new(2).unwrap());
        for (caller, callee) in [(caller, callee), (Caller::Operator, any), (process, any)] {
            let outcome = run(caller, callee, &ours, &ours);
            assert_eq!(outcome, entered(caller, true));
        }
        let strange = trust(&["a peer secret, not ours"], DOMAIN);
        let other = trust(&[OURS], Domain::from_bytes([2; 32]));
        for (outcome, refused) in [
            (run(caller, callee, &strange, &ours), Refused::Secret),
            (run(caller, callee, &other, &ours), Refused::Domain),
            (
                run(caller, member(1, 3).into(), &ours, &ours),
                Refused::Node,
            ),
            (
                run(caller, member(2, 4).into(), &ours, &ours),
                Refused::Node,
            ),
            (run(caller, any, &ours, &ours), Refused::Node),
        ] {
            assert_eq!(outcome, (Err(refused), Err(refused)));
        }
    }

    /// Nodes that are one step of a change apart let each other in; those that are two apart do not.
    #[test]
    fn each_secret_of_the_one_who_is_called_opens_and_only_the_first_of_the_caller_is_proved() {
        let (old, new) = ("a peer secret, old", "a peer secret, new");
        let rounds: [&[&str]; 4] = [&[old], &[old, new], &[new, old], &[new]];
        let rounds = rounds.map(|texts| trust(texts, DOMAIN));
        let caller = Caller::Node(member(0, 2));
        let secret = (Err(Refused::Secret), Err(Refused::Secret));
        let expected = [
            // Called by: old      old, new                new, old                new
            [entered(caller, true), entered(caller, true), secret, secret],
            [
                entered(caller, true),
                entered(caller, true),
                entered(caller, false),
                entered(caller, false),
            ],
            [
                entered(caller, false),
                entered(caller, false),
                entered(caller, true),
                entered(caller, true),
            ],
            [secret, secret, entered(caller, true), entered(caller, true)],
        ];
        for (ours, expected) in rounds.iter().zip(expected) {
            let callers = rounds.iter();
            let outcomes = callers.map(|theirs| run(caller, member(1, 4).into(), theirs, ours));
            assert_eq!(outcomes.collect::<Vec<_>>(), expected, "{ours:?}");
        }
    }

    /// A dead generation cannot be mistaken, even by a caller that does not look at the hello.
    #[test]
    fn an_answer_that_was_made_for_another_node_is_refused_by_this_one() {
        let ours = trust(&[OURS], DOMAIN);
        let old: [u8; HELLO_BYTES] = hello(member(1, 3), [7; 16]).try_into().unwrap();
        let caller = Caller::Node(member(0, 2));
        let callee = member(1, 3).into();
        let (answer, _) = answer(&old, caller, callee, &ours, [8; 16]).unwrap();
        let answer: [u8; ANSWER_BYTES] = answer.try_into().unwrap();
        let (_, judged) = judge(&old, &answer, member(1, 4), &ours);
        assert_eq!(judged, Err(Refused::Node));
    }
}
