//! Simulated worlds: a thousand seeds hold all invariants, planted bugs are found, one seed is one trace.
