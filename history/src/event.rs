//! The events of a history.
//!
//! Plain values, with types of their own: nothing here comes from the lock core. All moments and
//! spans are microseconds.

/// One call of a client: a request and its answer. A request that is sent again is another call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub u64);

/// Everything that was recorded, in the order in which it was.
///
/// One recorder with one clock writes it: moments never decrease, and an event that stands before
/// another one happened no later than that.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    pub(crate) entries: Vec<Entry>,
}

/// One event and its moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Microseconds since the recorder began.
    pub at: u64,
    /// What happened.
    pub event: Event,
}

impl History {
    /// Adds an event. `at` is microseconds since the recorder began; an earlier moment than that
    /// of the last event counts as that one.
    pub fn push(&mut self, at: u64, event: Event) {
        let last = self.entries.last().map_or(0, |entry| entry.at);
        let at = at.max(last);
        self.entries.push(Entry { at, event });
    }

    /// One history of what several recorders wrote, each in its own order.
    ///
    /// Their moments must come from one clock, and no call may have one number in two of them. Of
    /// events at the same moment requests come first, so that nothing counts as certain that is not.
    pub fn merge(parts: impl IntoIterator<Item = History>) -> Self {
        let entries = parts.into_iter().flat_map(|part| part.entries);
        let mut entries: Vec<Entry> = entries.collect();
        let is_request = |entry: &Entry| matches!(entry.event, Event::Called { .. });
        entries.sort_by_key(|entry| (entry.at, !is_request(entry)));
        Self { entries }
    }

    /// What is left for those who only see clients and the database: no decisions, no states, and
    /// nothing of what leaders do among themselves.
    #[must_use]
    pub fn seen_by_clients(&self) -> Self {
        let is_seen = |entry: &&Entry| {
            !matches!(
                entry.event,
                Event::Decided { .. }
                    | Event::State { .. }
                    | Event::GaveBack { .. }
                    | Event::Led { .. }
                    | Event::AllDecisions
            )
        };
        let entries = self.entries.iter().filter(is_seen).cloned().collect();
        Self { entries }
    }

    /// All events, oldest first.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }
}

/// One thing that happened, seen by a client, by a node, or by whoever made the faults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A client is about to send a request.
    Called {
        /// The call; never used again.
        call: CallId,
        /// The connection it goes over. Zero for a request to the database.
        connection: u64,
        /// What it asks for.
        request: Request,
    },
    /// A client has its answer, or gives up waiting for it.
    Answered {
        /// The call.
        call: CallId,
        /// What it was told.
        answer: Answer,
    },
    /// A connection ended, as the first side saw it.
    ConnectionEnded {
        /// Its number.
        connection: u64,
    },
    /// Somebody knows that a call stands in its queue now, in this epoch. With it the order of
    /// queues can be checked without decisions.
    QueueSeen {
        /// The call.
        call: CallId,
        /// The leader's epoch.
        epoch: u64,
    },
    /// A node leads from now on.
    Led {
        /// Its number.
        node: u64,
        /// Its epoch.
        epoch: u64,
    },
    /// A leader gives back a grant that it could not deliver.
    GaveBack {
        /// The token of the grant.
        token: u64,
        /// The leader's epoch.
        epoch: u64,
    },
    /// The log has decided something. Several nodes may report the same.
    Decided {
        /// The place in the log.
        position: u64,
        /// Counts what one command caused.
        part: u32,
        /// The epoch of the leader that appended the command.
        epoch: u64,
        /// What is decided.
        decision: Decision,
    },
    /// What a replica looks like after a place in the log.
    State {
        /// The node's number.
        node: u64,
        /// The place in the log.
        position: u64,
        /// A hash of the replica's snapshot.
        digest: u64,
    },
    /// The clock of a node jumped ahead, against the assumption that leases rest on.
    ClockJumped {
        /// By how many microseconds.
        micros: u64,
    },
    /// A row of the database after the run, in the order in which rows of its key were written.
    Row {
        /// The key of the fence.
        key: String,
        /// The token it was written with.
        token: u64,
        /// The call that wrote it.
        call: CallId,
    },
    /// All decisions are in this history.
    AllDecisions,
    /// All rows of the database are in this history.
    AllRows,
    /// From now on there are no faults, and every key has to be granted once more.
    Healed,
}

/// What a client asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// All keys under one token, or one slot of a name.
    Acquire {
        /// The keys, or the one name.
        keys: Vec<String>,
        /// How many slots the name has, if it has any.
        slots: Option<u32>,
        /// How long it is ready to wait.
        wait: u64,
        /// How long the lock lives.
        lease: u64,
    },
    /// Gives a lock back.
    Release {
        /// The keys of the grant.
        keys: Vec<String>,
        /// Its token.
        token: u64,
        /// The minimum hold.
        hold: u64,
    },
    /// Prolongs a lease.
    Extend {
        /// The keys of the grant.
        keys: Vec<String>,
        /// Its token.
        token: u64,
        /// How long from now on.
        lease: u64,
    },
    /// Gives up a place in a queue.
    Cancel {
        /// The acquire.
        other: CallId,
    },
    /// An operator's order.
    ForceRelease {
        /// The key.
        key: String,
    },
    /// A fenced transaction that writes one row.
    Write {
        /// The key of the fence.
        key: String,
        /// The token it offers.
        token: u64,
    },
}

/// What a client was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// An acquire: the lock is yours.
    Granted {
        /// Its token.
        token: u64,
        /// Which slot.
        slot: Option<u32>,
        /// The epoch it was granted in, if the recorder knows.
        epoch: Option<u64>,
    },
    /// An acquire: not granted within its wait.
    TimedOut,
    /// An acquire: not granted for lack of room.
    Busy,
    /// Nothing was done and nothing will be: not the leader, not possible as it stands, given up
    /// before it was sent.
    NotTaken,
    /// It may have happened, and may happen at any later time.
    Unknown,
    /// A release: done.
    Released,
    /// A release or an extension: the token is not that of a live ownership.
    ///
    /// The answer to one request. A client that repeats an unknown release by itself and ends with
    /// this one does not know which of its requests did it: record it as unknown.
    NotHeld,
    /// An extension: done.
    Extended,
    /// A cancel: the acquire will not be granted.
    Cancelled,
    /// A cancel: no such acquire is queued.
    NotQueued,
    /// A force-release: done.
    ForceReleased {
        /// The burned token.
        burned: u64,
    },
    /// A write: committed.
    Committed,
    /// A write: refused, for a higher token has written.
    Stale {
        /// That token.
        highest: u64,
    },
}

/// What the log decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// An acquire stands in its queue.
    Queued {
        /// The acquire.
        call: CallId,
        /// When that was, in lease time.
        now: u64,
    },
    /// An acquire has its lock.
    Granted {
        /// The acquire.
        call: CallId,
        /// The new token.
        token: u64,
        /// Which slot.
        slot: Option<u32>,
        /// The end of the lease, in lease time.
        until: u64,
    },
    /// A queued acquire waited too long.
    TimedOut {
        /// The acquire.
        call: CallId,
    },
    /// A queued acquire of an older epoch is gone.
    Dropped {
        /// The acquire.
        call: CallId,
    },
    /// A queued acquire was given up.
    Cancelled {
        /// The acquire.
        call: CallId,
    },
    /// All queued acquires of a connection are gone.
    Disconnected {
        /// The connection.
        connection: u64,
    },
    /// An ownership was given back.
    Released {
        /// Its token.
        token: u64,
        /// Until when its keys are kept from everybody, in lease time, if they are.
        until: Option<u64>,
    },
    /// A lease was prolonged.
    Extended {
        /// The token.
        token: u64,
        /// When that was, in lease time.
        now: u64,
        /// Its end from then on, in lease time.
        until: u64,
    },
    /// A lease ended.
    Expired {
        /// The token.
        token: u64,
    },
    /// A minimum hold ended.
    RetentionEnded {
        /// The token.
        token: u64,
    },
    /// An operator ended what held a key.
    ForceReleased {
        /// The burned token.
        burned: u64,
        /// The tokens that ended.
        ended: Vec<u64>,
    },
}
