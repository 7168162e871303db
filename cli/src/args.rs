//! What can be typed: commands, flags and their help. Parses, decides nothing.

use crate::args_data::{Completions, Count, Export, Import, Incr, MultiGet, Range, Scan, Ttl};
use crate::args_live::{Shell, WatchLatency};
use crate::bench_args::Bench;
use crate::start::NodeFlags;
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;
use std::str::FromStr;
use tiedkv_benches::scenes::{BadScene, DEMO, Scene};
use tiedkv_client::Client;

/// A replicated key-value store that keeps reads fast when its machines are busy.
#[derive(Debug, Parser)]
#[command(name = "tiedkv", version = env!("BUILT_VERSION"), override_help = crate::help::SCREEN, after_help = crate::help::AFTER)]
#[command(arg_required_else_help = true)]
pub struct Cli {
    /// How results and errors are written: json, table or raw; the default depends on the command
    #[arg(short = 'o', long = "output", value_name = "FORM", global = true, value_enum, env = "TIEDKV_OUTPUT")]
    #[arg(hide_possible_values = true, hide_env = true)]
    pub output: Option<Format>,
    #[command(subcommand)]
    pub command: Command,
}

/// How results and errors are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// One JSON document
    Json,
    /// For people
    Table,
    /// The value's bytes, nothing else
    Raw,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Start three servers on this machine and show what tied reads do while they are busy
    Demo(Demo),
    /// Run a node until SIGTERM or SIGINT
    Start(Start),
    /// Make the certificates of a cluster, or add to them
    Certs(Certs),
    /// Print the value of a key
    Get(Get),
    /// Print the values of many keys
    Mget(MultiGet),
    /// Set a key to the argument or to standard input
    Put(Put),
    /// Set or remove a key if it is as expected
    Cas(Cas),
    /// Remove a key, or all keys of a range
    Del(Del),
    /// Add to a number
    Incr(Incr),
    /// Print or set when a key expires
    Ttl(Ttl),
    /// Print the keys of a range in order
    Scan(Scan),
    /// Count the keys of a range
    Count(Count),
    /// Write the rows of a range as JSON lines
    Export(Export),
    /// Put the rows of an export
    Import(Import),
    /// What every node says about itself
    Status(Status),
    /// Whether every node answers
    Health(Health),
    /// Reads that took long: their copies on all nodes, and who cancelled whom
    Slow(Slow),
    /// Watch how long reads of every replica take
    WatchLatency(WatchLatency),
    /// Type commands over one connection
    Shell(Shell),
    /// Who belongs to the cluster; changing that needs an operator's certificate
    Member(Member),
    /// How far clients may use read policies, and which nodes are out for reads
    Policy(Policy),
    /// Print the completions of a shell
    Completions(Completions),
    /// Print the man page
    #[command(after_help = "Example:\n  tiedkv man > /usr/local/share/man/man1/tiedkv.1")]
    Man,
    /// Measure a running cluster
    #[command(subcommand)]
    Bench(Bench),
}

impl Command {
    /// Which cluster it is for, if it connects to one.
    pub fn connect_mut(&mut self) -> Option<&mut Connect> {
        match self {
            Self::Demo(_)
            | Self::Start(_)
            | Self::Certs(_)
            | Self::Bench(Bench::Busy(_) | Bench::Writes(_) | Bench::Data(_) | Bench::Levels(_)) => None,
            Self::Completions(_) | Self::Man => None,
            Self::Incr(args) => Some(&mut args.connect),
            Self::Ttl(args) => Some(&mut args.connect),
            Self::Scan(args) => Some(&mut args.connect),
            Self::Count(args) => Some(&mut args.connect),
            Self::Export(args) => Some(&mut args.connect),
            Self::Import(args) => Some(&mut args.connect),
            Self::Mget(args) => Some(&mut args.connect),
            Self::WatchLatency(args) => Some(&mut args.connect),
            Self::Shell(args) => Some(&mut args.connect),
            Self::Get(args) => Some(&mut args.connect),
            Self::Put(args) => Some(&mut args.connect),
            Self::Del(args) => Some(&mut args.connect),
            Self::Cas(args) => Some(&mut args.connect),
            Self::Status(args) => Some(&mut args.connect),
            Self::Health(args) => Some(&mut args.connect),
            Self::Slow(args) => Some(&mut args.connect),
            Self::Member(args) => Some(&mut args.connect),
            Self::Policy(args) => Some(&mut args.connect),
            Self::Bench(Bench::Run(args)) => Some(&mut args.connect),
            Self::Bench(Bench::Ping(args)) => Some(&mut args.connect),
        }
    }
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tiedkv demo --json demo.json
  tiedkv demo --scenes none --keep --device real")]
pub struct Demo {
    /// Also write the rows of the table to FILE
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// What reads wait for: a modelled device of 5 ms, or this machine (real needs --scenes none)
    #[arg(long, value_enum, default_value_t = Device::Modelled)]
    pub device: Device,
    /// Which scenes to play: all, none, or some of them in any order, such as idle-untied,busy-tied2
    #[arg(long, value_name = "SCENES", default_value = "all")]
    pub scenes: SceneList,
    /// Also print, per scene, where the time went
    #[arg(long)]
    pub details: bool,
    /// Leave the cluster up afterwards, print its URL and stay until SIGINT or SIGTERM
    #[arg(long)]
    pub keep: bool,
    /// Seconds of each scene, of which the first sixth is not counted
    #[arg(long, value_name = "SECONDS", default_value_t = 12, value_parser = clap::value_parser!(u32).range(2..=600))]
    pub seconds: u32,
    /// Settings of the client, as in a connection string: tie_floor=200us&tie_cap=200us
    #[arg(long, value_name = "SETTINGS", default_value = "")]
    pub client: String,
    /// Where the servers keep their data
    #[arg(long, value_enum, default_value_t = Storage::Disk)]
    pub storage: Storage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Device {
    /// As fast as the store
    Real,
    /// Every read waits for a drawn service time
    Modelled,
}

/// Scenes to play, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SceneList(pub Vec<Scene>);

impl FromStr for SceneList {
    type Err = BadScene;

    fn from_str(text: &str) -> Result<Self, BadScene> {
        match text {
            "all" => Ok(Self(DEMO.to_vec())),
            "none" => Ok(Self(Vec::new())),
            list => list.split(',').map(str::parse).collect::<Result<_, _>>().map(Self),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Storage {
    /// In memory, every node by itself
    Memory,
    /// On disk, replicated
    Disk,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tiedkv start --config node.toml
  tiedkv start --config node.toml --lanes 4 --print-config

A setting comes from its flag, else from the environment (TIEDKV_LANES), else from the file
(lanes = 4), else it has its default.")]
pub struct Start {
    /// Settings of the node (TOML)
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Print every setting with its source and default, and stop
    #[arg(long)]
    pub print_config: bool,
    /// Stop when standard input closes: a node that must not outlive its parent
    #[arg(long)]
    pub until_stdin_closes: bool,
    #[command(flatten)]
    pub settings: NodeFlags,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tiedkv certs --dir certs --nodes 1,2,3 --client app --operator ops
                                                 a new cluster: ca.pem, node-1.pem, ..., client.pem, operator.pem
  tiedkv certs --dir certs --add --nodes 4       a certificate for a fourth node
  tiedkv certs --dir certs --add --client web    one more client: web.pem; connect with certificate=web

A client reads, writes and looks at figures. Members, leadership and ceiling need an operator:
certificate=operator. No file is ever overwritten.")]
pub struct Certs {
    /// Where the files go
    #[arg(long, value_name = "DIR")]
    pub dir: PathBuf,
    /// Identities of the nodes
    #[arg(long, value_name = "ID,...", value_delimiter = ',')]
    pub nodes: Vec<u64>,
    /// Name of a client; writes client.pem and client.key (with --add: NAME.pem and NAME.key)
    #[arg(long, value_name = "NAME")]
    pub client: Option<String>,
    /// Name of an operator; writes operator.pem and operator.key (with --add: NAME.pem and NAME.key)
    #[arg(long, value_name = "NAME")]
    pub operator: Option<String>,
    /// Add to the cluster whose authority lies in DIR
    #[arg(long)]
    pub add: bool,
}

/// Which cluster, and how.
#[derive(Debug, Args)]
pub struct Connect {
    /// Connection string: tiedkv://HOST:PORT,.../?certs=DIR&read=session&deadline=500ms&policy=tied2
    #[arg(long, value_name = "URL", env = "TIEDKV_CLUSTER")]
    pub cluster: Option<String>,
    /// Print every setting of the client with its source and default, and stop
    #[arg(long)]
    pub print_config: bool,
    /// The client of the shell in which the command was typed.
    #[arg(skip)]
    pub shared: Option<Client>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tiedkv status --cluster \"$URL\"
  tiedkv status --cluster \"$URL\" -o json | jq '.nodes[].status.cancels'")]
pub struct Status {
    #[command(flatten)]
    pub connect: Connect,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tiedkv health --cluster \"$URL\"
  tiedkv health --cluster \"$URL\" -o json     exit code 3 unless every node answers")]
pub struct Health {
    #[command(flatten)]
    pub connect: Connect,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tiedkv slow --cluster \"$URL\"
  tiedkv slow --cluster \"$URL\" --last 1 -o json

A node keeps the newest copies that were with it for slow_read_us or longer. For one read, from
the client's side, see tiedkv get --explain.")]
pub struct Slow {
    #[command(flatten)]
    pub connect: Connect,
    /// How many reads
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub last: usize,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tiedkv get --cluster \"$URL\" greeting > value.bin
  tiedkv get --cluster \"$URL\" 'bytes\\x00in\\x20a key' -o json
  tiedkv get --cluster \"$URL\" greeting --explain     also says where its copies went and how they ended

A key may hold escapes: \\\\ \\n \\r \\t \\xNN. JSON prints keys and values in the same form.")]
pub struct Get {
    #[command(flatten)]
    pub connect: Connect,
    /// The key
    pub key: String,
    /// Also say, on standard error (with -o json in the document), where copies went, how long each waited and was
    /// served, and who cancelled whom
    #[arg(long)]
    pub explain: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tiedkv put --cluster \"$URL\" greeting hello
  tiedkv put --cluster \"$URL\" photo < photo.jpg
  tiedkv put --cluster \"$URL\" greeting hello --idempotency-key 5eed.8.0     the same intent twice is done once
  tiedkv put --cluster \"$URL\" lease me --ttl 30s

Key and value arguments may hold escapes: \\\\ \\n \\r \\t \\xNN. Standard input is taken byte
for byte.")]
pub struct Put {
    #[command(flatten)]
    pub connect: Connect,
    /// The key
    pub key: String,
    /// The value; without it, standard input is the value
    pub value: Option<String>,
    /// It expires after this time: 500ms, 60s
    #[arg(long, value_name = "SPAN")]
    pub ttl: Option<String>,
    /// Names this intent, so that sending it again applies it once: CLIENT.SEQUENCE.FLOOR (hex, decimal, decimal)
    #[arg(long, value_name = "KEY")]
    pub idempotency_key: Option<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tiedkv cas --cluster \"$URL\" lock mine --absent          take it if nobody has it
  tiedkv cas --cluster \"$URL\" lock mine --absent --ttl 30s    as a lease: it is free again after 30 s
  tiedkv cas --cluster \"$URL\" lock --expect mine --delete give it back
  tiedkv cas --cluster \"$URL\" count 8 --version 4711      only if nobody has written since

Ends with 1 and prints what the key is if it is not as expected.")]
pub struct Cas {
    #[command(flatten)]
    pub connect: Connect,
    /// The key
    pub key: String,
    /// The new value; without it, standard input is the value
    #[arg(conflicts_with = "delete")]
    pub value: Option<String>,
    /// Only if the key is absent
    #[arg(long, group = "expectation")]
    pub absent: bool,
    /// Only if the key has exactly this value
    #[arg(long, value_name = "VALUE", group = "expectation")]
    pub expect: Option<String>,
    /// Only if the key's value has this version
    #[arg(long, value_name = "N", group = "expectation")]
    pub version: Option<u64>,
    /// Remove the key instead of setting it
    #[arg(long)]
    pub delete: bool,
    /// It expires after this time: 500ms, 60s
    #[arg(long, value_name = "SPAN", conflicts_with = "delete")]
    pub ttl: Option<String>,
    /// As for put
    #[arg(long, value_name = "KEY")]
    pub idempotency_key: Option<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tiedkv del --cluster \"$URL\" greeting
  tiedkv del --cluster \"$URL\" greeting --idempotency-key 5eed.7.0     the same intent twice is done once
  tiedkv del --cluster \"$URL\" --prefix user/")]
pub struct Del {
    #[command(flatten)]
    pub connect: Connect,
    /// The key
    #[arg(required_unless_present_any = ["prefix", "from", "to"], conflicts_with_all = ["prefix", "from", "to"])]
    pub key: Option<String>,
    #[command(flatten)]
    pub range: Range,
    /// As for put
    #[arg(long, value_name = "KEY")]
    pub idempotency_key: Option<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tiedkv member --cluster \"$URL\" list
  tiedkv member --cluster \"$URL&certificate=operator\" add --node 4 --address 10.0.0.4:7400 --zone b
  tiedkv member --cluster \"$URL&certificate=operator\" remove --node 2

All but list need an operator's certificate: tiedkv certs --operator NAME.")]
pub struct Member {
    #[command(flatten)]
    pub connect: Connect,
    #[command(subcommand)]
    pub command: MemberCommand,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tiedkv policy show
  tiedkv policy set --mode off                       no ties, no extra copies, from any client, within a second
  tiedkv policy set --mode on --share 0.05           on for one read in twenty, the others only observe
  tiedkv policy set --copies 2 --budget 0.02
  tiedkv policy eject --node 3                       reads ask node 3 last, from every client")]
pub struct Policy {
    #[command(flatten)]
    pub connect: Connect,
    #[command(subcommand)]
    pub command: PolicyCommand,
}

#[derive(Debug, Subcommand)]
pub enum PolicyCommand {
    /// Show the ceiling in force
    Show,
    /// Change the ceiling; what is not named stays
    Set(PolicySet),
    /// Take a node out for reads: it is asked last
    Eject {
        /// Its identity
        #[arg(long, value_name = "ID")]
        node: u64,
    },
    /// Put a node back for reads
    Restore {
        /// Its identity
        #[arg(long, value_name = "ID")]
        node: u64,
    },
}

#[derive(Debug, Args)]
#[group(required = true, multiple = true)]
pub struct PolicySet {
    /// off: untied, nothing extra; observe: decide and count only; on
    #[arg(long, value_name = "MODE")]
    pub mode: Option<String>,
    /// Most copies of a tie
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=3))]
    pub copies: Option<u8>,
    /// Most extra work, as a share of good answers; `own` leaves it to each client
    #[arg(long, value_name = "SHARE")]
    pub budget: Option<String>,
    /// With mode on: the share of reads to which it applies; the others observe
    #[arg(long, value_name = "SHARE")]
    pub share: Option<f64>,
}

#[derive(Debug, Subcommand)]
pub enum MemberCommand {
    /// Show all members
    List,
    /// Add a node that runs: first as a learner, and as a voter once it has caught up
    Add {
        /// Its identity
        #[arg(long, value_name = "ID")]
        node: u64,
        /// Its client port; the peer and cancel ports are the next two
        #[arg(long, value_name = "HOST:PORT")]
        address: String,
        /// Its failure domain
        #[arg(long, value_name = "NAME", default_value = "")]
        zone: String,
    },
    /// Remove a node
    Remove {
        /// Its identity
        #[arg(long, value_name = "ID")]
        node: u64,
    },
    /// Hand leadership over
    Lead {
        /// To this node; without it the leader chooses
        #[arg(long, value_name = "ID")]
        node: Option<u64>,
    },
}

#[cfg(test)]
#[path = "args_test.rs"]
mod tests;
