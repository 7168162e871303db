//! The policies of the benchmark as data: a read policy of the client crate and the client's settings it needs.

use super::scene::{BusyScene, Event};
use crate::ideal::response_p95_us;
use crate::scenes::VIEWS;
use std::borrow::Cow;
use std::time::Duration;
use tiedkv_client::gate::GateSettings;
use tiedkv_client::operation::{Operation, SortName};
use tiedkv_client::options::BadChoice;
use tiedkv_client::select::Choice;
use tiedkv_client::{Config, ReadPolicy};

/// How the client of a policy is set. Policies of one kind share connections, views and estimators.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ClientKind {
    /// Replicas in random order, every read by its policy (no gate).
    Plain,
    /// As users have it: the gate judges.
    Gated,
    /// The better of two random replicas first.
    PowerOfTwo,
    /// Replicas by C3's score.
    C3,
    /// This tie delay, microseconds, whatever the round trip.
    TieDelay(u64),
    /// This many one-way latencies of the run's own cluster as tie delay.
    TieDelayWays(u32),
    /// Hedges at this percentile of latency.
    HedgeAt(u8),
    /// As plain; hedges after this many microseconds, and nothing is learned.
    HedgeAfter(u64),
    /// As plain; the hedge layer of the crate `tower` stands before it.
    Tower,
}

/// Each read names its policy; a delay of hedges is a setting of a client with a policy that hedges.
const GETS: SortName = SortName { operation: Operation::Get, level: None };

impl ClientKind {
    /// It needs to know the one-way latency of the cluster.
    pub fn needs_one_way(self) -> bool {
        matches!(self, Self::TieDelayWays(_))
    }

    /// Sets a client so. `one_way`: as measured on its cluster, where that is needed.
    pub fn set(self, config: &mut Config, one_way: Duration) {
        let engine = &mut config.engine;
        engine.gate = (self == Self::Gated).then(GateSettings::default);
        engine.choice = match self {
            Self::PowerOfTwo => Choice::PowerOfTwo,
            Self::C3 => Choice::C3,
            Self::Plain
            | Self::Gated
            | Self::TieDelay(_)
            | Self::TieDelayWays(_)
            | Self::HedgeAt(_)
            | Self::HedgeAfter(_)
            | Self::Tower => Choice::Random,
        };
        if self == Self::C3 {
            engine.clients = VIEWS as f64;
        }
        match self {
            Self::TieDelay(micros) => {
                let delay = Duration::from_micros(micros);
                (config.tie_delay_floor, config.tie_delay_cap) = (delay, delay);
            }
            Self::TieDelayWays(ways) => {
                let delay = one_way.saturating_mul(ways);
                (config.tie_delay_floor, config.tie_delay_cap) = (delay, delay);
            }
            Self::HedgeAt(percentile) => {
                config.policies.set(GETS, ReadPolicy::HEDGED);
                engine.latency.hedge_quantile = f64::from(percentile) / 100.0;
                // The budget must not be what is measured.
                engine.budget.ratio = 1.0;
            }
            Self::HedgeAfter(micros) => {
                config.policies.set(GETS, ReadPolicy::HEDGED);
                engine.latency.hedge_fixed = Some(Duration::from_micros(micros));
            }
            Self::Plain | Self::Gated | Self::PowerOfTwo | Self::C3 | Self::Tower => {}
        }
    }
}

/// One policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BusyPolicy {
    /// The name in `--policies`, table and JSON.
    pub name: Cow<'static, str>,
    /// What it is, for people.
    pub about: &'static str,
    /// How each read is sent.
    pub read: ReadPolicy,
    /// The client's settings.
    pub client: ClientKind,
}

impl BusyPolicy {
    /// The client's settings in a scene. Where something happens at a moment, a hedge without a budget keeps the p95 of
    /// the time before it ([`response_p95_us`]): a learned one would grow with the storm and hedge less.
    pub fn client_in(&self, scene: &BusyScene) -> ClientKind {
        let happens = matches!(scene.event, Event::Storm { .. } | Event::Kill);
        if !happens || self.read != ReadPolicy::HEDGED_UNBUDGETED || self.client != ClientKind::Plain {
            return self.client;
        }
        response_p95_us(scene.reads_load, scene.service_us).map_or(self.client, ClientKind::HedgeAfter)
    }
}

const fn policy(name: &'static str, about: &'static str, read: ReadPolicy, client: ClientKind) -> BusyPolicy {
    BusyPolicy { name: Cow::Borrowed(name), about, read, client }
}

const fn rescued(read: ReadPolicy) -> ReadPolicy {
    ReadPolicy { rescue: true, ..read }
}

/// Every policy there is, in the order of reports.
pub const POLICIES: [BusyPolicy; 12] = [
    policy("untied", "one copy to a random replica", ReadPolicy::UNTIED, ClientKind::Plain),
    policy(
        "p2c",
        "one copy to the better of two random replicas (outstanding + reported depth)",
        ReadPolicy::UNTIED,
        ClientKind::PowerOfTwo,
    ),
    policy("c3", "one copy by C3's cubic score", ReadPolicy::UNTIED, ClientKind::C3),
    policy(
        "duplicate",
        "two untied copies at once, none withdrawn or paid for",
        ReadPolicy::DUPLICATE,
        ClientKind::Plain,
    ),
    policy("hedged", "a second copy at the p95, from a budget of 5 %", ReadPolicy::HEDGED, ClientKind::Plain),
    policy(
        "hedged-unbudgeted",
        "a second copy at the p95 (storms: at a fixed one, that of before), none withdrawn or paid for",
        ReadPolicy::HEDGED_UNBUDGETED,
        ClientKind::Plain,
    ),
    policy("tied2", "two tied copies", ReadPolicy::TIED2, ClientKind::Plain),
    policy("tied3", "three tied copies", ReadPolicy::TIED3, ClientKind::Plain),
    policy(
        "tied2+rescue",
        "two tied copies; an untied one at the p98, from the budget",
        rescued(ReadPolicy::TIED2),
        ClientKind::Plain,
    ),
    policy(
        "tied3+rescue",
        "three tied copies; an untied one at the p98, from the budget",
        rescued(ReadPolicy::TIED3),
        ClientKind::Plain,
    ),
    policy(
        "default",
        "tied2+rescue where the gate finds that it pays",
        rescued(ReadPolicy::TIED2),
        ClientKind::Gated,
    ),
    policy(
        "tower-hedge",
        "an outside peer: the hedge layer of the crate tower (p95) around an untied client",
        ReadPolicy::UNTIED,
        ClientKind::Tower,
    ),
];

/// Tie delays of 0, L, 2 L, the p95 of the round trip, 5 L and 10 L, where L is the one-way latency as measured.
const DELAYS: &str = "tied2@0us,tied2@1L,tied2@2L,tied2,tied2@5L,tied2@10L";
/// Hedges from often to rarely; untied reads are what they are compared with.
const HEDGES: &str = "untied,hedged@p50,hedged@p75,hedged@p80,hedged@p90,hedged@p95,hedged@p99";

/// The policies of a list of names; `all` stands for all, `delays` and `hedges` for sweeps. `tied2@400us` is tied2 with a
/// fixed tie delay, `tied2@2L` with one of two one-way latencies of the run's own cluster, `hedged@p90` hedges at the p90,
/// as often as it takes (budget of 100 %).
///
/// # Errors
/// Names what is no policy, and the nearest.
pub fn named(names: &str) -> Result<Vec<BusyPolicy>, BadChoice> {
    if names == "all" {
        return Ok(POLICIES.to_vec());
    }
    let group = |name: &str| match name {
        "delays" => DELAYS.to_owned(),
        "hedges" => HEDGES.to_owned(),
        name => name.to_owned(),
    };
    let names = names.split(',').map(group).collect::<Vec<_>>().join(",");
    let find = |name: &str| {
        let plain = POLICIES.into_iter().find(|policy| policy.name == name);
        plain.or_else(|| swept(name)).ok_or_else(|| {
            let policies = POLICIES;
            let mut names: Vec<&str> = policies.iter().map(|policy| policy.name.as_ref()).collect();
            names.extend(["tied2@400us", "tied2@2L", "hedged@p90", "delays", "hedges", "all"]);
            BadChoice::new("policy of the benchmark", name, &names)
        })
    };
    let mut found: Vec<BusyPolicy> = Vec::new();
    for name in names.split(',').filter(|name| !name.is_empty()) {
        let policy = find(name)?;
        if !found.contains(&policy) {
            found.push(policy);
        }
    }
    Ok(found)
}

/// A policy with one setting of its own.
fn swept(name: &str) -> Option<BusyPolicy> {
    let (plain, setting) = name.split_once('@')?;
    let policy = POLICIES.into_iter().find(|policy| policy.name == plain)?;
    let client = match policy.read.width() {
        2.. => tie_delay(setting)?,
        1 if policy.read.hedge() => {
            let percentile = setting.strip_prefix('p')?.parse::<u8>().ok();
            ClientKind::HedgeAt(percentile.filter(|percentile| (1..=99).contains(percentile))?)
        }
        _ => return None,
    };
    Some(BusyPolicy { name: Cow::Owned(name.to_owned()), client, ..policy })
}

/// `400us` or `2L`.
fn tie_delay(setting: &str) -> Option<ClientKind> {
    if let Some(micros) = setting.strip_suffix("us") {
        return micros.parse::<u64>().ok().filter(|micros| *micros <= 1_000_000).map(ClientKind::TieDelay);
    }
    setting.strip_suffix('L')?.parse::<u32>().ok().filter(|ways| *ways <= 100).map(ClientKind::TieDelayWays)
}

#[cfg(test)]
mod tests {
    use super::super::scene;
    use super::*;

    #[test]
    fn a_hedge_without_a_budget_keeps_its_delay_through_a_storm() {
        let unbudgeted = named("hedged-unbudgeted").unwrap().remove(0);
        let of = |name: &str| unbudgeted.client_in(&scene::named(name).unwrap()[0]);
        assert_eq!(of("busy"), ClientKind::Plain, "nothing happens there");
        let ClientKind::HedgeAfter(micros) = of("storm60") else { panic!("{:?}", of("storm60")) };
        assert!((21_000..22_200).contains(&micros), "{micros} us");
        assert!(matches!(of("storm60@10ms"), ClientKind::HedgeAfter(double) if double.abs_diff(2 * micros) <= 2));
        let mut config = Config::new(["localhost:1"], "certs");
        of("storm60").set(&mut config, Duration::ZERO);
        assert_eq!(config.engine.latency.hedge_fixed, Some(Duration::from_micros(micros)));
        let storm = scene::named("storm").unwrap().remove(0);
        for policy in POLICIES.iter().filter(|policy| policy.name != "hedged-unbudgeted") {
            assert_eq!(policy.client_in(&storm), policy.client, "{}", policy.name);
        }
    }

    #[test]
    fn names_are_found_and_the_gate_belongs_to_the_default() {
        assert_eq!(named("untied,tied2").unwrap().len(), 2);
        assert!(named("tied9").unwrap_err().to_string().contains("`tied9`"));
        let swept = named("tied2@0us,tied3@400us,hedged@p90").unwrap();
        assert_eq!(swept[1].client, ClientKind::TieDelay(400));
        assert_eq!((named("delays").unwrap().len(), named("untied,hedges,delays").unwrap().len()), (6, 13));
        assert!(named("untied@400us").is_err() && named("tied2@p90").is_err());
        let mut config = Config::new(["localhost:1"], "certs");
        for policy in POLICIES {
            policy.client.set(&mut config, Duration::ZERO);
            assert_eq!(config.engine.gate.is_some(), policy.name == "default", "{}", policy.name);
        }
        let kinds =
            POLICIES.map(|policy| policy.client).into_iter().chain(swept.iter().map(|policy| policy.client));
        for kind in kinds.chain([ClientKind::HedgeAfter(21_500)]) {
            let mut config = Config::new(["localhost:1"], "certs");
            kind.set(&mut config, Duration::from_micros(100));
            assert_eq!(config.check(), Ok(()), "{kind:?}");
        }
    }

    #[test]
    fn a_tie_delay_in_latencies_is_that_of_the_measured_one() {
        let swept = named("tied2@5L,tied2@400us").unwrap();
        let delay = |policy: &BusyPolicy| {
            let mut config = Config::new(["localhost:1"], "certs");
            policy.client.set(&mut config, Duration::from_micros(130));
            assert_eq!(config.tie_delay_floor, config.tie_delay_cap, "{}", policy.name);
            config.tie_delay_cap
        };
        assert_eq!(delay(&swept[0]), Duration::from_micros(650));
        assert_eq!(delay(&swept[1]), Duration::from_micros(400));
        assert_eq!(swept[0].name, "tied2@5L");
        let ways: Vec<_> = named("delays").unwrap().into_iter().map(|policy| policy.client).collect();
        let told = [1, 2, 5, 10].map(ClientKind::TieDelayWays);
        assert_eq!(ways, [ClientKind::TieDelay(0), told[0], told[1], ClientKind::Plain, told[2], told[3]]);
        assert!(named("hedged@2L").is_err() && named("tied2@101L").is_err() && named("tied2@L").is_err());
    }
}
