//! The named searches: configurations that hold, and planted bugs with the properties by which they are found.

use super::config::{Config, Lag, Planted};
use super::properties::Property;
use super::search::{Report, explore};

/// What a search must come to.
#[derive(Clone, Copy, Debug)]
pub enum Expect {
    /// All properties hold in all states.
    Holds,
    /// One of these properties fails.
    Finds(&'static [Property]),
}

/// One named search.
#[derive(Clone, Debug)]
pub struct Row {
    /// Its name, unique.
    pub name: &'static str,
    /// What is explored.
    pub config: Config,
    /// What must come of it.
    pub expect: Expect,
    /// Too long for every change: explored in `.ci/long` only.
    pub long: bool,
}

impl Row {
    /// Explores and judges.
    ///
    /// # Errors
    /// When the search does not come to what it must; the text has the trace.
    pub fn run(&self, states_max: usize) -> Result<Report, String> {
        let report = explore(&self.config, states_max);
        match (&report.violation, self.expect) {
            (None, Expect::Holds) => Ok(report),
            (Some((property, _)), Expect::Finds(properties)) if properties.contains(property) => Ok(report),
            (None, Expect::Finds(properties)) => Err(format!(
                "{}: {:?} was planted and not found in {} states",
                self.name, properties, report.states
            )),
            (Some((property, trace)), expect) => {
                let steps: Vec<String> = trace.iter().map(|step| format!("  {step:?}")).collect();
                Err(format!("{}: want {expect:?}, {property:?} fails after\n{}", self.name, steps.join("\n")))
            }
        }
    }
}

/// All rows, small ones first within each kind.
pub fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    two_servers(&mut rows);
    three_servers(&mut rows);
    strict(&mut rows);
    planted_in_the_server(&mut rows);
    planted_in_the_client(&mut rows);
    rows
}

fn holds(rows: &mut Vec<Row>, name: &'static str, long: bool, config: Config) {
    rows.push(Row { name, config, expect: Expect::Holds, long });
}

fn finds(rows: &mut Vec<Row>, name: &'static str, by: &'static [Property], planted: Planted, config: Config) {
    let config = Config { planted: Some(planted), ..config };
    rows.push(Row { name, config, expect: Expect::Finds(by), long: false });
}

fn two_servers(rows: &mut Vec<Row>) {
    let two = || Config::of(2, 2);
    let expire = || Config { expire: true, ..Config::of(2, 2) };
    holds(
        rows,
        "2: quiet, jobs ahead, pop and start apart",
        false,
        Config { jobs: true, split_pop: true, ..two() },
    );
    holds(rows, "2: loss, failure", false, Config { loss: 1, fail: 1, ..expire() });
    holds(rows, "2: crash, restart, loss", false, Config { crash: 1, restart: 1, loss: 1, ..expire() });
    holds(rows, "2: connection loss, drop", false, Config { connection_loss: 1, drop: 1, ..two() });
    holds(rows, "2: Busy, lag", false, Config { busy: 1, lag: Lag::Any, tokens: 1, ..two() });
    holds(rows, "2: chunks, loss, stranger", false, Config { chunks: true, loss: 1, stranger: 1, ..expire() });
    holds(rows, "2: 2 reads, loss", false, Config { reads: 2, loss: 1, ..two() });
    holds(rows, "2: hang, silence", false, Config { hang: 1, silence: true, ..two() });
    holds(rows, "2: hang, 2 rescues", false, Config { hang: 1, rescue: true, tokens: 2, ..two() });
    holds(
        rows,
        "2: unordered withdraws with tombstone",
        false,
        Config { unordered: true, drop: 1, fail: 1, ..two() },
    );
    holds(
        rows,
        "2: jobs, 2 losses, failure, crash, restart",
        true,
        Config { jobs: true, loss: 2, fail: 1, crash: 1, restart: 1, ..two() },
    );
    holds(
        rows,
        "2: connection loss, Busy, lag, stranger",
        true,
        Config { connection_loss: 1, busy: 1, lag: Lag::Any, stranger: 1, ..two() },
    );
    holds(
        rows,
        "2: 2 reads, loss, failure, crash, restart",
        true,
        Config { reads: 2, loss: 1, fail: 1, crash: 1, restart: 1, ..expire() },
    );
    holds(
        rows,
        "2: 2 reads, loss, connection loss, failure, drop",
        true,
        Config { reads: 2, loss: 1, connection_loss: 1, fail: 1, drop: 1, ..two() },
    );
    holds(
        rows,
        "2: hang, failure, crash, 2 rescues, silence",
        true,
        Config { hang: 1, fail: 1, crash: 1, rescue: true, tokens: 2, silence: true, ..two() },
    );
    holds(
        rows,
        "2: chunks, loss, failure, crash, restart, Busy, lag, stranger, drop",
        true,
        Config {
            chunks: true,
            loss: 1,
            fail: 1,
            crash: 1,
            restart: 1,
            busy: 1,
            lag: Lag::Any,
            stranger: 1,
            drop: 1,
            ..two()
        },
    );
    holds(
        rows,
        "2: second round after 2 connection losses, failure, Busy",
        true,
        Config { connection_loss: 2, fail: 1, busy: 1, tokens: 5, forgiving: true, ..two() },
    );
    holds(
        rows,
        "2: all faults at once",
        true,
        Config {
            jobs: true,
            loss: 2,
            fail: 1,
            crash: 1,
            restart: 1,
            connection_loss: 1,
            busy: 1,
            lag: Lag::Any,
            drop: 1,
            stranger: 1,
            ..two()
        },
    );
}

fn three_servers(rows: &mut Vec<Row>) {
    let two = || Config::of(3, 2);
    let three = || Config::of(3, 3);
    holds(rows, "3 tied 2: crash, loss", false, Config { crash: 1, loss: 1, ..two() });
    holds(rows, "3 tied 2: failure, stranger", false, Config { fail: 1, stranger: 1, ..two() });
    holds(rows, "3 tied 2: Busy, lag, chunks", false, Config { busy: 1, lag: Lag::Any, chunks: true, ..two() });
    holds(rows, "3 tied 2: two wrong clocks", false, Config { wrong_clock: 2, ..two() });
    holds(rows, "3 tied 2: all lag but the last", false, Config { lag: Lag::OnlyLastServes, ..two() });
    holds(rows, "3 untied: all lag but the last", false, Config { lag: Lag::OnlyLastServes, ..Config::of(3, 1) });
    holds(rows, "3 tied 3: loss", false, Config { loss: 1, ..three() });
    holds(rows, "3 tied 3: chunks", false, Config { chunks: true, ..three() });
    holds(
        rows,
        "3 tied 3, to the outcome: Busy, lag, loss",
        false,
        Config { busy: 1, lag: Lag::Any, loss: 1, to_outcome: true, ..three() },
    );
    holds(rows, "3 tied 2: failure, crash, no budget", false, Config { fail: 1, crash: 1, tokens: 0, ..two() });
    holds(rows, "3 tied 2: 2 reads, loss", false, Config { reads: 2, loss: 1, ..two() });
    holds(
        rows,
        "3 tied 2, to the outcome: crash, failure, Busy, loss",
        false,
        Config { crash: 1, fail: 1, busy: 1, loss: 1, to_outcome: true, ..two() },
    );
    holds(
        rows,
        "3 tied 2, to the outcome: connection loss, Busy, lag",
        true,
        Config { connection_loss: 1, busy: 1, lag: Lag::Any, to_outcome: true, ..two() },
    );
    holds(
        rows,
        "3 tied 2, to the outcome: crash, restart, lag, loss",
        false,
        Config { crash: 1, restart: 1, lag: Lag::Any, loss: 1, to_outcome: true, ..two() },
    );
    holds(
        rows,
        "3 tied 2, to the outcome: hang, 3 rescues",
        false,
        Config { hang: 1, rescue: true, tokens: 3, to_outcome: true, ..two() },
    );
    holds(
        rows,
        "3 tied 2, to the outcome: failure, lag, wrong clock, Busy",
        false,
        Config { fail: 1, lag: Lag::Any, wrong_clock: 1, busy: 1, to_outcome: true, ..two() },
    );
    holds(rows, "3 tied 3: loss, drop, stranger", true, Config { loss: 1, drop: 1, stranger: 1, ..three() });
    holds(
        rows,
        "3 tied 3, to the outcome: crash, loss",
        true,
        Config { crash: 1, loss: 1, to_outcome: true, ..three() },
    );
    holds(
        rows,
        "3 tied 3, to the outcome: failure, loss",
        true,
        Config { fail: 1, loss: 1, to_outcome: true, ..three() },
    );
    holds(
        rows,
        "3 tied 3, to the outcome: failure, crash",
        true,
        Config { fail: 1, crash: 1, to_outcome: true, ..three() },
    );
    holds(
        rows,
        "3 tied 3, to the outcome: crash, restart",
        true,
        Config { crash: 1, restart: 1, to_outcome: true, ..three() },
    );
    holds(
        rows,
        "3 tied 3, to the outcome: connection loss",
        true,
        Config { connection_loss: 1, to_outcome: true, ..three() },
    );
    holds(
        rows,
        "3 tied 3, to the outcome: chunks, loss, stranger",
        true,
        Config { chunks: true, loss: 1, stranger: 1, to_outcome: true, ..three() },
    );
    holds(
        rows,
        "3 tied 3, to the outcome: crash, chunks",
        true,
        Config { crash: 1, chunks: true, to_outcome: true, ..three() },
    );
}

/// P5 without excuses: the cancel that is sent back ends a duplicate whatever one fault made it.
fn strict(rows: &mut Vec<Row>) {
    let strict = |servers, width| Config { strict: true, ..Config::of(servers, width) };
    holds(rows, "2 strict: loss", false, Config { loss: 1, ..strict(2, 2) });
    holds(rows, "2 strict: expiry", false, Config { expire: true, ..strict(2, 2) });
    holds(rows, "3 tied 2 strict: Busy, named by all", false, Config { busy: 1, stranger: 1, ..strict(3, 2) });
    holds(rows, "3 tied 3 strict: loss", false, Config { loss: 1, ..strict(3, 3) });
    holds(rows, "3 tied 3 strict: expiry", true, Config { expire: true, ..strict(3, 3) });
}

fn planted_in_the_server(rows: &mut Vec<Row>) {
    use Planted::*;
    use Property::*;
    let two = || Config::of(2, 2);
    let lost: &[Property] = &[P3, P2b];
    finds(rows, "V1 a waiting chunk counts as queued", lost, ChunkCountsAsQueued, Config { chunks: true, ..two() });
    finds(
        rows,
        "V7 set aside for ever",
        &[P2b],
        AsideForever,
        Config { lag: Lag::OnlyLastServes, ..Config::of(3, 2) },
    );
    finds(
        rows,
        "V7 set aside for ever, untied",
        &[P2b],
        AsideForever,
        Config { lag: Lag::OnlyLastServes, ..Config::of(3, 1) },
    );
    finds(rows, "V8 expired in silence", &[P2b], SilentExpired, Config { wrong_clock: 2, ..Config::of(3, 2) });
    finds(rows, "V12 no cancel back", &[P5], NoCancelBack, Config { loss: 1, strict: true, ..two() });
    finds(rows, "V13 one slot per tie", &[P5], OneEarlySlot, Config { stranger: 1, ..two() });
    finds(rows, "V13 early cancels not judged", &[P3], EarlyNotJudged, Config { stranger: 1, ..two() });
    finds(rows, "V14 a withdraw overtakes its copy", &[PW], WithdrawOvertakes, Config { drop: 1, ..two() });
    finds(rows, "R15 arrival in two steps", &[P5], SplitArrival, two());
    finds(rows, "running yields to any cancel", lost, YieldsToAny, two());
    finds(
        rows,
        "cancel before the servable check",
        &[P7, P3],
        CancelBeforeServable,
        Config { lag: Lag::Any, ..two() },
    );
    finds(rows, "a cancel counts from anyone", &[P3], AnybodyCancels, Config { stranger: 1, ..two() });
    finds(rows, "early cancels are not kept", &[P5], NoEarlyCancels, Config { strict: true, ..two() });
    finds(rows, "a start cancels nobody", &[P5], StartWithoutCancel, two());
    let leak = Config { connection_loss: 1, lag: Lag::OnlyLastServes, ..two() };
    finds(rows, "copies set aside outlive their connection", &[P4], AsideLeaks, leak);
}

fn planted_in_the_client(rows: &mut Vec<Row>) {
    use Planted::*;
    use Property::*;
    let two = || Config::of(2, 2);
    let three = || Config::of(3, 2);
    let lost: &[Property] = &[P2a, P2b];
    finds(rows, "V2 left = without a copy", lost, OnlyReplicasWithoutCopy, Config { fail: 1, ..two() });
    finds(rows, "V3 fail-over is paid", lost, FailOverIsPaid, Config { fail: 1, ..two() });
    finds(
        rows,
        "V3 fail-over is paid, 1 token",
        lost,
        FailOverIsPaid,
        Config { fail: 1, crash: 1, tokens: 1, ..three() },
    );
    finds(rows, "V4 failure told by its code", &[P2b], FailureLooksLikeRefusal, Config { fail: 1, ..two() });
    finds(
        rows,
        "V5 sent again under its old tie",
        &[PX, P2b, P3],
        SameTieIdAgain,
        Config { connection_loss: 1, ..three() },
    );
    finds(rows, "V6 two reads, one tie id", &[PX, P2b, P3], SameTieIdForTwoReads, Config { reads: 2, ..two() });
    finds(rows, "V7 no estimate, no copy 1", &[P2b], NoNextCopy, Config { hang: 1, ..two() });
    finds(rows, "V9 a hung winner and no token", &[P2b], RescueToFirst, Config { hang: 1, rescue: true, ..two() });
    finds(
        rows,
        "V9 rescues go to the winner",
        &[P2b],
        RescueToFirst,
        Config { hang: 1, rescue: true, tokens: 1, ..two() },
    );
    let again = Config { fail: 1, busy: 1, tokens: 5, forgiving: true, ..two() };
    finds(rows, "V10 a refusal is for good", lost, RefusedForGood, again);
    finds(
        rows,
        "V11 replacements are named by nobody",
        &[P5],
        OnlyPlannedNamed,
        Config { busy: 1, strict: true, ..three() },
    );
    finds(rows, "a rescue with the tie's id", &[PX], RescueInTie, Config { rescue: true, tokens: 2, ..two() });
}
