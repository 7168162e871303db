//! Reads the journal of the power-cut library and builds, for any prefix of it, a folder that a disk may hold which
//! lost its power there: bytes of files as of their last sync; names as of the last sync of their folder, or the newest
//! ones, as when a file system writes names before bytes ([`Names`]). Nothing else that was not synced is there.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

/// One record.
#[derive(Clone, Debug)]
pub struct Record {
    kind: Kind,
    inode: u64,
    number: u64,
    data: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Write,
    Truncate,
    Sync,
    SyncFolder,
    Create,
    Entries,
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
                6 => Kind::Entries,
                other => return Err(damaged(&format!("kind {other} at {at}"))),
            };
            let (path, data) = (length(17), length(21));
            let Some(body) = bytes.get(at + 25..at + 25 + path + data) else { break };
            journal.starts.push(at as u64);
            journal.records.push(Record { kind, inode: number(1), number: number(9), data: body[path..].to_vec() });
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

/// Which names of files and folders survive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Names {
    /// Those of the last sync of their folder.
    Synced,
    /// All that were there: made, renamed and removed.
    Newest,
}

/// What was made under an inode at one time: inodes are used again.
type Thing = u64;

#[derive(Clone, Debug, Default)]
struct Bytes {
    /// Zero beyond its end, up to `length`.
    written: Vec<u8>,
    length: u64,
}

#[derive(Clone, Debug, Default)]
struct Known {
    durable: Bytes,
    pending: Vec<Record>,
    synced: Entries,
    newest: Entries,
}

/// Names, things, folder or not.
type Entries = BTreeMap<String, (Thing, bool)>;

/// What a disk holds for certain.
#[derive(Debug, Default)]
pub struct Disk {
    things: HashMap<Thing, Known>,
    of_inode: HashMap<u64, Thing>,
    root: Option<Thing>,
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
            Kind::Sync | Kind::SyncFolder | Kind::Create | Kind::Entries => {}
        }
    }
}

impl Disk {
    /// The disk of a folder that was empty when the journal began.
    ///
    /// # Errors
    /// When the folder cannot be looked at.
    pub fn of(root: &Path) -> io::Result<Self> {
        let mut disk = Self::default();
        disk.root = Some(disk.thing(std::fs::metadata(root)?.ino()));
        Ok(disk)
    }

    fn thing(&mut self, inode: u64) -> Thing {
        match self.of_inode.get(&inode) {
            Some(thing) => *thing,
            None => self.make(inode),
        }
    }

    fn make(&mut self, inode: u64) -> Thing {
        let thing = self.things.len() as Thing;
        self.things.insert(thing, Known::default());
        self.of_inode.insert(inode, thing);
        thing
    }

    /// The next record.
    ///
    /// # Errors
    /// When a folder's entries cannot be read.
    pub fn apply(&mut self, record: &Record) -> io::Result<()> {
        if record.kind == Kind::Create {
            self.make(record.inode);
            return Ok(());
        }
        let entries = self.entries(&record.data, record.kind)?;
        let thing = self.thing(record.inode);
        let known = self.things.entry(thing).or_default();
        match record.kind {
            Kind::Create => {}
            Kind::Write | Kind::Truncate => known.pending.push(record.clone()),
            Kind::Sync => {
                for pending in std::mem::take(&mut known.pending) {
                    known.durable.apply(&pending);
                }
            }
            Kind::Entries => known.newest = entries,
            Kind::SyncFolder => {
                known.newest.clone_from(&entries);
                known.synced = entries;
            }
        }
        Ok(())
    }

    fn entries(&mut self, mut data: &[u8], kind: Kind) -> io::Result<Entries> {
        let mut entries = Entries::new();
        if !matches!(kind, Kind::SyncFolder | Kind::Entries) {
            return Ok(entries);
        }
        while !data.is_empty() {
            let short = || damaged("the entries of a folder");
            let (inode, rest) = data.split_first_chunk::<8>().ok_or_else(short)?;
            let (folder, rest) = rest.split_first().ok_or_else(short)?;
            let (length, rest) = rest.split_first_chunk::<2>().ok_or_else(short)?;
            let length = usize::from(u16::from_le_bytes(*length));
            let name = rest.get(..length).ok_or_else(short)?;
            let thing = self.thing(u64::from_le_bytes(*inode));
            entries.insert(String::from_utf8_lossy(name).into_owned(), (thing, *folder == 1));
            data = &rest[length..];
        }
        Ok(entries)
    }

    /// Makes the folder.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn build(&self, names: Names, target: &Path) -> io::Result<()> {
        let Some(root) = self.root else { return Ok(()) };
        self.build_folder(root, names, target, &mut HashSet::new())
    }

    /// A folder that was renamed may be named twice by what was synced: it is built where it is met first.
    fn build_folder(
        &self,
        folder: Thing,
        names: Names,
        target: &Path,
        built: &mut HashSet<Thing>,
    ) -> io::Result<()> {
        std::fs::create_dir_all(target)?;
        let Some(known) = self.things.get(&folder).filter(|_| built.insert(folder)) else { return Ok(()) };
        let entries = match names {
            Names::Synced => &known.synced,
            Names::Newest => &known.newest,
        };
        for (name, (thing, folder)) in entries {
            let target = target.join(name);
            if *folder {
                self.build_folder(*thing, names, &target, built)?;
                continue;
            }
            let file = File::create(&target)?;
            if let Some(known) = self.things.get(thing) {
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
                let known = self.of_inode.get(&meta.ino()).and_then(|thing| self.things.get(thing));
                let mut all = known.cloned().unwrap_or_default();
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
