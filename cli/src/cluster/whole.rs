//! Whether any one node of a cluster may go.

use highwater_server::cluster::{NodeRole, NodeStatus, OperatorError};

/// Takes `whole` back from a leader whose members do not all answer as the nodes that it takes them for.
///
/// A leader hears of a process that has ended only some heartbeats later. Whoever restarts one after the
/// other, and asks the leader alone in between, may end the second before the first is missed: with a
/// volatile cluster that is a lost majority.
pub(super) fn confirm(said: &mut [(u8, Result<NodeStatus, OperatorError>)]) {
    let there: Vec<(u8, u64, Option<u8>)> = said
        .iter()
        .filter_map(|(_, said)| said.as_ref().ok())
        .filter(|node| matches!(node.role, NodeRole::Leader | NodeRole::Follower))
        .map(|node| (node.slot, node.generation, node.leader))
        .collect();
    for (_, said) in said {
        if let Ok(node) = said {
            let voters = node.members.iter().flat_map(|members| &members.voters);
            let mut voters = voters.flatten().peekable();
            let any = voters.peek().is_some();
            let follows = |place: &highwater_server::cluster::Place| {
                there.contains(&(place.slot, place.generation, Some(node.slot)))
            };
            node.whole &= any && voters.all(follows);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(slot: u8, generation: u64, role: &str, whole: bool) -> NodeStatus {
        let place = |slot: u8| json!({"slot": slot, "generation": 1});
        let members = json!({
            "term": 2, "entry": 3, "committed": true, "learners": [],
            "voters": [[place(0), place(1), place(2)]],
        });
        let node = json!({
            "slot": slot, "generation": generation, "role": role, "term": 2, "leader": 0,
            "last_entry": 9, "applied": 9, "snapshot": null, "voters": [0, 1, 2], "held_keys": 0,
            "waiters": 0, "begun": true, "members": members, "whole": whole,
        });
        serde_json::from_value(node).unwrap()
    }

    /// What is left of the leader's word with this in slot 2.
    fn left(third: Result<NodeStatus, OperatorError>) -> bool {
        let mut said = vec![
            (0, Ok(node(0, 1, "leader", true))),
            (1, Ok(node(1, 1, "follower", false))),
            (2, third),
        ];
        confirm(&mut said);
        assert!(!said[1].1.as_ref().unwrap().whole);
        said[0].1.as_ref().unwrap().whole
    }

    #[test]
    fn a_cluster_is_whole_only_if_all_members_answer_as_such() {
        assert!(left(Ok(node(2, 1, "follower", false))));
        // A new process that the leader does not know of yet, one that has only just begun, and none.
        assert!(!left(Ok(node(2, 0, "joining", false))));
        assert!(!left(Ok(node(2, 2, "follower", false))));
        assert!(!left(Ok(node(2, 1, "leaderless", false))));
        assert!(!left(Err(OperatorError::NoSuchSlot { slot: 2 })));
        let mut elsewhere = node(2, 1, "follower", false);
        elsewhere.leader = Some(1);
        assert!(!left(Ok(elsewhere)));
    }
}
