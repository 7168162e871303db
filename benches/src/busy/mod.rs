//! `tiedkv bench busy`: scenes times policies on clusters of real processes, with the limits on each run's own trace.
//!
//! | room | job |
//! |---|---|
//! | [`scene`], [`policy`] | what there is to play, as data |
//! | [`matrix`] | which cells, in which order, how long (pure) |
//! | [`bed`] | the cluster and clients of a scene |
//! | [`player`] | plays one cell once |
//! | `sort`, `disk` | the job of the scene `sort`; what `real-disk` does beside its reads |
//! | [`trace`] | the run's own trace and its limits (pure) |
//! | [`quantiles`] | percentiles of pooled repeats and their intervals (pure) |
//! | `recovery` | when reads are as fast as before an event again (pure) |
//! | [`row`], [`repeats`], [`document`] | figures of a cell; counts of each repeat; all of a run, as JSON |
//! | [`report`] | a page and its figures (pure) |
//! | [`table`], [`check`], [`quick`] | for people; against the bounds; against what noise cannot flip (pure) |

pub mod bed;
pub mod check;
mod disk;
pub mod document;
pub mod matrix;
pub mod player;
pub mod policy;
pub mod quantiles;
pub mod quick;
mod recovery;
pub mod repeats;
pub mod report;
pub mod row;
pub mod sample;
pub mod scene;
mod sort;
pub mod table;
pub mod trace;
