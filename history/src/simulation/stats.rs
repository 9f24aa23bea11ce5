//! How much of each kind happened: a run without faults proves little.

macro_rules! stats {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What happened in one run, or in many.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct Stats {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Stats {
            /// Adds what happened in another run.
            pub fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)*
            }

            /// Every count with its name.
            pub fn all(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name),)*]
            }
        }
    };
}

stats! {
    /// Entries of the log that were applied for the first time.
    decided_entries,
    /// Nodes that became leader.
    elections,
    /// Leaders that lost their office.
    depositions,
    /// Proposals whose leader could not tell what became of them.
    unknown_proposals,
    /// Such proposals that were decided all the same.
    unknown_yet_decided,
    /// Entries that a node had to forget because another leader had written others there.
    truncated_entries,
    /// Commands of an older epoch that came late and were refused by the lock core.
    stale_commands,
    /// Frames between nodes that were lost.
    lost_frames,
    /// Frames between nodes that came twice.
    doubled_frames,
    /// Frames that were refused because they were for a process that is no more.
    refused_frames,
    /// Nodes that died.
    crashes,
    /// Nodes that started again from what was on their disk.
    restarts,
    /// Nodes that started again without memory, as new ones.
    replacements,
    /// Snapshots that a node took over from its leader.
    snapshots_installed,
    /// Snapshots that a node wrote.
    snapshots_written,
    /// Moments at which the one with everything died, and the others could not elect.
    worst_moments,
    /// Nodes that stopped for a while.
    pauses,
    /// Cuts between nodes.
    cuts,
    /// Clocks that jumped.
    clock_jumps,
    /// Connections of clients that ended.
    lost_connections,
    /// Waiters that were dropped with their epoch.
    dropped_waiters,
    /// Grants that a leader gave back, because it could not deliver them.
    given_back,
    /// Leases that ended by themselves.
    expiries,
    /// Extensions that were done.
    extensions,
    /// Releases with a minimum hold.
    retentions,
    /// Locks that an operator ended.
    force_releases,
    /// Grants of several keys.
    set_grants,
    /// Grants of slots.
    slot_grants,
    /// Commits whose outcome the client does not know.
    unknown_commits,
}
