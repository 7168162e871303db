//! Administrative operations of authenticated clients: figures for every client, everything that changes something
//! for operators only; disturbances and faults only where the node was started for them, membership and ceiling by the
//! replica.

use super::status::Observer;
use crate::clock;
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use tiedkv_protocol::codec;
use tiedkv_protocol::error::ErrorCode;
use tiedkv_protocol::request::AdminOperation;
use tiedkv_protocol::response::Failure;

/// Most start records in one answer (a record takes up to about 110 bytes).
const START_RECORDS_PER_ANSWER: usize = 32 * 1024;

/// What the certificate of whoever asks entitles to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rights {
    /// Figures.
    Client,
    /// Everything.
    Operator,
}

/// Answers administrative operations.
pub struct Desk {
    observer: Arc<Observer>,
}

impl Desk {
    /// A desk for the node that `observer` sees.
    pub fn new(observer: Arc<Observer>) -> Self {
        Self { observer }
    }

    /// Does what is asked, or says why not; the document that goes with the answer, often empty.
    ///
    /// # Errors
    /// `NotAllowed` where the certificate does not entitle to it or the node was not started for it, else what the
    /// asked room says.
    ///
    /// # Cancel safety
    /// A dropped change of membership or leadership may still happen; all else happens at once.
    pub async fn answer(&self, operation: AdminOperation, rights: Rights) -> Result<Bytes, Failure> {
        let node = &self.observer;
        if rights == Rights::Client && !is_for_clients(&operation) {
            let text = "this needs an operator's certificate, the one presented is a client's: make one with \
                        `tiedkv certs --dir DIR --add --operator NAME` and connect with `certificate=NAME`";
            return Err(Failure::new(ErrorCode::NotAllowed, text));
        }
        match operation {
            AdminOperation::Disturb(disturbance) => {
                self.need(node.allow_disturb, "allow_disturb")?;
                let since = node.path.disturb(disturbance)?;
                return json(&serde_json::json!({ "since_ns": since.0 }));
            }
            AdminOperation::RecordStarts { on } => {
                self.need(node.allow_disturb || node.allow_faults, "allow_disturb")?;
                node.path.record_starts(on);
            }
            AdminOperation::TakeStarts { from } => {
                self.need(node.allow_disturb || node.allow_faults, "allow_disturb")?;
                return self.starts(from);
            }
            AdminOperation::Counters => return json(&node.counters()),
            AdminOperation::Status => return json(&node.status()),
            AdminOperation::SlowReads => return json(&node.path.slow_reads()),
            AdminOperation::DropCancels { share } => {
                self.need(node.allow_faults, "allow_faults")?;
                if !(0.0..=1.0).contains(&share) {
                    return Err(Failure::new(ErrorCode::OverLimit, "a share is within 0.0 and 1.0"));
                }
                node.cancels.drop_share(share);
            }
            AdminOperation::Lag { on } => {
                self.need(node.allow_faults, "allow_faults")?;
                node.replica.lag(on)?;
            }
            AdminOperation::FailReads { on } => {
                self.need(node.allow_faults, "allow_faults")?;
                node.path.fail_reads(on);
            }
            AdminOperation::AnswerEarly { on } => {
                self.need(node.allow_faults, "allow_faults")?;
                node.path.answer_early(on);
            }
            AdminOperation::StepClock { ahead, by_ms } => {
                self.need(node.allow_faults, "allow_faults")?;
                clock::step_wall_clock(ahead, Duration::from_millis(by_ms));
            }
            AdminOperation::MemberAdd { .. }
            | AdminOperation::MemberRemove { .. }
            | AdminOperation::TransferLeader { .. }
            | AdminOperation::SetCeiling(_) => node.replica.administer(operation).await?,
        }
        Ok(Bytes::new())
    }

    fn need(&self, allowed: bool, setting: &str) -> Result<(), Failure> {
        if allowed {
            return Ok(());
        }
        let text = format!("this node was not started for it: it needs `{setting}` = true");
        Err(Failure::new(ErrorCode::NotAllowed, text))
    }

    fn starts(&self, from: u64) -> Result<Bytes, Failure> {
        let page = self.observer.path.take_starts(from, START_RECORDS_PER_ANSWER);
        if page.first > from && !page.records.is_empty() {
            let text = format!("records before {} are overwritten: take them more often", page.first);
            return Err(Failure::new(ErrorCode::OverLimit, text));
        }
        codec::encode_large(&page.records)
            .map(Bytes::from)
            .map_err(|error| Failure::new(ErrorCode::Internal, error.to_string()))
    }
}

/// Reading figures changes nothing.
fn is_for_clients(operation: &AdminOperation) -> bool {
    matches!(operation, AdminOperation::Counters | AdminOperation::Status | AdminOperation::SlowReads)
}

fn json<T: serde::Serialize>(page: &T) -> Result<Bytes, Failure> {
    serde_json::to_vec(page).map(Bytes::from).map_err(|error| Failure::new(ErrorCode::Internal, error.to_string()))
}
