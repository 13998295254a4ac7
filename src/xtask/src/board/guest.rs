//! What the virtual board boots: Debian's kernel, and an initramfs with our programs.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use anyhow::{Context, Result, bail, ensure};

use super::qemu;
use crate::archive::{self, Pin};
use crate::cross::{self, Linking};
use crate::kernel::Line;
use crate::kmod::{self, Driver, Kernel};
use crate::need::{self, CPIO, CROSS_COMPILER, CROSS_LIBC, MAKE, Need};
use crate::{kernel, step};

/// How many rounds each client of a crowd works, if nobody says more.
pub(crate) const ROUNDS: u32 = 4;
/// The packages of our programs. Their features are united, so each build selects all of them.
const PACKAGES: &[&str] = &["--package", "npud", "--package", "tests"];
/// The modules that the driver stands on, in the order in which they load.
const MODULES: &[&str] = &[
    "gpu/drm/drm",
    "gpu/drm/drm_kms_helper",
    "gpu/drm/scheduler/gpu-sched",
    "gpu/drm/drm_shmem_helper",
    "gpu/drm/drm_exec",
    "gpu/drm/drm_gpuvm",
];
/// A shell and its tools.
const SHELL: &str = "c833be48abfa16bc19c4966ec93e289ff1ce5d2f1476cad3a57bd105378cd15c  pool/main/b/busybox/busybox-static_1.37.0-6+b9_arm64.deb";
/// The message bus with its libraries.
const BUS: &str = "\
74650cdf706f6a782f9bb486237c210454a39ebf840e3260492e557013931739  pool/main/d/dbus/dbus-daemon_1.16.2-2_arm64.deb
ca6bb5f2047ad58d274cb7d14216035a07d8e5aae6f6a0122c4f6293c9c39515  pool/main/d/dbus/libdbus-1-3_1.16.2-2_arm64.deb
6e5ec85de21bd5f489327e6d2c85c2825e82ff6f4581dc936704d022a1f164af  pool/main/a/apparmor/libapparmor1_4.1.0-1_arm64.deb
3472a1d77e36832ea0bb6509153c721ffc46a96aa0bc25073e7b95571df16196  pool/main/a/audit/libaudit1_4.0.2-2+deb13u1_arm64.deb
0966fc3da1a26cc57647c68b5736f791b6e7eb498173a7993f63b6c89b4ed4f5  pool/main/g/glibc/libc6_2.41-12+deb13u5_arm64.deb
eb6da83296e4710a8600c1426692ed9b9eadcab7ebd36dbabc2a562b5c1ab691  pool/main/libc/libcap-ng/libcap-ng0_0.8.5-4+b1_arm64.deb
d9e1c50fcdad079fe16d77f1578adcc763be1bf7f2da7fa8adca7010b0c84c83  pool/main/e/expat/libexpat1_2.9.0-1~deb13u1_arm64.deb
fc13da4c7783b8f4361d92ef1045931f298d1b0ac78ed1a85c2232615f49fc6f  pool/main/libs/libselinux/libselinux1_3.8.1-1_arm64.deb
d2f63c408549c29eaefb6f4c948393edce99f45ee8e43c991391bef63fb7d54b  pool/main/s/systemd/libsystemd0_257.13-1~deb13u1_arm64.deb
863aa5b9cdf6f80010b48982d4639126b09a89eeef2c0c5c7be226297c811581  pool/main/libc/libcap2/libcap2_2.75-10+deb13u1+b3_arm64.deb
1a02b7129990690ea095fd35d7ace6853742923d158019e1fb4ef27efd2c51a7  pool/main/p/pcre2/libpcre2-8-0_10.46-1~deb13u3_arm64.deb
1108bc87879833d6d9a145f22a4a15cddb34e065b4b5f4b97bee586adbac2851  pool/main/g/gcc-14/libgcc-s1_14.2.0-19_arm64.deb
";

/// What has to be installed on this machine.
pub(crate) fn needs() -> Vec<Need> {
    let own = [CPIO, CROSS_COMPILER, CROSS_LIBC, MAKE];
    [qemu::NEEDS, need::QEMU_LIBRARIES, &own].concat()
}

/// What the machine boots.
#[derive(Debug)]
pub(crate) struct Boot {
    pub(crate) kernel: PathBuf,
    pub(crate) initramfs: PathBuf,
}

/// What the guest's first program does after it has loaded what it needs.
enum Work<'a> {
    Shell,
    /// A command line, and files that it needs.
    Command(&'a str, &'a [PathBuf]),
    Tests(&'a Plan),
}

/// Tests: steps, as `tests/board/init.sh` reads them, and the drivers that they load, by name.
#[derive(Debug)]
pub(crate) struct Plan {
    line: Line,
    drivers: Vec<(String, Driver)>,
    steps: Vec<String>,
    crowd: String,
}

impl Plan {
    /// The stock driver against ours, and npud on ours. `crowd`: how long crowds of clients work.
    pub(crate) fn whole(crowd: String) -> Self {
        let steps = ["driver stock 7.3", "driver patched cairn", "service"];
        Self { line: Line::named(kmod::LINE), drivers: drivers(), steps: steps.map(str::to_owned).into(), crowd }
    }

    /// The driver of a line with its patches, or without one of them, alone.
    pub(crate) fn alone(line: &Line, driver: Driver, crowd: String) -> Self {
        let drivers = vec![("patched".into(), driver)];
        Self { line: line.clone(), drivers, steps: vec!["driver patched cairn".into()], crowd }
    }

    /// Drivers without a patch each, and the check that they should not pass.
    pub(crate) fn lacking(line: &Line, checks: &[(u32, String)]) -> Self {
        let name = |number: &u32| format!("{}-without-{number:04}", line.name);
        let drivers = checks.iter().map(|(number, _)| (name(number), Driver::Without(*number)));
        let steps = checks.iter().map(|(number, check)| format!("lacking {} {check}", name(number)));
        let (drivers, steps) = (drivers.collect(), steps.collect());
        Self { line: line.clone(), drivers, steps, crowd: ROUNDS.to_string() }
    }

    /// The NPU library's matrices, each a test program, on the stock driver and on ours. Pooling ends by an interrupt that
    /// the stock driver does not wait for.
    pub(crate) fn matrices() -> Self {
        let steps =
            ["matrices stock matmul convolution transposed", "matrices patched matmul convolution transposed pooling"];
        let line = Line::named(kmod::LINE);
        Self { line, drivers: drivers(), steps: steps.map(str::to_owned).into(), crowd: ROUNDS.to_string() }
    }

    /// The test programs that the steps run.
    fn matrix_programs(&self) -> BTreeSet<&str> {
        let words = self.steps.iter().filter_map(|step| step.strip_prefix("matrices "));
        words.flat_map(|words| words.split(' ').skip(1)).collect()
    }

    fn has_service(&self) -> bool {
        self.steps.iter().any(|step| step == "service")
    }
}

/// The drivers of a board that is not for tests.
fn drivers() -> Vec<(String, Driver)> {
    vec![("stock".into(), Driver::Stock), ("patched".into(), Driver::Patched)]
}

/// An initramfs that ends in a shell.
///
/// # Errors
/// What cannot be fetched or built.
pub(crate) fn interactive() -> Result<Boot> {
    boot("up", &Work::Shell)
}

/// An initramfs that runs a command line, with further files beside the board's programs.
///
/// # Errors
/// As [`interactive`], a file that is none.
pub(crate) fn command(line: &str, with: &[PathBuf]) -> Result<Boot> {
    boot("run", &Work::Command(line, with))
}

/// An initramfs that runs tests.
///
/// # Errors
/// As [`interactive`].
pub(crate) fn tests(plan: &Plan) -> Result<Boot> {
    boot("test", &Work::Tests(plan))
}

/// The program that is the board's NPU. An initramfs was made before, and with it this.
pub(crate) fn peer() -> PathBuf {
    step::target().join("debug/npu-board")
}

/// The kernel of the line that everything but the driver's own tests runs on, and its modules.
///
/// # Errors
/// What cannot be fetched.
pub(crate) fn kernel() -> Result<(PathBuf, PathBuf)> {
    let kernel = Kernel::of(&Line::named(kmod::LINE))?;
    let image = kernel.unpacked()?;
    Ok((image.join(kernel.place), image.join("usr/lib/modules").join(kernel.release)))
}

/// Builds [`peer`], and examples that run on this machine.
///
/// # Errors
/// A build that fails.
pub(crate) fn build_for_host(examples: &[&str]) -> Result<()> {
    // The whole workspace is selected, as for the tests, so that everything is built once.
    let mut cargo = step::cargo();
    cargo.args(["build", "--workspace", "--all-features", "--bin", "npu-board"]).args(examples);
    if !cargo.status().context("cargo cannot be started")?.success() {
        bail!("the board's programs cannot be built");
    }
    Ok(())
}

fn boot(name: &str, work: &Work<'_>) -> Result<Boot> {
    need::require(&needs())?;
    let (line, drivers, crowd) = match work {
        Work::Tests(plan) => (plan.line.clone(), plan.drivers.clone(), plan.crowd.clone()),
        Work::Shell | Work::Command(..) => (Line::named(kmod::LINE), drivers(), ROUNDS.to_string()),
    };
    let matrices = match work {
        Work::Tests(plan) => plan.matrix_programs(),
        Work::Shell | Work::Command(..) => BTreeSet::new(),
    };
    let kernel = Kernel::of(&line)?;
    let folder = step::target().join("board");
    let (root, archive) = (folder.join(name), folder.join(format!("{name}.cpio")));
    let _ = fs::remove_dir_all(&root);
    fs::create_dir_all(&root)?;
    // What comes from the archive is unpacked, and the drivers are built, while cargo works twice: each leaves cores idle.
    thread::scope(|scope| {
        let parts = scope.spawn(|| machine_parts(kernel, &line, &drivers));
        let examples: &[&str] = if matrices.is_empty() { &["--example", "virtual_board"] } else { &[] };
        let host = scope.spawn(|| build_for_host(examples));
        system(&root)?;
        // What runs matrices runs nothing else.
        if matrices.is_empty() {
            programs(&root)?
        } else {
            test_programs(&root, &matrices)?
        }
        // PANIC: what a thread panicked of is this one's panic.
        host.join().expect("this machine's programs are built")?;
        parts.join().expect("the machine's parts are made")
    })?;
    let image = kernel.unpacked()?;
    modules(&line, &image, &root.join("modules"))?;
    let say = |name: &str, text: &str| fs::write(root.join("board").join(name), format!("{text}\n"));
    match work {
        Work::Shell => say("mode", "shell")?,
        Work::Command(line, with) => {
            say("mode", "command").and_then(|()| say("command", line))?;
            for file in *with {
                let name = file.file_name().with_context(|| format!("{} is no file", file.display()))?;
                copy(file, &root.join("board").join(name))?;
            }
        }
        Work::Tests(plan) => say("mode", "tests").and_then(|()| say("plan", &plan.steps.join("\n")))?,
    }
    say("crowd", &crowd)?;
    for (name, driver) in drivers {
        unpack_module(&kmod::rocket(&line, driver)?, &root.join(format!("modules/rocket-{name}.ko")))?;
    }
    if matches!(work, Work::Tests(plan) if plan.has_service()) {
        expectations(&root)?;
    }
    pack(&root, &archive)?;
    Ok(Boot { kernel: image.join(kernel.place), initramfs: archive })
}

/// Fills the cache with what no cargo builds: kernel, drivers, QEMU.
fn machine_parts(kernel: &Kernel, line: &Line, drivers: &[(String, Driver)]) -> Result<()> {
    kernel.unpacked()?;
    drivers.iter().try_for_each(|(_, driver)| kmod::rocket(line, *driver).map(drop))?;
    qemu::program()?;
    qemu::device().map(drop)
}

/// What is not ours: shell, bus.
fn system(root: &Path) -> Result<()> {
    let bus = archive::unpacked("bus-arm64", &Pin::list(BUS)?)?;
    copy_tree(&bus.join("usr/lib/aarch64-linux-gnu"), &root.join("usr/lib/aarch64-linux-gnu"))?;
    copy(&bus.join("usr/lib/ld-linux-aarch64.so.1"), &root.join("usr/lib/ld-linux-aarch64.so.1"))?;
    for folder in ["bin", "dev", "proc", "sys", "run", "modules", "board", "tmp"] {
        fs::create_dir_all(root.join(folder))?;
    }
    std::os::unix::fs::symlink("usr/lib", root.join("lib"))?;
    copy(&bus.join("usr/bin/dbus-daemon"), &root.join("bin/dbus-daemon"))?;
    copy(&shell()?, &root.join("bin/busybox"))?;
    copy(&step::workspace().join("tests/board/init.sh"), &root.join("init"))?;
    Ok(fs::set_permissions(root.join("init"), fs::Permissions::from_mode(0o755))?)
}

/// The kernel's modules that the driver needs, and a file that tells their order.
fn modules(line: &Line, image: &Path, into: &Path) -> Result<()> {
    let kernel = Kernel::of(line)?;
    let from = image.join("usr/lib/modules").join(kernel.release).join("kernel/drivers");
    let mut order = String::new();
    for module in MODULES {
        let name = module.rsplit('/').next().unwrap_or(module);
        order.push_str(&format!("{name}\n"));
        let own = name == "drm" && !kernel.has_accelerators;
        let from = if own { kmod::drm(line)? } else { from.join(format!("{module}.ko.xz")) };
        unpack_module(&from, &into.join(format!("{name}.ko")))?;
    }
    Ok(fs::write(into.join("order"), order)?)
}

/// Copies a module without what debuggers read; Debian's are packed.
///
/// # Errors
/// A file that is none.
pub(crate) fn unpack_module(from: &Path, to: &Path) -> Result<()> {
    if from.extension().is_some_and(|extension| extension == "xz") {
        let xz = Command::new("xz").args(["--decompress", "--stdout"]).arg(from).stdout(fs::File::create(to)?).status();
        ensure!(xz.context("xz cannot be started")?.success(), "{} cannot be unpacked", from.display());
        return Ok(());
    }
    strip(from, to)
}

/// A shell with its tools, which needs nothing else.
///
/// # Errors
/// What cannot be fetched.
pub(crate) fn shell() -> Result<PathBuf> {
    Ok(archive::unpacked("busybox-arm64", &Pin::list(SHELL)?)?.join("usr/bin/busybox"))
}

/// What is ours: the programs, a model and a picture.
fn programs(root: &Path) -> Result<()> {
    let built = cross::build(Linking::Static, &[PACKAGES, &["--bin", "npud", "--example", "virtual_board"]].concat())?;
    strip(&built.join("npud"), &root.join("board/npud"))?;
    strip(&built.join("examples/virtual_board"), &root.join("board/virtual_board"))?;
    for (source, name) in [("tests/conformance/rocket.c", "conformance"), ("tests/board/unique.c", "unique")] {
        let mut cc = Command::new("aarch64-linux-gnu-gcc");
        cc.args(["-static", "-O2", "-Wall", "-Wextra", "-pthread", "-o"]).arg(root.join("board").join(name));
        kernel::succeed(cc.arg(step::workspace().join(source)))?;
    }
    copy_tree(&step::workspace().join("tests/models/ssd-oidv4"), &root.join("board/models/ssd-oidv4"))?;
    copy(&step::workspace().join("services/npud/dist/org.cairn.Npu1.conf"), &root.join("board/org.cairn.Npu1.conf"))
}

/// The matrices' programs.
fn test_programs(root: &Path, names: &BTreeSet<&str>) -> Result<()> {
    let tests = names.iter().flat_map(|name| ["--test", name]);
    for program in cross::test_programs(Linking::Static, &PACKAGES.iter().copied().chain(tests).collect::<Vec<_>>())? {
        let file = program.file_name().unwrap_or_default().to_string_lossy();
        // Cargo adds a hash to the name.
        let (name, _) = file.rsplit_once('-').with_context(|| format!("{file} is no test program"))?;
        strip(&program, &root.join("board").join(name))?;
    }
    Ok(())
}

/// What the simulator makes of the model and the picture.
fn expectations(root: &Path) -> Result<()> {
    let mut expect = Command::new(step::target().join("debug/examples/virtual_board"));
    expect.arg("expect").arg(root.join("board"));
    kernel::succeed(&mut expect)
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to).with_context(|| format!("{} cannot be copied", from.display()))?;
    Ok(())
}

fn copy_tree(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    kernel::succeed(Command::new("cp").arg("--archive").arg(from.join(".")).arg(to))
}

/// Copies a program or module without what debuggers read.
fn strip(from: &Path, to: &Path) -> Result<()> {
    kernel::succeed(Command::new("aarch64-linux-gnu-strip").args(["--strip-debug", "-o"]).arg(to).arg(from))
}

/// Packs a folder as the kernel reads it, without compressing what would only have to be unpacked.
///
/// # Errors
/// A file that cannot be read.
pub(crate) fn pack(root: &Path, archive: &Path) -> Result<()> {
    let mut names = Vec::new();
    list(root, Path::new(""), &mut names)?;
    let mut cpio = Command::new("cpio");
    cpio.args(["--create", "--format=newc", "--quiet", "--owner=0:0", "--directory"]).arg(root);
    let mut cpio = cpio.stdin(Stdio::piped()).stdout(fs::File::create(archive)?).spawn().context("cpio")?;
    // PANIC: the line above asked for the pipe. It is closed when the names are written.
    cpio.stdin.take().expect("standard input is piped").write_all(names.join("\n").as_bytes())?;
    if !cpio.wait()?.success() {
        bail!("{} cannot be packed", root.display());
    }
    Ok(())
}

fn list(root: &Path, at: &Path, names: &mut Vec<String>) -> Result<()> {
    let mut entries = root.join(at).read_dir()?.collect::<std::io::Result<Vec<_>>>()?;
    entries.sort_by_key(|entry| entry.file_name());
    for entry in entries {
        let name = at.join(entry.file_name());
        names.push(name.display().to_string());
        if entry.file_type()?.is_dir() {
            list(root, &name, names)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    /// What stands for the board: a kernel's log, an NPU, drivers that load, and test programs of two tests.
    const BOARD: &str = r#"
log=$(mktemp)
jobs=$(mktemp)
trap 'rm "$log" "$jobs"' EXIT
interrupts() { wc -l <"$jobs"; }
dmesg() { cat "$log"; test "$1" != -c || : >"$log"; }
load() { :; }
unload() { :; }
timeout() { shift; "$@"; }
program() {
	case $1 in
	--list)
		printf 'first: test\nsecond: test\n'
		test "$4 $5" = '--skip the_rk3576_' || echo 'the_rk3576_third: test'
		;;
	--exact)
		test "$CAIRN_DEVICE" != /dev/accel/accel0 || echo $2 >>"$jobs"
		echo 'test result: ok. 1 passed; 0 failed'
		;;
	esac
}
board_matmul() { program "$@"; }
board_convolution() { program "$@"; }
board_transposed() { program "$@"; }
board_pooling() { program "$@"; }
"#;

    /// What the board's first program prints of the matrices' steps, where these definitions replace some of [`BOARD`]'s.
    fn matrices_with(otherwise: &str) -> String {
        let init = fs::read_to_string(step::workspace().join("tests/board/init.sh")).unwrap();
        let (_, definitions) = init.split_once("\nLIMIT=").unwrap();
        let (definitions, _) = definitions.split_once("\nwhile read -r module").unwrap();
        let definitions = definitions.replace("/board/$", "board_$").replace("/board/plan", "/dev/stdin");
        let script = format!("LIMIT={definitions}\n{BOARD}\n{otherwise}\ntests || echo failed");
        let mut shell = Command::new("sh");
        let mut shell = shell.args(["-c", &script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let plan = Plan::matrices().steps.join("\n") + "\n";
        shell.stdin.take().unwrap().write_all(plan.as_bytes()).unwrap();
        String::from_utf8(shell.wait_with_output().unwrap().stdout).unwrap()
    }

    /// All but the checks that passed.
    fn blamed_with(otherwise: &str) -> String {
        let printed = matrices_with(otherwise);
        printed.lines().filter(|line| !line.starts_with("ok ")).map(|line| format!("{}\n", line.trim_end())).collect()
    }

    #[test]
    fn every_test_of_a_matrix_is_a_check_on_each_driver_that_can_run_it() {
        let printed = expect![[r#"
            ok 1 - stock: loads
            ok 2 - stock: matmul: first
            ok 3 - stock: matmul: second
            ok 4 - stock: matmul: the NPU has worked
            ok 5 - stock: convolution: first
            ok 6 - stock: convolution: second
            ok 7 - stock: convolution: the NPU has worked
            ok 8 - stock: transposed: first
            ok 9 - stock: transposed: second
            ok 10 - stock: transposed: the NPU has worked
            ok 11 - stock: unloads
            ok 12 - patched: loads
            ok 13 - patched: matmul: first
            ok 14 - patched: matmul: second
            ok 15 - patched: matmul: the NPU has worked
            ok 16 - patched: convolution: first
            ok 17 - patched: convolution: second
            ok 18 - patched: convolution: the NPU has worked
            ok 19 - patched: transposed: first
            ok 20 - patched: transposed: second
            ok 21 - patched: transposed: the NPU has worked
            ok 22 - patched: pooling: first
            ok 23 - patched: pooling: second
            ok 24 - patched: pooling: the NPU has worked
            ok 25 - patched: unloads
            ok 26 - patched: the kernel has nothing to complain about
        "#]];
        printed.assert_eq(&matrices_with(""));
    }

    #[test]
    fn tests_that_fail_and_programs_that_run_none_are_failures() {
        let blamed = expect![[r#"
            not ok 2 - stock: matmul: first
            # test result: ok. 1 passed; 0 failed
            # ended with 134
            not ok 3 - stock: matmul: second
            # thread 'second' panicked at matmul.rs:
            # 7 is not 8
            # ended with 101
            not ok 5 - stock: convolution: the NPU has worked
            #
            not ok 6 - stock: transposed: the NPU has worked
            #
            not ok 9 - patched: matmul: first
            # test result: ok. 1 passed; 0 failed
            # ended with 134
            not ok 10 - patched: matmul: second
            # thread 'second' panicked at matmul.rs:
            # 7 is not 8
            # ended with 101
            not ok 12 - patched: convolution: the NPU has worked
            #
            not ok 13 - patched: transposed: the NPU has worked
            #
            not ok 14 - patched: pooling: first
            #
            # ended with 0
            not ok 15 - patched: pooling: second
            #
            # ended with 0
            not ok 16 - patched: pooling: the NPU has worked
            #
            failed
        "#]];
        blamed.assert_eq(&blamed_with(
            r#"
board_matmul() {
	case $2 in
	first)
		program "$@"
		return 134
		;;
	second)
		printf "thread 'second' panicked at matmul.rs:\n7 is not 8\n"
		return 101
		;;
	*) program "$@" ;;
	esac
}
board_convolution() { echo 'first: test'; return 139; }
board_transposed() { :; }
board_pooling() { test $1 != --list || program "$@"; }
"#,
        ));
    }

    #[test]
    fn only_the_patched_driver_is_blamed_and_only_for_its_own_turn() {
        let quiet = blamed_with("load() { test $1 = patched || echo WARNING: $1 >>$log; }");
        assert_eq!(quiet, "");
        let blamed = expect![[r#"
            not ok 26 - patched: the kernel has nothing to complain about
            # WARNING: patched
            failed
        "#]];
        blamed.assert_eq(&blamed_with("load() { echo WARNING: $1 >>$log; }"));
    }

    #[test]
    fn the_matrices_are_test_files() {
        let plan = Plan::matrices();
        let files = step::sources("tests/tests").unwrap();
        let programs = plan.matrix_programs();
        assert_eq!(programs.len(), 4);
        assert!(programs.iter().all(|name| files.iter().any(|file| file == name)), "{programs:?}");
        assert!(Plan::whole(String::new()).matrix_programs().is_empty(), "nothing else is built for other tests");
    }
}
