//! A run's own trace for the ideals: planned arrivals, the draws of the modelled device, lanes and background jobs,
//! on one clock. Pure.
//!
//! The device's draws are a function of seed and ReadId and its jobs one of seed, lane and the moment of the
//! disturbance, so they are drawn again by the same code ([`DeviceModel`]) instead of being recorded. The clocks of
//! client and nodes are never compared: per node, the median of (admitted - planned) over first copies shifts the
//! node's moments to where a copy planned then would arrive.

use super::sample::Ideals;
use crate::ideal::{Item, Trace, central_queue, join_shortest_workload};
use crate::load::run::Traced;
use std::collections::HashMap;
use std::time::Duration;
use tiedkv_protocol::ids::{NodeId, ReadId};
use tiedkv_protocol::moment::Moment;
use tiedkv_protocol::request::Disturbance;
use tiedkv_protocol::response::StartRecord;

/// Room before the start of a scene for jobs that arrived earlier, microseconds.
const LEAD_US: f64 = 10e6;

/// The device's draws, by the code that the nodes run.
pub trait DeviceModel {
    /// The service time of a read.
    fn service(&self, read: ReadId) -> Duration;
    /// The lane of a key on a node.
    fn lane(&self, node: NodeId, key: &[u8]) -> u16;
    /// The background jobs of a node that is disturbed so from `since` on, up to `until`.
    fn jobs(&self, node: NodeId, disturbance: &Disturbance, since: Moment, until: Moment) -> Vec<DrawnJob>;
}

/// A background job as a node draws it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrawnJob {
    /// Its lane.
    pub lane: u16,
    /// When it joins the queue, by the node's clock.
    pub arrived: Moment,
    /// Its service time.
    pub service: Duration,
}

/// What a trace is made of.
pub struct Ingredients<'a> {
    /// The reads as the open loop saw them.
    pub reads: &'a [Traced],
    /// Their keys.
    pub key: &'a dyn Fn(u64) -> Vec<u8>,
    /// All start records.
    pub records: &'a [(NodeId, Vec<StartRecord>)],
    /// The disturbance in force and since when, by each node's clock.
    pub disturbance: &'a Disturbance,
    /// One moment per node, in the order of `records`.
    pub since: &'a [Moment],
    /// Lanes per node, one worker each.
    pub lanes: u16,
    /// Warm-up and measured time.
    pub span: Duration,
    /// Median of two crossings as measured, added to every response.
    pub crossings: Duration,
}

/// The response times of the limits; `None` when a node's clock cannot be placed or no read was answered.
pub fn ideals(from: &Ingredients<'_>, model: &dyn DeviceModel) -> Option<Ideals> {
    let trace = build(from, model)?;
    let add = micros(from.crossings);
    let run = |copies| with(join_shortest_workload(&trace, copies), add);
    Some(Ideals { jsw1: run(1), jsw2: run(2), jsw3: run(3), central: with(central_queue(&trace), add) })
}

fn with(responses: Vec<f64>, add: f64) -> Vec<u64> {
    responses.into_iter().map(|response| (response + add).round() as u64).collect()
}

fn build(from: &Ingredients<'_>, model: &dyn DeviceModel) -> Option<Trace> {
    let nodes: Vec<NodeId> = from.records.iter().map(|(node, _)| *node).collect();
    let lanes = usize::from(from.lanes);
    let mut items = Vec::new();
    for read in from.reads {
        let Some(id) = read.read else { continue };
        let key = (from.key)(read.key);
        let places = order(id, &read.nodes, &nodes)
            .into_iter()
            .map(|index| index * lanes + usize::from(model.lane(nodes[index], &key)))
            .collect();
        items.push(Item {
            at_us: LEAD_US + micros(read.at),
            service_us: micros(model.service(id)),
            places,
            counted: read.counted,
        });
    }
    for (index, (node, since)) in nodes.iter().zip(from.since).enumerate() {
        if from.disturbance.jobs_load <= 0.0 {
            break;
        }
        let offset_us = offset(from, index)?;
        let until = Moment(((offset_us + micros(from.span)) * 1e3).max(0.0) as u64);
        for job in model.jobs(*node, from.disturbance, *since, until) {
            items.push(Item {
                at_us: LEAD_US + job.arrived.0 as f64 / 1e3 - offset_us,
                service_us: micros(job.service),
                places: vec![index * lanes + usize::from(job.lane)],
                counted: false,
            });
        }
    }
    items.sort_by(|one, other| one.at_us.total_cmp(&other.at_us));
    items.iter().any(|item| item.counted).then(|| Trace { items, workers: vec![1; nodes.len() * lanes] })
}

/// Indices of the nodes of a read: those that its copies went to, then the others in an order drawn from its id.
fn order(read: ReadId, asked: &[NodeId], nodes: &[NodeId]) -> Vec<usize> {
    let mut order: Vec<usize> =
        asked.iter().filter_map(|node| nodes.iter().position(|known| known == node)).collect();
    let first = (read.0 % nodes.len() as u128) as usize;
    let backwards = (read.0 >> 64) % 2 == 1;
    let rest =
        (0..nodes.len()).map(|step| (first + if backwards { nodes.len() - step } else { step }) % nodes.len());
    order.extend(rest);
    let mut seen = vec![false; nodes.len()];
    order.retain(|index| !std::mem::replace(&mut seen[*index], true));
    order
}

/// Median of (admitted by the node's clock - planned by the client's) over first copies, microseconds.
fn offset(from: &Ingredients<'_>, index: usize) -> Option<f64> {
    let (node, records) = &from.records[index];
    let admitted: HashMap<ReadId, u64> = records.iter().map(|record| (record.read, record.admitted_us)).collect();
    let mut found: Vec<f64> = from
        .reads
        .iter()
        .filter(|read| read.nodes.first() == Some(node))
        .filter_map(|read| Some(*admitted.get(&read.read?)? as f64 - micros(read.at)))
        .collect();
    found.sort_by(f64::total_cmp);
    found.get(found.len() / 2).copied()
}

fn micros(span: Duration) -> f64 {
    span.as_secs_f64() * 1e6
}

#[cfg(test)]
#[path = "trace_test.rs"]
mod tests;
