//! The model packages that the daemon starts with.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use engine::{Engine, chain};
use tracing::{error, info, warn};

/// Loads every package in `folders`, and then of each model in `store` the version that served last, or else the one
/// before. What cannot be used is logged and left out: the others still serve.
///
/// # Errors
/// Where none can be used: a daemon that never had a right answer is not ready.
pub(crate) async fn load_all(engine: &Engine, folders: &[PathBuf], store: &Path) -> Result<usize> {
    for package in folders.iter().flat_map(|folder| packages(folder)) {
        load(engine, &package).await;
    }
    for model in stored(store) {
        for package in &model.folders {
            if load(engine, package).await {
                break;
            }
        }
    }
    match engine.models().len() {
        0 => bail!(
            "no model package in {folders:?} or {store:?} can be used, and ready means that one inference has succeeded"
        ),
        models => Ok(models),
    }
}

/// Loads a package, which holds it against its golden output. Returns whether it serves.
async fn load(engine: &Engine, package: &Path) -> bool {
    match engine.load(package).await {
        Ok(model) => {
            info!(
                message_id = kit::log::MODEL_LOADED,
                model = model.name,
                version = model.version,
                npu_jobs = model.report.npu_jobs,
                memory_bytes = model.report.memory_bytes,
                "loaded",
            );
            true
        }
        Err(error) => {
            error!(package = %package.display(), error = chain(&error), "the model package is left out");
            false
        }
    }
}

/// The models of the store. A damaged one must not keep those of the image from serving.
fn stored(store: &Path) -> Vec<store::Model> {
    store::models(store).unwrap_or_else(|error| {
        error!(error = chain(&error), "the models of the store are left out");
        Vec::new()
    })
}

/// Folders with a `model.toml`, by name.
fn packages(folder: &Path) -> Vec<PathBuf> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) => {
            warn!(folder = %folder.display(), %error, "no model packages here");
            return Vec::new();
        }
    };
    let mut packages: Vec<_> =
        entries.flatten().map(|entry| entry.path()).filter(|path| path.join("model.toml").is_file()).collect();
    packages.sort();
    packages
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_folders_with_a_manifest_in_order() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["b", "a", "no-package"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        for name in ["a", "b"] {
            fs::write(folder.path().join(name).join("model.toml"), "").unwrap();
        }
        assert_eq!(packages(folder.path()), ["a", "b"].map(|name| folder.path().join(name)));
        assert!(packages(Path::new("/nowhere")).is_empty());
    }
}
