//! What can be typed: commands, flags and their help. Parses, decides nothing.

use crate::bench_args::Bench;
use crate::start::NodeFlags;
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;
use std::str::FromStr;
use tiedkv_benches::scenes::{BadScene, DEMO, Scene};

const EXAMPLES: &str = "\
Examples:
  tiedkv demo                                   three servers, five scenes, one table
  tiedkv demo --keep --scenes none              the quickest way to a cluster; prints its URL
  tiedkv put --cluster \"$URL\" greeting hello    set a key
  tiedkv get --cluster \"$URL\" greeting          its value, byte for byte
  tiedkv status --cluster \"$URL\" -o json        what every node says about itself

Exit codes: 0 ok, 1 not found or not as expected, 2 usage, 3 unavailable, 4 deadline, 5 unknown outcome of a write.
Environment: TIEDKV_CLUSTER (--cluster), TIEDKV_OUTPUT (-o), TIEDKV_TIED (off: every read untied,
nothing extra; observe: decide and count only; on).";

/// A replicated key-value store that keeps reads fast when its machines are busy.
#[derive(Debug, Parser)]
#[command(name = "tiedkv", version, after_help = EXAMPLES, arg_required_else_help = true)]
pub struct Cli {
    /// How results and errors are written; the default depends on the command
    #[arg(short = 'o', long = "output", global = true, value_enum, env = "TIEDKV_OUTPUT")]
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
    /// Set a key to the argument or to standard input
    Put(Put),
    /// Set or remove a key if it is as expected
    Cas(Cas),
    /// Remove a key
    Del(Del),
    /// What every node says about itself
    Status(Connect),
    /// Whether every node answers
    Health(Connect),
    /// Who belongs to the cluster
    Member(Member),
    /// How far clients may use read policies, and which nodes are out for reads
    Policy(Policy),
    /// Measure a running cluster
    #[command(subcommand)]
    Bench(Bench),
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

A setting comes from its flag, else from the environment (TIEDKV_LANES), else from the file (lanes = 4), else it has
its default.")]
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
  tiedkv certs --dir certs --nodes 1,2,3 --client app    a new cluster: ca.pem, node-1.pem, ..., client.pem
  tiedkv certs --dir certs --add --nodes 4               a certificate for a fourth node")]
pub struct Certs {
    /// Where the files go
    #[arg(long, value_name = "DIR")]
    pub dir: PathBuf,
    /// Identities of the nodes
    #[arg(long, value_name = "ID,...", value_delimiter = ',')]
    pub nodes: Vec<u64>,
    /// Name of the client; writes client.pem and client.key
    #[arg(long, value_name = "NAME")]
    pub client: Option<String>,
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
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tiedkv get --cluster \"$URL\" greeting > value.bin
  tiedkv get --cluster \"$URL\" 'bytes\\x00in\\x20a key' -o json

A key may hold escapes: \\\\ \\n \\r \\t \\xNN. JSON prints keys and values in the same form.")]
pub struct Get {
    #[command(flatten)]
    pub connect: Connect,
    /// The key
    pub key: String,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tiedkv put --cluster \"$URL\" greeting hello
  tiedkv put --cluster \"$URL\" photo < photo.jpg

Key and value arguments may hold escapes: \\\\ \\n \\r \\t \\xNN. Standard input is taken byte for byte.")]
pub struct Put {
    #[command(flatten)]
    pub connect: Connect,
    /// The key
    pub key: String,
    /// The value; without it, standard input is the value
    pub value: Option<String>,
    /// Names this intent, so that sending it again applies it once: CLIENT.SEQUENCE.FLOOR (hex, decimal, decimal)
    #[arg(long, value_name = "KEY")]
    pub idempotency_key: Option<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tiedkv cas --cluster \"$URL\" lock mine --absent          take it if nobody has it
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
    /// As for put
    #[arg(long, value_name = "KEY")]
    pub idempotency_key: Option<String>,
}

#[derive(Debug, Args)]
pub struct Del {
    #[command(flatten)]
    pub connect: Connect,
    /// The key
    pub key: String,
    /// As for put
    #[arg(long, value_name = "KEY")]
    pub idempotency_key: Option<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tiedkv member --cluster \"$URL\" list
  tiedkv member --cluster \"$URL\" add --node 4 --address 10.0.0.4:7400 --zone b
  tiedkv member --cluster \"$URL\" remove --node 2")]
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
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_wrong_flag_names_the_nearest() {
        let error = Cli::try_parse_from(["tiedkv", "demo", "--scene", "none"]).unwrap_err().to_string();
        assert!(error.contains("--scenes"), "{error}");
    }
}
