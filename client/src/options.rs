//! What a caller may choose per call: policy, level, deadline, class. Plain values and their texts; what
//! follows from them is decided in the pure rooms.

use crate::error::Error;
use crate::nearest::nearest;
use crate::policy::ReadPolicy;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;
use tiedkv_protocol::error::ErrorCode;
use tiedkv_protocol::ids::{NodeId, Position, PositionToken, ReadId};
use tiedkv_protocol::limits::TIME_LEFT_MAX;
use tiedkv_protocol::moment::Moment;
use tiedkv_protocol::request::{Class, IdempotencyKey, ReadLevel};

/// A text that names no choice, and the choice it comes nearest to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is no {what}; did you mean `{nearest}`? (one of: {all})")]
pub struct BadChoice {
    /// What was asked for, e.g. "policy".
    pub what: &'static str,
    /// The wrong text.
    pub text: String,
    /// The nearest right one.
    pub nearest: String,
    /// All right ones.
    pub all: String,
}

impl BadChoice {
    /// Names the nearest of `all`.
    pub fn new(what: &'static str, text: &str, all: &[&str]) -> Self {
        Self { what, text: text.to_owned(), nearest: nearest(text, all).to_owned(), all: all.join(", ") }
    }
}

/// Names of the policies that every build has.
pub const POLICY_NAMES: [&str; 8] =
    ["untied", "hedged", "tied2", "tied3", "untied+rescue", "hedged+rescue", "tied2+rescue", "tied3+rescue"];

/// Parses the name of a [`ReadPolicy`].
///
/// # Errors
/// Names the nearest policy.
pub fn parse_policy(text: &str) -> Result<ReadPolicy, BadChoice> {
    text.parse().map_err(|_| BadChoice::new("policy", text, &POLICY_NAMES))
}

/// How fresh an answer must be. The session's position is added when a copy is sent.
///
/// ```
/// use std::time::Duration;
/// use tiedkv_client::Level;
///
/// let level: Level = "stale:100ms".parse()?;
/// assert_eq!(level, Level::Stale { bound: Some(Duration::from_millis(100)) });
/// assert_eq!(level.to_string(), "stale:100000us");
/// # Ok::<(), tiedkv_client::options::BadChoice>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Level {
    /// Any replica's state; with a bound, not older than that.
    Stale {
        /// Greatest age; `None` asks for no bound.
        bound: Option<Duration>,
    },
    /// Read-your-writes and monotonic reads within a session.
    #[default]
    Session,
    /// Not before any write acknowledged before the read began.
    Linearizable,
}

impl Level {
    /// The level as a copy carries it, for a session that has seen `seen`.
    pub fn on_wire(self, seen: Position) -> ReadLevel {
        match self {
            Self::Stale { bound } => {
                let bound_us = bound.map(|bound| u64::try_from(bound.as_micros()).unwrap_or(u64::MAX));
                ReadLevel::Stale { bound_us }
            }
            Self::Session => ReadLevel::Session { seen },
            Self::Linearizable => ReadLevel::Linearizable,
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stale { bound: None } => f.write_str("stale"),
            Self::Stale { bound: Some(bound) } => write!(f, "stale:{}us", bound.as_micros()),
            Self::Session => f.write_str("session"),
            Self::Linearizable => f.write_str("linearizable"),
        }
    }
}

impl FromStr for Level {
    type Err = BadChoice;

    fn from_str(text: &str) -> Result<Self, BadChoice> {
        match text {
            "stale" => return Ok(Self::Stale { bound: None }),
            "session" => return Ok(Self::Session),
            "linearizable" => return Ok(Self::Linearizable),
            _ => {}
        }
        if let Some(bound) = text.strip_prefix("stale:").and_then(|bound| parse_span(bound).ok()) {
            return Ok(Self::Stale { bound: Some(bound) });
        }
        Err(BadChoice::new("read level", text, &["session", "stale", "stale:100ms", "linearizable"]))
    }
}

/// Parses the name of a [`Class`].
///
/// # Errors
/// Names the nearest class.
pub fn parse_class(text: &str) -> Result<Class, BadChoice> {
    match text {
        "interactive" => Ok(Class::Interactive),
        "batch" => Ok(Class::Batch),
        "background" => Ok(Class::Background),
        _ => Err(BadChoice::new("class", text, &["interactive", "batch", "background"])),
    }
}

/// A text that is no span of time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is no span of time; did you mean `{nearest}`? (a whole number followed by us, ms or s)")]
pub struct BadSpan {
    /// The wrong text.
    pub text: String,
    /// A right one near it.
    pub nearest: String,
}

/// Parses a span such as `500ms`, `250us` or `2s`.
///
/// ```
/// use std::time::Duration;
/// use tiedkv_client::options::parse_span;
///
/// assert_eq!(parse_span("250us")?, Duration::from_micros(250));
/// assert!(parse_span("250").is_err_and(|error| error.nearest == "250ms"));
/// # Ok::<(), tiedkv_client::options::BadSpan>(())
/// ```
///
/// # Errors
/// When the unit is missing or unknown, or the number is none.
pub fn parse_span(text: &str) -> Result<Duration, BadSpan> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let bad = |nearest: String| BadSpan { text: text.to_owned(), nearest };
    let Ok(count) = number.parse::<u64>() else {
        return Err(bad("500ms".to_owned()));
    };
    match unit {
        "us" => Ok(Duration::from_micros(count)),
        "ms" => Ok(Duration::from_millis(count)),
        "s" => Ok(Duration::from_secs(count)),
        "" => Err(bad(format!("{count}ms"))),
        other => Err(bad(format!("{count}{}", nearest(other, &["ms", "us", "s"])))),
    }
}

/// The deadline of a call: the one it names, or that of the client's settings, which was checked with them. Nodes cut
/// what is longer, so that it would end early without a word.
pub(crate) fn deadline_of(named: Option<Duration>, unnamed: Duration) -> Result<Duration, Error> {
    match named {
        Some(deadline) if deadline > TIME_LEFT_MAX => {
            let message = format!("a deadline is at most {TIME_LEFT_MAX:?}, {deadline:?} were asked for");
            Err(Error::call(ErrorCode::OverLimit, message))
        }
        Some(deadline) => Ok(deadline),
        None => Ok(unnamed),
    }
}

/// Choices of one read. What is `None` comes from the client's settings.
#[derive(Clone, Debug, Default)]
pub struct ReadOptions {
    /// How many copies race, and which extra ones may follow.
    pub policy: Option<ReadPolicy>,
    /// Judge whether tying this read pays. `None`: as the client's settings say for its own policies; a policy named
    /// here is an order and is not judged. Switch, ceiling and nodes are obeyed in any case.
    pub gate: Option<bool>,
    /// How fresh.
    pub level: Option<Level>,
    /// Whole time of the call; covers connecting, waiting and retries. A longer one than 60 s is an error.
    pub deadline: Option<Duration>,
    /// Which class of the lanes.
    pub class: Option<Class>,
    /// For session reads: not before this, in addition to what the session has seen.
    pub token: Option<PositionToken>,
    /// Ask this node and no other, with one copy: for looking at a replica. A policy of more copies named beside it is an
    /// error; one of the client's settings goes with one copy. `None`: whoever serves best.
    pub node: Option<NodeId>,
    /// When the caller meant to send (open-loop load); client wait is counted from here.
    pub planned: Option<Moment>,
    /// The identity of this get, from which a modelled device draws its service time: for playing the same reads again. It
    /// must differ between reads, and calls for many keys and scans ignore it. `None`: drawn at random.
    pub read: Option<ReadId>,
}

/// Choices of one write. What is `None` comes from the client's settings.
#[derive(Clone, Debug, Default)]
pub struct WriteOptions {
    /// Whole time of the call; covers connecting, waiting and retries. A longer one than 60 s is an error.
    pub deadline: Option<Duration>,
    /// Names the intent, so that sending it again applies it once. `None`: the client makes one per call.
    pub idempotency: Option<IdempotencyKey>,
    /// Send to this node only and follow no hint to a leader (clusters that are not replicated).
    pub node: Option<NodeId>,
}
