//! The folder of a node: one process, one node, one cluster, one life.
//!
//! `lock` is held while the process lives; `identity.json` says whose folder this is and in which life
//! (incarnation); `peers.json` remembers the incarnations of the peers seen. Files are written beside, fsynced,
//! renamed, and the folder fsynced, so that a first start that dies half-way can be run again.

use crate::peer::hello::{Incarnations, NotAdmitted};
use parking_lot::Mutex;
use rand::RngCore;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use tiedkv_protocol::ids::{ClusterId, NodeId};

/// Version of `identity.json` and `peers.json`, and of the layout of the folder.
pub const FOLDER_FORMAT: u32 = 1;
/// Says why no node may start with this folder.
const CONDEMNED: &str = "condemned.json";

/// Why a folder cannot be used; says what to do.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// It cannot be read or written.
    #[error("{}: {source}", .path.display())]
    Io {
        /// Which file or folder.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// Another process has it.
    #[error("{}: in use by another process; stop it first, or give this node a folder of its own", .0.display())]
    InUse(PathBuf),
    /// It belongs to another node or cluster.
    #[error(
        "{}: is the folder of node {found_node} of cluster {found_cluster}, this is node {node} of cluster {cluster}; \
         check `data_dir` and the certificate",
        .path.display()
    )]
    Foreign {
        /// Which folder.
        path: PathBuf,
        /// Whose it is.
        found_node: u64,
        /// Of which cluster.
        found_cluster: ClusterId,
        /// Who we are.
        node: u64,
        /// Our cluster.
        cluster: ClusterId,
    },
    /// A file is damaged or of a newer version.
    #[error("{}: {what}", .path.display())]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct IdentityFile {
    format: u32,
    cluster: String,
    node: u64,
    incarnation: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct PeersFile {
    format: u32,
    incarnations: BTreeMap<u64, String>,
    /// Members that were removed: an id is used once in the life of a cluster.
    #[serde(default)]
    removed: BTreeSet<u64>,
}

/// A locked folder of this node.
pub struct Folder {
    path: PathBuf,
    incarnation: u128,
    peers: Mutex<PeersFile>,
    /// Held, never read: the lock goes with it.
    _lock: File,
}

impl Folder {
    /// Locks the folder and makes it this node's if it is nobody's yet.
    ///
    /// # Errors
    /// When it is in use, belongs to somebody else or cannot be written.
    pub fn open(path: &Path, cluster: ClusterId, node: NodeId) -> Result<Self, FolderError> {
        fs::create_dir_all(path).map_err(at(path))?;
        if let Some(parent) = path.parent() {
            // The folder's own name must survive a power cut; not every parent may be opened.
            if let Err(error) = sync_folder(if parent.as_os_str().is_empty() { Path::new(".") } else { parent }) {
                tracing::debug!(%error, "the parent of the data folder cannot be synced");
            }
        }
        let lock_path = path.join("lock");
        let lock =
            File::options().create(true).truncate(false).write(true).open(&lock_path).map_err(at(&lock_path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(FolderError::InUse(path.to_owned())),
            Err(TryLockError::Error(source)) => return Err(FolderError::Io { path: lock_path, source }),
        }
        let identity_path = path.join("identity.json");
        let wanted = format!("{cluster}");
        let identity = match read::<IdentityFile>(&identity_path)? {
            Some(found) => found,
            None => {
                let mut random = [0; 16];
                rand::rng().fill_bytes(&mut random);
                let incarnation = format!("{:032x}", u128::from_le_bytes(random));
                let made =
                    IdentityFile { format: FOLDER_FORMAT, cluster: wanted.clone(), node: node.0, incarnation };
                write(path, "identity.json", &made)?;
                made
            }
        };
        let damaged = |what: &str| FolderError::Damaged { path: identity_path.clone(), what: what.to_owned() };
        if identity.format != FOLDER_FORMAT {
            return Err(damaged(&format!("format {}, this version knows {FOLDER_FORMAT}", identity.format)));
        }
        if identity.node != node.0 || identity.cluster != wanted {
            let found = u128::from_str_radix(&identity.cluster, 16).map_err(|_| damaged("no cluster id"))?;
            return Err(FolderError::Foreign {
                path: path.to_owned(),
                found_node: identity.node,
                found_cluster: ClusterId(found),
                node: node.0,
                cluster,
            });
        }
        if let Some(why) = read::<String>(&path.join(CONDEMNED))? {
            return Err(FolderError::Damaged { path: path.to_owned(), what: why });
        }
        let incarnation = u128::from_str_radix(&identity.incarnation, 16).map_err(|_| damaged("no incarnation"))?;
        let peers = read::<PeersFile>(&path.join("peers.json"))?
            .unwrap_or(PeersFile { format: FOLDER_FORMAT, ..PeersFile::default() });
        Ok(Self { path: path.to_owned(), incarnation, peers: Mutex::new(peers), _lock: lock })
    }

    /// This life of the folder.
    pub fn incarnation(&self) -> u128 {
        self.incarnation
    }

    /// A folder within. If it is not there, `fill` makes its content beside it first: a first start that dies half-way
    /// leaves nothing that the next one could take for whole.
    ///
    /// # Errors
    /// When it cannot be made, or `fill` fails.
    pub fn inner<E: From<FolderError>>(
        &self,
        name: &str,
        fill: impl FnOnce(&Path) -> Result<(), E>,
    ) -> Result<PathBuf, E> {
        let path = self.path.join(name);
        if path.exists() {
            return Ok(path);
        }
        let beside = self.path.join(format!("{name}.new"));
        if beside.exists() {
            fs::remove_dir_all(&beside).map_err(at(&beside))?;
        }
        fs::create_dir(&beside).map_err(at(&beside))?;
        fill(&beside)?;
        sync_folder(&beside).map_err(at(&beside))?;
        fs::rename(&beside, &path).map_err(at(&path))?;
        sync_folder(&self.path).map_err(at(&self.path))?;
        Ok(path)
    }

    /// Makes this folder one that no node starts with again, and says why.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn condemn(&self, why: &str) -> Result<(), FolderError> {
        write(&self.path, CONDEMNED, &why)
    }

    /// Remembers that members were removed.
    ///
    /// # Errors
    /// When it cannot be written; it is known until the process ends.
    pub fn note_removed(&self, nodes: impl IntoIterator<Item = u64>) -> Result<(), FolderError> {
        let mut peers = self.peers.lock();
        peers.removed.extend(nodes);
        write(&self.path, "peers.json", &*peers)
    }
}

impl Incarnations for Folder {
    fn admit(&self, node: NodeId, incarnation: u128) -> Result<(), NotAdmitted> {
        let text = format!("{incarnation:032x}");
        let mut peers = self.peers.lock();
        if peers.removed.contains(&node.0) {
            return Err(NotAdmitted::Never(format!(
                "node {} was removed from the cluster, and an id is used once; its folder may be deleted. To bring the \
                 machine back, make a certificate with a new id (`tiedkv certs --add`) and add that",
                node.0
            )));
        }
        match peers.incarnations.get(&node.0) {
            Some(known) if *known == text => Ok(()),
            Some(_) => Err(NotAdmitted::Never(format!(
                "node {} comes with another data folder than before (wiped, replaced or restored): it may have \
                 forgotten votes and writes that it acknowledged. Remove it (`tiedkv member remove --node {}`) and add it \
                 again under a node id that was never used",
                node.0, node.0
            ))),
            None => {
                peers.incarnations.insert(node.0, text);
                if let Err(error) = write(&self.path, "peers.json", &*peers) {
                    peers.incarnations.remove(&node.0);
                    return Err(NotAdmitted::NotNow(format!("cannot remember the peer: {error}")));
                }
                Ok(())
            }
        }
    }

    fn is_removed(&self, node: NodeId) -> bool {
        self.peers.lock().removed.contains(&node.0)
    }
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> FolderError {
    let path = path.to_owned();
    move |source| FolderError::Io { path, source }
}

fn sync_folder(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

fn read<T: serde::de::DeserializeOwned>(path: &Path) -> Result<Option<T>, FolderError> {
    match fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes)
            .map(Some)
            .map_err(|error| FolderError::Damaged { path: path.to_owned(), what: error.to_string() }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(FolderError::Io { path: path.to_owned(), source }),
    }
}

fn write<T: Serialize>(folder: &Path, name: &str, content: &T) -> Result<(), FolderError> {
    let path = folder.join(name);
    let beside = folder.join(format!("{name}.new"));
    let bytes = serde_json::to_vec_pretty(content)
        .map_err(|error| FolderError::Damaged { path: path.clone(), what: error.to_string() })?;
    let written = (|| {
        let mut file = File::create(&beside)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        fs::rename(&beside, &path)?;
        sync_folder(folder)
    })();
    written.map_err(at(&path))
}

#[cfg(test)]
#[path = "folder_test.rs"]
mod tests;
