//! The public handle: connect, read, write, administer. It only hands on: reads go to [`crate::view`], writes to
//! [`crate::write`].

use crate::config::Config;
use crate::error::Error;
use crate::fanout::MultiGet;
use crate::options::{ReadOptions, WriteOptions};
use crate::report::{NodeView, Read, Value, WriteReport};
use crate::scan::{Scan, ScanOptions, ScanRange, ScanToken};
use crate::shared::Shared;
use crate::slow::SlowRead;
use crate::stats::Stats;
use crate::switchboard::PolicyControl;
use crate::view::View;
use bytes::Bytes;
use std::time::Duration;
use tiedkv_protocol::hello::Topology;
use tiedkv_protocol::ids::{ClusterId, NodeId, PositionToken};
use tiedkv_protocol::request::AdminOperation;

/// A client of one cluster. Cheap to clone; clones share connections, session and budget. Must be made and used
/// within a tokio runtime; its few tasks end when the last clone and view are dropped.
///
/// ```no_run
/// use tiedkv_client::Client;
///
/// # async fn example() -> Result<(), tiedkv_client::Error> {
/// let client = Client::connect_url("tiedkv://127.0.0.1:7400/?certs=certs").await?;
/// client.put("greeting", "hello").await?;
/// if let Some(found) = client.get("greeting").await? {
///     println!("{} bytes, version {}", found.value.len(), found.version);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Client {
    pub(crate) view: View,
}

impl Client {
    /// Connects: returns once one node has answered and told who belongs to the cluster; the other members are
    /// dialled in the background.
    ///
    /// # Errors
    /// A wrong setting or unusable certificate; or no node reached within `connect_deadline` (with the reason of
    /// the last dial of each seed).
    ///
    /// # Cancel safety
    /// Dropping the future ends all dialling.
    pub async fn connect(config: Config) -> Result<Self, Error> {
        Ok(Self { view: View::first(Shared::connect(config).await?) })
    }

    /// [`Client::connect`] with a connection string.
    ///
    /// # Errors
    /// As [`Config::from_url`] and [`Client::connect`].
    ///
    /// # Cancel safety
    /// As [`Client::connect`].
    pub async fn connect_url(url: &str) -> Result<Self, Error> {
        Self::connect(Config::from_url(url)?).await
    }

    pub(crate) fn own(&self) -> &View {
        &self.view
    }

    /// Waits until every member is connected.
    ///
    /// # Errors
    /// Names the members that are not, when `deadline` has passed.
    ///
    /// # Cancel safety
    /// Nothing is left behind.
    pub async fn all_connected(&self, deadline: Duration) -> Result<(), Error> {
        self.view.shared().all_connected(deadline).await
    }

    /// The value of a key; `None` if it is absent.
    ///
    /// # Errors
    /// See [`Error::caller_move`].
    ///
    /// # Cancel safety
    /// Dropping the future withdraws every copy.
    pub async fn get(&self, key: impl Into<Bytes>) -> Result<Option<Value>, Error> {
        self.view.get(key).await
    }

    /// [`Client::get`] with options, and a report of how it went.
    ///
    /// # Errors
    /// See [`Error::caller_move`].
    ///
    /// # Cancel safety
    /// Dropping the future withdraws every copy.
    pub async fn get_with(&self, key: impl Into<Bytes>, options: ReadOptions) -> Result<Read, Error> {
        self.view.get_with(key, options).await
    }

    /// A call for many keys (at most 10,000), each a tie of its own; they share frames, deadline and budget. Order and
    /// repeats are kept. Nothing is read until [`MultiGet::send`], or [`MultiGet::partial`] and its `send`.
    pub fn multi_get<K: Into<Bytes>>(&self, keys: impl IntoIterator<Item = K>) -> MultiGet {
        self.view.multi_get(keys)
    }

    /// How far read policies may act, at run time: this program's own switch, and what is in force.
    pub fn policy(&self) -> PolicyControl {
        PolicyControl::new(self.view.shared().connections().board.clone())
    }

    /// Whether a key is present; its value does not travel.
    ///
    /// # Errors
    /// See [`Error::caller_move`].
    ///
    /// # Cancel safety
    /// Dropping the future withdraws every copy.
    pub async fn exists(&self, key: impl Into<Bytes>) -> Result<bool, Error> {
        self.view.exists(key, ReadOptions::default()).await
    }

    /// [`Client::exists`] with options; deadline and class are those of a get.
    ///
    /// # Errors
    /// See [`Error::caller_move`].
    ///
    /// # Cancel safety
    /// Dropping the future withdraws every copy.
    pub async fn exists_with(&self, key: impl Into<Bytes>, options: ReadOptions) -> Result<bool, Error> {
        self.view.exists(key, options).await
    }

    /// Begins a scan: rows in order of key, fetched ahead page by page.
    ///
    /// # Errors
    /// When an option is out of its bounds.
    pub fn scan(&self, range: &ScanRange, options: ScanOptions) -> Result<Scan, Error> {
        self.view.scan(range, options)
    }

    /// Goes on with a scan behind the last row that was given out; range, order and limit are the token's.
    ///
    /// # Errors
    /// When the token is of another cluster, or an option is out of its bounds.
    pub fn resume(&self, token: ScanToken, options: ScanOptions) -> Result<Scan, Error> {
        self.view.resume(token, options)
    }

    /// How many keys lie in a range: counted by the nodes, page by page, each page consistent in itself.
    ///
    /// # Errors
    /// See [`Error::caller_move`].
    ///
    /// # Cancel safety
    /// Dropping the future withdraws every copy.
    pub async fn count(&self, range: &ScanRange) -> Result<u64, Error> {
        self.view.count(range, ReadOptions::default()).await
    }

    /// [`Client::count`] with options: they hold for each page, the deadline too (10 s unless named; class batch likewise).
    ///
    /// ```no_run
    /// use tiedkv_client::{Client, Level, ReadOptions, ScanRange};
    ///
    /// # async fn example(client: Client) -> Result<(), tiedkv_client::Error> {
    /// let options = ReadOptions { level: Some(Level::Linearizable), ..ReadOptions::default() };
    /// let users = client.count_with(&ScanRange::prefix("user/"), options).await?;
    /// # println!("{users}");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`Error::caller_move`].
    ///
    /// # Cancel safety
    /// Dropping the future withdraws every copy.
    pub async fn count_with(&self, range: &ScanRange, options: ReadOptions) -> Result<u64, Error> {
        self.view.count(range, options).await
    }

    /// Sets a key.
    ///
    /// # Errors
    /// See [`Error::caller_move`]; `UnknownOutcome` means that it may have been applied.
    ///
    /// # Cancel safety
    /// A write whose future is dropped may still be applied.
    pub async fn put(&self, key: impl Into<Bytes>, value: impl Into<Bytes>) -> Result<WriteReport, Error> {
        self.view.put_with(key, value, WriteOptions::default()).await
    }

    /// [`Client::put`] with options.
    ///
    /// # Errors
    /// As [`Client::put`].
    ///
    /// # Cancel safety
    /// As [`Client::put`].
    pub async fn put_with(
        &self,
        key: impl Into<Bytes>,
        value: impl Into<Bytes>,
        options: WriteOptions,
    ) -> Result<WriteReport, Error> {
        self.view.put_with(key, value, options).await
    }

    /// [`Client::put`] to one node, for clusters that are not replicated.
    ///
    /// # Errors
    /// As [`Client::put`].
    ///
    /// # Cancel safety
    /// As [`Client::put`].
    pub async fn put_on(
        &self,
        node: NodeId,
        key: impl Into<Bytes>,
        value: impl Into<Bytes>,
    ) -> Result<WriteReport, Error> {
        self.view.put_with(key, value, WriteOptions { node: Some(node), ..WriteOptions::default() }).await
    }

    /// Removes a key; an absent one is no error.
    ///
    /// # Errors
    /// As [`Client::put`].
    ///
    /// # Cancel safety
    /// As [`Client::put`].
    pub async fn delete(&self, key: impl Into<Bytes>) -> Result<WriteReport, Error> {
        self.view.delete_with(key, WriteOptions::default()).await
    }

    /// [`Client::delete`] with options.
    ///
    /// # Errors
    /// As [`Client::put`].
    ///
    /// # Cancel safety
    /// As [`Client::put`].
    pub async fn delete_with(&self, key: impl Into<Bytes>, options: WriteOptions) -> Result<WriteReport, Error> {
        self.view.delete_with(key, options).await
    }

    /// Removes every key of a range, some at a time; `progress` is told how many are gone. Returns how many there were.
    /// Not atomic: it removes what its pages show, and a key written meanwhile may stay.
    ///
    /// # Errors
    /// See [`Error::caller_move`]; what was removed stays removed, and calling again goes on.
    ///
    /// # Cancel safety
    /// Some keys may be removed; deletes that are out may still be applied.
    pub async fn delete_range(
        &self,
        range: &ScanRange,
        options: ScanOptions,
        progress: impl FnMut(u64),
    ) -> Result<u64, Error> {
        self.view.delete_range(range, options, progress).await
    }

    /// What this client's session has seen. Hand it to another session to read one's writes there.
    pub fn token(&self) -> PositionToken {
        self.view.token()
    }

    /// Makes this session not read before `token`.
    ///
    /// # Errors
    /// When the token is of another cluster or shard.
    pub fn observe(&self, token: PositionToken) -> Result<(), Error> {
        self.view.observe(token)
    }

    /// A light handle over the same connections with its own session, randomness (from `seed`), load estimates and
    /// budget. Round trips and tie delays stay those of the shared connections.
    pub fn view(&self, seed: u64) -> View {
        self.view.sibling(seed)
    }

    /// Asks one node to do something; the payload of its answer. Deadline: the settings' one.
    ///
    /// # Errors
    /// See [`Error::caller_move`].
    ///
    /// # Cancel safety
    /// The node may have done it when the future is dropped.
    pub async fn admin(&self, node: NodeId, operation: AdminOperation) -> Result<Bytes, Error> {
        let deadline = self.view.shared().config().deadline;
        self.view.shared().admin(node, operation, deadline).await
    }

    /// [`Client::admin`] with a deadline of its own.
    ///
    /// # Errors
    /// As [`Client::admin`].
    ///
    /// # Cancel safety
    /// As [`Client::admin`].
    pub async fn admin_within(
        &self,
        node: NodeId,
        operation: AdminOperation,
        deadline: Duration,
    ) -> Result<Bytes, Error> {
        self.view.shared().admin(node, operation, deadline).await
    }

    /// The status page of one node (JSON).
    ///
    /// # Errors
    /// As [`Client::admin`].
    ///
    /// # Cancel safety
    /// Nothing is left behind.
    pub async fn status(&self, node: NodeId) -> Result<Bytes, Error> {
        self.admin(node, AdminOperation::Status).await
    }

    /// The replicas and the leader as last heard.
    pub fn topology(&self) -> Topology {
        self.view.shared().topology()
    }

    /// The cluster that the certificates name.
    pub fn cluster(&self) -> ClusterId {
        self.view.shared().cluster()
    }

    /// Every member as this client sees it, sorted by NodeId.
    pub fn nodes(&self) -> Vec<NodeView> {
        self.view.shared().nodes()
    }

    /// A snapshot of the counters of this client and all its views.
    pub fn stats(&self) -> Stats {
        self.view.shared().stats()
    }

    /// Reads of this client and all its views that took longer than its settings call slow, newest last.
    pub fn slow_reads(&self) -> Vec<SlowRead> {
        self.view.shared().connections().slow.all()
    }

    /// The counters as a collector for a Prometheus registry (feature `metrics`).
    #[cfg(feature = "metrics")]
    pub fn collector(&self) -> crate::metrics::ClientCollector {
        crate::metrics::ClientCollector::new(self.view.shared())
    }

    /// Closes all connections; calls that wait end with `Closed`.
    pub fn close(&self) {
        self.view.shared().close();
    }
}

#[cfg(test)]
#[path = "client_test.rs"]
mod tests;
