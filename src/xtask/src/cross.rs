//! Our programs for the boards' processor: aarch64 with glibc.
//!
//! Where the toolchain has no standard library for it, and no source of one either, the source comes from Debian's
//! archive, in the compiler's own version.

use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::archive::{self, Pin};
use crate::need::{self, CROSS_COMPILER, CROSS_LIBC, QEMU_USER};
use crate::step::{self, Counts};

/// The boards' processor.
const TARGET: &str = "aarch64-unknown-linux-gnu";
/// Sources of the standard library, one for each version of the compiler that this project is built with.
const SOURCES: &str = "\
5bde92b66f998f6b751362ab85bed1c0a587b8c0dc12695b5a157f4a4c29b1ad  pool/main/r/rustc/rust-src_1.94.1+dfsg1-1~bpo13+3_all.deb
7b76db5b880a77f9e52975d2baa6209d2f76d2c9c2789515c3088cb960e2c83b  pool/main/r/rustc/rust-src_1.95.0+dfsg1-2~bpo13+1_all.deb
";

/// What starts a test program.
const RUNNER: &str = "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER";
/// What [`test()`] is called.
const TESTS: &str = "the NPU library on the boards' processor";
/// TIMEOUT: a cold build with the standard library stays under ten minutes on two cores; three times that.
const LIMIT: Duration = Duration::from_secs(30 * 60);

/// How a program finds its C library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Linking {
    /// It is inside.
    Static,
    /// The system has it.
    Dynamic,
}

/// Builds and says where the programs are.
///
/// # Errors
/// As [`build`].
pub(crate) fn run(linking: Linking, arguments: &[String]) -> Result<ExitCode> {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    println!("{}", build(linking, &arguments)?.display());
    Ok(ExitCode::SUCCESS)
}

/// `cargo build` for the boards with further arguments; returns the folder that holds the programs and libraries.
///
/// # Errors
/// A missing compiler or standard library, a build that fails.
pub(crate) fn build(linking: Linking, arguments: &[&str]) -> Result<PathBuf> {
    let (mut command, folder) = cargo("build", linking)?;
    if !command.args(arguments).status().context("cargo cannot be started")?.success() {
        bail!("the build for {TARGET} failed");
    }
    Ok(folder.join(TARGET).join("debug"))
}

/// `cargo test` for the boards with further arguments, but nothing is started: returns the test programs.
///
/// # Errors
/// As [`build`].
pub(crate) fn test_programs(linking: Linking, arguments: &[&str]) -> Result<Vec<PathBuf>> {
    let (mut command, _) = cargo("test", linking)?;
    // Only cargo knows where it put them; it tells whoever starts them.
    command.args(arguments).env(RUNNER, "echo").stderr(Stdio::inherit());
    let output = command.output().context("cargo cannot be started")?;
    if !output.status.success() {
        bail!("the tests cannot be built for {TARGET}");
    }
    Ok(String::from_utf8_lossy(&output.stdout).lines().map(PathBuf::from).collect())
}

/// The unit tests of the NPU library as the boards run them: what packs and plans is compiled to
/// other instructions there.
///
/// # Errors
/// A missing standard library, a program that cannot be started.
pub(crate) fn test(counts: &mut Counts) -> Result<()> {
    if let Some(need) = need::provide(&[CROSS_COMPILER, CROSS_LIBC, QEMU_USER]).first() {
        counts.skip(TESTS, &format!("needs {}", need.name));
        return Ok(());
    }
    let (mut command, _) = cargo("test", Linking::Dynamic)?;
    // One test plans thousands of products, which an emulator is slow at.
    command.args(["--package", "npu", "--lib", "--", "--skip", "two_hundred_shapes"]);
    // The C library of the compiler's package.
    command.env(RUNNER, "qemu-aarch64-static -L /usr/aarch64-linux-gnu");
    step::tests(TESTS, command, LIMIT, counts)
}

/// As [`test()`], alone.
///
/// # Errors
/// As [`test()`].
pub(crate) fn run_tests() -> Result<ExitCode> {
    let mut counts = Counts::default();
    test(&mut counts)?;
    println!("\n{counts}");
    Ok(counts.exit_code())
}

/// `cargo VERB` for the boards, and the folder that it fills.
fn cargo(verb: &str, linking: Linking) -> Result<(Command, PathBuf)> {
    need::require(&[CROSS_COMPILER, CROSS_LIBC])?;
    // A folder for each way of linking: the flags are part of what cargo compares.
    let folder = step::target().join(match linking {
        Linking::Static => "cross-static",
        Linking::Dynamic => "cross",
    });
    let mut command = step::cargo();
    command.args([verb, "--target", TARGET, "--target-dir"]).arg(&folder);
    command.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", "aarch64-linux-gnu-gcc");
    command.env("CC_aarch64_unknown_linux_gnu", "aarch64-linux-gnu-gcc");
    // Whatever takes these programs along strips them; without lines they are built in less time.
    command.env("CARGO_PROFILE_DEV_DEBUG", "none");
    if linking == Linking::Static {
        command.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUSTFLAGS", "-Ctarget-feature=+crt-static");
    }
    if !has_standard_library()? {
        build_standard_library(&mut command)?;
    }
    Ok((command, folder))
}

/// Whether the toolchain has a standard library for the boards.
fn has_standard_library() -> Result<bool> {
    let installed = rustc(&["--print", "target-libdir", "--target", TARGET])?;
    Ok(PathBuf::from(installed.trim()).exists())
}

/// Lets cargo build the standard library, with the flags of everything else.
///
/// # Errors
/// A source that is neither in the toolchain nor in Debian's archive.
pub(crate) fn build_standard_library(command: &mut Command) -> Result<()> {
    let in_toolchain = PathBuf::from(rustc(&["--print", "sysroot"])?.trim()).join("lib/rustlib/src/rust/library");
    if !in_toolchain.exists() {
        command.env("__CARGO_TESTS_ONLY_SRC_ROOT", source_of_standard_library()?);
    }
    // The only way to have the stable compiler build its own library.
    command.env("RUSTC_BOOTSTRAP", "1").arg("-Zbuild-std=std,panic_unwind");
    Ok(())
}

fn source_of_standard_library() -> Result<PathBuf> {
    let text = rustc(&["--version"])?;
    let version = text.split(' ').nth(1).unwrap_or_default();
    let sources = Pin::list(SOURCES)?;
    let Some(pin) = sources.iter().find(|pin| pin.name().starts_with(&format!("rust-src_{version}+"))) else {
        bail!("rustc {version} has no source of its standard library; `rustup component add rust-src` brings it");
    };
    let folder = archive::unpacked("rust-src", &[*pin])?;
    Ok(folder.join(format!("usr/src/rustc-{version}/library")))
}

/// What the compiler prints.
///
/// # Errors
/// A compiler that cannot be started.
pub(crate) fn rustc(arguments: &[&str]) -> Result<String> {
    let output = Command::new("rustc").current_dir(step::workspace()).args(arguments).output();
    Ok(String::from_utf8_lossy(&output.context("rustc cannot be started")?.stdout).into_owned())
}
