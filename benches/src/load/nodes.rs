//! What a run asks of every node over the mTLS port: disturb the device, record starts, tell counters.

use crate::clock;
use anyhow::{Context, Result, bail};
use bytes::Bytes;
use serde_json::Value;
use std::time::Duration;
use tiedkv_client::Client;
use tiedkv_protocol::codec;
use tiedkv_protocol::error::Move;
use tiedkv_protocol::ids::NodeId;
use tiedkv_protocol::moment::Moment;
use tiedkv_protocol::request::{AdminOperation, Disturbance};
use tiedkv_protocol::response::StartRecord;

/// Longest wait for one answer, with all tries.
const DEADLINE: Duration = Duration::from_secs(10);
/// Pause before a node is asked again.
const ASK_PAUSE: Duration = Duration::from_millis(100);
/// Longest wait for copies in flight to end.
const REST_DEADLINE: Duration = Duration::from_secs(5);
/// How often the counters are read while waiting.
const REST_POLL: Duration = Duration::from_millis(20);

/// Counters that stand still in a quiet cluster: name for people, place in the page of counters.
const TROUBLES: [(&str, &str); 10] = [
    ("copies set aside", "/path/set_aside"),
    ("copies refused by nodes", "/path/answered_refused"),
    ("storage errors", "/path/storage_errors"),
    ("early cancels lost", "/path/early_cancels_lost"),
    ("cancels ignored", "/path/cancels_ignored"),
    ("cancels dropped, queue full", "/cancels/dropped_full"),
    ("cancels dropped, no link", "/cancels/dropped_unlinked"),
    ("cancel links dialled", "/cancels/dialled"),
    ("client handshakes", "/clients/handshakes"),
    ("stalled us", "/path/stalled_us"),
];

/// All members of a cluster, as a run talks to them.
#[derive(Clone, Debug)]
pub struct Nodes {
    client: Client,
    ids: Vec<NodeId>,
}

impl Nodes {
    /// The members that the client knows now.
    pub fn of(client: &Client) -> Self {
        let ids = client.topology().members.iter().map(|member| member.node).collect();
        Self { client: client.clone(), ids }
    }

    /// Their identities, sorted.
    pub fn ids(&self) -> &[NodeId] {
        &self.ids
    }

    /// The same without some of them: what is asked after these are gone.
    pub fn without(&self, gone: &[NodeId]) -> Self {
        let ids = self.ids.iter().copied().filter(|node| !gone.contains(node)).collect();
        Self { client: self.client.clone(), ids }
    }

    /// Sets the disturbance of every node; says since when, by each node's own clock, in the order of [`Self::ids`].
    ///
    /// # Errors
    /// When a node refuses (its device is real) or does not answer.
    pub async fn disturb(&self, disturbance: &Disturbance) -> Result<Vec<Moment>> {
        let answers = self.all(&AdminOperation::Disturb(disturbance.clone())).await?;
        let since = |payload: &Bytes| {
            let page: Value = serde_json::from_slice(payload).context("disturbance")?;
            page["since_ns"].as_u64().map(Moment).context("a node does not say since when it is disturbed")
        };
        answers.iter().map(since).collect()
    }

    /// Makes every node drop this share (0.0 to 1.0) of the cancels it sends.
    ///
    /// # Errors
    /// When a node was not started for faults or does not answer.
    pub async fn drop_cancels(&self, share: f64) -> Result<()> {
        self.all(&AdminOperation::DropCancels { share }).await.map(drop)
    }

    /// Flight of a cancel over the last minute, p50 and p99 in microseconds: the mean over all pairs that know it.
    ///
    /// # Errors
    /// When a node does not answer.
    pub async fn cancel_flight_us(&self) -> Result<Option<[f64; 2]>> {
        let (mut sums, mut pairs) = ([0.0; 2], 0u32);
        for payload in self.all(&AdminOperation::Status).await? {
            let page: Value = serde_json::from_slice(&payload).context("status")?;
            for peer in page["cancels"]["peers"].as_array().into_iter().flatten() {
                let flights = ["flight_p50_ns", "flight_p99_ns"].map(|name| peer[name].as_u64().unwrap_or(0));
                if flights[0] > 0 {
                    sums.iter_mut().zip(flights).for_each(|(sum, flight)| *sum += flight as f64 / 1e3);
                    pairs += 1;
                }
            }
        }
        Ok((pairs > 0).then(|| sums.map(|sum| sum / f64::from(pairs))))
    }

    /// Starts recording on every node, from an empty ring; or stops it.
    ///
    /// # Errors
    /// When a node does not answer.
    pub async fn record_starts(&self, on: bool) -> Result<()> {
        self.all(&AdminOperation::RecordStarts { on }).await.map(drop)
    }

    /// All start records of every node.
    ///
    /// # Errors
    /// When a node does not answer, or answers something else.
    pub async fn take_starts(&self) -> Result<Vec<(NodeId, Vec<StartRecord>)>> {
        let mut all = Vec::new();
        for node in &self.ids {
            let mut records: Vec<StartRecord> = Vec::new();
            loop {
                let from = records.len() as u64;
                let payload = self.ask(*node, &AdminOperation::TakeStarts { from }).await?;
                let page: Vec<StartRecord> = codec::decode_large(&payload).context("start records")?;
                if page.is_empty() {
                    break;
                }
                records.extend(page);
            }
            all.push((*node, records));
        }
        Ok(all)
    }

    /// Cancels sent so far, over all nodes.
    ///
    /// # Errors
    /// When a node does not answer, or its counters have no such field.
    pub async fn cancels_sent(&self) -> Result<u64> {
        Ok(self.sum("cancels_sent").await? + self.sum("cancels_sent_back").await?)
    }

    /// Waits until no copy is in flight on any node.
    ///
    /// # Errors
    /// When copies are still in flight after five seconds.
    pub async fn wait_at_rest(&self) -> Result<()> {
        let end = clock::now() + REST_DEADLINE;
        loop {
            let mut ended = self.sum("withdrawn").await?;
            for name in ["answered_good", "answered_refused", "answered_expired", "answered_failed"] {
                ended += self.sum(name).await?;
            }
            for name in ["cancelled", "early_dropped", "yielded"] {
                ended += self.sum(name).await?;
            }
            let received = self.sum("received").await?;
            if received == ended {
                return Ok(());
            }
            if clock::now() >= end {
                bail!("{} copies are still in flight 5 s after the last read", received.saturating_sub(ended));
            }
            tokio::time::sleep(REST_POLL).await;
        }
    }

    /// What should not happen in a quiet cluster, over all nodes, by name: counts since the nodes started, and the sum
    /// of their terms of Raft (it grows with elections).
    ///
    /// # Errors
    /// When a node does not answer.
    pub async fn troubles(&self) -> Result<Vec<(&'static str, u64)>> {
        let counters = self.all(&AdminOperation::Counters).await?;
        let status = self.all(&AdminOperation::Status).await?;
        let parse = |pages: Vec<Bytes>| -> Result<Vec<Value>> {
            pages.iter().map(|page| serde_json::from_slice(page).context("a page of a node")).collect()
        };
        let (counters, status) = (parse(counters)?, parse(status)?);
        let sum = |pages: &[Value], path: &str| pages.iter().filter_map(|page| page.pointer(path)?.as_u64()).sum();
        let mut troubles: Vec<_> = TROUBLES.map(|(name, path)| (name, sum(&counters, path))).to_vec();
        troubles.push(("terms", sum(&status, "/replica/term")));
        Ok(troubles)
    }

    /// One counter of the request path, over all nodes.
    async fn sum(&self, name: &str) -> Result<u64> {
        let mut sum = 0;
        for payload in self.all(&AdminOperation::Counters).await? {
            let counters: Value = serde_json::from_slice(&payload).context("counters")?;
            let count = counters["path"][name].as_u64();
            sum += count.with_context(|| format!("a node counts no `{name}` in {counters}"))?;
        }
        Ok(sum)
    }

    async fn all(&self, operation: &AdminOperation) -> Result<Vec<Bytes>> {
        let mut answers = Vec::new();
        for node in &self.ids {
            answers.push(self.ask(*node, operation).await?);
        }
        Ok(answers)
    }

    async fn ask(&self, node: NodeId, operation: &AdminOperation) -> Result<Bytes> {
        let end = clock::now() + DEADLINE;
        loop {
            let left = end.saturating_duration_since(clock::now());
            match self.client.admin_within(node, operation.clone(), left).await {
                Ok(answer) => return Ok(answer),
                // A machine that stands still loses links; whatever is asked here may be asked twice.
                Err(error) if error.caller_move() != Move::FixTheCall && clock::now() + ASK_PAUSE < end => {
                    tokio::time::sleep(ASK_PAUSE).await;
                }
                Err(error) => return Err(error).with_context(|| format!("{node} was asked for {operation:?}")),
            }
        }
    }
}
