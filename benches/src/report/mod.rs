//! What a run found, as a table for people and as JSON for programs.

mod format;
mod row;
mod table;

pub use format::columns;
pub(crate) use format::millis;
pub use row::{Row, SceneName, to_json};
pub use table::{conditions, sentence, table};
