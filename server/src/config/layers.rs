//! Layers of settings: defaults < file < environment < flags. Values stay text until the whole is built, so that
//! every error can name value and source.

use super::error::ConfigError;
use super::settings::{self, Config, Device, Row, SETTINGS, Setting, Storage};
use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use toml::de::{DeTable, DeValue};

/// Separates the entries of a list in one text.
pub const LIST_SEPARATOR: char = ';';
/// Begins the name of every environment variable that is a setting.
pub const ENVIRONMENT_PREFIX: &str = "TIEDKV_";

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The table of settings.
    Default,
    /// A file, by path and line.
    File(PathBuf, usize),
    /// An environment variable, by name.
    Environment(String),
    /// A flag, as written without its value.
    Flag(String),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(path, line) => write!(f, "{} line {line}", path.display()),
            Self::Environment(name) => write!(f, "environment {name}"),
            Self::Flag(name) => write!(f, "flag {name}"),
        }
    }
}

/// Collects values by layer. Call in any order: flags win over the environment, which wins over the file.
#[derive(Clone, Debug, Default)]
pub struct ConfigBuilder {
    file: BTreeMap<&'static str, (String, Source)>,
    environment: BTreeMap<&'static str, (String, Source)>,
    flags: BTreeMap<&'static str, (String, Source)>,
}

impl ConfigBuilder {
    /// Nothing but defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the settings of a TOML file.
    ///
    /// # Errors
    /// When the file cannot be read, is no TOML, or names what is no setting.
    pub fn file(self, path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| ConfigError::File { path: path.to_owned(), reason: error.to_string() })?;
        self.file_text(path, &text)
    }

    /// Takes the settings of a TOML text that is known as `path`.
    ///
    /// # Errors
    /// As [`ConfigBuilder::file`].
    pub fn file_text(mut self, path: &Path, text: &str) -> Result<Self, ConfigError> {
        let syntax =
            |line, reason: &str| ConfigError::Syntax { path: path.to_owned(), line, reason: reason.to_owned() };
        let line_of =
            |offset: usize| text.as_bytes()[..offset.min(text.len())].iter().filter(|b| **b == b'\n').count() + 1;
        let table = DeTable::parse(text)
            .map_err(|error| syntax(error.span().map_or(1, |span| line_of(span.start)), error.message()))?;
        for (key, value) in table.get_ref() {
            let line = line_of(key.span().start);
            let source = Source::File(path.to_owned(), line);
            let setting = find(key.get_ref(), &source)?;
            let value = scalar(value.get_ref()).ok_or_else(|| {
                syntax(line, &format!("`{}` wants a text, number, switch or list of texts", setting.name))
            })?;
            self.file.insert(setting.name, (value, source));
        }
        Ok(self)
    }

    /// Takes `TIEDKV_*` from environment variables; `others` (whole names) belong to somebody else.
    ///
    /// # Errors
    /// When a variable with the prefix names what is no setting.
    pub fn environment(
        mut self,
        variables: impl IntoIterator<Item = (String, String)>,
        others: &[&str],
    ) -> Result<Self, ConfigError> {
        for (variable, value) in variables {
            let Some(name) = variable.strip_prefix(ENVIRONMENT_PREFIX) else { continue };
            if others.contains(&variable.as_str()) {
                continue;
            }
            let source = Source::Environment(variable.clone());
            let setting = find(&name.to_ascii_lowercase(), &source)?;
            self.environment.insert(setting.name, (value, source));
        }
        Ok(self)
    }

    /// Takes one flag by the setting's name (`queue_max` or `queue-max`). A list setting given twice is joined.
    ///
    /// # Errors
    /// When the name is no setting, or the same flag was given another value before.
    pub fn flag(mut self, name: &str, value: &str) -> Result<Self, ConfigError> {
        let source = Source::Flag(format!("--{}", name.replace('_', "-")));
        let setting = find(&name.replace('-', "_"), &source)?;
        match self.flags.get_mut(setting.name) {
            Some((before, _)) if is_list(setting) => {
                before.push(LIST_SEPARATOR);
                before.push_str(value);
            }
            Some((before, _)) if before != value => {
                return Err(ConfigError::Clash {
                    first: format!("{source} = `{before}`"),
                    second: format!("{source} = `{value}`"),
                    reason: "one flag, two values".to_owned(),
                });
            }
            _ => {
                self.flags.insert(setting.name, (value.to_owned(), source));
            }
        }
        Ok(self)
    }

    /// Parses and cross-checks everything.
    ///
    /// # Errors
    /// Names the first value that is out of its bounds or the first two that contradict each other.
    pub fn build(self) -> Result<Config, ConfigError> {
        let values = Values(
            SETTINGS
                .iter()
                .map(|setting| {
                    let name = setting.name;
                    let layers = [&self.flags, &self.environment, &self.file];
                    let value = layers.iter().find_map(|layer| layer.get(name)).cloned();
                    (name, value.unwrap_or_else(|| (setting.default.to_owned(), Source::Default)))
                })
                .collect(),
        );
        let config = settings::parse_all(&values)?;
        cross_check(&config, &values)?;
        Ok(config)
    }
}

/// The values in force, as text.
pub struct Values(BTreeMap<&'static str, (String, Source)>);

impl Values {
    /// Parses one.
    pub(super) fn parse<T>(
        &self,
        name: &'static str,
        parser: impl Fn(&str) -> Result<T, String>,
    ) -> Result<T, ConfigError> {
        let (value, source) = self.entry(name);
        parser(value.trim()).map_err(|reason| ConfigError::Value { name, value, source_: source, reason })
    }

    /// All of them, explained.
    pub(super) fn rows(&self) -> Vec<Row> {
        SETTINGS
            .iter()
            .map(|setting| {
                let (value, source) = self.entry(setting.name);
                Row { name: setting.name, value, source, default: setting.default }
            })
            .collect()
    }

    fn entry(&self, name: &'static str) -> (String, Source) {
        self.0.get(name).cloned().unwrap_or_else(|| (String::new(), Source::Default))
    }

    fn is_set(&self, name: &'static str) -> bool {
        self.0.get(name).is_some_and(|(_, source)| *source != Source::Default)
    }

    fn clash(&self, first: &'static str, second: &'static str, reason: impl Into<String>) -> ConfigError {
        let say = |name| {
            let (value, source) = self.entry(name);
            format!("`{name}` = `{value}` ({source})")
        };
        ConfigError::Clash { first: say(first), second: say(second), reason: reason.into() }
    }
}

fn find(name: &str, source: &Source) -> Result<&'static Setting, ConfigError> {
    if let Some(setting) = SETTINGS.iter().find(|setting| setting.name == name) {
        return Ok(setting);
    }
    let nearest = SETTINGS
        .iter()
        .map(|setting| (strsim::damerau_levenshtein(setting.name, name), setting.name))
        .min()
        .filter(|(distance, nearest)| *distance <= nearest.len().max(name.len()) / 2)
        .map(|(_, nearest)| nearest);
    Err(ConfigError::Unknown { name: name.to_owned(), source_: source.clone(), nearest })
}

fn is_list(setting: &Setting) -> bool {
    setting.name == "members"
}

fn scalar(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) => Some(number.as_str().to_owned()),
        DeValue::Boolean(switch) => Some(switch.to_string()),
        DeValue::Array(entries) => {
            let entries: Option<Vec<String>> = entries.iter().map(|entry| scalar(entry.get_ref())).collect();
            entries.map(|entries| entries.join(&LIST_SEPARATOR.to_string()))
        }
        _ => None,
    }
}

/// What no value can know alone.
fn cross_check(config: &Config, values: &Values) -> Result<(), ConfigError> {
    if config.device == Device::Real {
        for name in ["device_mean_service_us", "device_seed"] {
            if values.is_set(name) {
                return Err(values.clash("device", name, "only a modelled device has a service time to set"));
            }
        }
        if config.allow_disturb {
            return Err(values.clash("device", "allow_disturb", "only a modelled device can be disturbed"));
        }
    }
    if config.storage == Storage::Fjall && config.data_dir.as_os_str().is_empty() {
        return Err(values.clash("storage", "data_dir", "storage on disk needs a folder"));
    }
    let udp = [
        ("client_address", config.client_address),
        ("peer_address", config.peer_address),
        ("cancel_address", config.cancel_address),
    ];
    for (index, (name, address)) in udp.iter().enumerate() {
        for (other, taken) in &udp[..index] {
            if same_socket(*address, *taken) {
                return Err(values.clash(other, name, "each port needs an address of its own"));
            }
        }
    }
    let mut seen = HashSet::new();
    if let Some(twice) = config.members.iter().find(|member| !seen.insert(member.0.node)) {
        let reason = format!("node {} stands in the list twice", twice.0.node.0);
        return Err(values.clash("members", "members", reason));
    }
    match config.node_id {
        Some(node) if !config.members.is_empty() && !seen.contains(&node) => {
            Err(values.clash("node_id", "members", "this node is not in the list"))
        }
        _ => Ok(()),
    }
}

fn same_socket(one: SocketAddr, other: SocketAddr) -> bool {
    one == other && one.port() != 0
}

#[cfg(test)]
#[path = "layers_test.rs"]
mod tests;
