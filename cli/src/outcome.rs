//! How a command ends: exit codes, and errors written as asked (text or JSON, always to standard error).

use crate::args::Format;
use serde_json::{Value, json};
use std::process::ExitCode;
use tiedkv_client::Cause;
use tiedkv_protocol::error::Move;

/// How a command ended. The numbers are the exit codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum End {
    /// Done.
    Ok = 0,
    /// The key is absent; or what was to be checked does not hold.
    NotFound = 1,
    /// The call is wrong: flags, settings, keys, files.
    Usage = 2,
    /// The cluster (or what is needed here) does not answer.
    Unavailable = 3,
    /// The deadline passed.
    Deadline = 4,
    /// A write may or may not have been applied.
    UnknownOutcome = 5,
    /// Counts are right, but latencies do not relate as they must: as a machine that stood still measures.
    Latencies = 6,
    /// Ended by SIGINT or SIGTERM before it was done.
    Interrupted = 130,
}

impl From<End> for ExitCode {
    fn from(end: End) -> Self {
        ExitCode::from(end as u8)
    }
}

/// The error is the user's to mend: exit code 2. Wraps what is wrong.
#[derive(Debug, thiserror::Error)]
#[error("{0:#}")]
pub struct Usage(pub anyhow::Error);

/// Marks an error as the user's to mend.
pub fn usage(error: impl Into<anyhow::Error>) -> anyhow::Error {
    Usage(error.into()).into()
}

/// The exit code of an error.
pub fn end_of(error: &anyhow::Error) -> End {
    if error.downcast_ref::<Usage>().is_some() {
        return End::Usage;
    }
    let Some(call) = error.downcast_ref::<tiedkv_client::Error>() else { return End::Unavailable };
    if matches!(call.cause(), Cause::Deadline(_)) {
        return End::Deadline;
    }
    match call.caller_move() {
        Move::FixTheCall => End::Usage,
        Move::GiveUp => End::Deadline,
        Move::UnknownOutcome => End::UnknownOutcome,
        Move::RetryHere | Move::TryElsewhere => End::Unavailable,
    }
}

/// The text of an error for standard error.
pub fn error_text(error: &anyhow::Error, format: Option<Format>) -> String {
    match format {
        Some(Format::Json) => error_json(error).to_string(),
        _ => format!("tiedkv: {error:#}"),
    }
}

fn error_json(error: &anyhow::Error) -> Value {
    let end = end_of(error);
    let name = match end {
        End::Ok => "ok",
        End::NotFound => "not-found",
        End::Usage => "usage",
        End::Unavailable => "unavailable",
        End::Deadline => "deadline",
        End::UnknownOutcome => "unknown-outcome",
        End::Latencies => "latencies",
        End::Interrupted => "interrupted",
    };
    let mut object = json!({ "kind": name, "exit_code": end as u8, "message": format!("{error:#}") });
    if let Some(call) = error.downcast_ref::<tiedkv_client::Error>() {
        object["code"] = call.code().map_or(Value::Null, |code| code.name().into());
        let tried = call
            .copies()
            .iter()
            .map(|copy| json!({ "node": copy.node.0, "copy": copy.kind.name(), "end": copy.fate.to_string() }));
        object["tried"] = tried.collect();
        object["elapsed_us"] = u64::try_from(call.elapsed().as_micros()).unwrap_or(u64::MAX).into();
    }
    json!({ "error": object })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn call(cause: Cause) -> anyhow::Error {
        tiedkv_client::Error::new(cause, Vec::new(), Duration::from_millis(3)).into()
    }

    #[test]
    fn each_kind_of_error_has_its_exit_code() {
        assert_eq!(end_of(&call(Cause::Deadline(Duration::from_secs(1)))), End::Deadline);
        assert_eq!(end_of(&call(Cause::NoReplica(String::new()))), End::Unavailable);
        assert_eq!(end_of(&call(Cause::UnknownOutcome("x".into()))), End::UnknownOutcome);
        assert_eq!(end_of(&usage(anyhow::anyhow!("bad"))), End::Usage);
        assert_eq!(end_of(&anyhow::anyhow!("no file")), End::Unavailable);
    }

    #[test]
    fn context_does_not_hide_the_kind() {
        let error = call(Cause::Deadline(Duration::from_secs(1))).context("reading `a`");
        assert_eq!(end_of(&error), End::Deadline);
        let json: Value = serde_json::from_str(&error_text(&error, Some(Format::Json))).unwrap();
        assert_eq!(json["error"]["exit_code"], 4);
        assert_eq!(json["error"]["elapsed_us"], 3_000);
    }

    #[test]
    fn a_text_says_its_cause_once() {
        let error = call(Cause::UnknownOutcome("the leader is gone".into()));
        assert_eq!(error_text(&error, None).matches("the leader is gone").count(), 1, "{error:#}");
        let wrong = tiedkv_client::Config::from_url("http://x").unwrap_err();
        let error = usage(tiedkv_client::Error::from(wrong));
        assert_eq!(error_text(&error, None).matches("http://x").count(), 1, "{error:#}");
    }
}
