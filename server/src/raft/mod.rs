//! Replication: one Raft group per shard. Nothing outside this room and `storage` names openraft, raft-log or
//! fjall types.
//!
//! What is easily got wrong with these libraries, and what stands against each (a test, or the reason why there is none):
//!
//! | trap | here | held by |
//! |---|---|---|
//! | a new leader has no lease until its first quorum: a write then fails | `write` proposes it again within its deadline | `group`: `a_repeat_is_answered_and_not_applied_again` writes at once after the election and accepts no refusal |
//! | `truncate_after` past the end is "nothing to do" for openraft and an error for raft-log | guarded in `log_store` | openraft's suite (`passes_the_suite_of_openraft`) |
//! | openraft's default `stream_append` has one request in flight | `network` overrides it: one stream, answers in order, 64 ahead | by construction: the default is not called |
//! | default `pre_vote` grants everything, and is off | `run::raft_config`, `network`, `serve` | `life::a_follower_that_hangs_delays_nobody`: the term stays when it comes back |
//! | default `transfer_leader` is unreachable: fail-over waits for an election | `network`, `serve`, `run::transfer` | `an_orderly_stop_hands_leadership_on_...`, `life::nodes_that_stop_in_order_...` |
//! | `enable_leader_restore` lets a leader go on whose state is older than what it acknowledged | off; a restarted leader stands for election | `life::all_three_restart_...`; openraft's restore is not in the picture when off |
//! | a learner counts as caught up while the log is shorter than the threshold, even if it cannot be reached | `membership::caught_up` waits for what it really holds | `members::a_member_learns_first_...` |
//! | timers for a quiet machine (heartbeat 50 ms, snapshots of 200 ms) | [`group::Timing`], `run::raft_config` | the whole of `tests/cluster` on a busy machine |
//! | a large append holds up heartbeats | heartbeats are sessions of their own, sent first (`network`, `raft_link`) | comment there: QUIC sends streams by priority |
//! | the log is purged after a snapshot: what it covers must be durable, also what a restart finds applied | `build_snapshot` and `StateMachine::start` persist first | only a power cut can tell: a killed process loses nothing of the page cache |
//! | an install interrupted | a new generation, flipped by one durable write | `an_install_that_was_cut_leaves_nothing` |
//! | raft-log without a flush wait takes one request per fsync, with a long one every lone write waits | 5 us (`log_store`) | `many_callers_share_fsyncs` |
//! | raft-log caches 1 GB and 100,000 entries | bounded in `log_store` | `what_is_purged_leaves_disk_and_memory` |
//! | purged chunks stay until the next synced flush | `purge` flushes | the same test |
//! | votes are not to be answered before they are on disk | `save_vote` awaits the fsync | `entries_votes_and_position_survive_...` |
//! | fjall's calls block, a write may sleep for long | the apply thread (`state_machine`) | openraft's tasks never call it |
//! | fjall is poisoned after an I/O error | latched in `fjall_store`, ends the node | `failing_disk::*` |
//! | a plain `Keyspace::get` reads between the items of a batch | views only; a lint error | `readers_never_see_half_a_batch_...`; `clippy.toml` |
//! | items of one batch share a sequence number | `keep_last_of_each_key` | `within_one_batch_the_last_change_of_a_key_wins` |
//! | `clear()` beside an ingestion corrupts | never called; a lint error | `clippy.toml` |
//! | fjall takes damage in the middle of a journal for a torn tail | the Raft log is replayed from the position found | the log keeps what no snapshot covers |
//! | a value of the engine pins its block | `View::get` copies | comment there |

pub mod checksum;
pub mod command;
mod compare;
pub mod confirm;
pub mod contact;
pub mod disk_space;
pub mod expire;
pub mod first_start;
pub mod folder;
pub mod group;
pub mod jitter;
pub mod log_codec;
pub mod log_store;
pub mod log_time;
pub mod membership;
pub mod network;
pub mod outcomes;
pub mod read_barrier;
pub mod read_index;
mod records;
pub mod replica;
mod run;
pub mod serve;
pub mod snapshot;
pub mod state_machine;
pub mod types;
pub mod write;
