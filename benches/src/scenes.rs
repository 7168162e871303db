//! The scenes of the profile (three nodes, eight one-worker lanes each, mean service time 5 ms) and how one is
//! played: disturb, record, open loop, join, one row.

use crate::load::counted::{Ground, play_counted};
use crate::load::machine::Machine;
use crate::load::nodes::Nodes;
use crate::load::run::{OpenLoop, Outcome};
use crate::load::workload::Workload;
use crate::report::{Row, SceneName};
use anyhow::Result;
use std::str::FromStr;
use std::time::Duration;
use tiedkv_client::gate::NotTied;
use tiedkv_client::{Client, Level, ReadPolicy, Stats, View};
use tiedkv_protocol::request::Disturbance;

/// Client views that send the reads of a scene.
pub const VIEWS: u64 = 64;

/// One scene under one policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scene {
    /// What the servers are busy with.
    pub name: SceneName,
    /// How reads are sent.
    pub policy: ReadPolicy,
}

/// A text that names no scene.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no scene: want SCENE-POLICY, SCENE one of idle, busy, hard, load70, POLICY one of untied, tied2, tied3"
)]
pub struct BadScene(String);

impl FromStr for Scene {
    type Err = BadScene;

    fn from_str(text: &str) -> Result<Self, BadScene> {
        let bad = || BadScene(text.to_owned());
        let (name, policy) = text.split_once('-').ok_or_else(bad)?;
        let name = SceneName::ALL.into_iter().find(|scene| scene.name() == name).ok_or_else(bad)?;
        Ok(Self { name, policy: policy.parse().map_err(|_| bad())? })
    }
}

/// What the demo plays, in this order.
pub const DEMO: [Scene; 5] = [
    Scene { name: SceneName::Idle, policy: ReadPolicy::UNTIED },
    Scene { name: SceneName::Idle, policy: ReadPolicy::TIED2 },
    Scene { name: SceneName::Busy, policy: ReadPolicy::UNTIED },
    Scene { name: SceneName::Busy, policy: ReadPolicy::TIED2 },
    Scene { name: SceneName::Busy, policy: ReadPolicy::TIED3 },
];

impl SceneName {
    /// Reads, as a share of what all workers can serve.
    pub fn reads_load(self) -> f64 {
        match self {
            Self::Idle => 0.15,
            Self::Busy | Self::Hard => 0.30,
            Self::Load70 => 0.70,
        }
    }

    /// Background jobs, as a share of what all workers can serve.
    pub fn jobs_load(self) -> f64 {
        match self {
            Self::Idle | Self::Load70 => 0.0,
            Self::Busy => 0.20,
            Self::Hard => 0.35,
        }
    }
}

/// The cluster and the times that all scenes share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Profile {
    /// Workers of all nodes together. Default 24.
    pub workers: u32,
    /// Mean service time. Default 5 ms.
    pub service_mean: Duration,
    /// Sent and not counted. Default 2 s.
    pub warm_up: Duration,
    /// Counted. Default 10 s.
    pub measured: Duration,
    /// Seeds the plans. Default 1.
    pub seed: u64,
    /// How fresh reads are. Default stale (any replica's state).
    pub level: Level,
    /// Keys and values.
    pub workload: Workload,
}

impl Default for Profile {
    fn default() -> Self {
        Self {
            workers: 24,
            service_mean: Duration::from_millis(5),
            warm_up: Duration::from_secs(2),
            measured: Duration::from_secs(10),
            seed: 1,
            level: Level::Stale { bound: None },
            workload: Workload::default(),
        }
    }
}

impl Profile {
    /// Reads per second of a scene.
    pub fn rate_per_s(&self, scene: SceneName) -> f64 {
        scene.reads_load() * f64::from(self.workers) / self.service_mean.as_secs_f64()
    }

    fn plan(&self, scene: Scene) -> OpenLoop {
        OpenLoop {
            // One plan per scene, so that its policies see the same arrivals.
            seed: self.seed + scene.name as u64,
            rate_per_s: self.rate_per_s(scene.name),
            warm_up: self.warm_up,
            measured: self.measured,
            policy: scene.policy,
            gated: false,
            level: self.level,
            deadline: Duration::from_secs(5),
            workload: self.workload,
            fan: None,
            outside: None,
        }
    }
}

/// A cluster under measurement.
pub struct Stage {
    client: Client,
    views: Vec<View>,
    nodes: Nodes,
    server_pids: Vec<u32>,
    profile: Profile,
}

/// A row and what is known beyond it.
#[derive(Debug)]
pub struct Played {
    /// The row of the report.
    pub row: Row,
    /// The open loop's own figures.
    pub outcome: Outcome,
    /// How quiet the machine was meanwhile, warm-up included.
    pub machine: Machine,
    /// What client and nodes counted that a quiet run does not count, for people; empty when nothing.
    pub troubles: String,
}

impl Stage {
    /// Takes a connected client; its views live through all scenes. `server_pids` are asked for processor time.
    pub fn new(client: &Client, server_pids: Vec<u32>, profile: Profile) -> Self {
        let views = (0..VIEWS).map(|index| client.view(profile.seed.wrapping_mul(VIEWS) + index)).collect();
        Self { client: client.clone(), views, nodes: Nodes::of(client), server_pids, profile }
    }

    /// Plays one scene; `progress` is told the time played so far.
    ///
    /// # Errors
    /// When a node does not answer or the plan cannot be kept. Failed reads are counted in the row.
    ///
    /// # Cancel safety
    /// The disturbance may stay in force.
    pub async fn play(&self, scene: Scene, progress: impl FnMut(Duration)) -> Result<Played> {
        let jobs_load = scene.name.jobs_load();
        self.nodes.disturb(&Disturbance { jobs_load, ..Disturbance::default() }).await?;
        let (troubles, stats) = (self.nodes.troubles().await?, self.client.stats());
        let ground =
            Ground { client: &self.client, views: &self.views, nodes: &self.nodes, server_pids: &self.server_pids };
        let nothing = std::future::ready(Ok(()));
        let counted = play_counted(ground, &self.profile.plan(scene), &[], nothing, progress).await?;
        self.nodes.disturb(&Disturbance::default()).await?;
        let troubles = grown(&troubles, &self.nodes.troubles().await?, &stats, &self.client.stats());

        let outcome = counted.outcome;
        let mut row = Row::new(scene.name, scene.policy);
        let sent = outcome.sent.max(1) as f64;
        (row.reads, row.errors) = (outcome.reads, outcome.errors);
        row.set_latencies(&outcome.latency);
        row.duplicates_pct = counted.joined.duplicates_pct();
        row.wasted_work_pct = counted.joined.wasted_pct();
        row.messages_per_read = counted.messages as f64 / sent;
        row.cpu_us_per_read =
            (counted.cpu_client + counted.cpu_servers).as_secs_f64() * 1e6 / outcome.reads.max(1) as f64;
        row.set_machine(&counted.machine);
        Ok(Played { row, outcome, machine: counted.machine, troubles })
    }
}

/// What grew between two looks at nodes and client, as "name +count", comma separated.
fn grown(from: &[(&str, u64)], to: &[(&str, u64)], before: &Stats, after: &Stats) -> String {
    let of_client = |stats: &Stats| {
        let mut counts = vec![
            ("fresh ties", stats.fresh_ties),
            ("links lost", stats.links_lost),
            ("copies refused", stats.refused.total()),
            ("copies expired", stats.expired.total()),
            ("copies failed", stats.failed.total()),
            ("copies on lost links", stats.lost_links.total()),
        ];
        counts.extend(NotTied::ALL.iter().map(|reason| (reason.name(), stats.not_tied[*reason as usize])));
        counts
    };
    let (client_from, client_to) = (of_client(before), of_client(after));
    let pairs = from.iter().chain(&client_from).zip(to.iter().chain(&client_to));
    let grown = pairs.filter(|((_, from), (_, to))| to > from);
    grown.map(|((name, from), (_, to))| format!("{name} +{}", to - from)).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_of_the_profile() {
        let profile = Profile::default();
        assert_eq!(profile.rate_per_s(SceneName::Idle).round(), 720.0);
        assert_eq!(profile.rate_per_s(SceneName::Busy).round(), 1_440.0);
    }

    #[test]
    fn scenes_have_names() {
        let scene = "busy-tied2".parse::<Scene>().unwrap();
        assert_eq!(scene, DEMO[3]);
        assert!("busy".parse::<Scene>().is_err() && "lazy-tied2".parse::<Scene>().is_err());
    }

    #[test]
    fn policies_of_one_scene_share_their_plan() {
        let profile = Profile::default();
        assert_eq!(profile.plan(DEMO[2]).seed, profile.plan(DEMO[3]).seed);
        assert_ne!(profile.plan(DEMO[0]).seed, profile.plan(DEMO[2]).seed);
    }
}
