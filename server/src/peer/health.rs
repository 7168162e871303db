//! Pure: is the cancel channel to one peer usable, and how long does a cancel fly to it? Fed with pings and their
//! echoes; knows no socket and no clock.
//!
//! The flight of a cancel is half of a ping's round trip less what the peer held it. QUIC's own estimate is not
//! used: for datagrams sent rarely it holds the peer's ack delay (25 ms) and was 15 times too high.
//!
//! A channel is usable while pings are echoed and the recent flight is below `max(S / 10, 4 x the usual flight)`
//! (S: service time). "Usual" is a low quantile over a minute, so that a slow spell does not become usual.

use std::collections::VecDeque;
use std::time::Duration;
use tiedkv_protocol::moment::Moment;

/// Flights that "usual" is taken from: about a minute of pings at 100 ms.
const USUAL_WINDOW: usize = 600;
/// Flights that "recent" is taken from.
const RECENT_WINDOW: usize = 5;
/// Pings that may be under way; older ones count as lost.
const PINGS_UNDER_WAY_MAX: usize = 16;
/// Pings of the last [`PING_WINDOW`] that may be lost before the channel counts as down.
const LOST_MAX: u32 = 4;
/// So many lost pings in a row mean that it is down.
const LOST_IN_A_ROW: u32 = 3;
/// Pings that losses are counted over; at most 32 (bits of a word).
const PING_WINDOW: u32 = 10;
/// Pauses between pings after which an unanswered one counts as lost.
const LOST_AFTER_PINGS: u32 = 2;
/// Below this a flight is never "slow": scheduling noise of a busy machine.
const SLOW_FLOOR: Duration = Duration::from_micros(200);
/// Without an echo for this long (and [`PING_WINDOW`] pings) the connection is given up and dialled anew: QUIC's own
/// idle limit is longer, and a peer that was killed and restarted does not know the old one.
const SILENCE_MAX: Duration = Duration::from_secs(1);

/// The cancel channel to one peer, as its pings show it.
#[derive(Debug)]
pub struct PairHealth {
    ping_pause: Duration,
    connected: bool,
    next_nonce: u64,
    under_way: VecDeque<(u64, Moment)>,
    /// One bit per finished ping, newest lowest: 1 = lost. Starts as "all lost": unknown is not usable.
    lost: u32,
    heard: Moment,
    flights: VecDeque<Duration>,
}

impl PairHealth {
    /// A channel that is not connected yet; pings will be `ping_pause` apart.
    pub fn new(ping_pause: Duration) -> Self {
        Self {
            ping_pause,
            connected: false,
            next_nonce: 1,
            under_way: VecDeque::new(),
            lost: u32::MAX,
            heard: Moment::ZERO,
            flights: VecDeque::new(),
        }
    }

    /// The channel was connected: judged by its echoes from now on, starting from one.
    pub fn connected(&mut self, now: Moment) {
        self.connected = true;
        self.heard = now;
        self.under_way.clear();
        self.lost = u32::MAX;
    }

    /// The channel is gone.
    pub fn disconnected(&mut self) {
        self.connected = false;
        self.under_way.clear();
    }

    /// A ping leaves now; its nonce.
    pub fn ping(&mut self, now: Moment) -> u64 {
        self.expire(now);
        if self.under_way.len() == PINGS_UNDER_WAY_MAX {
            self.under_way.pop_front();
            self.note(true);
        }
        let nonce = self.next_nonce;
        self.next_nonce += 1;
        self.under_way.push_back((nonce, now));
        nonce
    }

    /// An echo arrived; unknown and late ones are ignored.
    pub fn pong(&mut self, nonce: u64, held: Duration, now: Moment) {
        let Some(index) = self.under_way.iter().position(|(sent, _)| *sent == nonce) else { return };
        let Some((_, sent)) = self.under_way.remove(index) else { return };
        if !self.connected {
            return;
        }
        // The first echo after a connection clears the unknown past.
        if self.lost == u32::MAX {
            self.lost = 0;
        }
        self.note(false);
        self.heard = now;
        self.flights.push_back(now.since(sent).saturating_sub(held) / 2);
        if self.flights.len() > USUAL_WINDOW {
            self.flights.pop_front();
        }
    }

    /// May cancels be relied on now, for operations that take about `service`? Call at least once per pause.
    pub fn usable(&mut self, service: Duration, now: Moment) -> bool {
        self.expire(now);
        let many = (self.lost & mask(PING_WINDOW)).count_ones() > LOST_MAX;
        if !self.connected || many || self.lost & mask(LOST_IN_A_ROW) == mask(LOST_IN_A_ROW) {
            return false;
        }
        match (self.recent_flight(), self.usual_flight()) {
            (Some(recent), Some(usual)) => recent <= (service / 10).max(usual * 4).max(SLOW_FLOOR),
            _ => false,
        }
    }

    /// Is the connection better given up?
    pub fn is_silent(&self, now: Moment) -> bool {
        self.connected && now.since(self.heard) > SILENCE_MAX.max(self.ping_pause * PING_WINDOW)
    }

    /// What a cancel usually flies: the tenth percentile of a minute. `None` while unknown.
    pub fn usual_flight(&self) -> Option<Duration> {
        quantile(self.flights.iter().copied(), 0.10)
    }

    /// What cancels flew lately: the median of the last few. `None` while unknown.
    pub fn recent_flight(&self) -> Option<Duration> {
        quantile(self.flights.iter().rev().take(RECENT_WINDOW).copied(), 0.50)
    }

    /// A quantile (0.0 to 1.0) of the last minute's flights, for reports.
    pub fn flight_quantile(&self, share: f64) -> Option<Duration> {
        quantile(self.flights.iter().copied(), share)
    }

    fn expire(&mut self, now: Moment) {
        let limit = self.ping_pause * LOST_AFTER_PINGS;
        while let Some((_, sent)) = self.under_way.front() {
            if now.since(*sent) < limit {
                break;
            }
            self.under_way.pop_front();
            self.note(true);
        }
    }

    fn note(&mut self, lost: bool) {
        self.lost = self.lost << 1 | u32::from(lost);
    }
}

fn mask(bits: u32) -> u32 {
    (1 << bits) - 1
}

fn quantile(values: impl Iterator<Item = Duration>, share: f64) -> Option<Duration> {
    let mut values: Vec<Duration> = values.collect();
    if values.is_empty() {
        return None;
    }
    let index = ((values.len() - 1) as f64 * share.clamp(0.0, 1.0)).round() as usize;
    Some(*values.select_nth_unstable(index).1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSE: Duration = Duration::from_millis(100);
    const SERVICE: Duration = Duration::from_millis(5);

    struct Channel {
        health: PairHealth,
        now: Moment,
    }

    impl Channel {
        fn new() -> Self {
            let mut health = PairHealth::new(PAUSE);
            health.connected(Moment::ZERO);
            Self { health, now: Moment::ZERO }
        }

        /// One ping per pause, each echoed after `flight` both ways (`None`: lost).
        fn run(&mut self, pings: usize, flight: Option<Duration>) -> bool {
            for _ in 0..pings {
                let nonce = self.health.ping(self.now);
                if let Some(flight) = flight {
                    let held = Duration::from_micros(30);
                    self.health.pong(nonce, held, self.now + flight * 2 + held);
                }
                self.now = self.now + PAUSE;
            }
            self.health.usable(SERVICE, self.now)
        }
    }

    const FLIGHT: Option<Duration> = Some(Duration::from_micros(80));

    #[test]
    fn unknown_is_not_usable_and_one_echo_makes_it_so() {
        let mut channel = Channel::new();
        assert!(!channel.health.usable(SERVICE, channel.now));
        assert!(channel.run(1, FLIGHT));
        assert_eq!(channel.health.usual_flight(), FLIGHT);
    }

    #[test]
    fn silence_is_noticed_within_a_second_and_forgiven_after_it_ends() {
        let mut channel = Channel::new();
        assert!(channel.run(50, FLIGHT));
        let pings = (1..=10).find(|_| !channel.run(1, None)).unwrap();
        assert!(pings <= 5, "noticed after {pings} pings");
        channel.run(20, None);
        assert!(!channel.run(2, FLIGHT), "two echoes after a long silence");
        assert!(channel.run(10, FLIGHT));
    }

    #[test]
    fn a_connection_without_echoes_is_given_up_after_a_second() {
        let mut channel = Channel::new();
        channel.run(10, FLIGHT);
        channel.run(9, None);
        assert!(!channel.health.is_silent(channel.now));
        channel.run(2, None);
        assert!(channel.health.is_silent(channel.now));
        channel.health.disconnected();
        assert!(!channel.health.is_silent(channel.now));
    }

    #[test]
    fn a_few_losses_are_no_reason() {
        let mut channel = Channel::new();
        for _ in 0..20 {
            assert!(channel.run(3, FLIGHT));
            assert!(channel.run(1, None));
        }
    }

    #[test]
    fn slow_is_measured_against_service_time_and_what_is_usual() {
        let mut channel = Channel::new();
        channel.run(100, FLIGHT);
        assert!(channel.run(10, Some(Duration::from_micros(450))), "below a tenth of the service time");
        assert!(!channel.run(10, Some(Duration::from_micros(800))), "above both");
        let mut far = Channel::new();
        far.run(100, Some(Duration::from_millis(1)));
        assert!(far.run(10, Some(Duration::from_millis(3))), "below four times the usual");
        assert!(!far.run(10, Some(Duration::from_millis(5))));
    }

    #[test]
    fn a_slow_spell_does_not_become_usual() {
        let mut channel = Channel::new();
        channel.run(100, FLIGHT);
        assert!(!channel.run(400, Some(Duration::from_millis(2))));
        assert!(channel.run(5, FLIGHT));
    }

    #[test]
    fn a_lost_connection_is_not_usable_until_its_successor_echoes() {
        let mut channel = Channel::new();
        channel.run(10, FLIGHT);
        let late = channel.health.ping(channel.now);
        channel.health.disconnected();
        assert!(!channel.health.usable(SERVICE, channel.now));
        channel.health.connected(channel.now);
        channel.health.pong(late, Duration::ZERO, channel.now);
        assert!(!channel.health.usable(SERVICE, channel.now), "an echo of the former connection");
        assert!(channel.run(1, FLIGHT));
    }
}
