//! What `--json` writes and `--from` reads: rows and all that is needed to repeat them.

use super::row::{BusyRow, relate};
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// A run, or several merged.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Document {
    /// Version of this form.
    pub format: u32,
    /// The runs whose rows are here.
    pub runs: Vec<Run>,
    /// One per scene and policy.
    pub rows: Vec<BusyRow>,
}

/// How rows were made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// As typed.
    pub command: String,
    /// Version of tiedkv, with its commit where that is known.
    pub version: String,
    /// With assertions (a profile for tests) or without.
    pub assertions: bool,
    /// Seed of arrivals, keys, jobs and draws.
    pub seed: u64,
    /// Processors of the machine.
    pub processors: usize,
    /// Their name.
    pub processor: String,
    /// Operating system.
    pub system: String,
    /// How long and how often each scene was played; empty in files of before this was told.
    #[serde(default)]
    pub played: Vec<PlayedScene>,
}

/// How a scene was played in a run, whatever the command left to what is usual.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlayedScene {
    /// Which scene.
    pub scene: String,
    /// Counted seconds of one playing.
    pub seconds: u64,
    /// Playings of a policy, those of the one that has most.
    pub repeats: u32,
}

impl Run {
    /// This process, of `version`, on this machine.
    pub fn here(command: String, version: &str, seed: u64) -> Self {
        let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Self {
            command,
            version: version.to_owned(),
            assertions: cfg!(debug_assertions),
            seed,
            processors: std::thread::available_parallelism().map_or(0, usize::from),
            processor: model.map_or_else(|| "unknown".to_owned(), |(_, name)| name.trim().to_owned()),
            system: format!("{} {}", std::env::consts::OS, release.trim()),
            played: Vec::new(),
        }
    }

    /// The same with how its rows were played.
    fn with_played(mut self, rows: &[BusyRow]) -> Self {
        for row in rows {
            match self.played.iter_mut().find(|one| one.scene == row.scene) {
                Some(one) => {
                    one.seconds = one.seconds.max(row.seconds);
                    one.repeats = one.repeats.max(row.repeats);
                }
                None => self.played.push(PlayedScene {
                    scene: row.scene.clone(),
                    seconds: row.seconds,
                    repeats: row.repeats,
                }),
            }
        }
        self
    }
}

/// Version of the form.
const FORMAT: u32 = 1;

impl Document {
    /// Rows of one run, which is told how they were played.
    pub fn new(run: Run, rows: Vec<BusyRow>) -> Self {
        let mut document = Self { format: FORMAT, runs: vec![run.with_played(&rows)], rows };
        relate(&mut document.rows);
        document
    }

    /// Reads a file that `--json` wrote.
    ///
    /// # Errors
    /// When it cannot be read or is something else.
    pub fn read(path: &Path) -> Result<Self> {
        let name = || path.display().to_string();
        let text = std::fs::read_to_string(path).with_context(name)?;
        serde_json::from_str(&text).with_context(|| format!("{}: no file of `tiedkv bench busy --json`", name()))
    }

    /// Writes it.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string(self)? + "\n";
        std::fs::write(path, text).with_context(|| path.display().to_string())
    }

    /// Adds another run; of rows that both have, the other's stay. Ratios are those within each run, as they were.
    pub fn merge(&mut self, other: Self) {
        self.format = FORMAT;
        self.runs.extend(other.runs);
        for row in other.rows {
            match self.rows.iter_mut().find(|own| own.scene == row.scene && own.policy == row.policy) {
                Some(own) => *own = row,
                None => self.rows.push(row),
            }
        }
    }

    /// The row of a cell.
    pub fn row(&self, scene: &str, policy: &str) -> Option<&BusyRow> {
        self.rows.iter().find(|row| row.scene == scene && row.policy == policy)
    }

    /// Names of the scenes, in the order of the rows.
    pub fn scenes(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for row in &self.rows {
            if !names.contains(&row.scene.as_str()) {
                names.push(&row.scene);
            }
        }
        names
    }

    /// Names of the policies, in the order of the rows.
    pub fn policies(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for row in &self.rows {
            if !names.contains(&row.policy.as_str()) {
                names.push(&row.policy);
            }
        }
        names
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(scene: &str, policy: &str, p99_us: u64) -> BusyRow {
        BusyRow { scene: scene.into(), policy: policy.into(), p99_us: Some(p99_us), ..BusyRow::default() }
    }

    #[test]
    fn a_run_tells_how_long_and_how_often_its_scenes_were_played() {
        let played = |policy: &str, repeats: u32| BusyRow { seconds: 15, repeats, ..row("busy", policy, 10) };
        let document = Document::new(Run::default(), vec![played("untied", 5), played("tied2", 4)]);
        let busy = PlayedScene { scene: "busy".into(), seconds: 15, repeats: 5 };
        assert_eq!(document.runs[0].played, [busy]);
        let old = r#"{"command":"x","version":"1","assertions":true,"seed":1,"processors":2,"processor":"p","system":"s"}"#;
        assert_eq!(serde_json::from_str::<Run>(old).unwrap().played, []);
    }

    #[test]
    fn a_file_is_read_as_it_was_written_and_merged_by_cell() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.json");
        let mut first = Document::new(Run::default(), vec![row("idle", "untied", 10), row("busy", "untied", 20)]);
        first.write(&path).unwrap();
        assert_eq!(Document::read(&path).unwrap(), first);
        first.merge(Document::new(Run::default(), vec![row("busy", "untied", 22), row("busy", "tied2", 11)]));
        assert_eq!(first.row("busy", "untied").and_then(|row| row.p99_us), Some(22));
        assert_eq!((first.rows.len(), first.scenes(), first.policies().len()), (3, vec!["idle", "busy"], 2));
        std::fs::write(&path, "[]").unwrap();
        assert!(Document::read(&path).unwrap_err().to_string().contains("--json"));
    }
}
