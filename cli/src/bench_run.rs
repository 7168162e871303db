//! `tiedkv bench run`: load on a running cluster, open or closed loop.

use crate::args::Format;
use crate::bench_args::BenchRun;
use crate::connect::{config, url};
use crate::outcome::{End, usage};
use crate::output;
use crate::progress::bar;
use crate::signals::Signals;
use anyhow::{Context, Result, anyhow};
use hdrhistogram::Histogram;
use serde_json::{Value, json};
use std::time::Duration;
use tiedkv_benches::load::hdr;
use tiedkv_benches::load::mix::{Mix, Op};
use tiedkv_benches::load::mixed::{Calls, Figures, Handle, Mixed, Pace, run as play};
use tiedkv_benches::load::preload::{Writes, preload};
use tiedkv_benches::load::turn_policy::TurnPolicy;
use tiedkv_benches::load::workload::Workload;
use tiedkv_client::options::parse_span;
use tiedkv_client::{Client, Level, ReadPolicy};

/// How often the live figures change.
const LOOK: Duration = Duration::from_secs(1);
/// Fewest calls for which a percentile is told: ten lie above it.
const ABOVE_MIN: f64 = 10.0;
/// Longest span of a flag, seconds: a week. Sums and multiples of longer ones would leave what a clock can hold.
const SPAN_MAX_S: u64 = 7 * 24 * 3600;
/// Least and most calls per second that can be asked for.
const RATE_MIN: f64 = 0.001;
const RATE_MAX: f64 = 10_000_000.0;

/// Runs the command.
///
/// # Errors
/// When a flag is wrong or the cluster does not answer. Failed calls are counted.
pub async fn run(args: &BenchRun, format: Format) -> Result<End> {
    let plan = plan(args)?;
    let mut config = config(&args.connect)?;
    let url = url(&args.connect)?;
    // Where policies are listed each call names one, and settings of ties have an effect.
    if !names(url, "policy") && args.policies.is_empty() {
        config.policy = ReadPolicy::UNTIED;
    }
    if !names(url, "read") {
        config.level = Level::Stale { bound: None };
    }
    let mut signals = Signals::listen()?;
    let client = tokio::select! {
        client = Client::connect(config) => client?,
        () = signals.next() => return Ok(End::Interrupted),
    };
    if plan.mix.share(Op::Put) < 1.0 {
        let writes = writes(&client);
        tokio::select! {
            written = preload(&client, plan.workload, &writes, |_| {}) => written?,
            () = signals.next() => return Ok(End::Interrupted),
        }
    }
    let handle = Handle::new(&plan)?;
    let end = watch(&client, &plan, &handle, &mut signals).await?;
    client.close();
    tell(args, &plan, &handle.figures(), format)?;
    Ok(end)
}

/// Plays the plan, shows live figures, and stops it at a signal.
async fn watch(client: &Client, plan: &Mixed, handle: &Handle, signals: &mut Signals) -> Result<End> {
    let whole = plan.warm_up + plan.measured;
    let bar = bar(whole.as_millis() as u64, "");
    let mut played = std::pin::pin!(play(client, plan, handle));
    let mut looks = tokio::time::interval(LOOK);
    let mut end = End::Ok;
    loop {
        tokio::select! {
            played = &mut played => {
                bar.finish_and_clear();
                return played.map(|()| end);
            }
            _ = looks.tick() => {
                let (p50, p99, calls) = handle.look();
                bar.inc(LOOK.as_millis() as u64);
                bar.set_message(format!("{calls} calls/s, p50 {p50} us, p99 {p99} us"));
            }
            () = signals.next() => {
                handle.stop();
                end = End::Interrupted;
            }
        }
    }
}

/// The span of a flag.
///
/// # Errors
/// A usage error: no span, or one over the bound.
pub fn span(flag: &str, text: &str) -> Result<Duration> {
    let span = parse_span(text).map_err(usage)?;
    if span > Duration::from_secs(SPAN_MAX_S) {
        return Err(usage(anyhow!("{flag} is {text}; it must be at most {SPAN_MAX_S}s")));
    }
    Ok(span)
}

fn plan(args: &BenchRun) -> Result<Mixed> {
    let pace = match args.rate {
        Some(rate) if (RATE_MIN..=RATE_MAX).contains(&rate) => Pace::Open(rate),
        Some(rate) => return Err(usage(anyhow!("--rate is {rate}; it must be from {RATE_MIN} to {RATE_MAX}"))),
        None => Pace::Closed(args.concurrency as usize),
    };
    let named = args.policies.iter().map(|name| name.parse::<TurnPolicy>().map_err(usage));
    let mut policies: Vec<TurnPolicy> = named.collect::<Result<_>>()?;
    if policies.is_empty() {
        policies.push(TurnPolicy::AsSet);
    }
    let (block, measured) = (span("--block", &args.block)?, span("--duration", &args.duration)?);
    let round_ns = block.as_nanos() * policies.len() as u128;
    if block.is_zero() || round_ns > measured.as_nanos() && policies.len() > 1 {
        return Err(usage(anyhow!("--duration leaves no turn of --block to each of {} policies", policies.len())));
    }
    Ok(Mixed {
        pace,
        mix: args.mix.unwrap_or(Mix::only(args.op)),
        width: args.width,
        rows: args.rows,
        workload: Workload { count: args.keys, sizes: args.value_bytes },
        spread: args.spread,
        policies,
        block,
        warm_up: span("--warm-up", &args.warm_up)?,
        measured,
        seed: args.seed,
    })
}

/// Whether the connection string sets `name` itself.
fn names(url: &str, name: &str) -> bool {
    let query = url.split_once('?').map_or("", |(_, query)| query);
    query.split('&').any(|pair| pair.split('=').next() == Some(name))
}

/// Replicated if somebody leads; otherwise every node is written to.
fn writes(client: &Client) -> Writes {
    let topology = client.topology();
    match topology.leader {
        Some(_) => Writes::Replicated,
        None => Writes::ToEveryNode(topology.members.iter().map(|member| member.node).collect()),
    }
}

/// One line of the result.
struct Line<'a> {
    policy: String,
    op: &'static str,
    calls: &'a Calls,
    /// How long the policy had its turns.
    turns: Duration,
}

impl Line<'_> {
    /// Good calls per second of its turns.
    fn ops_per_s(&self) -> f64 {
        per_second(self.calls.latency.len(), self.turns)
    }
}

fn per_second(count: u64, span: Duration) -> f64 {
    if span.is_zero() { 0.0 } else { count as f64 / span.as_secs_f64() }
}

fn lines<'a>(plan: &Mixed, figures: &'a Figures) -> Vec<Line<'a>> {
    let mut lines = Vec::new();
    for (index, (policy, calls)) in plan.policies.iter().zip(&figures.calls).enumerate() {
        let (policy, turns) = (policy.to_string(), plan.time_of(index, figures.took));
        for (op, calls) in Op::ALL.map(Op::name).into_iter().zip(calls) {
            if calls.errors > 0 || !calls.latency.is_empty() {
                lines.push(Line { policy: policy.clone(), op, calls, turns });
            }
        }
    }
    lines
}

fn quantile(latency: &Histogram<u64>, q: f64) -> Option<u64> {
    (latency.len() as f64 * (1.0 - q) >= ABOVE_MIN).then(|| latency.value_at_quantile(q))
}

fn tell(args: &BenchRun, plan: &Mixed, figures: &Figures, format: Format) -> Result<()> {
    let lines = lines(plan, figures);
    let document = document(plan, figures, &lines)?;
    if let Some(path) = &args.json {
        std::fs::write(path, format!("{document:#}\n")).with_context(|| path.display().to_string())?;
    }
    if let Some(path) = &args.hdr {
        let tag = |line: &Line<'_>| format!("{}-{}", line.op, line.policy.replace(' ', "-"));
        let all: Vec<(String, &Histogram<u64>)> =
            lines.iter().map(|line| (tag(line), &line.calls.latency)).collect();
        hdr::write(path, &all, figures.took)?;
    }
    for line in &lines {
        if let Some(error) = &line.calls.first_error {
            eprintln!("{} {}: {} errors, the first: {error}", line.policy, line.op, line.calls.errors);
        }
    }
    match format {
        Format::Json => output::json(&document),
        Format::Table | Format::Raw => output::bytes(table(&document).as_bytes()),
    }
}

fn document(plan: &Mixed, figures: &Figures, lines: &[Line<'_>]) -> Result<Value> {
    let mut all = Histogram::<u64>::new(3)?;
    for line in lines {
        all.add(&line.calls.latency)?;
    }
    let errors = lines.iter().map(|line| line.calls.errors).sum::<u64>();
    let row = |line: &Line<'_>| {
        let latency = &line.calls.latency;
        json!({
            "policy": line.policy,
            "op": line.op,
            "calls": latency.len() + line.calls.errors,
            "errors": line.calls.errors,
            "ops_per_s": line.ops_per_s(),
            "p50_us": quantile(latency, 0.5),
            "p90_us": quantile(latency, 0.9),
            "p99_us": quantile(latency, 0.99),
            "p999_us": quantile(latency, 0.999),
            "max_us": latency.max(),
        })
    };
    let loop_name = match plan.pace {
        Pace::Open(_) => "open",
        Pace::Closed(_) => "closed",
    };
    Ok(json!({
        "loop": loop_name,
        "mix": plan.mix.to_string(),
        "ops_per_s": per_second(all.len(), figures.took),
        "p50_us": quantile(&all, 0.5),
        "p99_us": quantile(&all, 0.99),
        "errors": errors,
        "cpu_us_per_op": figures.cpu.as_secs_f64() * 1e6 / (all.len() + errors).max(1) as f64,
        "rows": lines.iter().map(row).collect::<Vec<_>>(),
    }))
}

fn table(document: &Value) -> String {
    let head = ["policy", "op", "calls", "errors", "calls/s", "p50", "p90", "p99", "p99.9", "max"];
    let mut cells = vec![head.map(str::to_owned).to_vec()];
    for row in document["rows"].as_array().into_iter().flatten() {
        let text = |key: &str| match &row[key] {
            Value::Null => "-".to_owned(),
            Value::String(text) => text.clone(),
            // Counts and microseconds are whole.
            Value::Number(number) if number.is_f64() => format!("{:.0}", number.as_f64().unwrap_or(0.0)),
            other => other.to_string(),
        };
        let keys =
            ["policy", "op", "calls", "errors", "ops_per_s", "p50_us", "p90_us", "p99_us", "p999_us", "max_us"];
        cells.push(keys.map(text).to_vec());
    }
    let mut text = tiedkv_benches::report::columns(&cells, 2);
    let figure = |key: &str| document[key].as_f64().unwrap_or(0.0);
    let ops = figure("ops_per_s");
    let from =
        if document["loop"] == "open" { "the planned send" } else { "the call (waits between calls are hidden)" };
    text += &format!("microseconds from {from}; -: too few calls; calls/s: good ones, of a policy's own turns\n");
    text += &format!("{ops:.0} calls/s, ");
    text + &format!("{:.1} us processor time of this process per call\n", figure("cpu_us_per_op"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use crate::bench_args::Bench;
    use clap::Parser;

    #[test]
    fn a_setting_of_the_url_is_seen() {
        let url = "tiedkv://a:1/?certs=x&policy=tied2";
        assert!(names(url, "policy") && !names(url, "read"));
    }

    #[test]
    fn a_span_over_the_bound_is_an_error_that_names_it() {
        assert_eq!(span("--block", "50ms").unwrap(), Duration::from_millis(50));
        for text in ["604801s", "18446744073709551615s"] {
            let error = span("--block", text).unwrap_err().to_string();
            assert!(error.contains("--block") && error.contains("at most 604800s"), "{error}");
        }
    }

    #[test]
    fn rates_are_those_of_a_policys_own_turns() {
        let words = ["tiedkv", "bench", "run", "--policies", "untied,default", "--duration", "3s"];
        let Command::Bench(Bench::Run(args)) = Cli::try_parse_from(words).unwrap().command else { panic!() };
        let plan = plan(&args).unwrap();
        let mut figures = Handle::new(&plan).unwrap().figures();
        figures.took = Duration::from_secs(3);
        for calls in &mut figures.calls {
            calls[Op::Get as usize].latency.record_n(100, 600).unwrap();
        }
        let document = document(&plan, &figures, &lines(&plan, &figures)).unwrap();
        let rates: Vec<_> = document["rows"].as_array().unwrap().iter().map(|row| &row["ops_per_s"]).collect();
        assert_eq!(rates, [300.0, 600.0], "two of three turns, and one: {document:#}");
        assert_eq!((&document["rows"][1]["policy"], &document["ops_per_s"]), (&json!("default"), &json!(400.0)));
        assert!(table(&document).contains("default  get"), "{}", table(&document));
    }

    #[test]
    fn a_percentile_of_too_few_calls_is_not_told() {
        let mut latency = Histogram::<u64>::new(3).unwrap();
        latency.record_n(100, 999).unwrap();
        assert_eq!((quantile(&latency, 0.5), quantile(&latency, 0.99)), (Some(100), None));
    }
}
