//! What the tool's commands for ranges, files and the cluster print in each of their forms, compared with files in
//! `tests/cluster/printed/`. Commands of one key and of scans are in [`crate::data_tool`].

use crate::data::{fill, patient_url, replicated, settle};
use crate::data_tool::{assert_printed, without_runs};
use crate::tool::{code, one_node, text, tool};
use bytes::Bytes;
use serde_json::Value;

const TWO_ROWS: &[u8] = b"{\"key\":\"i/1\",\"value\":\"1\"}\n{\"key\":\"i/2\",\"value\":\"2\"}\n{\"end\":2}\n";
const CUT: &[u8] = b"{\"key\":\"i/3\",\"value\":\"3\"}\n";
const WRONG: &[u8] = b"{\"key\":\"i/4\",\"value\":\"4\"}\n{\"key\":\"i/5\"}\n";

/// A command line, its standard input, its exit code.
type Case = (&'static [&'static str], &'static [u8], i32);

/// In order: later ones see what earlier ones did.
const CASES: [Case; 24] = [
    (&["count"], b"", 0),
    (&["count", "-o", "raw"], b"", 0),
    (&["count", "--prefix", "a/", "-o", "json"], b"", 0),
    (&["count", "--from", "z", "--to", "a"], b"", 0),
    (&["export"], b"", 0),
    (&["export", "--prefix", "a/"], b"", 0),
    (&["import"], TWO_ROWS, 0),
    (&["import", "-o", "json"], TWO_ROWS, 0),
    (&["import", "-o", "raw"], CUT, 0),
    (&["import", "-o", "json"], WRONG, 2),
    (&["cas", "fresh", "x", "--absent"], b"", 0),
    (&["cas", "fresh", "y", "--absent", "-o", "raw"], b"", 1),
    (&["cas", "fresh", "y", "--expect", "x", "-o", "json"], b"", 0),
    (&["cas", "fresh", "--expect", "z", "--delete", "-o", "json"], b"", 1),
    (&["cas", "nobody", "x", "--version", "7"], b"", 1),
    (&["cas", "fresh", "--expect", "y", "--delete", "-o", "raw"], b"", 0),
    (&["del", "--prefix", "a/"], b"", 0),
    (&["del", "--prefix", "i/", "-o", "json"], b"", 0),
    (&["del", "--from", "b", "--to", "c", "-o", "raw"], b"", 0),
    (&["del", "--prefix", "none/"], b"", 0),
    (&["count"], b"", 0),
    (&["member", "list"], b"", 0),
    (&["member", "list", "-o", "raw"], b"", 0),
    (&["member", "list", "-o", "json"], b"", 0),
];

/// Who leads differs from run to run.
fn without_roles(printed: &str) -> String {
    printed.replace("  leader  ", "  ROLE  ").replace("  member  ", "  ROLE  ")
}

#[tokio::test]
async fn commands_of_ranges_files_and_members_print_what_they_are_known_to() {
    let bed = replicated().await;
    let url = patient_url(&bed);
    let rows = [("a/1", "one"), ("a/2", "zwei \u{e4}"), ("b", "")];
    fill(&bed.client, rows.iter().map(|(key, value)| ((*key).to_owned(), value.as_bytes().to_vec()))).await;
    bed.client.put(Bytes::from_static(b"\xff"), Bytes::from_static(b"\0\xfe")).await.unwrap();
    bed.leader().await;
    let mut printed = Vec::new();
    for (arguments, input, exit) in CASES {
        // Each call is a session of its own.
        settle(&bed).await;
        let mut all = vec![arguments[0], "--cluster", &url];
        all.extend(&arguments[1..]);
        let output = tool(&all, input);
        let (out, err) = (without_roles(&without_runs(&output.stdout)), without_runs(&output.stderr));
        assert_eq!(code(&output), Some(exit), "{arguments:?}: {out}{err}");
        printed
            .extend(format!("$ tiedkv {}\n{}\n{}\n", arguments.join(" "), out.trim_end(), err.trim_end()).bytes());
    }
    assert_printed("ranges.txt", &printed);
}

/// The names alone: nearly every value of a status page differs from run to run.
fn without_values(page: &mut Value) {
    match page {
        Value::Object(fields) => fields.values_mut().for_each(without_values),
        other => *other = Value::from("_"),
    }
}

#[tokio::test]
async fn the_status_of_a_node_prints_the_names_it_is_known_to() {
    // A node alone: what it says of a leader and of peers depends on who they are.
    let (_bed, url) = one_node().await;
    let status = |form: &str| {
        let output = tool(&["status", "--cluster", &url, "-o", form], b"");
        assert_eq!(code(&output), Some(0), "{}", text(&output.stderr));
        output.stdout
    };
    let table = text(&status("table"));
    let names = table.lines().map(|line| match line.strip_prefix("  ") {
        Some(pair) => format!("  {}\n", pair.split(' ').next().unwrap_or_default()),
        None => format!("{line}\n"),
    });
    assert_printed("status.txt", names.collect::<String>().as_bytes());
    assert_eq!(text(&status("raw")).lines().count(), table.lines().count(), "raw is as the table");
    let mut json: Value = serde_json::from_slice(&status("json")).unwrap();
    assert_eq!(json["nodes"][0]["node"], 1);
    let page = &mut json["nodes"][0]["status"];
    without_values(page);
    assert_printed("status-json.txt", format!("{page:#}\n").as_bytes());
}
