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
        let settings = self.settings;
        let modelled = settings.device == Device::Modelled;
        let mut file = TomlText::default();
        file.number("node_id", self.id.0);
        file.text("certs_dir", &self.certs.to_string_lossy());
        file.text("client_address", &self.ports.client().to_string());
        file.text("peer_address", &self.ports.peer().to_string());
        file.text("cancel_address", &self.ports.cancel().to_string());
        file.text("admin_address", &self.ports.admin().to_string());
        let members = self.members.iter().map(|(id, ports)| format!("{}={}", id.0, ports.client()));
        file.list("members", members);
        match settings.storage {
            Storage::Memory => file.text("storage", "memory"),
            Storage::Disk => {
                file.text("storage", "fjall");
                file.text("data_dir", &self.data.to_string_lossy());
            }
        }
        if modelled {
            file.text("device", "modelled");
            file.number("device_mean_service_us", settings.service_mean_us);
            file.number("device_seed", settings.seed);
            file.number("lanes", settings.lanes.into());
            file.number("workers_per_lane", 1);
            file.line("allow_disturb", "true");
        }
        if settings.faults {
            file.line("allow_faults", "true");
        }
        file.0.push_str(&settings.more);
        file.0
    }
}

/// Lines of a TOML file.
#[derive(Default)]
struct TomlText(String);

impl TomlText {
    fn line(&mut self, name: &str, value: &str) {
        let _ = writeln!(self.0, "{name} = {value}");
    }

    fn number(&mut self, name: &str, value: u64) {
        self.line(name, &value.to_string());
    }

    fn text(&mut self, name: &str, value: &str) {
        self.line(name, &quoted(value));
    }

    fn list(&mut self, name: &str, values: impl Iterator<Item = String>) {
        let values: Vec<String> = values.map(|value| quoted(&value)).collect();
        self.line(name, &format!("[{}]", values.join(", ")));
    }
}

/// A TOML basic string.
fn quoted(text: &str) -> String {
    let mut quoted = String::from('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c.is_control() => quoted.push_str(&format!("\\u{:04X}", u32::from(c))),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_names_all_members_and_the_device() {
        let members = [(NodeId(1), Ports::from_first(12_000)), (NodeId(2), Ports::from_first(12_004))];
        let file = NodeFile {
            id: NodeId(2),
            ports: Ports::from_first(12_004),
            members: &members,
            certs: Path::new("/a \"b\""),
            data: Path::new("/data"),
            settings: &NodeSettings::default(),
        };
        let text = file.text();
        assert!(text.contains("members = [\"1=127.0.0.1:12000\", \"2=127.0.0.1:12004\"]\n"), "{text}");
        assert!(text.contains("certs_dir = \"/a \\\"b\\\"\"\n"), "{text}");
        assert!(text.contains("admin_address = \"127.0.0.1:12007\"\n"), "{text}");
        assert!(text.contains("device = \"modelled\"\n") && !text.contains("data_dir"), "{text}");
    }
}
