//! Processor time of this process and of others: read from the system, in microseconds.

use std::time::Duration;

/// Ticks per second of the times in `/proc`: `USER_HZ`, which Linux has fixed at 100 for user space.
const TICKS_PER_S: u64 = 100;

/// Processor time (user and system) of this process so far, all threads.
pub fn own() -> Duration {
    of_file("/proc/self/stat").unwrap_or_default()
}

/// Processor time (user and system) of process `pid` so far; `None` if it is gone.
pub fn of(pid: u32) -> Option<Duration> {
    of_file(&format!("/proc/{pid}/stat"))
}

fn of_file(path: &str) -> Option<Duration> {
    parse(&std::fs::read_to_string(path).ok()?, TICKS_PER_S)
}

// Fields 14 and 15 of proc(5) `stat`; the second field is the name in parentheses and may hold anything.
fn parse(stat: &str, ticks_per_s: u64) -> Option<Duration> {
    let mut fields = stat[stat.rfind(')')? + 1..].split_ascii_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(Duration::from_micros((user + system).checked_mul(1_000_000)? / ticks_per_s.max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_does_not_shift_the_fields() {
        let stat = "12 (a) b (c)) S 1 2 3 4 5 6 7 8 9 10 150 50 0 0 20 0";
        assert_eq!(parse(stat, 100), Some(Duration::from_secs(2)));
    }

    #[test]
    fn own_time_is_readable_and_a_missing_process_has_none() {
        assert!(of(std::process::id()).is_some());
        assert_eq!(of(u32::MAX), None);
    }
}
