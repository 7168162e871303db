//! The tool's commands for many keys in one call and those that stay: `mget`, `shell`, `watch-latency`; what they print,
//! how they end, and how their errors look.

use crate::bed::until;
use crate::data::{fill, patient_url, replicated, settle};
use crate::data_tool::{assert_printed, without_versions};
use crate::tool::{code, text, tool};
use rustix::fs::{Mode, OFlags, open};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use serde_json::Value;
use std::fs::File;
use std::io::{Read, Write};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};

fn json_lines(bytes: &[u8]) -> Vec<Value> {
    text(bytes)
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect()
}

fn error_of(output: &Output) -> Value {
    let last = text(&output.stderr).lines().last().unwrap_or_default().to_owned();
    let error: Value =
        serde_json::from_str(&last).unwrap_or_else(|error| panic!("{error}: {}", text(&output.stderr)));
    assert_eq!(error["error"]["exit_code"], code(output).unwrap(), "{error}");
    error["error"].clone()
}

#[tokio::test]
async fn mget_prints_every_key_in_its_order_and_says_what_is_absent() {
    let bed = replicated().await;
    let url = patient_url(&bed);
    fill(
        &bed.client,
        [("a", "one"), ("b", ""), ("c", "tab\there")]
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value.into())),
    )
    .await;
    tool(&["put", "--cluster", &url, r"\xff", r"\x00"], b"");
    settle(&bed).await;
    let on = |arguments: &[&str], input: &[u8]| {
        let mut all = vec!["mget", "--cluster", &url];
        all.extend(arguments);
        tool(&all, input)
    };
    let found = on(&["c", "a", r"\xff", "b", "a"], b"");
    assert_eq!(code(&found), Some(0), "{}", text(&found.stderr));
    assert_printed("mget.txt", &found.stdout);
    let some = on(&["a", "nothing", "b"], b"");
    assert_eq!(code(&some), Some(1));
    assert_printed("mget-absent.txt", &some.stdout);
    assert_printed("mget-json.txt", &without_versions(&on(&["a", "nothing", r"\xff", "-o", "json"], b"").stdout));
    let raw = on(&["a", "nothing", "b", "-o", "raw"], b"");
    assert_eq!((code(&raw), &raw.stdout[..]), (Some(1), &b"one\n\n\n"[..]));
    assert!(text(&raw.stderr).contains("no key `nothing`"), "{}", text(&raw.stderr));
    let piped = on(&["-"], b"b\n\\xff\na\n");
    assert_eq!((code(&piped), text(&piped.stdout)), (Some(0), "b\t\n\\xff\t\\x00\na\tone\n".to_owned()));
    let part = on(&["a", "b", "--partial", "0.5", "--by", "5s"], b"");
    assert_eq!((code(&part), text(&part.stdout).lines().count()), (Some(0), 2), "{}", text(&part.stderr));

    for (arguments, named) in [
        (&["a", r"\q"][..], r"\q"),
        (&["a", ""], "1 to 4096"),
        (&["a", "--partial", "0.5"], "--by"),
        (&["a", "--partial", "1.5", "--by", "1s"], "1.5"),
        (&["a", "--by", "1"], "--partial"),
        (&[], "KEY"),
    ] {
        let wrong = on(arguments, b"");
        assert_eq!(code(&wrong), Some(2), "{arguments:?}: {}", text(&wrong.stderr));
        assert!(text(&wrong.stderr).to_lowercase().contains(&named.to_lowercase()), "{}", text(&wrong.stderr));
        let mut all = arguments.to_vec();
        all.extend(["-o", "json"]);
        assert_eq!(error_of(&on(&all, b""))["kind"], "usage", "{arguments:?}");
    }
    let many = "k\n".repeat(10_001);
    let over = on(&["-", "-o", "json"], many.as_bytes());
    assert_eq!((code(&over), &error_of(&over)["code"]), (Some(2), &"over-limit".into()));
}

#[tokio::test]
async fn mget_of_a_cluster_that_hangs_prints_nothing_and_ends_in_its_code() {
    let mut bed = replicated().await;
    for node in bed.nodes() {
        bed.cluster.pause(node).unwrap();
    }
    let url = format!("{}&deadline=300ms&connect=300ms", bed.cluster.url());
    let hung = tool(&["mget", "--cluster", &url, "-o", "json", "a", "b"], b"");
    assert!(matches!(code(&hung), Some(3 | 4)), "{}", text(&hung.stderr));
    assert_eq!(hung.stdout, b"");
    error_of(&hung);
    let hung = tool(&["watch-latency", "--cluster", &url, "-o", "json", "--count", "1"], b"");
    assert!(matches!(code(&hung), Some(3 | 4)), "{}", text(&hung.stderr));
    error_of(&hung);
    let hung = tool(&["shell", "--cluster", &url, "-o", "json"], b"get a\n");
    assert!(matches!(code(&hung), Some(3 | 4)), "{}", text(&hung.stderr));
    error_of(&hung);
}

/// A command on a terminal of its own.
struct OnTerminal {
    child: Child,
    terminal: File,
    shown: Arc<Mutex<Vec<u8>>>,
}

impl OnTerminal {
    fn start(arguments: &[&str]) -> Self {
        let own = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&own).unwrap();
        unlockpt(&own).unwrap();
        let name = ptsname(&own, Vec::new()).unwrap();
        let end = || Stdio::from(open(&name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap());
        let mut command = Command::new(env!("CARGO_BIN_EXE_tiedkv"));
        command.args(arguments).env("TERM", "xterm").stdin(end()).stdout(end()).stderr(end());
        let child = command.spawn().unwrap();
        let terminal = File::from(own);
        let shown: Arc<Mutex<Vec<u8>>> = Arc::default();
        let (mut from, to) = (terminal.try_clone().unwrap(), shown.clone());
        // Ends when the command does and the last end is closed.
        std::thread::spawn(move || {
            let mut some = [0; 4096];
            while let Ok(count @ 1..) = from.read(&mut some) {
                to.lock().unwrap().extend_from_slice(&some[..count]);
            }
        });
        Self { child, terminal, shown }
    }

    fn types(&mut self, keys: &[u8]) {
        self.terminal.write_all(keys).unwrap();
    }

    /// Waits until `what` stands there so often.
    async fn shows(&self, what: &str, times: usize) {
        let shown = async || text(&self.shown.lock().unwrap());
        until(&format!("{what:?} is shown {times} times"), shown, |all| all.matches(what).count() >= times).await;
    }

    async fn ends(mut self) -> Option<i32> {
        let status = async || self.child.try_wait().unwrap();
        until("it ends", status, Option::is_some).await.and_then(|status| status.code())
    }
}

#[tokio::test]
async fn ctrl_c_on_a_terminal_ends_the_line_and_tab_completes_it() {
    let bed = replicated().await;
    let url = patient_url(&bed);
    let mut shell = OnTerminal::start(&["shell", "--cluster", &url, "--no-history"]);
    shell.shows("tiedkv: ", 1).await;
    shell.types(b"get no\x03");
    shell.shows("tiedkv: ", 2).await;
    // Twice: the signal of the first must not end the second.
    shell.types(b"\x03");
    shell.shows("tiedkv: ", 3).await;
    shell.types(b"pu\t");
    shell.shows("put ", 1).await;
    shell.types(b"key value\r");
    shell.shows("version", 1).await;
    // The line before, once more.
    shell.types(b"\x1b[A\r");
    shell.shows("version", 2).await;
    shell.types(b"\x04");
    assert_eq!(shell.ends().await, Some(0));
    settle(&bed).await;
    assert_eq!(bed.client.get("key").await.unwrap().unwrap().value, "value");
}

#[tokio::test]
async fn the_shell_runs_lines_of_a_pipe_as_one_session() {
    let bed = replicated().await;
    let url = patient_url(&bed);
    let shell = |more: &[&str], lines: &str| {
        let mut all = vec!["shell", "--cluster", &url];
        all.extend(more);
        tool(&all, lines.as_bytes())
    };
    let lines = "\n# a comment\nput 'a key' \"it's\" -o raw\nput a\\x00b \\xff -o raw\nincr n 41 -o raw\nincr n -o raw\n\
                 get 'a key'\nscan -o table\ncount\nmget n nothing\nexit\nput never run\n";
    let ran = shell(&[], lines);
    assert_eq!(code(&ran), Some(0), "{}", text(&ran.stderr));
    assert_printed("shell.txt", &ran.stdout);
    settle(&bed).await;
    // What a scan printed can be typed again.
    let pasted = shell(&[], "get a\\x00b -o table\n");
    assert!(text(&pasted.stdout).contains(r"value    \xff"), "{}", text(&pasted.stdout));
    assert!(text(&shell(&[], "help\n").stdout).contains("mget"));
    assert!(text(&shell(&[], "help scan\n").stdout).contains("--prefix"));
    // The shell's form is that of its lines.
    let json = shell(&["-o", "json"], "count\n");
    assert_eq!(
        json_lines(&json.stdout.iter().copied().filter(|byte| *byte != b'\n').collect::<Vec<_>>())[0]["count"],
        3
    );

    for (lines, line, named) in [
        ("get 'a\n", 1, "not closed"),
        ("get a\\q\n", 1, "no escape"),
        ("count\ngot a\n", 2, "get"),
        ("get a --prefx\n", 1, "--prefx"),
        ("put key\n", 1, "argument"),
        ("import\n", 1, "file"),
        ("start\n", 1, "not for the shell"),
        ("shell\n", 1, "not for the shell"),
        ("count --cluster tiedkv://a:1/?certs=x\n", 1, "connected already"),
        ("\n\nput '' v\n", 3, "1 to 4096"),
        ("help nothing\n", 1, "nothing"),
    ] {
        let failed = shell(&["-o", "json"], &format!("{lines}put after failure\n"));
        assert_eq!(code(&failed), Some(2), "{lines:?}: {}", text(&failed.stderr));
        let message = error_of(&failed)["message"].as_str().unwrap().to_owned();
        assert!(message.starts_with(&format!("line {line}: ")) && message.contains(named), "{lines:?}: {message}");
    }
    assert_eq!(
        text(&shell(&[], "mget after never\n").stdout),
        "after\t(absent)\nnever\t(absent)\n",
        "nothing ran behind an error"
    );
    assert_eq!(code(&shell(&[], "get nothing\ncount\n")), Some(0), "an absent key is no failure");
}

#[tokio::test]
async fn latencies_of_every_replica_are_shown_until_the_bound() {
    let mut bed = replicated().await;
    let url = patient_url(&bed);
    let watch = |more: &[&str]| {
        let mut all = vec!["watch-latency", "--cluster", &url, "--interval", "300ms", "--rate", "1000"];
        all.extend(more);
        tool(&all, b"")
    };
    let looks = watch(&["--count", "3", "-o", "json"]);
    assert_eq!(code(&looks), Some(0), "{}", text(&looks.stderr));
    let looks = json_lines(&looks.stdout);
    assert_eq!(looks.len(), 3);
    for replica in looks[2]["replicas"].as_array().unwrap() {
        // A busy machine may be late with some.
        let count = |name: &str| replica[name].as_u64().unwrap();
        assert!(count("reads") > 100 && count("errors") < count("reads") / 2, "{replica}");
        let of = |name: &str| replica[name].as_u64().unwrap();
        assert!(of("p50_us") > 0 && of("p50_us") <= of("p99_us") && of("p99_us") <= of("max_us"), "{replica}");
    }
    assert_eq!(looks[2]["replicas"].as_array().unwrap().len(), 3);
    let plain = watch(&["--duration", "500ms"]);
    let plain = text(&plain.stdout);
    assert!(!plain.contains('\u{1b}'), "no terminal, no colour and no cursor: {plain:?}");
    let head = plain.lines().nth(1).unwrap().split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(head, "node p50 p99 max queue p99 reads errors");
    assert_eq!(plain.lines().count(), 10, "{plain}");

    // A replica that hangs is seen at once, and not hidden by the others.
    let hung = bed.followers().await[0];
    bed.cluster.pause(hung).unwrap();
    let short = format!("{}&deadline=100ms&connect=5s", bed.cluster.url());
    let seen = tool(&["watch-latency", "--cluster", &short, "--interval", "1s", "--count", "1", "-o", "json"], b"");
    let look = json_lines(&seen.stdout).remove(0);
    for replica in look["replicas"].as_array().unwrap() {
        let most_fail = replica["errors"].as_u64().unwrap() > replica["reads"].as_u64().unwrap();
        assert_eq!(replica["node"] == hung.0, most_fail, "{look}");
    }
    bed.cluster.resume(hung).unwrap();
    for (arguments, named) in
        [(&["--interval", "1ms"][..], "interval"), (&["--rate", "0"], "--rate"), (&["--key", ""], "1 to 4096")]
    {
        let wrong = watch(&[arguments, &["--count", "1"]].concat());
        assert_eq!(code(&wrong), Some(2), "{arguments:?}: {}", text(&wrong.stderr));
        assert!(text(&wrong.stderr).contains(named), "{}", text(&wrong.stderr));
    }
}
