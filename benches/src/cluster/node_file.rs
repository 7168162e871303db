//! Writes the settings file of one node of a local cluster. The names are those of the server's configuration.

use super::ports::Ports;
use std::fmt::Write;
use std::path::Path;
use tiedkv_protocol::ids::NodeId;

/// What answers reads: the store itself, or the store behind a modelled device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// As fast as the store.
    Real,
    /// Each read waits for a drawn service time, and the device can be disturbed.
    Modelled,
}

/// Where the data lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    /// In memory, not replicated: a writer writes to every node.
    Memory,
    /// On disk, replicated through Raft.
    Disk,
}

/// What every node of a cluster is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeSettings {
    /// Default modelled.
    pub device: Device,
    /// Default memory.
    pub storage: Storage,
    /// Lanes of a modelled device, one worker each. Default 8.
    pub lanes: u16,
    /// Mean service time of a modelled device, microseconds. Default 5,000.
    pub service_mean_us: u64,
    /// Seeds the draws of service times; the same on every node. Default 1.
    pub seed: u64,
    /// Allow the faults that tests ask for (dropped cancels, lag, failing reads). Default off.
    pub faults: bool,
    /// Further lines for the settings file, as they are.
    pub more: String,
}

impl Default for NodeSettings {
    fn default() -> Self {
        Self {
            device: Device::Modelled,
            storage: Storage::Memory,
            lanes: 8,
            service_mean_us: 5_000,
            seed: 1,
            faults: false,
            more: String::new(),
        }
    }
}

/// One node's file.
pub(super) struct NodeFile<'a> {
    pub(super) id: NodeId,
    pub(super) ports: Ports,
    pub(super) members: &'a [(NodeId, Ports)],
    pub(super) certs: &'a Path,
    pub(super) data: &'a Path,
    pub(super) settings: &'a NodeSettings,
}

impl NodeFile<'_> {
    /// The file's text.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        let _ = writeln!(text, "# {} of {} members", self.id, self.members.len());
        let _ = (self.ports, self.certs, self.data, self.settings);
        text
    }
}
