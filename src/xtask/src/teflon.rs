//! `cargo xtask teflon`: Mesa's own driver of this NPU, as Debian ships it for the boards, on the simulator.
//!
//! ```text
//! LiteRT's wheel ─▶ Python, Mesa's libteflon.so (Debian, arm64) ─▶ libnpu_shim.so ─▶ simulator; all under qemu-user
//! ```
//!
//! This command brings the programs; `tests/tests/teflon.rs` runs the models and compares.

use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::archive::{self, Pin};
use crate::cross::{self, Linking};
use crate::need::{self, CROSS_COMPILER, CROSS_LIBC, Need, PYTHON, QEMU_USER};
use crate::step::{self, Counts};

/// What Mesa's delegate and Python need, and nothing more.
const PACKAGES: &str = "\
3537fe4fc577a60c8a9568873cd577db7ebc135eb8bb1825f18caf8972d9d2f2  pool/main/b/bzip2/libbz2-1.0_1.0.8-6_arm64.deb
d9e1c50fcdad079fe16d77f1578adcc763be1bf7f2da7fa8adca7010b0c84c83  pool/main/e/expat/libexpat1_2.9.0-1~deb13u1_arm64.deb
1108bc87879833d6d9a145f22a4a15cddb34e065b4b5f4b97bee586adbac2851  pool/main/g/gcc-14/libgcc-s1_14.2.0-19_arm64.deb
6669b0c52a2e7c6af9adfdabce3ff6e286065cdfbc7b85280862b5f799daebee  pool/main/g/gcc-14/libstdc++6_14.2.0-19_arm64.deb
0966fc3da1a26cc57647c68b5736f791b6e7eb498173a7993f63b6c89b4ed4f5  pool/main/g/glibc/libc6_2.41-12+deb13u5_arm64.deb
b535506630bb6a9a616bc07caf3b29915f980d8c3437852fb96ea64fb1a8a3f8  pool/main/libd/libdrm/libdrm2_2.4.124-2_arm64.deb
d84a783b818f2386627604e64b793eb4ac5bb9ea1ba321a194a1c9c82fe09a01  pool/main/libf/libffi/libffi8_3.4.8-2_arm64.deb
924540bd59fdbfa77a0604360efdaca54411a43daf11c7e002a3c64791b67448  pool/main/libz/libzstd/libzstd1_1.5.7+dfsg-1_arm64.deb
33640feb0759cfddfece7bd4a600dc17442fa1d8797dc7cae3774681e6baf341  pool/main/m/mesa/mesa-teflon-delegate_26.1.6-1~bpo13+1_arm64.deb
3655ef258b19142cf6fe38ef89731d5c630b2cf3309632494a720b28c1cfcd85  pool/main/p/python3.13/libpython3.13-minimal_3.13.5-2+deb13u5_arm64.deb
d1178d24e4d143cc6c577d9dc0f26dd982efccc2e600d25ce86361f168a22be0  pool/main/p/python3.13/libpython3.13-stdlib_3.13.5-2+deb13u5_arm64.deb
95237a3ad99bf9366308e16f7c79449c9371c4cff9c883772fb7c254652467eb  pool/main/p/python3.13/python3.13-minimal_3.13.5-2+deb13u5_arm64.deb
88f3aa499dc30edf01b9209ab40f11e37edfbecef971f84f4721de1874ed4827  pool/main/x/xz-utils/liblzma5_5.8.1-1+deb13u2_arm64.deb
0e41b3d7ad8ad7fcd36dd4d61ca91a70018478fc4af652e044f4be770784ddff  pool/main/z/zlib/zlib1g_1.3.dfsg+really1.3.1-1+deb13u1_arm64.deb
";
/// TIMEOUT: an emulated run takes two minutes of a core; ten times that.
const LIMIT: Duration = Duration::from_secs(20 * 60);
/// What must be there.
pub(crate) const NEEDS: [Need; 4] = [QEMU_USER, CROSS_COMPILER, CROSS_LIBC, PYTHON];

/// Runs it, and ends as the test does.
///
/// # Errors
/// Something missing that cannot be had.
pub(crate) fn run() -> Result<ExitCode> {
    need::require(&NEEDS)?;
    let mut counts = Counts::default();
    test(&mut counts)?;
    Ok(counts.exit_code())
}

/// The test, with what it needs.
///
/// # Errors
/// A package that is gone, a build that fails.
pub(crate) fn test(counts: &mut Counts) -> Result<()> {
    let mut command = step::cargo();
    command.args(["test", "--workspace", "--all-features", "--test", "teflon", "--", "--ignored", "--nocapture"]);
    command.env("CAIRN_TEFLON_ROOT", root()?).env("CAIRN_TEFLON_SHIM", shim()?);
    step::tests("Mesa's driver on the simulator", command, LIMIT, counts)
}

/// A folder that is the root of an arm64 system, as far as the programs look.
fn root() -> Result<PathBuf> {
    let root = archive::unpacked("teflon", &Pin::list(PACKAGES)?)?;
    // On a system this link is another package's.
    if !root.join("lib").exists() {
        symlink("usr/lib", root.join("lib")).context("the link to the libraries cannot be made")?;
    }
    Ok(root)
}

fn shim() -> Result<PathBuf> {
    Ok(cross::build(Linking::Dynamic, &["--package", "npu-shim"])?.join("libnpu_shim.so"))
}
