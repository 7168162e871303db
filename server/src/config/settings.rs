//! The table of settings: name, default and parser of each, once. [`Config`] is made of it.

use super::error::ConfigError;
use super::layers::{Source, Values};
use super::member::MemberSetting;
use super::parse::{address, count, list, micros, optional, path, switch, word};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use tiedkv_protocol::ids::NodeId;

/// What the lanes of a node stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// Operations take what the storage engine takes.
    Real,
    /// Workers wait for drawn service times.
    Modelled,
}

/// Where a replica's data lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    /// In memory, not replicated: each node takes its own writes.
    Memory,
    /// On disk, replicated by Raft.
    Fjall,
}

/// Whether a thread's priority is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// Where the system allows it and it helps.
    Auto,
    /// Never.
    Off,
}

/// One line of the table.
#[derive(Debug)]
pub struct Setting {
    /// The name: as it is in files, `TIEDKV_NAME` in the environment, `--na-me` as a flag.
    pub name: &'static str,
    /// The default, as one would write it; empty for none.
    pub default: &'static str,
    /// What it is for.
    pub help: &'static str,
}

/// One line of an explained configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The setting.
    pub name: &'static str,
    /// The value in force, as one would write it.
    pub value: String,
    /// Where it came from.
    pub source: Source,
    /// What it would be otherwise.
    pub default: &'static str,
}

macro_rules! settings {
    ($($(#[doc = $help:literal])+ $field:ident $name:literal: $type:ty = $default:literal, $parser:expr;)*) => {
        /// The settings of one node, each within its own bounds, none contradicting another.
        #[derive(Clone, Debug)]
        pub struct Config {
            $($(#[doc = $help])+ pub $field: $type,)*
            pub(super) rows: Vec<Row>,
        }

        /// Every setting there is.
        pub static SETTINGS: &[Setting] = &[
            $(Setting { name: $name, default: $default, help: concat!($($help),+) },)*
        ];

        /// Parses all values of the table, without looking at two of them at once.
        pub(super) fn parse_all(values: &Values) -> Result<Config, ConfigError> {
            Ok(Config { $($field: values.parse($name, $parser)?,)* rows: values.rows() })
        }
    };
}

const HOUR_US: u64 = 3_600_000_000;

settings! {
    /// This node's id; empty: the one node certificate in `certs_dir` decides. Must agree with the certificate.
    node_id "node_id": Option<NodeId> = "", optional(|text| count(0, u64::MAX)(text).map(NodeId));
    /// Folder with `ca.pem`, `node-ID.pem` and `node-ID.key`.
    certs_dir "certs_dir": PathBuf = "certs", path;
    /// Folder for log and state, of this node alone; made if absent. Storage `memory` does not use it.
    data_dir "data_dir": PathBuf = "data", path;
    /// Where data lives: `fjall` (on disk, replicated) or `memory` (not replicated, gone when the node stops).
    storage "storage": Storage = "fjall", word(&[("memory", Storage::Memory), ("fjall", Storage::Fjall)]);
    /// Where clients are listened to (QUIC); port 0 lets the system choose.
    client_address "client_address": SocketAddr = "127.0.0.1:7400", address;
    /// Where peers are listened to for Raft (QUIC).
    peer_address "peer_address": SocketAddr = "127.0.0.1:7401", address;
    /// Where peers are listened to for cancels (QUIC).
    cancel_address "cancel_address": SocketAddr = "127.0.0.1:7402", address;
    /// Where HTTP is served: /metrics, /livez, /readyz, /status, /slow. Not authenticated: keep it private.
    admin_address "admin_address": SocketAddr = "127.0.0.1:7403", address;
    /// The members of the cluster, this node among them; empty: this node alone.
    members "members": Vec<MemberSetting> = "", list(|text| text.parse());
    /// State is made durable, so that the log may be cut, after this many log entries (0.8 to 1.2 times, by node).
    snapshot_entries "snapshot_entries": u64 = "10000", count(16, 1 << 30);
    /// Log entries that stay for slow followers after that; one further behind gets a snapshot.
    log_keep_entries "log_keep_entries": u64 = "10000", count(0, 1 << 30);
    /// Replicas compare their states after this many log entries; 0: never. The same on all members.
    check_entries "check_entries": u64 = "10000000", count(0, 1 << 40);
    /// Outcomes of writes kept, so that a repeat is answered and not applied again; 24 bytes of memory each. The same on
    /// all members.
    outcomes_max "outcomes_max": u64 = "1000000", count(1024, 1 << 30);
    /// How long they are kept, by log time. The same on all members.
    outcomes_age_max "outcomes_age_max_us": Duration = "600000000", micros(1_000_000, 24 * HOUR_US);

    /// What lanes stand for: `real` or `modelled` (workers wait for drawn service times).
    device "device": Device = "real", word(&[("real", Device::Real), ("modelled", Device::Modelled)]);
    /// Mean service time of a modelled device.
    device_mean_service "device_mean_service_us": Duration = "5000", micros(10, 10_000_000);
    /// Seeds the draws of a modelled device; the same on every replica.
    device_seed "device_seed": u64 = "1", count(0, u64::MAX);
    /// Work queues; one per data disk on a real device.
    lanes "lanes": u16 = "1", count(1, 256);
    /// Worker threads per lane.
    workers_per_lane "workers_per_lane": u16 = "4", count(1, 64);
    /// Most copies and jobs that wait in one lane; one more is answered Busy.
    queue_max "queue_max": usize = "4096", count(1, 1 << 20);
    /// Most copies of one lane that are set aside until the replica can serve them.
    aside_max "aside_max": usize = "256", count(1, 1 << 20);
    /// Longest time a copy is set aside for a position; half of its time left if that is less.
    aside_limit "aside_limit_us": Duration = "10000", micros(100, 10_000_000);
    /// Longest time a copy waits for the answer to its read barrier; half of its time left if that is less.
    barrier_limit "barrier_limit_us": Duration = "500000", micros(100, 10_000_000);
    /// Finished ties and early cancels remembered; an eviction costs a duplicate.
    recent_ties_max "recent_ties_max": usize = "65536", count(64, 1 << 24);
    /// Longest time left that a request is given.
    time_left_max "time_left_max_us": Duration = "60000000", micros(1_000, 60_000_000);
    /// A modelled operation longer than this gives its worker up and queues again.
    chunk_max "chunk_max_us": Duration = "100000", micros(100, 60_000_000);
    /// Most copies of one caller in flight.
    caller_in_flight_max "caller_in_flight_max": u32 = "16384", count(1, 1 << 24);
    /// Most copies of one connection in flight.
    connection_in_flight_max "connection_in_flight_max": u32 = "8192", count(1, 1 << 24);
    /// Most copies per second of one caller; 0: no cap.
    caller_rate_max "caller_rate_max": u32 = "0", count(0, 1 << 30);
    /// Most writes of one connection in flight.
    connection_writes_max "connection_writes_max": usize = "1024", count(1, 1 << 20);
    /// Start records kept while recording is on.
    start_records_max "start_records_max": usize = "262144", count(1, 1 << 24);
    /// Reads that are on this node for this long or longer stand in the slow-read log; 0: none.
    slow_read "slow_read_us": Duration = "100000", micros(0, 60_000_000);

    /// Most client connections; one more is refused.
    connections_max "connections_max": usize = "1024", count(1, 1 << 20);
    /// Most client handshakes under way; beyond half of it addresses are validated first, beyond it refused.
    handshakes_max "handshakes_max": usize = "128", count(2, 1 << 16);
    /// Most client handshakes that begin per second, after a burst of 32: they cost the thread that serves clients.
    handshake_rate_max "handshake_rate_max": u32 = "250", count(1, 1 << 20);
    /// Longest time from the first packet of a connection to its hello.
    handshake_limit "handshake_limit_us": Duration = "3000000", micros(10_000, 60_000_000);
    /// Most bytes of answers that wait for one client's connection; a client that lets more wait is cut off.
    replies_waiting_max_bytes "replies_waiting_max_bytes": usize = "67108864", count(1 << 20, 1 << 32);
    /// A client that takes nothing for this long although answers wait is cut off.
    replies_stalled_max "replies_stalled_max_us": Duration = "10000000", micros(10_000, 60_000_000);
    /// Socket buffers asked of the system for each UDP socket, both ways.
    udp_buffer_bytes "udp_buffer_bytes": usize = "2097152", count(16 * 1024, 1 << 28);
    /// Longest time that answers in flight are waited for when the node stops.
    shutdown_patience "shutdown_patience_us": Duration = "5000000", micros(0, HOUR_US);

    /// Pause between pings on the cancel channel, per peer.
    cancel_ping "cancel_ping_us": Duration = "100000", micros(1_000, 10_000_000);
    /// Most cancels that wait for one peer; one more is dropped and costs a duplicate.
    cancel_queue_max "cancel_queue_max": usize = "4096", count(1, 1 << 20);
    /// Priority of the cancel thread and of workers below it, slices of threads that serve reads: `auto` or `off`.
    thread_priority "thread_priority": Priority = "auto", word(&[("auto", Priority::Auto), ("off", Priority::Off)]);

    /// Lets clients disturb a modelled device at run time and record starts; for benchmarks.
    allow_disturb "allow_disturb": bool = "false", switch;
    /// Lets clients drop cancels, hold the store back, fail reads and step the wall clock at run time; for tests.
    allow_faults "allow_faults": bool = "false", switch;
}

impl Config {
    /// Every setting with its value, where the value came from, and its default.
    pub fn explain(&self) -> &[Row] {
        &self.rows
    }
}
