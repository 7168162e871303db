//! The figures of a node for Prometheus. The registry belongs to the node, not to the process; figures are read at
//! the scrape from the counters that the rooms keep anyway, so none is counted twice. Series are bounded: by lane,
//! by peer, by a fixed set of names.

use super::status::Observer;
use crate::transport::udp;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};
use std::fmt;
use std::sync::Arc;

/// A registry that reads `observer` at each scrape.
pub fn registry(observer: Arc<Observer>) -> Registry {
    let mut registry = Registry::with_prefix("tiedkv");
    registry.register_collector(Box::new(NodeFigures(observer)));
    registry
}

struct NodeFigures(Arc<Observer>);

impl fmt::Debug for NodeFigures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("NodeFigures").field(&self.0.node).finish()
    }
}

impl Collector for NodeFigures {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        self.identity(&mut encoder)?;
        self.counters(&mut encoder)?;
        self.lanes(&mut encoder)?;
        self.pairs(&mut encoder)
    }
}

/// Writes one figure without labels.
fn figure(encoder: &mut DescriptorEncoder, name: &str, help: &str, metric: &impl EncodeMetric) -> fmt::Result {
    metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)
}

/// Writes one figure per label value.
fn family(
    encoder: &mut DescriptorEncoder,
    (name, help, label): (&str, &str, &str),
    unit: Option<&Unit>,
    figures: impl IntoIterator<Item = (String, f64)>,
) -> fmt::Result {
    let kind = prometheus_client::metrics::MetricType::Gauge;
    let mut metric = encoder.encode_descriptor(name, help, unit, kind)?;
    for (value, figure) in figures {
        ConstGauge::new(figure).encode(metric.encode_family(&[(label, value)])?)?;
    }
    Ok(())
}

impl NodeFigures {
    fn identity(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        let node = &self.0;
        let labels = [
            ("node", node.node.0.to_string()),
            ("cluster", node.cluster.to_string()),
            ("version", env!("CARGO_PKG_VERSION").to_owned()),
            ("modelled_device", node.modelled.to_string()),
        ];
        let kind = prometheus_client::metrics::MetricType::Gauge;
        let mut metric = encoder.encode_descriptor("node", "Who this node is; always 1.", None, kind)?;
        ConstGauge::new(1.0).encode(metric.encode_family(&labels)?)?;
        let ends = [("node", node.ends.node), ("authority", node.ends.authority)];
        let ends = ends.map(|(name, end)| (name.to_owned(), end as f64));
        let help = "When a certificate ends, seconds since the Unix epoch.";
        family(encoder, ("certificate_not_after", help, "certificate"), Some(&Unit::Seconds), ends)?;
        let udp = udp::least();
        let buffers =
            [("receive", udp.receive), ("send", udp.send)].map(|(way, bytes)| (way.to_owned(), bytes as f64));
        let help = "The smallest buffer that the system gave to a UDP socket.";
        family(encoder, ("udp_buffer", help, "way"), Some(&Unit::Bytes), buffers)?;
        let ready = ConstGauge::new(if node.is_ready() { 1.0 } else { 0.0 });
        figure(encoder, "ready", "1 if every check of /readyz holds.", &ready)?;
        let replica = node.replica.status();
        let applied = ConstGauge::new(replica.applied.0 as f64);
        figure(encoder, "applied_position", "Position of the newest published view.", &applied)?;
        let committed = ConstGauge::new(replica.committed.0 as f64);
        figure(encoder, "committed_position", "Position known to be committed.", &committed)?;
        figure(encoder, "term", "Term of Raft; 0 if not replicated.", &ConstGauge::new(replica.term as f64))?;
        let log = replica.log;
        let appended = ConstCounter::new(log.appended_total);
        figure(encoder, "log_appended", "Entries appended to the log since the start.", &appended)?;
        figure(encoder, "log_syncs", "fsyncs of the log since the start.", &ConstCounter::new(log.syncs_total))?;
        let checks = ConstCounter::new(log.checks_total);
        figure(encoder, "replica_checks", "States hashed, to be compared with the other replicas'.", &checks)?;
        let differed = ConstCounter::new(log.checks_differed_total);
        figure(encoder, "replica_checks_differed", "States that were not the same on all replicas.", &differed)?;
        figure(encoder, "log_bytes", "Bytes of the log on disk.", &ConstGauge::new(log.disk_bytes as f64))?;
        figure(encoder, "state_bytes", "Bytes of the state on disk.", &ConstGauge::new(log.state_bytes as f64))
    }

    fn counters(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        let page = self.0.counters();
        for (prefix, counters) in [
            ("copies", serde_json::to_value(&page.path)),
            ("cancel_channel", serde_json::to_value(page.cancels)),
            ("clients", serde_json::to_value(page.clients)),
        ] {
            // The counters' own names and shapes, so that a new counter is exported by being counted.
            let Ok(serde_json::Value::Object(counters)) = counters else { return Err(fmt::Error) };
            for (name, value) in counters {
                let help = format!("Counter `{name}` of `{prefix}` since the start.");
                let name = format!("{prefix}_{name}");
                if let Some(count) = value.as_u64() {
                    figure(encoder, &name, &help, &ConstCounter::new(count))?;
                } else if let Some(by_kind) = value.as_array() {
                    self.by_kind(encoder, &name, &help, by_kind)?;
                }
            }
        }
        Ok(())
    }

    fn by_kind(
        &self,
        encoder: &mut DescriptorEncoder,
        name: &str,
        help: &str,
        counts: &[serde_json::Value],
    ) -> fmt::Result {
        let kind = prometheus_client::metrics::MetricType::Counter;
        let mut metric = encoder.encode_descriptor(name, help, None, kind)?;
        for (kind, count) in tiedkv_protocol::request::CopyKind::ALL.iter().zip(counts) {
            let counter = ConstCounter::new(count.as_u64().unwrap_or(0));
            counter.encode(metric.encode_family(&[("kind", kind.name())])?)?;
        }
        Ok(())
    }

    fn lanes(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        let status = self.0.path.status();
        figure(encoder, "copies_in_flight", "Copies in flight.", &ConstGauge::new(status.in_flight as f64))?;
        let lanes = || status.lanes.iter().map(|lane| (lane.lane.to_string(), lane));
        let depths = lanes().map(|(name, lane)| (name, f64::from(lane.depth)));
        family(encoder, ("lane_depth", "Copies and jobs that wait.", "lane"), None, depths)?;
        let aside = lanes().map(|(name, lane)| (name, f64::from(lane.set_aside)));
        family(encoder, ("lane_set_aside", "Copies set aside until servable.", "lane"), None, aside)?;
        let busy = lanes().map(|(name, lane)| (name, f64::from(lane.busy_workers)));
        family(encoder, ("lane_busy_workers", "Workers that are serving.", "lane"), None, busy)
    }

    fn pairs(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        let status = self.0.cancels.status();
        let realtime = ConstGauge::new(if status.realtime { 1.0 } else { 0.0 });
        figure(encoder, "cancel_channel_realtime", "1 if its thread has real-time priority.", &realtime)?;
        let pairs = || status.peers.iter().map(|pair| (pair.node.0.to_string(), pair));
        let usable = pairs().map(|(name, pair)| (name, f64::from(u8::from(pair.usable))));
        family(encoder, ("cancel_pair_usable", "1 if clients may tie this pair.", "peer"), None, usable)?;
        for (name, help, flight) in [
            ("cancel_flight_p50", "Median flight of a cancel, last minute.", true),
            ("cancel_flight_p99", "99th percentile of a cancel's flight, last minute.", false),
        ] {
            let flights = pairs().map(|(name, pair)| {
                let nanos = if flight { pair.flight_p50_ns } else { pair.flight_p99_ns };
                (name, nanos as f64 / 1e9)
            });
            family(encoder, (name, help, "peer"), Some(&Unit::Seconds), flights)?;
        }
        Ok(())
    }
}
