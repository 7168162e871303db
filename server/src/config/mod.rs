//! The settings of a node: one table of names, defaults and parsers; layers (file, environment, flags) above the
//! defaults; a typed [`Config`] that cannot be wrong in itself.
//!
//! | room | job |
//! |---|---|
//! | [`settings`] | the table: every setting, its default, its parser; [`Config`] is made of it |
//! | [`layers`] | collects values by layer and builds a [`Config`] |
//! | [`member`] | the text form of one member of the cluster |
//! | [`parse`] | parsers of single values |
//! | [`error`] | what can be wrong with settings |
//!
//! Nothing is repaired silently: an unknown name, a value out of bounds and two values that contradict each other
//! are errors that say where they came from.

pub mod error;
pub mod layers;
pub mod member;
pub mod parse;
pub mod settings;

pub use error::ConfigError;
pub use layers::{ConfigBuilder, Source};
pub use member::MemberSetting;
pub use settings::{Config, Device, Priority, Row, SETTINGS, Setting, Storage};
