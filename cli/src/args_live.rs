//! What can be typed after the commands that stay: the shell and the live view of latencies. Parses, decides nothing.

use crate::args::Connect;
use clap::Args;
use std::path::PathBuf;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tiedkv shell --cluster \"$URL\"
  printf 'put a 1\\nincr a\\nget a\\n' | tiedkv shell --cluster \"$URL\"

In the shell: the commands of tiedkv without `tiedkv` and --cluster; help, exit. Words are
separated by spaces; '...' and \"...\" keep spaces; a backslash begins an escape of a key or value,
also within quotes. All lines are one session: each sees what those before it wrote. A line that
begins with a space is not kept in the history.

Without a terminal it reads lines and stops at the first that ends with 2 or more, with its exit
code. Lines that begin with # are passed over.")]
pub struct Shell {
    #[command(flatten)]
    pub connect: Connect,
    /// Where lines are kept; without it $XDG_STATE_HOME/tiedkv-history or ~/.tiedkv-history
    #[arg(long, value_name = "FILE")]
    pub history: Option<PathBuf>,
    /// Keep no lines
    #[arg(long, conflicts_with = "history")]
    pub no_history: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tiedkv watch-latency --cluster \"$URL\"
  tiedkv watch-latency --cluster \"$URL\" --count 1 --interval 5s -o json | jq '.replicas[].p99_us'
  tiedkv watch-latency --cluster \"$URL\" --duration 60s > latency.log

Reads one key from every replica at a fixed rate, untied and stale, and shows how long that took
from the planned send on. On a terminal the table is drawn again in place; elsewhere each look
is printed below the one before, or is one line of JSON (-o json). NO_COLOR is obeyed. Ends with
3 if no replica ever answered.")]
pub struct WatchLatency {
    #[command(flatten)]
    pub connect: Connect,
    /// The key to read; it need not exist
    #[arg(long, value_name = "KEY", default_value = "tiedkv/watch-latency")]
    pub key: String,
    /// Reads per second of each replica
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub rate: u32,
    /// Time between two looks
    #[arg(long, value_name = "SPAN", default_value = "1s")]
    pub interval: String,
    /// Reads that are looked at: those of this time
    #[arg(long, value_name = "SPAN", default_value = "10s")]
    pub window: String,
    /// Ends after so many looks
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// Ends after this time
    #[arg(long, value_name = "SPAN")]
    pub duration: Option<String>,
}
