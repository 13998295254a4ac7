//! Bundles for RAUC, as the layer's recipe has them made: `cairn-bundle_1.0.bb`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use super::Layout;
use crate::kernel::succeed;
use crate::step;

/// Who signs, and with what.
const SIGNER: &str = "yocto/meta-cairn/recipes-core/bundles/files/cairn-development";

/// Makes the bundle of a version in `folder`, of the same images that a disk of it has.
///
/// # Errors
/// A tool that fails.
pub(super) fn make(layout: &Layout, folder: &Path) -> Result<PathBuf> {
    let work = folder.join(format!("bundle-{}", layout.version));
    let content = work.join("content");
    fs::create_dir_all(&content)?;
    layout.parts(&work)?;
    fs::rename(work.join("IMAGE.boot"), content.join("boot.img"))?;
    fs::rename(work.join("IMAGE.verity"), content.join("rootfs.img"))?;
    fs::write(content.join("manifest.raucm"), manifest(&layout.version))?;
    let bundle = folder.join(format!("cairn-{}.raucb", layout.version));
    let signer = |end: &str| step::workspace().join(SIGNER.to_owned() + end);
    let mut rauc = Command::new("rauc");
    rauc.arg("bundle").arg("--cert").arg(signer(".cert.pem")).arg("--key").arg(signer(".key.pem"));
    succeed(rauc.arg(&content).arg(&bundle))?;
    fs::remove_dir_all(&work)?;
    Ok(bundle)
}

fn manifest(version: &str) -> String {
    format!(
        "[update]\ncompatible=cairn-{}\nversion={version}\nbuild={version}\n\n[bundle]\nformat=verity\n\n\
         [image.boot]\nfilename=boot.img\n\n[image.rootfs]\nfilename=rootfs.img\nadaptive=block-hash-index\n",
        super::MACHINE
    )
}

#[cfg(test)]
mod tests {
    use super::{manifest, step};

    #[test]
    fn it_says_what_the_layers_recipe_says() {
        let recipe = std::fs::read_to_string(
            step::workspace().join("yocto/meta-cairn/recipes-core/bundles/cairn-bundle_1.0.bb"),
        );
        let (recipe, manifest) = (recipe.unwrap(), manifest("0.2.0"));
        for (ours, theirs) in [
            ("compatible=cairn-cairn-qemuarm64\n", "COMPATIBLE = \"cairn-${MACHINE}\""),
            ("format=verity\n", "FORMAT = \"verity\""),
            ("[image.boot]\nfilename=boot.img\n", "RAUC_SLOT_boot[rename] = \"boot.img\""),
            ("[image.rootfs]\nfilename=rootfs.img\n", "RAUC_SLOT_rootfs[rename] = \"rootfs.img\""),
            ("adaptive=block-hash-index\n", "RAUC_SLOT_rootfs[adaptive] = \"block-hash-index\""),
        ] {
            assert!(manifest.contains(ours), "{ours} is missing in {manifest}");
            assert!(recipe.contains(theirs), "{theirs} is missing in the recipe");
        }
    }
}
