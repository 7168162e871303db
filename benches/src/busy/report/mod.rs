//! The report: one self-contained HTML page, and its figures as SVG files. Pure: text from a document.
//!
//! | room | job |
//! |---|---|
//! | [`chart`] | lines, bars and a map as SVG |
//! | [`figures`] | which figures a document gives |
//! | [`sweeps`] | of these, those of sweeps |
//! | [`page`] | the page around them |
//! | [`style`] | colours of policies, light and dark |

pub mod chart;
pub mod figures;
pub mod page;
pub mod style;
pub mod sweeps;
