//! Reads the journal of the power-cut library and builds, for any prefix of it, the folder as a disk may hold it that
//! lost its power there: bytes of files as of their last sync, entries of folders as of their last sync.
//!
//! A synced file also keeps its name, as on ext4, xfs and btrfs; everything else that was not synced is gone.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// One record.
#[derive(Clone, Debug)]
pub struct Record {
    kind: Kind,
    inode: u64,
    number: u64,
    path: String,
    data: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Write,
    Truncate,
    Sync,
    SyncFolder,
    Create,
}

/// A journal in memory.
#[derive(Debug, Default)]
pub struct Journal {
    records: Vec<Record>,
    /// Length of the journal before each record.
    starts: Vec<u64>,
}

fn damaged(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the journal: {what}"))
}

impl Journal {
    /// Reads a journal; a last record that is not whole is ignored (its process was killed).
    ///
    /// # Errors
    /// When it cannot be read or is none.
    pub fn read(path: &Path) -> io::Result<Self> {
        let bytes = std::fs::read(path)?;
        let mut journal = Self::default();
        let mut at = 0;
        while let Some(head) = bytes.get(at..at + 25) {
            let number = |from: usize| u64::from_le_bytes(head[from..from + 8].try_into().unwrap_or_default());
            let length =
                |from: usize| u32::from_le_bytes(head[from..from + 4].try_into().unwrap_or_default()) as usize;
            let kind = match head[0] {
                1 => Kind::Write,
                2 => Kind::Truncate,
                3 => Kind::Sync,
                4 => Kind::SyncFolder,
                5 => Kind::Create,
                other => return Err(damaged(&format!("kind {other} at {at}"))),
            };
            let (path, data) = (length(17), length(21));
            let Some(body) = bytes.get(at + 25..at + 25 + path + data) else { break };
            journal.starts.push(at as u64);
            journal.records.push(Record {
                kind,
                inode: number(1),
                number: number(9),
                path: String::from_utf8_lossy(&body[..path]).into_owned(),
                data: body[path..].to_vec(),
            });
            at += 25 + path + data;
        }
        Ok(journal)
    }

    /// How many records.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// No record.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// How many records a journal of `bytes` had.
    pub fn count_at(&self, bytes: u64) -> usize {
        self.starts.partition_point(|start| *start < bytes)
    }

    /// The records.
    pub fn records(&self) -> &[Record] {
        &self.records
    }
}

#[derive(Clone, Debug, Default)]
struct Bytes {
    /// Zero beyond its end, up to `length`.
    written: Vec<u8>,
    length: u64,
}

#[derive(Clone, Debug, Default)]
struct Known {
    path: String,
    durable: Bytes,
    pending: Vec<Record>,
}

/// What a disk holds for certain.
#[derive(Debug, Default)]
pub struct Disk {
    files: HashMap<u64, Known>,
    /// Of each folder that was synced, or holds something that was: names, inodes, folder or not.
    folders: BTreeMap<String, BTreeMap<String, (u64, bool)>>,
}

impl Bytes {
    fn apply(&mut self, record: &Record) {
        match record.kind {
            Kind::Write => {
                let end = record.number as usize + record.data.len();
                if self.written.len() < end {
                    self.written.resize(end, 0);
                }
                self.written[record.number as usize..end].copy_from_slice(&record.data);
                self.length = self.length.max(end as u64);
            }
            Kind::Truncate => {
                self.written.truncate(usize::try_from(record.number).unwrap_or(usize::MAX));
                self.length = record.number;
            }
            Kind::Sync | Kind::SyncFolder | Kind::Create => {}
        }
    }
}

fn parent(path: &str) -> Option<(&str, &str)> {
    match path.rsplit_once('/') {
        Some(both) => Some(both),
        None if path.is_empty() => None,
        None => Some(("", path)),
    }
}

impl Disk {
    /// The next record.
    ///
    /// # Errors
    /// When a folder's entries cannot be read.
    pub fn apply(&mut self, record: &Record) -> io::Result<()> {
        let file = self.files.entry(record.inode).or_default();
        match record.kind {
            Kind::Create if file.path != record.path => {
                *file = Known { path: record.path.clone(), ..Known::default() };
                self.forget(record.inode, &record.path);
            }
            Kind::Create => {}
            Kind::Write | Kind::Truncate => file.pending.push(record.clone()),
            Kind::Sync => {
                file.path.clone_from(&record.path);
                for pending in std::mem::take(&mut file.pending) {
                    file.durable.apply(&pending);
                }
                self.forget(record.inode, &record.path);
                self.keep(&record.path, record.inode, false);
            }
            Kind::SyncFolder => {
                self.files.remove(&record.inode);
                let entries = entries(&record.data)?;
                self.folders.insert(record.path.clone(), entries);
                self.keep(&record.path, record.inode, true);
            }
        }
        Ok(())
    }

    /// An inode is known by one name.
    fn forget(&mut self, inode: u64, path: &str) {
        for (folder, entries) in &mut self.folders {
            entries.retain(|name, (other, _)| {
                *other != inode || parent(path) == Some((folder.as_str(), name.as_str()))
            });
        }
    }

    fn keep(&mut self, path: &str, inode: u64, folder: bool) {
        let (mut path, mut entry) = (path, (inode, folder));
        while let Some((above, name)) = parent(path) {
            self.folders.entry(above.to_owned()).or_default().entry(name.to_owned()).or_insert(entry);
            (path, entry) = (above, (0, true));
        }
    }

    /// Makes the folder.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn build(&self, target: &Path) -> io::Result<()> {
        self.build_folder("", target)
    }

    fn build_folder(&self, path: &str, target: &Path) -> io::Result<()> {
        std::fs::create_dir_all(target)?;
        for (name, (inode, folder)) in self.folders.get(path).into_iter().flatten() {
            let (below, target) = (join(path, name), target.join(name));
            if *folder {
                self.build_folder(&below, &target)?;
                continue;
            }
            let file = File::create(&target)?;
            if let Some(known) = self.files.get(inode) {
                file.write_all_at(&known.durable.written, 0)?;
                file.set_len(known.durable.length)?;
            }
        }
        Ok(())
    }

    /// What the files under `root` hold that the journal does not explain: none, if the library follows every way of
    /// writing that was used.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn unexplained(&self, root: &Path) -> io::Result<Vec<String>> {
        use std::os::unix::fs::MetadataExt;
        let (mut found, mut folders) = (Vec::new(), vec![root.to_owned()]);
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder)? {
                let (path, meta) = {
                    let entry = entry?;
                    (entry.path(), entry.metadata()?)
                };
                if meta.is_dir() {
                    folders.push(path);
                    continue;
                }
                let mut all = self.files.get(&meta.ino()).cloned().unwrap_or_default();
                for pending in &all.pending {
                    all.durable.apply(pending);
                }
                let mut expected = all.durable.written;
                expected.resize(usize::try_from(all.durable.length).unwrap_or(usize::MAX), 0);
                if std::fs::read(&path)? != expected {
                    found.push(path.display().to_string());
                }
            }
        }
        Ok(found)
    }
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}/{name}") }
}

fn entries(mut data: &[u8]) -> io::Result<BTreeMap<String, (u64, bool)>> {
    let mut entries = BTreeMap::new();
    while !data.is_empty() {
        let short = || damaged("the entries of a folder");
        let (inode, rest) = data.split_first_chunk::<8>().ok_or_else(short)?;
        let (folder, rest) = rest.split_first().ok_or_else(short)?;
        let (length, rest) = rest.split_first_chunk::<2>().ok_or_else(short)?;
        let length = usize::from(u16::from_le_bytes(*length));
        let name = rest.get(..length).ok_or_else(short)?;
        let name = String::from_utf8_lossy(name).into_owned();
        entries.insert(name, (u64::from_le_bytes(*inode), *folder == 1));
        data = &rest[length..];
    }
    Ok(entries)
}
