//! What survives a crash and a reboot: one file, replaced as a whole.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::state::State;

/// What the daemon remembers. The system before an update reads what the one after it wrote, and the other way round: what
/// one of them does not know is left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Record {
    /// Where the update stands.
    pub state: State,
    /// Attempts at the present offer that failed.
    pub attempts: u32,
    /// Whether a person said that nothing shall be waited for.
    pub proceed: bool,
    /// How the machine was before the slot was written.
    pub baseline: Baseline,
    /// The action of hawkBit whose end was reported last.
    pub reported: Option<String>,
}

/// How the machine was before an update. The update need not be better than this.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Baseline {
    /// Whether the MQTT broker was connected.
    pub broker: bool,
    /// Cores of the NPU that a driver was bound to.
    pub npu_cores: usize,
    /// Whether a driver was bound to the GPU.
    pub gpu: bool,
    /// Which of the gate's units were active.
    pub units: Vec<String>,
    /// Models that gave their golden output when they were asked, by name.
    pub models: Vec<String>,
}

/// A file that holds one value as JSON.
#[derive(Clone, Debug)]
pub struct Store {
    file: PathBuf,
}

impl Store {
    /// A file in `folder`, which exists.
    pub fn new(folder: &Path, name: &str) -> Self {
        Self { file: folder.join(name) }
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        self.file.parent().expect("the file was joined to a folder")
    }

    /// Reads the value; the default one where there is no file.
    ///
    /// # Errors
    /// A file that cannot be read or holds something else.
    pub fn load<T: DeserializeOwned + Default>(&self) -> io::Result<T> {
        let bytes = match fs::read(&self.file) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(T::default()),
            Err(error) => return Err(error),
        };
        serde_json::from_slice(&bytes).map_err(|error| io::Error::new(ErrorKind::InvalidData, error))
    }

    /// Replaces the value. After a crash there is the old one or the new one, and nothing between.
    ///
    /// # Errors
    /// Where it cannot be written; the old one stays then.
    pub fn save<T: Serialize>(&self, value: &T) -> io::Result<()> {
        write(&self.file, &serde_json::to_vec(value).map_err(io::Error::other)?)
    }

    /// Puts a file aside that cannot be read, for a person to look at.
    ///
    /// # Errors
    /// Where it cannot be renamed.
    pub fn put_aside(&self) -> io::Result<PathBuf> {
        let aside = self.file.with_extension("damaged");
        fs::rename(&self.file, &aside)?;
        Ok(aside)
    }
}

/// Replaces a file as a whole, for good.
pub(crate) fn write(file: &Path, bytes: &[u8]) -> io::Result<()> {
    let new = file.with_extension("new");
    let written = File::create(&new).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()
    });
    if let Err(error) = written {
        // What a full disk left of it would take room that is needed.
        let _ = fs::remove_file(&new);
        return Err(error);
    }
    fs::rename(&new, file)?;
    let folder = file.parent().ok_or_else(|| io::Error::other("the file is in no folder"))?;
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_saved() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(folder.path(), "update.json");
        assert_eq!(store.load::<Record>().unwrap(), Record::default());
        let record = Record { attempts: 7, ..Record::default() };
        store.save(&record).unwrap();
        assert_eq!(store.load::<Record>().unwrap(), record);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_record_of_another_version_is_read_as_far_as_it_is_known() {
        let text = r#"{"attempts":2,"of-the-future":1,"baseline":{"broker":true,"fans":3},
            "state":{"name":"installed","boot_id":"b","slot":{"name":"rootfs.1","bootname":"B","side":"left"},
            "offer":{"url":"/b","version":null,"manifest_hash":null,"wave":null,"window":null,"source":"bus",
                "urgent":false,"allow_downgrade":false,"mood":"good"}}}"#;
        let record: Record = serde_json::from_str(text).unwrap();
        assert_eq!((record.attempts, record.state.name(), record.baseline.broker), (2, "installed", true));
    }

    #[test]
    fn a_damaged_record_is_an_error_and_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(folder.path(), "update.json");
        fs::write(folder.path().join("update.json"), "{\"state\":").unwrap();
        assert_eq!(store.load::<Record>().unwrap_err().kind(), ErrorKind::InvalidData);
        assert_eq!(fs::read(store.put_aside().unwrap()).unwrap(), b"{\"state\":");
        assert_eq!(store.load::<Record>().unwrap(), Record::default());
    }
}
