//! A client's figures for Prometheus, as a collector that an application registers in a registry of its own.
//!
//! Reads snapshots when it is asked; counts nothing itself. Feature `metrics`.

use crate::engine_host::Suppressed;
use crate::gate::NotTied;
use crate::shared::Shared;
use crate::spread::Spans;
use crate::stats::{ByKind, PolicyStats, Stats};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use std::fmt;
use std::sync::{Arc, Weak};
use tiedkv_protocol::request::CopyKind;

/// The figures of one client; see [`Client::collector`](crate::Client::collector). Empty once the client is gone.
#[derive(Debug)]
pub struct ClientCollector {
    shared: Weak<Shared>,
}

impl ClientCollector {
    pub(crate) fn new(shared: &Arc<Shared>) -> Self {
        Self { shared: Arc::downgrade(shared) }
    }
}

impl Collector for ClientCollector {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        match self.shared.upgrade() {
            Some(shared) => encode(&shared.stats(), encoder),
            None => Ok(()),
        }
    }
}

/// Labels beside operation and policy.
type Labels<'a> = Vec<(&'a str, &'a str)>;
/// One figure: its further labels and value.
type Counted<'a> = Vec<(Labels<'a>, u64)>;

fn encode(stats: &Stats, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
    let to = &mut encoder;
    counters(to, "reads", "Reads ended, by end.", stats, |policy| {
        let open = policy.reads - (policy.answered + policy.failed + policy.dropped).min(policy.reads);
        let ends = [("answered", policy.answered), ("failed", policy.failed), ("dropped", policy.dropped)];
        ends.into_iter().chain([("open", open)]).map(|(end, count)| (vec![("end", end)], count)).collect()
    })?;
    counters(to, "ties", "Ties begun: the first of a read, and fresh ones after a failure.", stats, |policy| {
        vec![(vec![("begun", "first")], policy.ties), (vec![("begun", "fresh")], policy.fresh_ties)]
    })?;
    counters(to, "copies", "Copies sent, by kind and end.", stats, |policy| {
        let copies = &policy.copies;
        let ends: [(&str, &ByKind); 6] = [
            ("won", &copies.won),
            ("late", &copies.late),
            ("refused", &copies.refused),
            ("expired", &copies.expired),
            ("failed", &copies.failed),
            ("unanswered", &copies.unanswered),
        ];
        ends.into_iter().flat_map(|(end, counts)| by_kind(counts, Some(end))).collect()
    })?;
    counters(to, "won_by_number", "Reads won by the copy of this number.", stats, |policy| {
        let numbers = ["0", "1", "2"].into_iter().zip(policy.won_by_number);
        numbers.map(|(number, count)| (vec![("number", number)], count)).collect()
    })?;
    counters(to, "not_tied", "Reads with fewer copies than their policy says, by reason.", stats, |policy| {
        let reasons = NotTied::ALL.iter().zip(policy.not_tied);
        reasons.map(|(reason, count)| (vec![("reason", reason.name())], count)).collect()
    })?;
    counters(to, "suppressed", "Extra copies not sent when their time came, by reason.", stats, |policy| {
        let reasons = Suppressed::ALL.iter().zip(policy.suppressed);
        reasons.map(|(reason, count)| (vec![("reason", reason.name())], count)).collect()
    })?;
    counters(to, "unsent", "Copies that observed reads would have sent, by kind.", stats, |policy| {
        by_kind(&policy.unsent, None)
    })?;
    let after = "When observed reads would have sent their first extra copy.";
    seconds(to, "unsent_after_seconds", after, stats, |policy| &policy.unsent_after)?;
    let gain = "What observed reads would gain at their p99.";
    gauges(to, "predicted_gain_seconds", gain, stats, |policy| {
        policy.predicted_gain(0.99).map(|gain| gain.as_secs_f64())
    })?;
    counters(to, "samples", "Extra copies of observed reads that were compared.", stats, |policy| {
        vec![(vec![("result", "stale")], policy.samples_stale), (vec![("result", "agree")], agreed(policy))]
    })?;
    seconds(to, "latency_seconds", "First copy on the wire to the answer used.", stats, |policy| &policy.with)?;
    let cut = "The same of reads that switch, ceiling, gate or nodes left with one copy and no hedge.";
    seconds(to, "latency_cut_seconds", cut, stats, |policy| &policy.cut)?;
    let without = "The same of reads that went untied to measure by.";
    seconds(to, "latency_without_seconds", without, stats, |policy| &policy.without)?;
    let path = "Hedges, rescues and samples: their own way from hand-over to answer.";
    seconds(to, "extra_path_seconds", path, stats, |policy| &policy.extra_path)?;
    let wait = "Planned send to the wire: the client's own wait.";
    seconds(to, "client_wait_seconds", wait, stats, |policy| &policy.client_wait)?;
    gauges(to, "slow_share", "Share of reads over three times the median.", stats, |policy| {
        Some(policy.slow_share())
    })?;
    gauges(
        to,
        "time_saved_seconds",
        "Spared by the policy so far, by the means.",
        stats,
        PolicyStats::time_saved_s,
    )?;
    gauges(to, "delay_too_long", "1: hedges and rescues nearly always win.", stats, |policy| {
        Some(f64::from(u8::from(policy.delay_too_long)))
    })?;
    let Stats { multi_gets_whole, multi_gets_partial, multi_gets_failed, .. } = *stats;
    let calls = [("whole", multi_gets_whole), ("partial", multi_gets_partial), ("failed", multi_gets_failed)];
    let zero = ConstCounter::new(0_u64);
    let mut ended = to.encode_descriptor(
        "tiedkv_client_multi_gets",
        "Calls for many keys that came to an end, by end.",
        None,
        zero.metric_type(),
    )?;
    for (end, count) in calls {
        ConstCounter::new(count).encode(ended.encode_family(&[("end", end)])?)?;
    }
    let name = "tiedkv_client_multi_get_completeness";
    let help = "Mean share of keys answered of calls for many.";
    let mean = ConstGauge::new(stats.completeness());
    mean.encode(to.encode_descriptor(name, help, None, mean.metric_type())?)
}

fn agreed(policy: &PolicyStats) -> u64 {
    policy.samples.saturating_sub(policy.samples_stale)
}

fn by_kind<'a>(counts: &ByKind, end: Option<&'a str>) -> Counted<'a> {
    let labels = |kind: CopyKind| [("kind", kind.name())].into_iter().chain(end.map(|end| ("end", end))).collect();
    CopyKind::ALL.into_iter().map(|kind| (labels(kind), counts.of(kind))).collect()
}

fn labels<'a>(policy: &'a PolicyStats, name: &'a str, more: Labels<'a>) -> Labels<'a> {
    [("operation", policy.operation.name()), ("policy", name)].into_iter().chain(more).collect()
}

fn counters(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    stats: &Stats,
    counts: impl Fn(&PolicyStats) -> Counted<'_>,
) -> fmt::Result {
    let name = format!("tiedkv_client_{name}");
    let mut metric = encoder.encode_descriptor(&name, help, None, ConstCounter::new(0_u64).metric_type())?;
    for policy in &stats.policies {
        let policy_name = policy.policy.to_string();
        for (more, count) in counts(policy) {
            let labels = labels(policy, &policy_name, more);
            ConstCounter::new(count).encode(metric.encode_family(&labels)?)?;
        }
    }
    Ok(())
}

fn gauges(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    stats: &Stats,
    value: impl Fn(&PolicyStats) -> Option<f64>,
) -> fmt::Result {
    let name = format!("tiedkv_client_{name}");
    let mut metric = encoder.encode_descriptor(&name, help, None, ConstGauge::new(0.0).metric_type())?;
    for policy in &stats.policies {
        if let Some(value) = value(policy) {
            let policy_name = policy.policy.to_string();
            let labels = labels(policy, &policy_name, Vec::new());
            ConstGauge::new(value).encode(metric.encode_family(&labels)?)?;
        }
    }
    Ok(())
}

/// Quantiles, sum and count as gauges and counters: the buckets would be 193 series each.
fn seconds(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    stats: &Stats,
    spans: impl Fn(&PolicyStats) -> &Spans,
) -> fmt::Result {
    counters(encoder, &format!("{name}_counted"), help, stats, |policy| vec![(Vec::new(), spans(policy).count())])?;
    let sum = |policy: &PolicyStats| Some(spans(policy).sum().as_secs_f64());
    gauges(encoder, &format!("{name}_sum"), help, stats, sum)?;
    let full = format!("tiedkv_client_{name}");
    let mut metric = encoder.encode_descriptor(&full, help, None, ConstGauge::new(0.0).metric_type())?;
    for policy in &stats.policies {
        let policy_name = policy.policy.to_string();
        for (text, q) in [("0.5", 0.5), ("0.9", 0.9), ("0.95", 0.95), ("0.99", 0.99), ("0.999", 0.999)] {
            if let Some(span) = spans(policy).quantile(q) {
                let labels = labels(policy, &policy_name, vec![("quantile", text)]);
                ConstGauge::new(span.as_secs_f64()).encode(metric.encode_family(&labels)?)?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::Operation;
    use crate::policy::ReadPolicy;
    use crate::stats::Counters;
    use crate::tally::Slot;
    use prometheus_client::registry::Registry;
    use std::sync::atomic::Ordering::Relaxed;
    use std::time::Duration;

    #[derive(Debug)]
    struct Fixed(Stats);

    impl Collector for Fixed {
        fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
            encode(&self.0, encoder)
        }
    }

    #[test]
    fn the_text_names_every_figure_by_operation_and_policy() {
        let counters = Counters::default();
        let tally = counters.tallies.of(Slot::new(Operation::Get, ReadPolicy::default()));
        tally.reads.fetch_add(2, Relaxed);
        tally.answered.fetch_add(2, Relaxed);
        tally.ties.fetch_add(1, Relaxed);
        counters.multi_gets.fetch_add(5, Relaxed);
        counters.multi_gets_whole.fetch_add(1, Relaxed);
        counters.multi_gets_partial.fetch_add(2, Relaxed);
        counters.multi_gets_failed.fetch_add(1, Relaxed);
        tally.sent.add(CopyKind::First);
        tally.won.add(CopyKind::First);
        tally.with.add(Duration::from_millis(5));
        tally.without.add(Duration::from_millis(10));
        tally.cut.add(Duration::from_millis(5));
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Fixed(counters.snapshot())));
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for line in [
            r#"tiedkv_client_reads_total{operation="get",policy="tied2+rescue",end="answered"} 2"#,
            r#"tiedkv_client_copies_total{operation="get",policy="tied2+rescue",kind="first",end="won"} 1"#,
            r#"tiedkv_client_suppressed_total{operation="get",policy="tied2+rescue",reason="no-token"} 0"#,
            r#"tiedkv_client_latency_seconds{operation="get",policy="tied2+rescue",quantile="0.99"} 0.005"#,
            r#"tiedkv_client_latency_cut_seconds{operation="get",policy="tied2+rescue",quantile="0.99"} 0.005"#,
            r#"tiedkv_client_time_saved_seconds{operation="get",policy="tied2+rescue"} 0.005"#,
            r#"tiedkv_client_ties_total{operation="get",policy="tied2+rescue",begun="first"} 1"#,
            r#"tiedkv_client_unsent_after_seconds_counted_total{operation="get",policy="tied2+rescue"} 0"#,
            r#"tiedkv_client_multi_gets_total{end="partial"} 2"#,
            r#"tiedkv_client_multi_gets_total{end="whole"} 1"#,
            "tiedkv_client_multi_get_completeness 1",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
    }
}
