//! Settings of a client and its connection string. Defaults stand once, in [`Config::new`]; unknown keys are
//! errors that name the nearest right one; nothing is silently repaired.
//!
//! `tiedkv://127.0.0.1:7400,[::1]:7410,name:7420/?read=session&deadline=500ms&policy=tied2&certs=DIR`

use crate::effects;
use crate::engine::EngineSettings;
use crate::gate::GateSettings;
use crate::nearest::nearest;
use crate::operation::{Operation, SortName};
use crate::options::{Level, parse_class, parse_policy, parse_span};
use crate::policy::{PolicyTable, ReadPolicy};
use crate::select::Choice;
use std::path::PathBuf;
use std::time::Duration;
use tiedkv_protocol::limits::{NAME_BYTES_MAX, TIE_DELAY_CAP, TIE_DELAY_FLOOR, TIME_LEFT_MAX};
use tiedkv_protocol::request::Class;

/// The scheme of a connection string.
pub const SCHEME: &str = "tiedkv://";
/// Port of an address without one.
pub const PORT_DEFAULT: u16 = 7400;
/// Most seed addresses.
pub const SEEDS_MAX: usize = 64;
/// Largest buffers of a UDP socket.
pub const UDP_BUFFER_BYTES_MAX: usize = 1 << 28;
/// Most connections to one node.
pub const CONNECTIONS_PER_NODE_MAX: usize = 16;
/// Most views that can be said to share the replicas.
pub const CLIENTS_MAX: u32 = 10_000;

/// Everything a client can be told. See each field for its default.
#[derive(Clone, Debug)]
pub struct Config {
    /// Addresses to learn the cluster from: `host:port`, `[v6]:port` or `name:port`. At least one.
    pub seeds: Vec<String>,
    /// Directory with `ca.pem`, `client.pem` and `client.key`. No default.
    pub certs: PathBuf,
    /// Base name of certificate and key in the directory. Default `client`.
    pub certificate_name: String,
    /// How many copies of a read race, and whether a rescue may follow. Default `tied2+rescue`.
    pub policy: ReadPolicy,
    /// Policies of operations and levels that differ from it. Default none.
    pub policies: PolicyTable,
    /// A file of switches that is watched while the client lives; see [`crate::switch_file`]. Default none.
    pub tied_file: Option<PathBuf>,
    /// How fresh reads are. Default `session`.
    pub level: Level,
    /// Whole time of a call. Default 1 s, at most 60 s ([`TIME_LEFT_MAX`]).
    pub deadline: Duration,
    /// Class of the reads. Default interactive.
    pub class: Class,
    /// Time that [`Client::connect`](crate::Client::connect) may take to reach a first node. Default 5 s.
    pub connect_deadline: Duration,
    /// QUIC connections per node. Default 1, at most 16.
    pub connections_per_node: usize,
    /// Lower bound of the tie delay. Default 50 us.
    pub tie_delay_floor: Duration,
    /// Upper bound of the tie delay, and the delay while no round trip is known. Default 10 ms.
    pub tie_delay_cap: Duration,
    /// How each view chooses, judges, paces and limits; see [`EngineSettings`].
    pub engine: EngineSettings,
    /// Shortest silence after which a link that owes an answer is lost. Default 200 ms.
    pub silence_min: Duration,
    /// Reads that take this long or longer stand in the slow-read log; zero: none. Default 100 ms.
    pub slow_read: Duration,
    /// Buffers asked of the system for each UDP socket, both ways; 0 leaves what the system gives. Default 2 MiB.
    pub udp_buffer_bytes: usize,
    /// Most bytes that wait to be written to one connection. Default 4 MiB (a value longer than this still goes
    /// when nothing waits).
    pub outbox_bytes_max: usize,
    /// Most requests of one connection whose answers are owed. Default 65,536.
    pub pending_max: usize,
}

/// What is wrong with the settings: which part, and what would be right.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The text does not begin with the scheme.
    #[error("`{0}` is no connection string: it begins with `{SCHEME}`, e.g. {SCHEME}127.0.0.1:7400/?certs=DIR")]
    Scheme(String),
    /// One of the addresses is wrong.
    #[error("address {number} `{text}`: {reason}; want host:port, [v6]:port or name:port")]
    Address {
        /// Which, counted from 1.
        number: usize,
        /// As given.
        text: String,
        /// Why.
        reason: &'static str,
    },
    /// Something stands between the addresses and the `?`.
    #[error("`/{0}` follows the addresses; settings go after `/?`, e.g. /?read=session&certs=DIR")]
    Path(String),
    /// A setting that does not exist.
    #[error("setting `{name}` is not known; did you mean `{nearest}`?")]
    UnknownSetting {
        /// As given.
        name: String,
        /// The nearest that exists.
        nearest: &'static str,
    },
    /// A setting stands twice.
    #[error("setting `{0}` stands twice")]
    Twice(String),
    /// A setting has a wrong value.
    #[error("setting `{name}`: {reason}")]
    Value {
        /// Which.
        name: &'static str,
        /// What is wrong and what would be right.
        reason: String,
    },
    /// The file of switches cannot be taken.
    #[error("{path}: {reason}")]
    SwitchFile {
        /// The file.
        path: String,
        /// What is wrong, and in which line.
        reason: String,
    },
    /// A certificate or key cannot be used.
    #[error("{path}: {reason}")]
    Certificate {
        /// The file.
        path: String,
        /// What is wrong.
        reason: String,
    },
}

/// One setting of a connection string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UrlSetting {
    /// Its name.
    pub name: &'static str,
    /// The default, as one would write it; empty for none.
    pub default: &'static str,
}

/// Every setting that may stand in a connection string.
pub const SETTINGS: [UrlSetting; 23] = [
    setting("certs", ""),
    setting("certificate", "client"),
    setting("policy", "tied2+rescue"),
    setting("read", "session"),
    setting("deadline", "1s"),
    setting("class", "interactive"),
    setting("connect", "5s"),
    setting("connections", "1"),
    setting("tie_floor", "50us"),
    setting("tie_cap", "10ms"),
    setting("gate", "on"),
    setting("silence", "200ms"),
    setting("slow", "100ms"),
    setting("udp_buffer", "2097152"),
    setting("choice", "random"),
    setting("clients", "1"),
    setting("hedge", "p95"),
    setting("rescue", "p98"),
    setting("budget", "0.05"),
    setting("burst", "10"),
    setting("hold_out", "0.01"),
    setting("tied_file", ""),
    setting("policy.OPERATION", ""),
];

const fn setting(name: &'static str, default: &'static str) -> UrlSetting {
    UrlSetting { name, default }
}

impl Config {
    /// Settings with their defaults for these seeds and this directory of certificates.
    pub fn new(seeds: impl IntoIterator<Item = impl Into<String>>, certs: impl Into<PathBuf>) -> Self {
        Self {
            seeds: seeds.into_iter().map(Into::into).collect(),
            certs: certs.into(),
            certificate_name: "client".to_owned(),
            policy: ReadPolicy::default(),
            policies: PolicyTable::default(),
            tied_file: None,
            level: Level::Session,
            deadline: Duration::from_secs(1),
            class: Class::Interactive,
            connect_deadline: Duration::from_secs(5),
            connections_per_node: 1,
            tie_delay_floor: TIE_DELAY_FLOOR,
            tie_delay_cap: TIE_DELAY_CAP,
            engine: EngineSettings::default(),
            silence_min: Duration::from_millis(200),
            slow_read: Duration::from_millis(100),
            udp_buffer_bytes: 2 * 1024 * 1024,
            outbox_bytes_max: 4 * 1024 * 1024,
            pending_max: 65_536,
        }
    }

    /// Reads a connection string; see the head of this room for the form.
    ///
    /// ```
    /// # use tiedkv_client::{Config, Level};
    /// let config = Config::from_url("tiedkv://127.0.0.1:7400,db:7410/?certs=certs&read=stale")?;
    /// assert_eq!(config.seeds, ["127.0.0.1:7400", "db:7410"]);
    /// assert_eq!(config.level, Level::Stale { bound: None });
    /// # Ok::<(), tiedkv_client::config::ConfigError>(())
    /// ```
    ///
    /// # Errors
    /// Names the wrong part and what would be right.
    pub fn from_url(url: &str) -> Result<Self, ConfigError> {
        let rest = url.strip_prefix(SCHEME).ok_or_else(|| ConfigError::Scheme(clip(url)))?;
        let (place, query) = match rest.split_once('?') {
            Some((place, query)) => (place, query),
            None => (rest, ""),
        };
        let (addresses, path) = match place.split_once('/') {
            Some((addresses, path)) => (addresses, path),
            None => (place, ""),
        };
        if !path.is_empty() {
            return Err(ConfigError::Path(clip(path)));
        }
        let mut config = Self::new(Vec::<String>::new(), PathBuf::new());
        for (index, text) in addresses.split(',').enumerate() {
            config.seeds.push(parse_address(index + 1, text)?);
        }
        let mut seen: Vec<&str> = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            if seen.contains(&name) {
                return Err(ConfigError::Twice(clip(name)));
            }
            seen.push(name);
            config.set(name, value)?;
        }
        config.check()?;
        effects::check(&config, &seen)?;
        Ok(config)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), ConfigError> {
        match name {
            "certs" => self.certs = PathBuf::from(unescape("certs", value)?),
            "certificate" => self.certificate_name = unescape("certificate", value)?,
            "policy" => self.policy = parse_policy(value).map_err(|error| wrong("policy", error))?,
            "read" => self.level = value.parse().map_err(|error| wrong("read", error))?,
            "deadline" => self.deadline = parse_span(value).map_err(|error| wrong("deadline", error))?,
            "class" => self.class = parse_class(value).map_err(|error| wrong("class", error))?,
            "connect" => self.connect_deadline = parse_span(value).map_err(|error| wrong("connect", error))?,
            "connections" => {
                self.connections_per_node =
                    value.parse().map_err(|_| wrong("connections", format!("`{value}` is no whole number")))?;
            }
            "tie_floor" => self.tie_delay_floor = parse_span(value).map_err(|error| wrong("tie_floor", error))?,
            "tie_cap" => self.tie_delay_cap = parse_span(value).map_err(|error| wrong("tie_cap", error))?,
            "gate" => self.engine.gate = parse_switch("gate", value)?.then(GateSettings::default),
            "slow" => self.slow_read = parse_span(value).map_err(|error| wrong("slow", error))?,
            "udp_buffer" => {
                self.udp_buffer_bytes =
                    value.parse().map_err(|_| wrong("udp_buffer", format!("`{value}` is no number of bytes")))?;
            }
            "silence" => self.silence_min = parse_span(value).map_err(|error| wrong("silence", error))?,
            "choice" => self.engine.choice = parse_choice(value)?,
            "clients" => {
                let clients: u32 =
                    value.parse().map_err(|_| wrong("clients", format!("`{value}` is no whole number")))?;
                self.engine.clients = f64::from(clients);
            }
            "hedge" => {
                (self.engine.latency.hedge_quantile, self.engine.latency.hedge_fixed) =
                    parse_delay("hedge", value, self.engine.latency.hedge_quantile)?
            }
            "rescue" => {
                (self.engine.latency.rescue_quantile, self.engine.latency.rescue_fixed) =
                    parse_delay("rescue", value, self.engine.latency.rescue_quantile)?
            }
            "budget" => self.engine.budget.ratio = parse_share("budget", value)?,
            "burst" => {
                let burst: u32 =
                    value.parse().map_err(|_| wrong("burst", format!("`{value}` is no whole number")))?;
                self.engine.budget.burst = f64::from(burst);
            }
            "hold_out" => self.engine.hold_out = parse_share("hold_out", value)?,
            "tied_file" => self.tied_file = Some(PathBuf::from(unescape("tied_file", value)?)),
            _ if name.starts_with("policy.") => {
                let sort: SortName =
                    name["policy.".len()..].parse().map_err(|error| wrong("policy.OPERATION", error))?;
                let policy = parse_policy(value).map_err(|error| wrong("policy.OPERATION", error))?;
                if sort.operation == Operation::Scan && policy != policy.without_extras() {
                    let right = policy.without_extras();
                    let reason = format!(
                        "a page of a scan takes as long as it has rows: no hedge or rescue would know its time; `{name}={right}` has an effect"
                    );
                    return Err(wrong("policy.OPERATION", reason));
                }
                self.policies.set(sort, policy);
            }
            _ => {
                return Err(ConfigError::UnknownSetting {
                    name: clip(name),
                    nearest: nearest(name, &SETTINGS.map(|s| s.name)),
                });
            }
        }
        Ok(())
    }

    /// Checks bounds, that the settings fit together, and that each that differs from its default can have an effect.
    ///
    /// # Errors
    /// Names the first setting that is out of its bounds; a clash names both values; what can have no effect says why.
    pub fn check(&self) -> Result<(), ConfigError> {
        if self.seeds.is_empty() || self.seeds.len() > SEEDS_MAX {
            let reason = "there must be 1 to 64 addresses";
            return Err(ConfigError::Address { number: self.seeds.len(), text: String::new(), reason });
        }
        for (index, seed) in self.seeds.iter().enumerate() {
            parse_address(index + 1, seed)?;
        }
        if self.certs.as_os_str().is_empty() {
            return Err(wrong("certs", "missing; name the directory with ca.pem, client.pem and client.key"));
        }
        if self.deadline.is_zero() || self.deadline > TIME_LEFT_MAX {
            return Err(wrong("deadline", format!("{:?} is not within 1us and 60s", self.deadline)));
        }
        if self.connect_deadline.is_zero() {
            return Err(wrong("connect", "0 leaves no time to connect"));
        }
        if !(1..=CONNECTIONS_PER_NODE_MAX).contains(&self.connections_per_node) {
            let reason = format!("{} is not within 1 and {CONNECTIONS_PER_NODE_MAX}", self.connections_per_node);
            return Err(wrong("connections", reason));
        }
        if self.tie_delay_floor > self.tie_delay_cap {
            let (floor, cap) = (self.tie_delay_floor, self.tie_delay_cap);
            return Err(wrong("tie_floor", format!("{floor:?} is over tie_cap = {cap:?}")));
        }
        if self.udp_buffer_bytes > UDP_BUFFER_BYTES_MAX {
            let reason = format!("{} is over {UDP_BUFFER_BYTES_MAX} bytes", self.udp_buffer_bytes);
            return Err(wrong("udp_buffer", reason));
        }
        let engine = &self.engine;
        for (name, share) in [("budget", engine.budget.ratio), ("hold_out", engine.hold_out)] {
            if !(0.0..=1.0).contains(&share) {
                return Err(wrong(name, format!("{share} is no share within 0.0 and 1.0")));
            }
        }
        for (name, tokens) in [("burst", engine.budget.burst), ("floor", engine.budget.floor_per_second)] {
            if !(0.0..=f64::from(u32::MAX)).contains(&tokens) {
                return Err(wrong(name, format!("{tokens} is not within 0 and {}", u32::MAX)));
            }
        }
        if self.silence_min < Duration::from_millis(60) {
            return Err(wrong("silence", format!("{:?} is too short: pings go every 50ms", self.silence_min)));
        }
        if !(1.0..=f64::from(CLIENTS_MAX)).contains(&engine.clients) {
            return Err(wrong("clients", format!("{} is not within 1 and {CLIENTS_MAX}", engine.clients)));
        }
        effects::check(self, &effects::changed(self))
    }
}

pub(crate) fn wrong(name: &'static str, reason: impl ToString) -> ConfigError {
    ConfigError::Value { name, reason: reason.to_string() }
}

fn clip(text: &str) -> String {
    text.chars().take(200).collect()
}

/// `p95` (a quantile of latency), or a fixed span such as `20ms`.
fn parse_delay(name: &'static str, value: &str, before: f64) -> Result<(f64, Option<Duration>), ConfigError> {
    if let Some(percent) = value.strip_prefix('p') {
        let percent = percent.parse::<f64>().ok().filter(|percent| (50.0..100.0).contains(percent));
        let percent =
            percent.ok_or_else(|| wrong(name, format!("`{value}` is no quantile from p50 to below p100")))?;
        return Ok((percent / 100.0, None));
    }
    let fixed = parse_span(value).map_err(|error| wrong(name, format!("{error}, or a quantile such as p95")))?;
    if fixed.is_zero() {
        return Err(wrong(name, "0 sends every read twice; want a quantile such as p95 or a span"));
    }
    Ok((before, Some(fixed)))
}

fn parse_choice(value: &str) -> Result<Choice, ConfigError> {
    match value {
        "random" => Ok(Choice::Random),
        "p2c" => Ok(Choice::PowerOfTwo),
        "c3" => Ok(Choice::C3),
        _ => {
            let near = nearest(value, &["random", "p2c", "c3"]);
            Err(wrong("choice", format!("`{value}` is none of `random`, `p2c`, `c3`; did you mean `{near}`?")))
        }
    }
}

fn parse_share(name: &'static str, value: &str) -> Result<f64, ConfigError> {
    value.parse().map_err(|_| wrong(name, format!("`{value}` is no share within 0.0 and 1.0")))
}

fn parse_switch(name: &'static str, value: &str) -> Result<bool, ConfigError> {
    match value {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => {
            let near = nearest(value, &["on", "off"]);
            Err(wrong(name, format!("`{value}` is neither `on` nor `off`; did you mean `{near}`?")))
        }
    }
}

/// An address with its port, as it is resolved at each dial.
fn parse_address(number: usize, text: &str) -> Result<String, ConfigError> {
    let bad = |reason| ConfigError::Address { number, text: clip(text), reason };
    if text.is_empty() {
        return Err(bad("it is empty"));
    }
    if text.len() > NAME_BYTES_MAX {
        return Err(bad("it is over 255 bytes"));
    }
    let (host, port) = if let Some(rest) = text.strip_prefix('[') {
        let (host, after) = rest.split_once(']').ok_or_else(|| bad("the `]` is missing"))?;
        if host.parse::<std::net::Ipv6Addr>().is_err() {
            return Err(bad("no IPv6 address stands between [ and ]"));
        }
        (format!("[{host}]"), after)
    } else {
        match text.find(':') {
            Some(at) if text[at + 1..].contains(':') => return Err(bad("an IPv6 address stands in [ and ]")),
            Some(at) => (text[..at].to_owned(), &text[at..]),
            None => (text.to_owned(), ""),
        }
    };
    if !host.starts_with('[') && !is_host(&host) {
        return Err(bad("the host has characters that no name or address has"));
    }
    match port.strip_prefix(':') {
        None if port.is_empty() => Ok(format!("{host}:{PORT_DEFAULT}")),
        None => Err(bad("something follows the `]` that is no port")),
        Some(port) => match port.parse::<u16>() {
            Ok(0) | Err(_) => Err(bad("the port is no number within 1 and 65535")),
            Ok(port) => Ok(format!("{host}:{port}")),
        },
    }
}

fn is_host(host: &str) -> bool {
    !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
}

/// Replaces `%20` and the like.
fn unescape(name: &'static str, value: &str) -> Result<String, ConfigError> {
    let bytes = value.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        if bytes[at] == b'%' {
            // Rust takes a sign for a part of a number.
            let hex = |digits: &&str| digits.bytes().all(|digit| digit.is_ascii_hexdigit());
            let digits = value.get(at + 1..at + 3).filter(hex);
            let digits = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
            out.push(digits.ok_or_else(|| wrong(name, "a `%` is followed by two hex digits (`%25` for itself)"))?);
            at += 3;
        } else {
            out.push(bytes[at]);
            at += 1;
        }
    }
    String::from_utf8(out).map_err(|_| wrong(name, "it is not UTF-8"))
}

#[cfg(test)]
#[path = "config_test.rs"]
mod tests;
