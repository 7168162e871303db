//! What can be typed after the commands for many keys: ranges, scans, counts, export and import. Parses, decides
//! nothing.

use crate::args::Connect;
use clap::Args;
use std::path::PathBuf;

/// Which keys.
#[derive(Clone, Debug, Default, Args)]
pub struct Range {
    /// Keys that begin with this; an empty one begins every key
    #[arg(long, value_name = "PREFIX", conflicts_with_all = ["from", "to"])]
    pub prefix: Option<String>,
    /// From this key on
    #[arg(long, value_name = "KEY")]
    pub from: Option<String>,
    /// Up to this key, without it
    #[arg(long, value_name = "KEY")]
    pub to: Option<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tiedkv mget --cluster \"$URL\" user/1 user/2 user/3
  tiedkv scan --cluster \"$URL\" --prefix user/ --keys-only | tiedkv mget --cluster \"$URL\" -
  tiedkv mget --cluster \"$URL\" a b c --partial 0.6 --by 50ms     what is there after 50 ms, if it is enough

Prints one line per key, in the order asked for: key and value in the form that can be pasted
back (table), one JSON object (json), or the value's bytes and a line end (raw). A key that is
absent, or was not answered in a partial answer, is said to be so, and the command ends with 1.")]
pub struct MultiGet {
    #[command(flatten)]
    pub connect: Connect,
    /// The keys; - reads them from standard input, one per line
    #[arg(required = true)]
    pub keys: Vec<String>,
    /// Take an answer without all keys: from --by on this share of them is enough
    #[arg(long, value_name = "SHARE", requires = "by")]
    pub partial: Option<f64>,
    /// From when on a part is enough: 50ms
    #[arg(long, value_name = "SPAN", requires = "partial")]
    pub by: Option<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tiedkv scan --cluster \"$URL\" --prefix user/ --limit 10
  tiedkv scan --cluster \"$URL\" --from a --to b --reverse --keys-only
  tiedkv scan --cluster \"$URL\" --prefix user/ -o json | jq .key
  tiedkv scan --cluster \"$URL\" --resume \"$TOKEN\" --limit 10 --token     the next ten

Prints one line per key, in order: key and value in the form that can be pasted back (table),
one JSON object (json), or the value's bytes, or the key's with --keys-only, and a line end
(raw).")]
pub struct Scan {
    #[command(flatten)]
    pub connect: Connect,
    #[command(flatten)]
    pub range: Range,
    /// From the greatest key downwards
    #[arg(long)]
    pub reverse: bool,
    /// Without values
    #[arg(long)]
    pub keys_only: bool,
    /// At most so many keys; with --reverse the greatest
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,
    /// Go on where another scan ended: its token; range and order are the token's, and what is left of its limit unless
    /// --limit is given
    #[arg(long, value_name = "TOKEN", conflicts_with_all = ["prefix", "from", "to", "reverse", "keys_only"])]
    pub resume: Option<String>,
    /// Say on standard error where a later scan goes on
    #[arg(long)]
    pub token: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tiedkv count --cluster \"$URL\"
  tiedkv count --cluster \"$URL\" --prefix user/")]
pub struct Count {
    #[command(flatten)]
    pub connect: Connect,
    #[command(flatten)]
    pub range: Range,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tiedkv export --cluster \"$URL\" > all.jsonl
  tiedkv export --cluster \"$URL\" --prefix user/ users.jsonl
  tiedkv export --cluster \"$URL\" --resume users.jsonl    go on after the last whole line of the file

One JSON object per line, see docs/data-model.md; the last line says how many there are.")]
pub struct Export {
    #[command(flatten)]
    pub connect: Connect,
    #[command(flatten)]
    pub range: Range,
    /// Where to; without it, or with -, standard output
    pub file: Option<PathBuf>,
    /// Keep what the file holds and go on behind its last whole line
    #[arg(long, requires = "file")]
    pub resume: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tiedkv import --cluster \"$URL\" users.jsonl
  zcat users.jsonl.gz | tiedkv import --cluster \"$URL\"
  tiedkv import --cluster \"$URL\" --skip 120000 users.jsonl    go on behind 120,000 lines

Takes what export writes. A key that is present is overwritten, so importing again does no harm;
an import that fails says how many lines to skip.")]
pub struct Import {
    #[command(flatten)]
    pub connect: Connect,
    /// From where; without it, or with -, standard input
    pub file: Option<PathBuf>,
    /// Lines to pass over, as an import that failed said
    #[arg(long, value_name = "LINES", default_value_t = 0)]
    pub skip: u64,
    /// Batches that are out at the same time
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub concurrency: u32,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tiedkv completions bash > /etc/bash_completion.d/tiedkv
  tiedkv completions zsh > \"${fpath[1]}/_tiedkv\"
  tiedkv completions fish > ~/.config/fish/completions/tiedkv.fish")]
pub struct Completions {
    /// For which shell
    pub shell: clap_complete::Shell,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tiedkv ttl --cluster \"$URL\" lease               what it has left, or never
  tiedkv ttl --cluster \"$URL\" lease --set 30s     it expires after 30 s from now
  tiedkv ttl --cluster \"$URL\" lease --never       it does not expire

Ends with 1 if the key is absent.")]
pub struct Ttl {
    #[command(flatten)]
    pub connect: Connect,
    /// The key
    pub key: String,
    /// It expires after this time from now on; its value and version stay
    #[arg(long, value_name = "SPAN", conflicts_with = "never")]
    pub set: Option<String>,
    /// It does not expire
    #[arg(long)]
    pub never: bool,
    /// As for put; with --set or --never
    #[arg(long, value_name = "KEY")]
    pub idempotency_key: Option<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tiedkv incr --cluster \"$URL\" visits
  tiedkv incr --cluster \"$URL\" stock -3 -o raw

An absent key is 0. A value that is no 64-bit number, or would not be one, is an error and stays
as it is.")]
pub struct Incr {
    #[command(flatten)]
    pub connect: Connect,
    /// The key
    pub key: String,
    /// What is added
    #[arg(default_value_t = 1, allow_negative_numbers = true)]
    pub by: i64,
    /// As for put
    #[arg(long, value_name = "KEY")]
    pub idempotency_key: Option<String>,
}
