//! What a node makes of the clocks of its peers.

use serde::{Deserialize, Serialize};

/// How a node's clock compares with those of the other voters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ClockStatus {
    /// What the node makes of it.
    pub health: ClockHealth,
    /// What it knows of each of the others, by slot.
    pub peers: Vec<PeerClock>,
}

/// What a node makes of its own monotonic clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum ClockHealth {
    /// Nothing speaks against it.
    #[default]
    Good,
    /// Its rate differs from those of so many that no majority agrees with it.
    Differs,
    /// Too few have answered lately to know. That keeps a node from granting, not from being elected.
    Unmeasured,
}

/// The clock of one other node, as this one sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PeerClock {
    /// Whose.
    pub slot: u8,
    /// Whether it answers.
    pub answers: bool,
    /// Whether its rate is proven to have differed from ours by more than the bound.
    pub differs: bool,
    /// By how many millionths it runs faster than ours, over the last seconds; `None` before anything is known.
    pub rate_ppm: Option<i64>,
    /// How far that may be from the truth.
    pub error_ppm: Option<i64>,
    /// By how many microseconds its wall clock is ahead of ours. Nothing follows from it.
    pub wall_ahead_micros: Option<i64>,
    /// How far that may be from the truth.
    pub wall_error_micros: Option<u64>,
}

/// What is known of one peer, for the judgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cluster) enum Judgement {
    Agrees,
    Differs,
    Silent,
}

impl ClockHealth {
    /// The health of a node among so many voters, itself included, by what it knows of the others.
    pub(in crate::cluster) fn among(voters: usize, others: &[Judgement]) -> Self {
        let count = |wanted| others.iter().filter(|other| **other == wanted).count();
        let majority = voters / 2 + 1;
        if 1 + count(Judgement::Agrees) >= majority {
            return Self::Good;
        }
        match count(Judgement::Differs) {
            0 => Self::Unmeasured,
            _ => Self::Differs,
        }
    }

    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Differs => "differs",
            Self::Unmeasured => "unmeasured",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Judgement::{Agrees, Differs, Silent};
    use super::*;

    #[test]
    fn it_takes_a_majority_to_be_right_and_somebody_who_differs_to_be_wrong() {
        for (voters, others, health) in [
            (3, &[Agrees, Agrees][..], ClockHealth::Good),
            (3, &[Agrees, Differs], ClockHealth::Good),
            (3, &[Agrees, Silent], ClockHealth::Good),
            (3, &[Differs, Differs], ClockHealth::Differs),
            // One of the two is wrong, and nobody knows which.
            (3, &[Differs, Silent], ClockHealth::Differs),
            (3, &[Silent, Silent], ClockHealth::Unmeasured),
            (5, &[Agrees, Agrees, Differs, Differs], ClockHealth::Good),
            (
                5,
                &[Agrees, Differs, Differs, Differs],
                ClockHealth::Differs,
            ),
            (
                5,
                &[Agrees, Silent, Silent, Silent],
                ClockHealth::Unmeasured,
            ),
            (1, &[], ClockHealth::Good),
        ] {
            assert_eq!(ClockHealth::among(voters, others), health, "{others:?}");
        }
    }
}
