//! How many handshakes an address may begin: a bucket of tokens per address, so that a stranger's handshakes, which cost
//! signatures on a thread with real-time priority, take a bounded share of it. Pure: no socket, no clock.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;
use tiedkv_protocol::moment::Moment;

/// Handshakes that an address may begin at once.
const BURST: u32 = 32;
/// Time after which it may begin one more.
const REFILL: Duration = Duration::from_millis(50);
/// Addresses remembered; a newcomer beyond is refused until one of them has been quiet.
const ADDRESSES_MAX: usize = 1024;

/// The buckets of all addresses that were seen lately.
#[derive(Debug, Default)]
pub struct AddressRates {
    /// When the bucket of an address will be full again.
    full_at: HashMap<IpAddr, Moment>,
}

impl AddressRates {
    /// Takes a token of `address`; false if it has none.
    pub fn take(&mut self, address: IpAddr, now: Moment) -> bool {
        if self.full_at.len() >= ADDRESSES_MAX && !self.full_at.contains_key(&address) {
            self.full_at.retain(|_, full_at| *full_at > now);
            if self.full_at.len() >= ADDRESSES_MAX {
                return false;
            }
        }
        let full_at = self.full_at.entry(address).or_insert(now);
        let next = (*full_at).max(now) + REFILL;
        if next > now + REFILL * BURST {
            return false;
        }
        *full_at = next;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn address(number: u32) -> IpAddr {
        Ipv4Addr::from(number).into()
    }

    fn taken(rates: &mut AddressRates, from: IpAddr, now: Moment) -> usize {
        (0..1000).filter(|_| rates.take(from, now)).count()
    }

    #[test]
    fn an_address_has_a_burst_and_then_a_rate_of_its_own() {
        let (mut rates, now) = (AddressRates::default(), Moment(1_000_000_000));
        assert_eq!(taken(&mut rates, address(1), now), BURST as usize);
        assert_eq!(taken(&mut rates, address(2), now), BURST as usize, "another one is not held back");
        assert_eq!(taken(&mut rates, address(1), now + REFILL * 3), 3);
        assert_eq!(taken(&mut rates, address(1), now + REFILL * 10 * BURST), BURST as usize);
    }

    #[test]
    fn addresses_are_bounded_and_quiet_ones_forgotten() {
        let (mut rates, now) = (AddressRates::default(), Moment(1_000_000_000));
        assert!((0..ADDRESSES_MAX as u32).all(|number| rates.take(address(number), now)));
        assert!(!rates.take(address(1 << 20), now), "one too many");
        assert!(rates.take(address(0), now), "known ones go on");
        assert!(rates.take(address(1 << 20), now + REFILL * 2));
        assert!(rates.full_at.len() <= 2);
    }
}
