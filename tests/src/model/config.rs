//! What one search explores.

/// A bug put in on purpose, to see the search find it. All act in the carrier around the shipped rooms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planted {
    /// V1: a started copy that waits for its next chunk counts as queued.
    ChunkCountsAsQueued,
    /// V2: a fresh tie goes only to replicas that hold no copy of the read yet.
    OnlyReplicasWithoutCopy,
    /// V3: fail-over is paid from the retry budget.
    FailOverIsPaid,
    /// V4: a failure after the start is told by its code, which also exists as a refusal.
    FailureLooksLikeRefusal,
    /// V5: what is sent again keeps its old tie id.
    SameTieIdAgain,
    /// V6: two reads use the same tie ids.
    SameTieIdForTwoReads,
    /// V7: a copy set aside waits for ever and nobody is told.
    AsideForever,
    /// V7: no copy 1 without an estimate of the tie delay.
    NoNextCopy,
    /// V8: a copy that expired at the server is dropped silently.
    SilentExpired,
    /// V9: a hung winner, and rescues that go to the winner first.
    RescueToFirst,
    /// V10: a refusal or lost connection takes a replica out for good.
    RefusedForGood,
    /// V11: copies list only the planned replicas, replacements are named by nobody.
    OnlyPlannedNamed,
    /// V12: no cancel back.
    NoCancelBack,
    /// V13: one slot per tie for early cancels, whoever filed first.
    OneEarlySlot,
    /// V13: early cancels are not judged against the names.
    EarlyNotJudged,
    /// V14: a withdraw overtakes its copy and is forgotten.
    WithdrawOvertakes,
    /// R15: look-up of early cancels and insertion are two steps.
    SplitArrival,
    /// A running copy yields to any cancel.
    YieldsToAny,
    /// The cancel is sent before it is known whether the replica can serve.
    CancelBeforeServable,
    /// A cancel counts from anyone.
    AnybodyCancels,
    /// Early cancels are not kept.
    NoEarlyCancels,
    /// A start cancels nobody.
    StartWithoutCancel,
    /// A rescue travels with the tie's id.
    RescueInTie,
    /// Copies set aside outlive their connection.
    AsideLeaks,
}

/// How far the replicas' positions are explored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lag {
    /// All replicas can serve.
    #[default]
    None,
    /// Each replica can serve now, later or never: all combinations.
    Any,
    /// All lag for good but the last one.
    OnlyLastServes,
}

/// One search: sizes, fault budgets (how often at most in one run), switches.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// Replicas: 2 or 3.
    pub servers: usize,
    /// Copies per tie: 1 to 3.
    pub width: u8,
    /// Reads in sequence: 1 or 2.
    pub reads: u8,
    /// Each server may have a job ahead of the first copy.
    pub jobs: bool,
    /// An operation has two chunks and queues again between them.
    pub chunks: bool,
    /// Which replicas lag.
    pub lag: Lag,
    /// Early cancels may be forgotten at any moment.
    pub expire: bool,
    /// The client asks for rescues.
    pub rescue: bool,
    /// Tokens for rescues, second rounds and fresh ties beyond the free ones.
    pub tokens: u8,
    /// A hung server's link is noticed to be silent.
    pub silence: bool,
    /// Pop and start are two steps of a worker.
    pub split_pop: bool,
    /// Withdraws may overtake their copies.
    pub unordered: bool,
    /// States after the read's outcome are not explored.
    pub to_outcome: bool,
    /// P5 without excuses.
    pub strict: bool,
    /// A replica that was busy or lost its connection still counts as good.
    pub forgiving: bool,

    /// A server loses all memory.
    pub crash: u8,
    /// A crashed server comes back under its identity.
    pub restart: u8,
    /// A connection breaks, the server lives.
    pub connection_loss: u8,
    /// A server stops for good without notice.
    pub hang: u8,
    /// A copy fails after its start.
    pub fail: u8,
    /// A lane refuses a copy.
    pub busy: u8,
    /// A cancel is lost.
    pub loss: u8,
    /// A node outside the tie sends a cancel.
    pub stranger: u8,
    /// A server takes a copy for expired.
    pub wrong_clock: u8,
    /// The caller leaves.
    pub drop: u8,

    /// The bug put in.
    pub planted: Option<Planted>,
}

impl Config {
    /// `servers` replicas, ties of `width`, one read, no faults.
    pub fn of(servers: usize, width: u8) -> Self {
        Self { servers, width, reads: 1, ..Self::default() }
    }

    pub(super) fn has(&self, planted: Planted) -> bool {
        self.planted == Some(planted)
    }
}
