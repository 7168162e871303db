//! What all handles of one client share.

use crate::config::Config;
use crate::error::Error;
use crate::report::NodeView;
use crate::stats::{Counters, Stats};
use bytes::Bytes;
use std::time::Duration;
use tiedkv_protocol::hello::Topology;
use tiedkv_protocol::ids::{ClusterId, NodeId};
use tiedkv_protocol::request::AdminOperation;

/// One per client.
#[derive(Debug)]
pub(crate) struct Shared {
    config: Config,
    counters: Counters,
}

impl Shared {
    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    pub(crate) fn stats(&self) -> Stats {
        self.counters.snapshot()
    }

    pub(crate) async fn all_connected(&self, deadline: Duration) -> Result<(), Error> {
        let _ = deadline;
        todo!()
    }

    pub(crate) async fn admin(
        &self,
        node: NodeId,
        operation: AdminOperation,
        deadline: Duration,
    ) -> Result<Bytes, Error> {
        let _ = (node, operation, deadline);
        todo!()
    }

    pub(crate) fn topology(&self) -> Topology {
        todo!()
    }

    pub(crate) fn cluster(&self) -> ClusterId {
        todo!()
    }

    pub(crate) fn nodes(&self) -> Vec<NodeView> {
        todo!()
    }

    pub(crate) fn close(&self) {
        todo!()
    }
}
