//! The folder on the data partition.
//!
//! ```text
//! lock                 held by the one process that writes
//! incoming/            bundles that arrive, packages that are unpacked; emptied at each start
//! packages/<sha256>/   one package each, complete and never changed
//! models/<name>.toml   current, previous and candidate of a model
//! ```

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File};
use std::io::{ErrorKind, Seek as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use tempfile::{NamedTempFile, TempDir};

use crate::bundle::{self, sync};
use crate::record::{Record, is_digest};
use crate::{Error, Keys, Refusal, Release, Result};

/// The store, for the one process that writes to it.
#[derive(Debug)]
pub struct Store {
    root: PathBuf,
    /// Held until the file is closed, at the latest when the process ends.
    _lock: File,
}

/// A bundle that arrives. It is gone when this is dropped.
#[derive(Debug)]
pub struct Incoming {
    file: NamedTempFile,
    bytes: u64,
}

/// What a bundle is said to hold; what is not said is not checked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offer {
    /// Name of the model.
    pub name: Option<String>,
    /// Version of the package.
    pub version: Option<String>,
    /// SHA-256 of the bundle, in lower-case hexadecimal digits.
    pub sha256: Option<String>,
}

/// A version that is in the store and must prove itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Name of the model.
    pub name: String,
    /// The version.
    pub release: Release,
    /// Folder of its package.
    pub folder: PathBuf,
}

/// A model of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    /// Its name.
    pub name: String,
    /// The version that serves.
    pub current: Option<Release>,
    /// The version that served before.
    pub previous: Option<Release>,
    /// The version that is to be proved.
    pub candidate: Option<Release>,
    /// The last version that was not right.
    pub refused: Option<Refusal>,
    /// Folders of the packages to serve, the best first.
    pub folders: Vec<PathBuf>,
}

/// The models of the store at `root`, by name; none where there is no store. Reading needs no lock: what a record names
/// was complete before, and stays until two further versions have served.
///
/// # Errors
/// [`Error::Io`], or [`Error::Record`] with the file that is damaged.
pub fn models(root: &Path) -> Result<Vec<Model>> {
    let files = match names(&root.join("models")) {
        Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        files => files?,
    };
    files.iter().filter_map(|file| file.strip_suffix(".toml")).map(|name| model(root, name)).collect()
}

fn model(root: &Path, name: &str) -> Result<Model> {
    let Record { current, previous, candidate, refused } = Record::read(&record_path(root, name))?;
    let folders = [&current, &previous].into_iter().flatten().map(|release| package_path(root, &release.sha256));
    let folders = folders.collect();
    Ok(Model { name: name.to_owned(), current, previous, candidate, refused, folders })
}

impl Store {
    /// Opens the store at `root` for writing, makes it where there is none, and clears away what a process that was
    /// killed has left behind.
    ///
    /// # Errors
    /// [`Error::Busy`], [`Error::Io`].
    pub fn open(root: &Path) -> Result<Self> {
        for folder in [root.to_owned(), root.join("incoming"), root.join("packages"), root.join("models")] {
            let made = DirBuilder::new().recursive(true).mode(0o755).create(&folder);
            made.map_err(|source| Error::Io { operation: "make", path: folder, source })?;
        }
        let path = root.join("lock");
        let lock = File::create(&path).map_err(|source| Error::Io { operation: "open", path, source })?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|error| match error {
            Errno::WOULDBLOCK => Error::Busy { path: root.into() },
            error => Error::Io { operation: "lock", path: root.into(), source: error.into() },
        })?;
        let store = Self { root: root.to_owned(), _lock: lock };
        store.empty_incoming()?;
        store.collect_garbage()?;
        Ok(store)
    }

    /// A place for a bundle that arrives.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn receive(&self) -> Result<Incoming> {
        let folder = self.incoming();
        match NamedTempFile::new_in(&folder) {
            Ok(file) => Ok(Incoming { file, bytes: 0 }),
            Err(source) => Err(Error::Io { operation: "write in", path: folder, source }),
        }
    }

    /// Whether the store has the package of this bundle.
    pub fn holds(&self, sha256: &str) -> bool {
        is_digest(sha256) && package_path(&self.root, sha256).is_dir()
    }

    /// Checks a bundle that has arrived, unpacks it and makes it the candidate of its model. A bundle that is in the
    /// store already is not unpacked again.
    ///
    /// # Errors
    /// What is wrong with the bundle, or [`Error::Io`]. What serves is the same as before.
    pub fn add(&mut self, mut incoming: Incoming, keys: &Keys, offer: &Offer) -> Result<Candidate> {
        let sha256 = bundle::verify(incoming.rewound()?, keys)?;
        held_against(offer.sha256.as_deref(), "SHA-256", &sha256)?;
        if !self.holds(&sha256) {
            self.keep(incoming.rewound()?, &sha256)?;
        }
        self.propose(&sha256, offer)
    }

    /// Makes a package that the store has the candidate of its model.
    ///
    /// # Errors
    /// [`Error::Absent`], [`Error::Offer`], [`Error::Io`].
    pub fn propose(&mut self, sha256: &str, offer: &Offer) -> Result<Candidate> {
        if !self.holds(sha256) {
            return Err(Error::Absent(sha256.into()));
        }
        let folder = package_path(&self.root, sha256);
        let described = bundle::describe(&folder)?;
        held_against(offer.name.as_deref(), "name", &described.name)?;
        held_against(offer.version.as_deref(), "version", &described.version)?;
        let release = Release { version: described.version, sha256: sha256.into() };
        // A damaged record is replaced: this is how it is repaired.
        let mut record = match self.record(&described.name) {
            Err(Error::Record { .. }) => Record::default(),
            record => record?,
        };
        record.candidate = Some(release.clone());
        self.write(&described.name, &record)?;
        Ok(Candidate { name: described.name, release, folder })
    }

    /// The candidates that were not yet decided about, for whoever was interrupted.
    ///
    /// # Errors
    /// As [`models`].
    pub fn candidates(&self) -> Result<Vec<Candidate>> {
        let candidate = |model: Model| {
            let folder = package_path(&self.root, &model.candidate.as_ref()?.sha256);
            Some(Candidate { name: model.name, release: model.candidate?, folder })
        };
        Ok(models(&self.root)?.into_iter().filter_map(candidate).collect())
    }

    /// The candidate was right: it becomes the current version, and the one before is kept as the previous.
    ///
    /// # Errors
    /// [`Error::Absent`] for what is no candidate, [`Error::Io`].
    pub fn accept(&mut self, candidate: &Candidate) -> Result<()> {
        let mut record = self.undecided(candidate)?;
        let release = record.candidate.take();
        if record.current != release {
            record.previous = std::mem::replace(&mut record.current, release);
        }
        record.refused = None;
        self.write(&candidate.name, &record)?;
        self.collect_garbage()
    }

    /// The candidate was wrong: what served goes on, and the reason is kept.
    ///
    /// # Errors
    /// [`Error::Absent`] for what is no candidate, [`Error::Io`].
    pub fn refuse(&mut self, candidate: &Candidate, reason: &str) -> Result<()> {
        let mut record = self.undecided(candidate)?;
        record.candidate = None;
        let Release { version, sha256 } = candidate.release.clone();
        record.refused = Some(Refusal { version, sha256, reason: reason.into() });
        self.write(&candidate.name, &record)?;
        self.collect_garbage()
    }

    /// Unpacks a bundle into its folder, which appears complete or not at all.
    fn keep(&self, bundle: &File, sha256: &str) -> Result<()> {
        let scratch = self.incoming();
        let made = TempDir::new_in(&scratch);
        let unpacked = made.map_err(|source| Error::Io { operation: "write in", path: scratch, source })?;
        bundle::unpack(bundle, unpacked.path())?;
        let path = package_path(&self.root, sha256);
        let error = |source| Error::Io { operation: "make", path: path.clone(), source };
        fs::set_permissions(unpacked.path(), fs::Permissions::from_mode(0o755)).map_err(error)?;
        fs::rename(unpacked.path(), &path).map_err(error)?;
        sync(&self.root.join("packages"))
    }

    fn undecided(&self, candidate: &Candidate) -> Result<Record> {
        let record = self.record(&candidate.name)?;
        match record.candidate.as_ref() == Some(&candidate.release) {
            true => Ok(record),
            false => Err(Error::Absent(candidate.release.sha256.clone())),
        }
    }

    fn record(&self, name: &str) -> Result<Record> {
        Record::read(&record_path(&self.root, name))
    }

    fn write(&self, name: &str, record: &Record) -> Result<()> {
        record.write(&record_path(&self.root, name), &self.incoming())
    }

    fn incoming(&self) -> PathBuf {
        self.root.join("incoming")
    }

    fn empty_incoming(&self) -> Result<()> {
        let folder = self.incoming();
        for name in names(&folder)? {
            remove(&folder.join(name))?;
        }
        Ok(())
    }

    /// Removes packages that no record names. With a damaged record nobody knows which those are, so all stay.
    fn collect_garbage(&self) -> Result<()> {
        let models = match models(&self.root) {
            Err(Error::Record { .. }) => return Ok(()),
            models => models?,
        };
        let named = models.iter().flat_map(|model| [&model.current, &model.previous, &model.candidate]);
        let named: BTreeSet<_> = named.flatten().map(|release| release.sha256.as_str()).collect();
        let packages = self.root.join("packages");
        for name in names(&packages)?.iter().filter(|name| !named.contains(name.as_str())) {
            // Renamed first, so that a folder under `packages` is never half removed.
            let (path, doomed) = (packages.join(name), self.incoming().join(name));
            let renamed = fs::rename(&path, &doomed);
            renamed.map_err(|source| Error::Io { operation: "remove", path, source })?;
            remove(&doomed)?;
        }
        Ok(())
    }
}

impl Incoming {
    /// Takes the next bytes.
    ///
    /// # Errors
    /// [`Error::TooLarge`], [`Error::Io`] where the disk is full.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.bytes += bytes.len() as u64;
        if self.bytes > bundle::MAX_BYTES {
            return Err(Error::TooLarge { limit: bundle::MAX_BYTES });
        }
        let written = self.file.write_all(bytes);
        written.map_err(|source| Error::Io { operation: "write", path: self.file.path().into(), source })
    }

    fn rewound(&mut self) -> Result<&File> {
        let rewound = self.file.as_file_mut().rewind();
        rewound.map_err(|source| Error::Io { operation: "read", path: self.file.path().into(), source })?;
        Ok(self.file.as_file())
    }
}

fn held_against(wanted: Option<&str>, what: &'static str, found: &str) -> Result<()> {
    match wanted {
        Some(wanted) if wanted != found => Err(Error::Offer { what, wanted: wanted.into(), found: found.into() }),
        _ => Ok(()),
    }
}

fn record_path(root: &Path, name: &str) -> PathBuf {
    root.join("models").join(format!("{name}.toml"))
}

fn package_path(root: &Path, sha256: &str) -> PathBuf {
    root.join("packages").join(sha256)
}

/// The names in a folder, sorted.
fn names(folder: &Path) -> Result<Vec<String>> {
    let error = |source| Error::Io { operation: "read", path: folder.into(), source };
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(error)? {
        names.push(entry.map_err(error)?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

fn remove(path: &Path) -> Result<()> {
    let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    removed.map_err(|source| Error::Io { operation: "remove", path: path.into(), source })
}
