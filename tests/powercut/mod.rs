//! Power cuts and failing disks: a group of one voter writes over the library in `powercut.c`; whatever prefix of its
//! disk work survives, all that was acknowledged is there, batches are whole and no term is led twice.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use tiedkv_benches::cluster::certs::Authority;
use tiedkv_protocol::ids::NodeId;
use tiedkv_server::storage::view::POISONED;
use tiedkv_tests::powercut::library;
use tiedkv_tests::powercut::replay::{Disk, Journal, Names};
use tiedkv_tests::powercut::victim::{self, Said, keys_of};
use tokio::task::JoinSet;

const DATA: &str = "POWERCUT_ROOT";
const JOURNAL: &str = "POWERCUT_JOURNAL";
const CERTS: &str = "TIEDKV_TESTS_CERTS";

/// Folders, certificates and the library of one test.
struct Bed {
    folder: tempfile::TempDir,
}

impl Bed {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        library::compile(folder.path()).unwrap();
        std::fs::create_dir(folder.path().join("data")).unwrap();
        Authority::create(&folder.path().join("certs")).unwrap().issue_node(NodeId(1)).unwrap();
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Lets the victim live over the library, perhaps over a disk that fails.
    fn play(&self, fail: Option<&str>) -> Vec<Said> {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["powercut::the_victim", "--exact", "--ignored", "--nocapture", "--test-threads=1"])
            .env("LD_PRELOAD", self.path("powercut.so"))
            .env(DATA, self.path("data"))
            .env(JOURNAL, self.path("journal"))
            .env(CERTS, self.path("certs"));
        if let Some(fail) = fail {
            command.env(victim::FAIL, fail);
        }
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
        text.lines().filter_map(Said::of).collect()
    }
}

/// Not a test by itself: the process whose power is cut.
#[test]
#[ignore = "only as a child of the tests below"]
fn the_victim() {
    let (Some(data), Some(journal), Some(certs)) =
        (std::env::var_os(DATA), std::env::var_os(JOURNAL), std::env::var_os(CERTS))
    else {
        return;
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let life = victim::live(certs.as_ref(), data.as_ref(), journal.as_ref(), 3, 60);
    runtime.block_on(life).unwrap();
}

/// What must be there when the power goes after so many records: acknowledged numbers and the last term led.
fn owed(said: &[Said], journal: &Journal, cut: usize) -> (BTreeMap<String, u64>, u64) {
    let (mut numbers, mut term) = (BTreeMap::new(), 0);
    for word in said {
        match word {
            Said::Acknowledged(bytes, key, number) if journal.count_at(*bytes) <= cut => {
                numbers.insert(key.clone(), *number);
            }
            Said::Leads(bytes, led) if journal.count_at(*bytes) <= cut => term = *led,
            _ => {}
        }
    }
    (numbers, term)
}

/// Opens a folder that a disk may hold and compares.
async fn look(certs: PathBuf, left: tempfile::TempDir, at: String, owed: (BTreeMap<String, u64>, u64)) {
    let (certs, folder) = (certs, left.path().to_owned());
    let opened = tokio::task::spawn_blocking(move || victim::open(&certs, &folder)).await.unwrap();
    let group = opened.unwrap_or_else(|error| panic!("{at}: {error}"));
    let term = victim::leads(&group).await.unwrap_or_else(|error| panic!("{at}: {error}"));
    let found = victim::numbers(&group).unwrap_or_else(|error| panic!("{at}: {error}"));
    let (owed, led) = owed;
    assert!(term > led, "{at}: term {led} was led, and now {term} is");
    for (key, number) in owed {
        let have = found.get(&key).copied().unwrap_or(0);
        assert!(have >= number, "{at}: {key} was acknowledged as {number} and is {have}");
    }
    for writer in 0..victim::WRITERS {
        let [_, one, other] = keys_of(writer);
        assert_eq!(found.get(&one), found.get(&other), "{at}: half a batch");
    }
    tokio::task::spawn_blocking(move || drop((group, left))).await.unwrap();
}

/// Groups that are open at once: they mostly wait for their election.
const OPEN_MAX: usize = 12;

/// One recorded run, cut at so many points; at each, both ways in which names may survive.
async fn all_cuts(points: usize) {
    let bed = Bed::new();
    let said = bed.play(None);
    let acknowledged = said.iter().filter(|word| matches!(word, Said::Acknowledged(..))).count();
    let journal = Journal::read(&bed.path("journal")).unwrap();
    assert!(acknowledged >= 1_000, "{acknowledged} acknowledged, {} records", journal.len());
    let mut disk = Disk::of(&bed.path("data")).unwrap();
    let (mut next, mut looked, mut looks) = (1, 0, JoinSet::new());
    for (index, record) in journal.records().iter().enumerate() {
        disk.apply(record).unwrap();
        // Spread evenly, but never in step with what repeats.
        if (index + 1) * points < next * journal.len() {
            continue;
        }
        next += 1;
        for names in [Names::Synced, Names::Newest] {
            let left = tempfile::tempdir_in(bed.folder.path()).unwrap();
            disk.build(names, left.path()).unwrap();
            let at = format!("cut after record {} of {}, names {names:?}", index + 1, journal.len());
            looks.spawn(look(bed.path("certs"), left, at, owed(&said, &journal, index + 1)));
            looked += 1;
            if looks.len() >= OPEN_MAX {
                looks.join_next().await.unwrap().unwrap();
            }
        }
    }
    while let Some(one) = looks.join_next().await {
        one.unwrap();
    }
    println!("{looked} folders after {} records of {acknowledged} acknowledged writes", journal.len());
    assert_eq!(looked, 2 * points.min(journal.len()));
    assert_eq!(disk.unexplained(&bed.path("data")).unwrap(), Vec::<String>::new(), "ways of writing not followed");
}

#[tokio::test]
async fn whatever_was_synced_holds_all_that_was_acknowledged() {
    all_cuts(200).await;
}

#[tokio::test]
#[ignore = "long: every cut point"]
async fn whatever_was_synced_holds_all_that_was_acknowledged_at_every_point() {
    all_cuts(1 << 30).await;
}

/// What the library follows is in the journal; any other way of writing ends the process, so that none passes unseen.
#[test]
fn a_way_of_writing_that_is_not_followed_ends_the_process() {
    const FOLLOWED: [&str; 8] =
        ["write", "writev", "pwrite", "pwrite64", "pwritev", "pwritev64", "ftruncate", "ftruncate64"];
    const NOT_FOLLOWED: [&str; 17] = [
        "pwritev2",
        "pwritev64v2",
        "truncate",
        "truncate64",
        "fallocate",
        "fallocate64",
        "posix_fallocate",
        "posix_fallocate64",
        "copy_file_range",
        "sendfile",
        "sendfile64",
        "splice",
        "mmap",
        "link",
        "fopen",
        "fopen64",
        "O_TMPFILE",
    ];
    let bed = Bed::new();
    let (source, program) = (bed.path("intruder.c"), bed.path("intruder"));
    std::fs::write(&source, include_str!("intruder.c")).unwrap();
    let compiled = Command::new("cc").arg("-o").args([&program, &source]).output().unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    std::fs::write(bed.path("data").join("a"), "").unwrap();
    let play = |call: &str, followed: bool| {
        let journal = bed.path(&format!("journal-{call}"));
        let output = Command::new(&program)
            .arg(bed.path("data"))
            .arg(call)
            .env("LD_PRELOAD", bed.path("powercut.so"))
            .env(DATA, bed.path("data"))
            .env(JOURNAL, &journal)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.success(), followed, "{call}: {:?} {said}", output.status);
        assert_eq!(said.contains("is not followed"), !followed, "{call}: {said}");
        assert!(
            !followed || !Journal::read(&journal).unwrap().records().is_empty(),
            "{call} is not in the journal"
        );
    };
    FOLLOWED.iter().for_each(|call| play(call, true));
    NOT_FOLLOWED.iter().for_each(|call| play(call, false));
}

/// A disk that fails: the group stops, says why, acknowledges nothing more, and what it had acknowledged is there.
async fn fails(fail: &str) {
    let bed = Bed::new();
    let said = bed.play(Some(fail));
    let journal = Journal::read(&bed.path("journal")).unwrap();
    let first = said.iter().position(|word| matches!(word, Said::Failed(_))).expect("a failure");
    assert!(said[..first].iter().any(|word| matches!(word, Said::Acknowledged(..))), "something first");
    // What was asked for before may have been on disk before.
    let asked: Vec<_> = said[first..].iter().filter_map(Said::asked).collect();
    let acknowledged = |word: &&Said| matches!(word, Said::Acknowledged(_, key, number) if asked.contains(&(key.as_str(), *number)));
    assert_eq!(
        said[first..].iter().find(acknowledged),
        None,
        "acknowledged after the failure: {:?}",
        &said[first..]
    );
    let latched = said.iter().find_map(|word| match word {
        Said::Latched(why) => Some(why.clone()),
        _ => None,
    });
    assert!(
        latched.is_some_and(|why| why.contains("os error") || why.contains(POISONED)),
        "says why: {:?}",
        said.last()
    );
    let mut disk = Disk::of(&bed.path("data")).unwrap();
    for record in journal.records() {
        disk.apply(record).unwrap();
    }
    let left = tempfile::tempdir_in(bed.folder.path()).unwrap();
    disk.build(Names::Synced, left.path()).unwrap();
    look(bed.path("certs"), left, "the end".to_owned(), owed(&said, &journal, journal.len())).await;
}

#[tokio::test]
async fn a_sync_that_fails_stops_the_group_and_loses_nothing() {
    fails("fsync:150:5").await;
}

#[tokio::test]
async fn a_full_disk_stops_the_group_and_loses_nothing() {
    fails("write:400:28").await;
}
