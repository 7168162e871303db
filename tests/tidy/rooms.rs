//! Which room may know what: pure rooms know no socket, no runtime and no clock; each engine stands behind one
//! door.

use super::tree::{File, files, none, planted};

/// Rooms that decide: `(event, now) -> what to do`. The model and the simulation run these very files.
const PURE: &[&str] = &[
    "protocol/src/",
    "client/src/alarms.rs",
    "client/src/budget.rs",
    "client/src/completeness.rs",
    "client/src/control.rs",
    "client/src/copies.rs",
    "client/src/engine.rs",
    "client/src/engine_host.rs",
    "client/src/extra.rs",
    "client/src/gate.rs",
    "client/src/latency.rs",
    "client/src/learn.rs",
    "client/src/observe.rs",
    "client/src/operation.rs",
    "client/src/pace.rs",
    "client/src/policy.rs",
    "client/src/probation.rs",
    "client/src/race.rs",
    "client/src/retry.rs",
    "client/src/select.rs",
    "client/src/strain.rs",
    "client/src/wins.rs",
    "server/src/peer/health.rs",
    "server/src/raft/jitter.rs",
    "server/src/raft/log_time.rs",
    "server/src/raft/confirm.rs",
    "server/src/raft/outcomes.rs",
    "server/src/request/admit.rs",
    "server/src/request/copy_name.rs",
    "server/src/request/copy_state.rs",
    "server/src/request/health.rs",
    "server/src/request/brisk.rs",
    "server/src/request/lane.rs",
    "server/src/request/recent_ties.rs",
    "server/src/request/set_aside.rs",
    "server/src/request/tie.rs",
    "server/src/storage/device.rs",
    "server/src/storage/disturbance.rs",
    "server/src/storage/expiry.rs",
    "server/src/storage/key.rs",
    "server/src/storage/ordered_map.rs",
    "server/src/storage/scan.rs",
    "benches/src/ideal/",
    "benches/src/load/arrivals.rs",
    "benches/src/load/join.rs",
];

/// What a pure room does not name.
const WORLD: [&str; 9] =
    ["tokio", "quinn", "rustls", "Instant", "SystemTime", "clock::", "std::net", "std::fs", "std::thread::"];

/// Names that stand behind one door, and the paths behind it.
const DOORS: [(&str, &[&str]); 6] = [
    ("bincode::", &["protocol/src/codec.rs"]),
    ("openraft::", &["server/src/raft/", "server/src/storage/", "tests/src/raftsim/"]),
    ("raft_log::", &["server/src/raft/", "server/src/storage/"]),
    ("fjall::", &["server/src/raft/", "server/src/storage/"]),
    ("prometheus_client", &["server/src/admin/", "client/src/metrics.rs"]),
    ("axum", &["server/src/admin/"]),
];

fn complaints(file: &File) -> Vec<String> {
    let pure = PURE.iter().any(|room| file.path.starts_with(room));
    let mut found = Vec::new();
    for (number, line) in file.shipped_lines() {
        if pure {
            for word in WORLD {
                if line.contains(word) {
                    found.push(format!("{}:{number}: a pure room names `{word}`", file.path));
                }
            }
        }
        for (word, doors) in DOORS {
            if line.contains(word) && !doors.iter().any(|door| file.path.starts_with(door)) {
                found.push(format!("{}:{number}: `{word}` is named only in {}", file.path, doors.join(", ")));
            }
        }
    }
    found
}

#[test]
fn every_room_knows_only_what_it_may() {
    none(files(&[".rs"]).iter().flat_map(complaints).collect());
}

#[test]
fn every_listed_room_exists() {
    let missing = PURE.iter().filter(|room| !super::tree::root().join(room).exists());
    none(missing.map(|room| format!("{room} is listed as pure and does not exist")).collect());
}

#[test]
fn planted_offences_are_found() {
    for (path, text, offences) in [
        ("client/src/race.rs", "use tokio::sync::oneshot;", 1),
        ("client/src/race.rs", "let now = std::time::Instant::now();", 1),
        ("client/src/race.rs", "// unlike tokio", 0),
        ("client/src/exchange.rs", "use tokio::sync::oneshot;", 0),
        ("server/src/request/lane.rs", "let now = crate::clock::now();", 1),
        ("client/src/exchange.rs", "bincode::serde::encode()", 1),
        ("server/src/node.rs", "use openraft::Raft;", 1),
        ("server/src/raft/group.rs", "use openraft::Raft;", 0),
    ] {
        assert_eq!(complaints(&planted(path, text)).len(), offences, "{path}: {text}");
    }
}
