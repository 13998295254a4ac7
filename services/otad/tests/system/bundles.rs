//! Bundles and the keys that sign them, made anew by each run of the tests.

use std::fs::{self, File, OpenOptions};
use std::io::{Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

/// Bytes of a payload.
const BYTES: usize = 2 << 20;

const EXTENSIONS: &str = "[req]
distinguished_name=dn
[dn]
[ca]
basicConstraints=critical,CA:TRUE
keyUsage=critical,keyCertSign,cRLSign
subjectKeyIdentifier=hash
[sign]
basicConstraints=critical,CA:FALSE
keyUsage=critical,digitalSignature
extendedKeyUsage=critical,codeSigning
subjectKeyIdentifier=hash
authorityKeyIdentifier=keyid
";

/// What RAUC calls just before and just after it writes the slot: two of the machine's points.
const HOOK: &str = "#!/bin/sh
. \"$RAUC_MOUNT_PREFIX/../point.sh\"
point
point
";

static KEYS: LazyLock<tempfile::TempDir> = LazyLock::new(|| {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    fs::write(path.join("extensions"), EXTENSIONS).unwrap();
    for (authority, signer) in [("ca", "release"), ("foreign-ca", "foreign")] {
        openssl(
            path,
            &format!(
                "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 30 -subj /CN={authority} -config extensions -extensions ca -keyout {authority}.key -out {authority}.pem"
            ),
        );
        openssl(
            path,
            &format!(
                "req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN={signer} -config extensions -keyout {signer}.key -out {signer}.csr"
            ),
        );
        openssl(
            path,
            &format!(
                "x509 -req -in {signer}.csr -CA {authority}.pem -CAkey {authority}.key -CAcreateserial -days 30 -extfile extensions -extensions sign -out {signer}.pem"
            ),
        );
    }
    folder
});

fn openssl(folder: &Path, arguments: &str) {
    let output = Command::new("openssl").current_dir(folder).args(arguments.split(' ')).output().unwrap();
    assert!(output.status.success(), "openssl {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

/// The folder with the keys: `ca.pem`, `release.pem`, `release.key`, and the same of somebody else.
pub(crate) fn keys() -> &'static Path {
    KEYS.path()
}

/// The RAUC that is tested: the machine's, or the one that the variable `RAUC` names.
pub(crate) fn rauc() -> String {
    std::env::var("RAUC").unwrap_or_else(|_| "rauc".into())
}

/// What a bundle is like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recipe {
    pub(crate) version: &'static str,
    pub(crate) compatible: &'static str,
    pub(crate) signer: &'static str,
    pub(crate) bytes: usize,
    /// Whether it has a kernel for a partition of its own.
    pub(crate) boot: bool,
}

impl Default for Recipe {
    fn default() -> Self {
        Self { version: "1.1.0", compatible: "test-board", signer: "release", bytes: BYTES, boot: false }
    }
}

/// What a bundle of a version writes into the partition of its kernel.
pub(crate) fn kernel(version: &str) -> Vec<u8> {
    format!("kernel {version}\n").repeat(1000).into_bytes()
}

/// A bundle, and what it writes into the slot.
#[derive(Debug)]
pub(crate) struct Bundle {
    pub(crate) file: PathBuf,
    pub(crate) payload: Vec<u8>,
    _folder: tempfile::TempDir,
}

impl Bundle {
    pub(crate) fn new(recipe: Recipe) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let content = folder.path().join("content");
        fs::create_dir(&content).unwrap();
        // Bytes that differ everywhere and do not compress: a multiplicative sequence.
        let mut number = 0x9e37_79b9_7f4a_7c15_u64 ^ recipe.version.len() as u64;
        let payload: Vec<u8> = (0..recipe.bytes)
            .map(|_| {
                number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                number.to_be_bytes()[0]
            })
            .collect();
        fs::write(content.join("rootfs.img"), &payload).unwrap();
        let Recipe { version, compatible, signer, .. } = recipe;
        let mut manifest = format!(
            "[update]\ncompatible={compatible}\nversion={version}\n[hooks]\nfilename=hook.sh\n\
             [image.rootfs]\nfilename=rootfs.img\nhooks=pre-install;post-install\n"
        );
        if recipe.boot {
            manifest += "[image.boot]\nfilename=boot.img\n";
            fs::write(content.join("boot.img"), kernel(version)).unwrap();
        }
        let hook = content.join("hook.sh");
        fs::write(&hook, HOOK).unwrap();
        fs::set_permissions(&hook, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        fs::write(content.join("manifest.raucm"), manifest).unwrap();
        let file = folder.path().join("update.raucb");
        let key = |name: &str| keys().join(name).display().to_string();
        let output = Command::new(rauc())
            .args(["bundle", "--cert", &key(&format!("{signer}.pem")), "--key", &key(&format!("{signer}.key"))])
            .args([&content, &file])
            .output()
            .unwrap();
        assert!(output.status.success(), "rauc bundle: {}", String::from_utf8_lossy(&output.stderr));
        Self { file, payload, _folder: folder }
    }

    /// SHA-256 of the manifest that RAUC put into the bundle.
    pub(crate) fn manifest_hash(&self) -> String {
        let folder = tempfile::tempdir().unwrap();
        let mut unpack = Command::new("unsquashfs");
        unpack.args(["-no-progress", "-dest"]).arg(folder.path().join("bundle")).arg(&self.file).arg("manifest.raucm");
        let output = unpack.output().unwrap();
        assert!(output.status.success(), "unsquashfs: {}", String::from_utf8_lossy(&output.stderr));
        let manifest = fs::read(folder.path().join("bundle/manifest.raucm")).unwrap();
        let digest = ring::digest::digest(&ring::digest::SHA256, &manifest);
        digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Turns one byte in the middle over.
    pub(crate) fn tamper(&self) {
        let mut file = OpenOptions::new().read(true).write(true).open(&self.file).unwrap();
        let middle = file.metadata().unwrap().len() / 2;
        let byte = fs::read(&self.file).unwrap()[usize::try_from(middle).unwrap()];
        file.seek(SeekFrom::Start(middle)).unwrap();
        file.write_all(&[!byte]).unwrap();
    }

    /// Cuts the second half off.
    pub(crate) fn truncate(&self) {
        let file = File::options().write(true).open(&self.file).unwrap();
        file.set_len(file.metadata().unwrap().len() / 2).unwrap();
    }
}
