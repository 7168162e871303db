//! Three groups in one process over loopback QUIC: replication, loss of the leader, catching up, restarts, repeats.

#![allow(clippy::disallowed_methods, reason = "tests measure by the machine's clock")]

use super::*;
use crate::transport::test_certificates::TestAuthority;
use std::net::UdpSocket;
use std::time::Instant;
use tiedkv_protocol::atomic::{Atomic, Current, Expect, Operation, WriteDetail};
use tiedkv_protocol::error::ErrorCode;
use tiedkv_protocol::ids::{ClientId, Position, RequestId, SHARD_ZERO};
use tiedkv_protocol::request::{IdempotencyKey, WriteOperation};
use tiedkv_protocol::response::Written;

const WAIT: Duration = Duration::from_secs(20);
const CALLER: CallerId = CallerId(7);

/// Three members, their certificates, folders and addresses.
pub(super) struct Cluster {
    pub(super) authority: TestAuthority,
    pub(super) folder: tempfile::TempDir,
    pub(super) members: Vec<Member>,
    pub(super) groups: Vec<Option<Group>>,
    pub(super) settings: fn(&mut GroupConfig),
    pub(super) runtime: tokio::runtime::Runtime,
    sequence: std::sync::atomic::AtomicU64,
}

fn free_address() -> String {
    UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

pub(super) fn member(id: u64) -> Member {
    Member {
        node: NodeId(id),
        zone: String::new(),
        client_address: "127.0.0.1:1".to_owned(),
        peer_address: free_address(),
        cancel_address: "127.0.0.1:1".to_owned(),
        learner: false,
    }
}

impl Cluster {
    pub(super) fn start(settings: fn(&mut GroupConfig)) -> Self {
        let mut cluster = Self {
            authority: TestAuthority::new(),
            folder: tempfile::tempdir().unwrap(),
            members: (1..=3).map(member).collect(),
            groups: vec![None, None, None],
            settings,
            runtime: tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap(),
            sequence: Default::default(),
        };
        for index in 0..3 {
            cluster.boot(index);
        }
        cluster
    }

    pub(super) fn config(&self, index: usize) -> GroupConfig {
        let member = &self.members[index];
        let mut config = GroupConfig::new(
            Arc::new(self.authority.credentials(member.node.0)),
            self.folder.path().join(format!("node-{}", member.node.0)),
            member.peer_address.parse().unwrap(),
            self.members[..3].to_vec(),
        );
        (self.settings)(&mut config);
        config
    }

    pub(super) fn boot(&mut self, index: usize) {
        self.groups[index] = Some(Group::start(self.config(index)).unwrap());
    }

    pub(super) fn group(&self, index: usize) -> &Group {
        self.groups[index].as_ref().unwrap()
    }

    /// Waits until a live group leads and all live ones agree; its index.
    pub(super) fn leader(&self) -> usize {
        self.leader_of(self.groups.len())
    }

    /// The same among the first `count` groups.
    pub(super) fn leader_of(&self, count: usize) -> usize {
        eventually("a leader that all agree on", || {
            let live: Vec<_> = self.groups[..count].iter().flatten().collect();
            let leader = live[0].leader()?;
            let agreed = live.iter().all(|group| group.leader() == Some(leader));
            let index = self.members.iter().position(|member| member.node == leader)?;
            (agreed && self.groups[index].is_some()).then_some(index)
        })
    }

    pub(super) fn next(&self) -> u64 {
        self.sequence.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn write(&self, index: usize, request: WriteRequest, value: &str) -> Result<Written, Failure> {
        let write = self.group(index).write(CALLER, request, Bytes::copy_from_slice(value.as_bytes()));
        self.runtime.block_on(write).0.outcome
    }

    /// Puts through whoever leads, as a client would: follows `NotLeader`, repeats with the same key.
    pub(super) fn put(&self, key: &str, value: &str) -> Written {
        let request = put(key, self.next());
        eventually(&format!("put {key}"), || {
            let index = self.leader();
            self.write(index, request.clone(), value).ok()
        })
    }

    pub(super) fn get(&self, index: usize, key: &str) -> Option<String> {
        let stored = self.group(index).store().current().get(key.as_bytes()).unwrap()?;
        Some(String::from_utf8(stored.value.to_vec()).unwrap())
    }

    pub(super) fn applied(&self, index: usize, position: Position) {
        eventually(&format!("{position} applied on {index}"), || {
            (self.group(index).store().current().position() >= position).then_some(())
        });
    }
}

pub(super) fn put(key: &str, sequence: u64) -> WriteRequest {
    WriteRequest {
        request: RequestId(sequence),
        shard: SHARD_ZERO,
        idempotency: IdempotencyKey { client: ClientId(1), sequence, floor: Position(0) },
        time_left_us: 5_000_000,
        operation: WriteOperation::Put { key: Bytes::copy_from_slice(key.as_bytes()) },
    }
}

/// Polls a condition until it holds; the poll's pause is no guess about time, only kind to the machine.
pub(super) fn eventually<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = condition() {
            return found;
        }
        assert!(begun.elapsed() < WAIT, "not in {WAIT:?}: {what}");
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

#[test]
fn a_write_is_on_all_replicas_and_a_follower_names_the_leader() {
    let cluster = Cluster::start(|_| ());
    let leader = cluster.leader();
    let written = cluster.put("a", "1");
    assert_eq!(written.version.0, written.position.0);
    for index in 0..3 {
        cluster.applied(index, written.position);
        assert_eq!(cluster.get(index, "a").as_deref(), Some("1"));
    }
    let follower = (leader + 1) % 3;
    let refused = cluster.write(follower, put("a", cluster.next()), "2").unwrap_err();
    assert_eq!((refused.code, refused.leader), (ErrorCode::NotLeader, Some(cluster.members[leader].node)));
}

#[test]
fn a_repeat_is_answered_and_not_applied_again() {
    let cluster = Cluster::start(|_| ());
    let leader = cluster.leader();
    let request = put("a", 100);
    let first = cluster.write(leader, request.clone(), "1").unwrap();
    cluster.put("a", "2");
    let again = cluster.write(leader, request.clone(), "1").unwrap();
    assert_eq!((again.version, again.repeated, first.repeated), (first.version, true, false));
    assert_eq!(cluster.get(leader, "a").as_deref(), Some("2"));
    let reused = cluster.write(leader, request, "other").unwrap_err();
    assert_eq!(reused.code, ErrorCode::KeyReused);
}

#[test]
fn a_refused_compare_and_set_shows_the_state_and_stays_refused_on_a_new_leader() {
    let mut cluster = Cluster::start(|_| ());
    let cas = |key: &str, expect, sequence| {
        let key = Bytes::copy_from_slice(key.as_bytes());
        let operation = Operation::Put { key: key.clone(), value: "new".into() };
        let body = Atomic::compare(key, expect, operation).encode().unwrap();
        (WriteRequest { operation: WriteOperation::Atomic, ..put("", sequence) }, body)
    };
    let write = |cluster: &Cluster, leader: usize, (request, body): &(WriteRequest, Bytes)| {
        let write = cluster.group(leader).write(CALLER, request.clone(), body.clone());
        let (reply, detail) = cluster.runtime.block_on(write);
        (reply.outcome, WriteDetail::decode(&detail).unwrap())
    };
    let leader = cluster.leader();
    let first = cluster.put("a", "old");
    let (absent, right) = (cas("a", Expect::Absent, 900), cas("a", Expect::Version(first.version), 901));
    let (refused, detail) = write(&cluster, leader, &absent);
    assert_eq!(refused.unwrap_err().code, ErrorCode::ConditionFailed);
    let current = Current { version: first.version, value_bytes: 3, value: Some("old".into()) };
    assert_eq!(detail, Some(WriteDetail::Unmet { index: 0, current: Some(current) }));
    let applied = write(&cluster, leader, &right).0.unwrap();
    let other = (absent.0.clone(), right.1.clone());
    assert_eq!(write(&cluster, leader, &other).0.unwrap_err().code, ErrorCode::KeyReused);
    let empty = (absent.0.clone(), Atomic::default().encode().unwrap());
    assert_eq!(write(&cluster, leader, &empty).0.unwrap_err().code, ErrorCode::OverLimit);
    cluster.groups[leader] = None;
    cluster.put("after", "1");
    let leader = cluster.leader();
    let again = write(&cluster, leader, &right).0.unwrap();
    assert_eq!((again.version, again.repeated), (applied.version, true));
    // Would hold for nobody now either; the state shown is that of now.
    let (refused, detail) = write(&cluster, leader, &absent);
    assert_eq!(refused.unwrap_err().code, ErrorCode::ConditionFailed);
    let current = Current { version: applied.version, value_bytes: 3, value: Some("new".into()) };
    assert_eq!(detail, Some(WriteDetail::Unmet { index: 0, current: Some(current) }));
}

#[test]
fn a_replica_that_is_cut_off_knows_it_and_one_that_is_in_contact_too() {
    let mut cluster = Cluster::start(|_| ());
    let leader = cluster.leader();
    cluster.put("a", "1");
    let lost = |cluster: &Cluster, index: usize| cluster.group(index).read_barrier().cut_off();
    let in_contact = |index: usize| lost(&cluster, index).is_none();
    eventually("all are in contact", || (0..3).all(in_contact).then_some(()));
    let follower = (leader + 1) % 3;
    (0..3).filter(|index| *index != follower).for_each(|index| cluster.groups[index] = None);
    eventually("the follower sees that it is alone", || lost(&cluster, follower));
    (0..3).filter(|index| *index != follower).for_each(|index| cluster.boot(index));
    eventually("it is in contact again", || lost(&cluster, follower).is_none().then_some(()));
}

#[test]
fn a_full_disk_refuses_writes_reads_go_on_and_freed_space_heals() {
    let cluster = Cluster::start(|_| ());
    cluster.put("a", "1");
    let leader = cluster.leader();
    let write = || cluster.write(leader, put("a", cluster.next()), "2");
    cluster.group(leader).disk().set_reserve(u64::MAX);
    let refused = eventually("writes are refused", || write().err());
    assert_eq!(refused.code, ErrorCode::DiskFull);
    assert!(refused.retry_after_us > 0 && refused.message.contains("bytes left"), "{}", refused.message);
    assert!(cluster.get(leader, "a").is_some());
    assert_eq!(cluster.group(leader).read_barrier().cut_off(), None);
    cluster.group(leader).disk().set_reserve(0);
    eventually("writes are taken again", || write().ok());
}

#[test]
fn writes_go_on_without_the_leader_and_nothing_acknowledged_is_lost() {
    let mut cluster = Cluster::start(|_| ());
    let leader = cluster.leader();
    for number in 0..50 {
        cluster.put(&format!("k{number}"), "before");
    }
    cluster.groups[leader] = None;
    let begun = Instant::now();
    let written = cluster.put("after", "1");
    assert!(begun.elapsed() < Duration::from_secs(6), "took {:?}", begun.elapsed());
    cluster.boot(leader);
    cluster.applied(leader, written.position);
    for index in 0..3 {
        assert_eq!(cluster.get(index, "k49").as_deref(), Some("before"));
    }
}
