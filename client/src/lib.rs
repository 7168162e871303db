//! Client of tiedkv: choose replicas -> pace copies -> first good answer -> withdraw the rest.

pub mod clock;
pub mod copies;
mod extra;
pub mod policy;
pub mod race;
