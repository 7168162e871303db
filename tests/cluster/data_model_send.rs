//! A write of the model as a call of the crate: each kind by its own door, whatever has none as a batch. Gives back what
//! the call says in the model's words; compares nothing.

use crate::data_model_map::{Outcome, Write};
use std::time::Duration;
use tiedkv_client::{Batch, Conditional, Error, Expect, View, WriteOptions, WriteReport};
use tiedkv_protocol::atomic::{Condition, Operation};
use tiedkv_protocol::error::ErrorCode;

/// What a call said.
#[derive(Clone, Debug)]
pub struct Answer {
    pub outcome: Outcome,
    /// Of one that was applied; touch and persist give none.
    pub report: Option<WriteReport>,
}

impl Answer {
    fn applied(report: WriteReport) -> Self {
        Self { outcome: Outcome::Applied { numbers: Vec::new() }, report: Some(report) }
    }

    /// Whether there was a key whose time could be changed.
    fn found(found: bool) -> Self {
        let applied = Outcome::Applied { numbers: Vec::new() };
        let outcome = if found { applied } else { Outcome::Unmet { condition: 0, current: None } };
        Self { outcome, report: None }
    }
}

impl From<Conditional> for Answer {
    fn from(became: Conditional) -> Self {
        match became {
            Conditional::Applied(applied) => {
                let numbers = applied.numbers.into_iter().flatten().collect();
                Self { outcome: Outcome::Applied { numbers }, report: Some(applied.report) }
            }
            Conditional::Unmet(unmet) => {
                // Values of the model are short, so they come along.
                let current = unmet.current.map(|current| (current.version, current.value.unwrap()));
                Self { outcome: Outcome::Unmet { condition: unmet.condition, current }, report: None }
            }
        }
    }
}

/// Sends a write; an error other than that of a number ends the test.
pub async fn send(view: &View, write: &Write, options: WriteOptions) -> Answer {
    match call(view, write, options).await {
        Ok(answer) => answer,
        Err(error) => match error.code() {
            Some(code @ (ErrorCode::NotANumber | ErrorCode::NumberOverflow)) => {
                Answer { outcome: Outcome::Refused(code), report: None }
            }
            _ => panic!("{write:?}: {error}"),
        },
    }
}

async fn call(view: &View, write: &Write, options: WriteOptions) -> Result<Answer, Error> {
    let span = Duration::from_millis;
    Ok(match (&write.conditions[..], &write.operations[..]) {
        ([], [Operation::Put { key, value }]) => {
            Answer::applied(view.put_with(key.clone(), value.clone(), options).await?)
        }
        ([], [Operation::PutFor { key, value, ttl_ms }]) => {
            Answer::applied(view.put_for(key.clone(), value.clone(), span(*ttl_ms), options).await?)
        }
        ([], [Operation::Delete { key }]) => Answer::applied(view.delete_with(key.clone(), options).await?),
        ([], [Operation::Increment { key, by }]) => {
            let counted = view.increment(key.clone(), *by, options).await?;
            let numbers = counted.number.into_iter().collect();
            Answer { outcome: Outcome::Applied { numbers }, report: Some(counted.report) }
        }
        ([condition], [operation]) if condition.key == *operation.key() => {
            alone(view, condition, operation, options).await?
        }
        _ => view.batch(batch(write), options).await?.into(),
    })
}

/// One operation under one condition of the same key.
async fn alone(
    view: &View,
    condition: &Condition,
    operation: &Operation,
    options: WriteOptions,
) -> Result<Answer, Error> {
    let expect = condition.expect.clone();
    Ok(match (expect, operation.clone()) {
        (Expect::Present, Operation::Expire { key, ttl_ms: Some(ttl_ms) }) => {
            Answer::found(view.touch(key, Duration::from_millis(ttl_ms), options).await?)
        }
        (Expect::Present, Operation::Expire { key, ttl_ms: None }) => {
            Answer::found(view.persist(key, options).await?)
        }
        (Expect::Absent, Operation::Put { key, value }) => view.put_if_absent(key, value, options).await?.into(),
        (expect, Operation::Put { key, value }) => view.compare_and_set(key, expect, value, options).await?.into(),
        (expect, Operation::Delete { key }) => view.delete_if(key, expect, options).await?.into(),
        (expect, operation) => view.batch(batch(&Write::when(expect, operation)), options).await?.into(),
    })
}

fn batch(write: &Write) -> Batch {
    let conditions = write.conditions.iter().cloned();
    let batch = conditions.fold(Batch::new(), |batch, condition| batch.when(condition.key, condition.expect));
    write.operations.iter().cloned().fold(batch, |batch, operation| match operation {
        Operation::Put { key, value } => batch.put(key, value),
        Operation::PutFor { key, value, ttl_ms } => batch.put_for(key, value, Duration::from_millis(ttl_ms)),
        Operation::Delete { key } => batch.delete(key),
        Operation::Increment { key, by } => batch.increment(key, by),
        Operation::Expire { key, ttl_ms } => batch.expire(key, ttl_ms.map(Duration::from_millis)),
    })
}
