//! Settings of a client that can have no effect: each is an error that says why. Bounds are [`crate::config`]'s.

use crate::config::{Config, ConfigError, wrong};
use crate::engine::EngineSettings;
use crate::operation::{LevelName, Operation, Sort};
use crate::select::Choice;
use tiedkv_protocol::limits::{TIE_DELAY_CAP, TIE_DELAY_FLOOR};

/// The settings judged here that are not what they would be unsaid, by their names in a connection string.
pub(crate) fn changed(config: &Config) -> Vec<&'static str> {
    let (engine, unsaid) = (&config.engine, EngineSettings::default());
    let (delays, usual) = (&engine.latency, &unsaid.latency);
    let judged = [
        ("hedge", (delays.hedge_quantile, delays.hedge_fixed) != (usual.hedge_quantile, usual.hedge_fixed)),
        ("rescue", (delays.rescue_quantile, delays.rescue_fixed) != (usual.rescue_quantile, usual.rescue_fixed)),
        ("tie_floor", config.tie_delay_floor != TIE_DELAY_FLOOR),
        ("tie_cap", config.tie_delay_cap != TIE_DELAY_CAP),
        ("gate", engine.gate != unsaid.gate),
        ("hold_out", engine.hold_out != unsaid.hold_out),
        ("clients", engine.clients != unsaid.clients),
    ];
    judged.into_iter().filter(|(_, changed)| *changed).map(|(name, _)| name).collect()
}

/// A setting that was given has an effect on some policy of this client, or is an error.
pub(crate) fn check(config: &Config, given: &[&str]) -> Result<(), ConfigError> {
    let sorts = |operation| LevelName::ALL.into_iter().map(move |level| Sort { operation, level });
    let (mut tied, mut hedges, mut rescues) = (false, false, false);
    for sort in Operation::ALL.into_iter().flat_map(sorts) {
        let policy = config.policies.of(sort, config.policy);
        tied |= policy.width() > 1;
        // Scans have neither hedges nor rescues.
        let extras = sort.operation != Operation::Scan;
        hedges |= extras && policy.hedge();
        rescues |= extras && policy.rescue;
    }
    for level in LevelName::ALL {
        let named = config.policies.named(Sort { operation: Operation::Scan, level });
        if let Some(policy) = named.filter(|policy| *policy != policy.without_extras()) {
            let right = policy.without_extras();
            let reason = format!(
                "`{policy}` would have no effect on scans: their pages have no hedges and rescues; say `{right}`"
            );
            return Err(wrong("policy.OPERATION", reason));
        }
    }
    let judged = config.engine.gate.is_some();
    let rules: [(&'static str, bool, &str); 7] = [
        ("hedge", hedges, "no policy of this client hedges"),
        ("rescue", rescues, "no policy of this client has +rescue"),
        ("tie_floor", tied, "no policy of this client ties"),
        ("tie_cap", tied, "no policy of this client ties"),
        ("gate", tied, "it judges ties, and no policy of this client ties"),
        (
            "hold_out",
            (tied || hedges) && judged,
            "it holds out reads that are judged: needs a policy that ties or hedges, and gate=on",
        ),
        (
            "clients",
            config.engine.choice == Choice::C3,
            "it is the weight of own copies in the score of C3: needs choice=c3",
        ),
    ];
    for (name, has_effect, reason) in rules {
        if given.contains(&name) && !has_effect {
            return Err(wrong(name, format!("it would have no effect: {reason}")));
        }
    }
    Ok(())
}
