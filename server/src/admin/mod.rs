//! What operators see and do.
//!
//! | room | job |
//! |---|---|
//! | [`status`] | the status page: what a node says about itself |
//! | [`desk`] | administrative operations of authenticated clients |
//! | [`metrics`] | the same figures for Prometheus |
//! | [`http`] | HTTP on a port of its own: /metrics, /livez, /readyz, /status, /slow |

pub mod desk;
pub mod http;
pub mod metrics;
pub mod status;
