//! The scenes of the benchmark as data: what the servers are busy with, what goes wrong and when, on which cluster.

use crate::load::run::Fan;
use crate::load::workload::{Sizes, Workload};
use std::borrow::Cow;
use std::time::Duration;
use tiedkv_client::options::BadChoice;
use tiedkv_protocol::request::{Class, Disturbance};

/// Mean service time of the modelled device, microseconds: S of the profile.
pub const SERVICE_US: u64 = 5_000;

/// Which cluster a scene needs. Cells of one bed share its processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BedKind {
    /// Three nodes with a modelled device, replicated, on disk.
    Modelled,
    /// As modelled; all nodes are reached through relays, node 3 is 2 ms farther away from everybody, each way.
    Far,
    /// As modelled; all packets pass relays that lose 1 % of them.
    Lossy,
    /// Three nodes with a real device, data in memory, not replicated.
    Memory,
    /// Three nodes with a real device, replicated, on the one disk of this machine; 128 MiB of values on each node, 16
    /// times what its store caches.
    Disk,
}

impl BedKind {
    /// Its nodes have a modelled device, which can be disturbed.
    pub fn is_modelled(self) -> bool {
        !matches!(self, Self::Memory | Self::Disk)
    }

    /// What is written before the reads.
    pub fn workload(self) -> Workload {
        match self {
            Self::Disk => Workload { count: 32_768, sizes: Sizes::of(4_096) },
            _ => Workload::default(),
        }
    }

    /// For reports.
    pub fn about(self) -> &'static str {
        match self {
            Self::Modelled => "3 processes, modelled device, replicated to disk",
            Self::Far => "3 processes, modelled device, relays before all, node 3 + 2 ms each way",
            Self::Lossy => "3 processes, modelled device, all packets through relays that lose 1 %",
            Self::Memory => "3 processes, real device, data in memory",
            Self::Disk => "3 processes, real device, replicated; all three share this machine's disk",
        }
    }
}

/// What happens once in a scene.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event {
    /// Nothing.
    None,
    /// All devices are slower by `factor` for `span`, after a quarter of the measured time.
    Storm {
        /// Service times are multiplied by it.
        factor: f64,
        /// For how long.
        span: Duration,
    },
    /// One node is killed after a quarter of the measured time.
    Kill,
    /// Nodes drop all cancels from the beginning on.
    NoCancels,
    /// A sort over the cluster's own data runs all along: scan, sort, write back.
    Sort,
    /// Keys are overwritten and the cluster's files are dropped from the page cache all along.
    Disk,
}

/// One scene.
#[derive(Clone, Debug, PartialEq)]
pub struct BusyScene {
    /// The name in `--scenes`, table and JSON.
    pub name: Cow<'static, str>,
    /// What it is, for people.
    pub about: &'static str,
    /// Which cluster.
    pub bed: BedKind,
    /// Mean service time of its modelled devices, microseconds.
    pub service_us: u64,
    /// Reads per second over what all 24 modelled workers serve.
    pub reads_load: f64,
    /// What the devices are told; its `seed` is set by the run.
    pub disturbance: Disturbance,
    /// What happens.
    pub event: Event,
    /// Keys read; 0: all of the workload.
    pub keys: u64,
    /// Calls for many keys instead of reads.
    pub fan: Option<Fan>,
    /// Whole time of a read.
    pub deadline: Duration,
    /// Jobs and reads stand in one queue and nothing stalls, so that the recursions are the limit.
    pub ideals: bool,
}

const QUIET: Disturbance = Disturbance {
    jobs_load: 0.0,
    jobs_mean_us: 0,
    jobs_cap_us: 0,
    jobs_class: Class::Interactive,
    stall_share: 0.0,
    stall_us: 0,
    stall_after_start: false,
    stall_correlated: 0.0,
    slow_factor: 1.0,
    seed: 0,
};

fn scene(name: &'static str, about: &'static str, reads_load: f64) -> BusyScene {
    BusyScene {
        name: Cow::Borrowed(name),
        about,
        bed: BedKind::Modelled,
        service_us: SERVICE_US,
        reads_load,
        disturbance: QUIET,
        event: Event::None,
        keys: 0,
        fan: None,
        deadline: Duration::from_secs(5),
        ideals: true,
    }
}

fn jobs(jobs_load: f64) -> Disturbance {
    Disturbance { jobs_load, ..QUIET }
}

fn stalls(stall_share: f64, times_service: u64, stall_after_start: bool, stall_correlated: f64) -> Disturbance {
    let stall_us = times_service * SERVICE_US;
    Disturbance { stall_share, stall_us, stall_after_start, stall_correlated, ..QUIET }
}

fn stalled(name: &'static str, about: &'static str, disturbance: Disturbance) -> BusyScene {
    BusyScene { disturbance, ideals: false, ..scene(name, about, 0.30) }
}

fn fanout(name: &'static str, about: &'static str, width: u64, share: f64) -> BusyScene {
    BusyScene {
        disturbance: jobs(0.20),
        ideals: false,
        fan: Some(Fan { width, share }),
        ..scene(name, about, 0.30)
    }
}

/// Every scene there is, in the order of reports.
pub fn all() -> Vec<BusyScene> {
    vec![
        scene("idle", "reads at .15 of the capacity", 0.15),
        BusyScene {
            disturbance: jobs(0.20),
            ..scene("busy", "reads .30, background jobs .20 in the same class", 0.30)
        },
        BusyScene {
            disturbance: jobs(0.35),
            ..scene("hard", "reads .30, background jobs .35 in the same class", 0.30)
        },
        BusyScene {
            disturbance: Disturbance { jobs_class: Class::Background, jobs_cap_us: SERVICE_US, ..jobs(0.35) },
            ideals: false,
            ..scene("hard-background", "as hard, the jobs in the background class and cut to S", 0.30)
        },
        scene("load10", "reads .10, no jobs", 0.10),
        scene("load20", "reads .20, no jobs", 0.20),
        scene("load30", "reads .30, no jobs", 0.30),
        scene("load40", "reads .40, no jobs", 0.40),
        scene("load50", "reads .50, no jobs", 0.50),
        scene("load60", "reads .60, no jobs", 0.60),
        scene("load70", "reads .70, no jobs", 0.70),
        scene("load80", "reads .80, no jobs", 0.80),
        scene("load90", "reads .90, no jobs", 0.90),
        stalled(
            "stalls",
            "stalls of 10 S before the start, 20 % of the time, independent",
            stalls(0.2, 10, false, 0.0),
        ),
        stalled("long-stalls", "stalls of 50 S before the start, 20 % of the time", stalls(0.2, 50, false, 0.0)),
        stalled(
            "stalls-after-start",
            "stalls of 20 S inside the service, 5 % of the time",
            stalls(0.05, 20, true, 0.0),
        ),
        stalled(
            "stalls-correlated-20",
            "as stalls, a fifth of them on all nodes at once",
            stalls(0.2, 10, false, 0.2),
        ),
        stalled(
            "stalls-correlated-100",
            "as stalls, all of them on all nodes at once",
            stalls(0.2, 10, false, 1.0),
        ),
        BusyScene {
            event: Event::Storm { factor: 3.0, span: Duration::from_secs(2) },
            deadline: Duration::from_secs(30),
            ideals: false,
            ..scene("storm", "reads .80; every device three times slower for 2 s; deadline 30 s", 0.80)
        },
        BusyScene {
            event: Event::Storm { factor: 3.0, span: Duration::from_secs(2) },
            deadline: Duration::from_secs(30),
            ideals: false,
            ..scene("storm60", "reads .60; every device three times slower for 2 s; deadline 30 s", 0.60)
        },
        BusyScene {
            event: Event::Kill,
            ideals: false,
            ..scene("one-node-killed", "reads .50; one of three nodes is killed", 0.50)
        },
        BusyScene {
            event: Event::Sort,
            ideals: false,
            ..scene("sort", "reads .30; a sort over the cluster's own keys in the batch class, writing back", 0.30)
        },
        BusyScene {
            keys: 1,
            ideals: false,
            ..scene("hot-key", "every read asks for one key: one lane per node", 0.075)
        },
        BusyScene {
            event: Event::NoCancels,
            ideals: false,
            ..scene("cancel-channel-down", "reads .60; nodes drop every cancel", 0.60)
        },
        BusyScene {
            bed: BedKind::Far,
            disturbance: jobs(0.20),
            ideals: false,
            ..scene("far-replica", "as busy; one of three replicas is 2 ms farther away", 0.30)
        },
        BusyScene {
            bed: BedKind::Lossy,
            disturbance: jobs(0.20),
            ideals: false,
            ..scene("packet-loss", "as busy; 1 % of packets between clients and nodes are lost", 0.30)
        },
        fanout("fanout-1", "busy; calls for one key, .30 of the capacity", 1, 1.0),
        fanout("fanout-10", "busy; calls for ten keys, .30 of the capacity", 10, 1.0),
        fanout("fanout-100", "busy; calls for a hundred keys, .30 of the capacity", 100, 1.0),
        fanout("fanout-100-partial", "as fanout-100; from 20 ms on 99 % of the keys are enough", 100, 0.99),
        // Its rate is given, since its capacity is that of the machine.
        BusyScene {
            bed: BedKind::Memory,
            ideals: false,
            ..scene("in-memory", "3,000 reads/s from memory: a message takes longer than the service", 0.625)
        },
        BusyScene {
            bed: BedKind::Disk,
            event: Event::Disk,
            ideals: false,
            ..scene(
                "real-disk",
                "1,000 reads/s, 400 overwrites/s, files dropped from the page cache; all replicas share one disk",
                0.208,
            )
        },
    ]
}

/// Idle and busy with service times from 1 to 20 ms.
const SERVICES: &str = "idle@1ms,busy@1ms,idle@2ms,busy@2ms,idle,busy,idle@10ms,busy@10ms,idle@20ms,busy@20ms";

/// The scenes of a list of names, each once; `all` stands for all of [`all`], `loads` for load10 to load90, `services` for
/// idle and busy with service times from 1 to 20 ms, and `busy@2ms` is busy with a mean service time of 2 ms (1 to 100).
///
/// # Errors
/// Names what is no scene, and the nearest.
pub fn named(names: &str) -> Result<Vec<BusyScene>, BadChoice> {
    let group = |name| if name == "services" { SERVICES } else { name };
    let names = names.split(',').map(group).collect::<Vec<_>>().join(",");
    let mut scenes: Vec<BusyScene> = Vec::new();
    for name in names.split(',').filter(|name| !name.is_empty()) {
        let found = find(name);
        if found.is_empty() {
            let scenes = all();
            let mut names: Vec<&str> = scenes.iter().map(|scene| scene.name.as_ref()).collect();
            names.extend(["loads", "services", "busy@2ms", "all"]);
            return Err(BadChoice::new("scene of the benchmark", name, &names));
        }
        for scene in found {
            if !scenes.contains(&scene) {
                scenes.push(scene);
            }
        }
    }
    Ok(scenes)
}

fn find(name: &str) -> Vec<BusyScene> {
    if name == "all" {
        return all();
    }
    let (plain, service) = name.split_once('@').map_or((name, None), |(plain, service)| (plain, Some(service)));
    let is_named = |scene: &BusyScene| scene.name == plain || (plain == "loads" && scene.name.starts_with("load"));
    let found: Vec<BusyScene> = all().into_iter().filter(is_named).collect();
    let Some(service) = service else { return found };
    let millis = service.strip_suffix("ms").and_then(|millis| millis.parse::<u64>().ok());
    match millis.filter(|millis| (1..=100).contains(millis)) {
        Some(millis) => found.into_iter().map(|scene| scene.with_service(millis * 1_000)).collect(),
        None => Vec::new(),
    }
}

impl BusyScene {
    /// The same scene with another mean service time: all that is told in service times moves with it.
    fn with_service(mut self, service_us: u64) -> Self {
        let scaled = |micros: u64| micros * service_us / SERVICE_US;
        self.disturbance.stall_us = scaled(self.disturbance.stall_us);
        self.disturbance.jobs_cap_us = scaled(self.disturbance.jobs_cap_us);
        self.name = Cow::Owned(format!("{}@{}ms", self.name, service_us / 1_000));
        Self { service_us, ..self }
    }

    /// Whether milliseconds of the modelled scenes say something about it: a real device has another idle.
    pub fn has_idle(name: &str) -> bool {
        !["in-memory", "real-disk"].contains(&name)
    }

    /// The scene whose figures are the base of ratios: idle with the same service time.
    pub fn idle_of(name: &str) -> String {
        name.split_once('@').map_or_else(|| "idle".to_owned(), |(_, service)| format!("idle@{service}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_found() {
        let all = all();
        for scene in &all {
            assert_eq!(named(&scene.name).unwrap(), std::slice::from_ref(scene));
        }
        assert_eq!(named("loads").unwrap().len(), 9);
        assert_eq!(named("all").unwrap(), all);
        assert_eq!(named("all,services,busy").unwrap().len(), all.len() + 8, "each once");
        assert!(named("all@2ms").is_err());
        let wrong = named("busy,idel").unwrap_err().to_string();
        assert!(wrong.contains("`idel`") && wrong.contains("did you mean `idle`?"), "{wrong}");
    }

    #[test]
    fn another_service_time_moves_all_that_is_told_in_service_times() {
        let scene = named("stalls@2ms").unwrap().remove(0);
        assert_eq!((scene.service_us, scene.disturbance.stall_us), (2_000, 20_000));
        assert_eq!(scene.name, "stalls@2ms");
        assert_eq!(BusyScene::idle_of(&scene.name), "idle@2ms");
        assert_eq!(named("services").unwrap().len(), 10);
        assert!(named("busy@2s").is_err() && named("busy@0ms").is_err());
    }

    #[test]
    fn the_profile_is_that_of_the_design() {
        let busy = named("busy").unwrap().remove(0);
        assert_eq!((busy.reads_load, busy.disturbance.jobs_load), (0.30, 0.20));
        let after = named("stalls-after-start").unwrap().remove(0);
        assert_eq!((after.disturbance.stall_us, after.disturbance.stall_after_start), (100_000, true));
    }
}
