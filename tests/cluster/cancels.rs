//! Cancels that come early, late, twice, reordered, never, or from somebody else: the table of a copy's life,
//! cell by cell, on one real node between a played client and a played peer.

use crate::bed::Bed;
use crate::ghost::Ghost;
use crate::wire::{Copy, Wire, fresh_tie};
use tiedkv_protocol::error::ErrorCode;
use tiedkv_protocol::ids::NodeId;
use tiedkv_protocol::tie::CopyNumber;

/// Node 1 is real and slow, its only lane is taken by a blocker; node 2 is the ghost.
struct Stage {
    bed: Bed,
    ghost: Ghost,
    wire: Wire,
}

const NODE: NodeId = NodeId(1);
const GHOST: NodeId = NodeId(2);
/// No answer to a copy.
const NOTHING: [bool; 0] = [];
/// Service times are a few hundred milliseconds: time enough for any step of a test.
const SLOW: f64 = 60.0;

impl Stage {
    async fn new() -> Self {
        let mut bed = Bed::new(2).await;
        bed.put_everywhere("key", "value").await;
        let (node, ghost) = Ghost::of_last_node(&mut bed).await;
        assert_eq!(node, GHOST);
        bed.slow_down(NODE, SLOW).await;
        let wire = Wire::connect(&bed.cluster.certs(), bed.cluster.nodes()[0].ports().client()).await;
        Self { bed, ghost, wire }
    }

    /// Takes the only worker for one service time.
    async fn block(&mut self) {
        let started = self.bed.counters(NODE).await.started;
        self.wire.copy(Copy::untied("key")).await;
        self.bed.until_counters(NODE, "the blocker runs", |now| now.started == started + 1).await;
    }

    /// Sends a copy and waits until the node has it.
    async fn arrive(&mut self, copy: Copy) {
        let received = self.bed.counters(NODE).await.received;
        self.wire.copy(copy).await;
        self.bed.until_counters(NODE, "the copy arrived", |now| now.received == received + 1).await;
    }

    async fn at_rest(&mut self) -> Vec<bool> {
        self.bed.until_at_rest(&[NODE]).await;
        self.wire.replies_until_pong().await.iter().map(|reply| reply.outcome.is_ok()).collect()
    }
}

#[tokio::test]
async fn an_early_cancel_drops_its_copy_silently() {
    let mut stage = Stage::new().await;
    let tie = fresh_tie();
    stage.ghost.cancel_and_wait(&stage.bed, NODE, tie, 1).await;
    stage.wire.copy(Copy::tied("key", tie, &[NODE, GHOST], 0)).await;
    assert_eq!(stage.at_rest().await, NOTHING);
    let counters = stage.bed.counters(NODE).await;
    assert_eq!((counters.early_dropped, counters.started), (1, 0));
    assert_eq!(stage.ghost.unheard(), [], "a copy that never started cancels nobody");
}

#[tokio::test]
async fn a_cancel_withdraws_a_queued_copy_once_however_often_it_comes() {
    let mut stage = Stage::new().await;
    let tie = fresh_tie();
    stage.block().await;
    stage.arrive(Copy::tied("key", tie, &[GHOST, NODE], 1)).await;
    stage.ghost.cancel_and_wait(&stage.bed, NODE, tie, 0).await;
    stage.ghost.cancel_and_wait(&stage.bed, NODE, tie, 0).await;
    assert_eq!(stage.at_rest().await, [true], "only the blocker is answered");
    let counters = stage.bed.counters(NODE).await;
    assert_eq!((counters.cancelled, counters.started), (1, 1));
}

#[tokio::test]
async fn cancels_of_two_ties_may_overtake_each_other() {
    let mut stage = Stage::new().await;
    let (one, other) = (fresh_tie(), fresh_tie());
    stage.block().await;
    stage.arrive(Copy::tied("key", one, &[NODE, GHOST], 0)).await;
    stage.ghost.cancel_and_wait(&stage.bed, NODE, other, 1).await;
    stage.ghost.cancel_and_wait(&stage.bed, NODE, one, 1).await;
    stage.wire.copy(Copy::tied("key", other, &[NODE, GHOST], 0)).await;
    assert_eq!(stage.at_rest().await, [true], "only the blocker is answered");
    let counters = stage.bed.counters(NODE).await;
    assert_eq!((counters.cancelled, counters.early_dropped), (1, 1));
}

#[tokio::test]
async fn a_lost_cancel_costs_no_answer_and_a_late_one_nothing() {
    let mut stage = Stage::new().await;
    let tie = fresh_tie();
    stage.wire.copy(Copy::tied("key", tie, &[NODE, GHOST], 0)).await;
    let (node, cancel) = stage.ghost.next_cancel().await;
    assert_eq!((node, cancel), (NODE, stage.ghost.cancel_of(tie, 0)), "the start cancels the planned peer");
    let (reply, value) = stage.wire.reply().await;
    assert!(reply.outcome.is_ok() && reply.service.started);
    assert_eq!(value, "value");
    stage.ghost.cancel_and_wait(&stage.bed, NODE, tie, 1).await;
    stage.wire.copy(Copy::untied("key")).await;
    assert!(stage.wire.reply().await.0.outcome.is_ok());
    assert_eq!(stage.ghost.unheard(), [], "a finished copy cancels nobody back");
}

#[tokio::test]
async fn both_start_at_once_and_the_lower_number_goes_on_and_cancels_back() {
    let mut stage = Stage::new().await;
    let tie = fresh_tie();
    stage.wire.copy(Copy::tied("key", tie, &[NODE, GHOST], 0)).await;
    assert_eq!(stage.ghost.next_cancel().await.1.number, CopyNumber(0));
    stage.ghost.cancel_and_wait(&stage.bed, NODE, tie, 1).await;
    assert_eq!(stage.ghost.next_cancel().await.1, stage.ghost.cancel_of(tie, 0), "once per cancel received");
    assert!(stage.wire.reply().await.0.outcome.is_ok());
    assert_eq!(stage.bed.counters(NODE).await.cancels_sent_back, 1);
}

#[tokio::test]
async fn both_start_at_once_and_the_higher_number_yields_silently() {
    let mut stage = Stage::new().await;
    let tie = fresh_tie();
    stage.wire.copy(Copy::tied("key", tie, &[GHOST, NODE], 1)).await;
    assert_eq!(stage.ghost.next_cancel().await.1.number, CopyNumber(1));
    stage.ghost.cancel_and_wait(&stage.bed, NODE, tie, 0).await;
    assert_eq!(stage.at_rest().await, NOTHING);
    let counters = stage.bed.counters(NODE).await;
    assert_eq!((counters.yielded, counters.answered_good, counters.cancels_sent_back), (1, 0, 0));
}

#[tokio::test]
async fn a_cancel_with_the_copys_own_number_changes_nothing() {
    let mut stage = Stage::new().await;
    let tie = fresh_tie();
    stage.wire.copy(Copy::tied("key", tie, &[NODE, GHOST], 0)).await;
    stage.ghost.next_cancel().await;
    stage.ghost.cancel_and_wait(&stage.bed, NODE, tie, 0).await;
    assert!(stage.wire.reply().await.0.outcome.is_ok());
    assert_eq!(stage.bed.counters(NODE).await.yielded, 0);
}

#[tokio::test]
async fn a_cancel_from_a_node_that_the_copy_does_not_name_never_counts() {
    let mut bed = Bed::new(3).await;
    bed.put_everywhere("key", "value").await;
    let (ghost_node, ghost) = Ghost::of_last_node(&mut bed).await;
    bed.slow_down(NODE, SLOW).await;
    let mut wire = Wire::connect(&bed.cluster.certs(), bed.cluster.nodes()[0].ports().client()).await;
    let members = [NodeId(2), NODE];
    assert!(!members.contains(&ghost_node));

    let early = fresh_tie();
    ghost.cancel_and_wait(&bed, NODE, early, 0).await;
    wire.copy(Copy::tied("key", early, &members, 1)).await;
    bed.until_counters(NODE, "the copy runs", |now| now.started == 1).await;
    ghost.cancel_and_wait(&bed, NODE, early, 0).await;

    let queued = fresh_tie();
    wire.copy(Copy::tied("key", queued, &members, 1)).await;
    bed.until_counters(NODE, "the second copy waits", |now| now.received == 2).await;
    ghost.cancel_and_wait(&bed, NODE, queued, 0).await;

    for _ in 0..2 {
        assert!(wire.reply().await.0.outcome.is_ok());
    }
    let counters = bed.counters(NODE).await;
    assert_eq!((counters.silent(), counters.answered_good), (0, 2));
    assert!(counters.cancels_ignored >= 2, "{counters:?}");
}

#[tokio::test]
async fn a_cancel_for_another_caller_does_not_reach_the_copy() {
    let mut stage = Stage::new().await;
    let tie = fresh_tie();
    stage.block().await;
    stage.arrive(Copy::tied("key", tie, &[GHOST, NODE], 1)).await;
    let mut cancel = stage.ghost.cancel_of(tie, 0);
    cancel.caller.0 ^= 1;
    let received = stage.bed.counters(NODE).await.cancels_received;
    stage.ghost.send(NODE, tiedkv_protocol::peer::PeerDatagram::Cancels([cancel].into_iter().collect()));
    stage.bed.until_counters(NODE, "the cancel is received", |now| now.cancels_received > received).await;
    assert_eq!(stage.at_rest().await, [true, true]);
}

#[tokio::test]
async fn garbage_on_the_cancel_channel_harms_nothing() {
    let mut stage = Stage::new().await;
    for bytes in [vec![], vec![0xff; 40], vec![0, 251], vec![9; 1000], vec![0; 300]] {
        stage.ghost.bytes(NODE, bytes);
    }
    let tie = fresh_tie();
    stage.ghost.cancel_and_wait(&stage.bed, NODE, tie, 1).await;
    stage.wire.copy(Copy::tied("key", tie, &[NODE, GHOST], 0)).await;
    assert_eq!(stage.at_rest().await, NOTHING, "the good cancel after the garbage still counts");
    assert_eq!(stage.bed.counters(NODE).await.early_dropped, 1);
}

#[tokio::test]
async fn a_withdraw_ends_a_copy_wherever_it_is() {
    let mut stage = Stage::new().await;
    stage.block().await;
    let queued = stage.wire.copy(Copy::untied("key")).await;
    stage.wire.withdraw(queued).await;
    assert_eq!(stage.at_rest().await, [true], "only the blocker is answered");
    let running = stage.wire.copy(Copy::untied("key")).await;
    stage.bed.until_counters(NODE, "it runs", |now| now.started == 2).await;
    stage.wire.withdraw(running).await;
    assert_eq!(stage.at_rest().await, NOTHING);
    let counters = stage.bed.counters(NODE).await;
    assert_eq!((counters.withdrawn, counters.withdrawn_running), (2, 1));
}

#[tokio::test]
async fn a_copy_sent_twice_is_answered_duplicate_and_the_connection_lives() {
    let mut stage = Stage::new().await;
    let tie = fresh_tie();
    stage.block().await;
    stage.arrive(Copy::tied("key", tie, &[NODE, GHOST], 0)).await;
    stage.wire.copy(Copy::tied("key", tie, &[NODE, GHOST], 0)).await;
    let (reply, _) = stage.wire.reply().await;
    assert_eq!(reply.outcome.unwrap_err().code, ErrorCode::Duplicate);
    assert!(!reply.service.started);
    assert!(stage.wire.reply().await.0.outcome.is_ok(), "the blocker");
    assert!(stage.wire.reply().await.0.outcome.is_ok(), "the copy that came first");
}

#[tokio::test]
async fn a_client_that_is_gone_leaves_nothing() {
    let mut stage = Stage::new().await;
    stage.block().await;
    for _ in 0..50 {
        stage.wire.copy(Copy::untied("key")).await;
    }
    stage.bed.until_counters(NODE, "all arrived", |now| now.received == 51).await;
    stage.wire.close();
    stage.bed.until_at_rest(&[NODE]).await;
    let counters = stage.bed.counters(NODE).await;
    assert_eq!(counters.withdrawn + counters.answered_good, 51);
    assert!(counters.withdrawn >= 50, "{counters:?}");
}
