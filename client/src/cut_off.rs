//! Why a node gave this client's connection up, in words that name the limit: also when the node's own words cannot
//! arrive, because nothing was taken from the network meanwhile.
//!
//! A process that stands still (suspended, or with its runtime blocked) acknowledges nothing, so a node forgets the
//! connection after the idle limit; whatever it says then is lost with the rest. What came of that is told by this room
//! from what the client itself knows. It closes nothing.

use std::time::Duration;
use tiedkv_protocol::moment::Moment;

/// A connection on which nothing is heard for this long is lost, on both sides.
pub(crate) const IDLE_MAX: Duration = Duration::from_secs(5);
/// Turns of the watch that are later than this mean that the process stood still.
const STANDSTILL: Duration = Duration::from_secs(2);
/// A connection that is lost this soon after the process stood still is lost for that.
const AFTERWARDS: Duration = Duration::from_secs(10);
/// Every reason of this room begins with it; see [`is_cut_off`].
const CUT_OFF: &str = "cut off: ";
/// A node's code of a close at a bound (`CLOSE_OVER_LIMIT` of the server).
const CLOSE_OVER_LIMIT: u32 = 4;

/// When the watch over a connection had its turns.
#[derive(Debug)]
pub(crate) struct Turns {
    last: Moment,
    /// When the process went on after it stood still, and for how long it had.
    stood: Option<(Moment, Duration)>,
}

impl Turns {
    pub(crate) fn new(now: Moment) -> Self {
        Self { last: now, stood: None }
    }

    /// The watch has its turn.
    pub(crate) fn turn(&mut self, now: Moment) {
        let late = now.since(self.last);
        if late >= STANDSTILL {
            self.stood = Some((now, late));
        }
        self.last = now;
    }

    /// For how long the process stood still, now or just before.
    pub(crate) fn stood_still(&self, now: Moment) -> Duration {
        let before =
            self.stood.filter(|(at, _)| now.since(*at) < AFTERWARDS).map_or(Duration::ZERO, |(_, long)| long);
        before.max(now.since(self.last))
    }
}

/// The reason of a connection's end; `late` is for how long the process stood still.
pub(crate) fn describe(end: &quinn::ConnectionError, late: Duration) -> String {
    use quinn::ConnectionError as End;
    match end {
        End::ApplicationClosed(close) => {
            let reason = String::from_utf8_lossy(&close.reason);
            match close.error_code == quinn::VarInt::from_u32(CLOSE_OVER_LIMIT) {
                true => format!("{CUT_OFF}{reason}"),
                false => format!("closed by the node: {reason}"),
            }
        }
        End::Reset | End::TimedOut if late >= STANDSTILL => format!(
            "{CUT_OFF}this client took nothing for {late:.1?}; a connection on which nothing is heard for {IDLE_MAX:?} is \
             given up"
        ),
        End::Reset => format!(
            "{CUT_OFF}the node no longer knows the connection: it began anew, or heard nothing for {IDLE_MAX:?}, or \
             closed it at a bound that it could not tell"
        ),
        other => other.to_string(),
    }
}

/// Whether a reason says that the node gave the connection up because of this client.
pub(crate) fn is_cut_off(reason: &str) -> bool {
    reason.starts_with(CUT_OFF)
}

#[cfg(test)]
mod tests {
    use super::*;
    use quinn::{ApplicationClose, ConnectionError as End, VarInt};

    #[test]
    fn each_way_of_being_cut_off_names_its_limit() {
        let closed = |code, reason: &'static str| {
            End::ApplicationClosed(ApplicationClose { error_code: VarInt::from_u32(code), reason: reason.into() })
        };
        let over = describe(&closed(4, "answers are not read: more than 64 bytes wait"), Duration::ZERO);
        assert_eq!(over, "cut off: answers are not read: more than 64 bytes wait");
        let stood = describe(&End::Reset, Duration::from_millis(7_250));
        assert!(stood.contains("took nothing for 7.2s") && stood.contains("for 5s is given up"), "{stood}");
        assert!(is_cut_off(&over) && is_cut_off(&stood) && is_cut_off(&describe(&End::Reset, Duration::ZERO)));
        for other in [closed(1, "the node is stopping"), closed(0, "")] {
            assert!(!is_cut_off(&describe(&other, Duration::from_secs(9))));
        }
        let mut turns = Turns::new(Moment(0));
        let after = |ms: u64| Moment(0) + Duration::from_millis(ms);
        turns.turn(after(50));
        assert_eq!(turns.stood_still(after(120)), Duration::from_millis(70));
        turns.turn(after(7_050));
        turns.turn(after(7_100));
        assert_eq!(turns.stood_still(after(7_101)), Duration::from_secs(7));
        assert!(turns.stood_still(after(60_000)) >= STANDSTILL, "still again");
        turns.turn(after(60_000));
        turns.turn(after(75_000 + 1));
        turns.turn(after(75_050));
        assert_eq!(turns.stood_still(after(75_060)), Duration::from_millis(15_001));
        // A node that is silent while this client watches is not this client's fault.
        assert!(!is_cut_off(&describe(&End::TimedOut, Duration::from_millis(80))));
    }
}
