//! Programs that know nothing of the simulator find the preloaded device, and it treats them as the kernel would.
//!
//! The ones that ask are in C, in `tests/conformance`; the others are the system's own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;

use tempfile::TempDir;

const NODE: &str = "/dev/accel/accel0";

/// A folder with a compiled program.
struct Client {
    folder: TempDir,
    program: PathBuf,
}

impl Client {
    /// Compiles a program of `tests/conformance`.
    fn new(name: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let sources = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/conformance"));
        let program = folder.path().join(name);
        let mut compiler = Command::new("cc");
        compiler.args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"]);
        compiler.arg(&program).arg(sources.join(name).with_extension("c"));
        assert!(compiler.status().expect("cc can be started").success(), "{name}.c does not compile");
        Self { folder, program }
    }

    fn run(&self, arguments: &[&str], settings: &[(&str, &str)]) -> Output {
        preloaded(Command::new(&self.program).args(arguments), settings)
    }
}

/// The library. Cargo does not build it for tests, which link nothing of it.
static LIBRARY: LazyLock<PathBuf> =
    LazyLock::new(|| testkit::build_library("npu_shim").unwrap_or_else(|error| panic!("{error:#}")));

/// Runs a program with the library.
fn preloaded(command: &mut Command, settings: &[(&str, &str)]) -> Output {
    command.env("LD_PRELOAD", &*LIBRARY).envs(settings.iter().copied());
    command.output().expect("the client can be started")
}

/// What it printed, if it ended well.
fn text(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{text}{errors}", output.status);
    text
}

/// Every line of the conformance program, as one of the kernels.
fn conforms(kernel: &str) {
    let settings = [("CAIRN_SHIM_KERNEL", kernel), ("CAIRN_SHIM_SPEED", "modelled")];
    let text = text(&Client::new("rocket").run(&[NODE, kernel], &settings));
    assert!(text.lines().last().is_some_and(|line| line.starts_with("1..")), "the client stopped early:\n{text}");
}

#[test]
fn the_device_answers_as_mainline_6_18() {
    conforms("6.18");
}

#[test]
fn the_device_answers_as_mainline_7_3() {
    conforms("7.3");
}

#[test]
fn the_device_answers_as_a_kernel_with_our_patches() {
    conforms("cairn");
}

#[test]
fn a_client_that_passes_garbage_lives_and_good_jobs_run_beside_it() {
    let client = Client::new("garbage");
    for (kernel, speed, seed) in [("7.3", "instant", "1"), ("6.18", "modelled", "2"), ("cairn", "modelled", "3")] {
        let settings = [("CAIRN_SHIM_KERNEL", kernel), ("CAIRN_SHIM_SPEED", speed)];
        assert_eq!(text(&client.run(&[NODE, kernel, seed], &settings)), "alive, 0 failures\n");
    }
}

#[test]
fn jobs_are_traced_in_words_and_counted() {
    let client = Client::new("rocket");
    let (trace, statistics) = (client.folder.path().join("trace"), client.folder.path().join("statistics"));
    let settings = [
        ("CAIRN_SHIM_SPEED", "modelled"),
        ("CAIRN_SHIM_TRACE", trace.to_str().expect("a path in UTF-8")),
        ("CAIRN_SHIM_STATISTICS", statistics.to_str().expect("a path in UTF-8")),
    ];
    text(&client.run(&[NODE, "7.3"], &settings));
    let trace = fs::read_to_string(trace).expect("a trace");
    let line = trace.lines().find(|line| line.contains("tasks 2")).expect("a job of two tasks");
    assert_eq!(line.matches("CNA_DATA_SIZE0 datain_width=8 datain_height=8").count(), 2, "{line}");
    assert!(trace.contains("hung in task 0: PC reads unmapped 0xf0000000"), "the wild job says why");
    assert!(trace.contains("dropped, "), "dropped jobs are told");
    let statistics = fs::read_to_string(statistics).expect("statistics");
    assert_eq!(statistics.matches("npu-shim: process").count(), 1, "its child ends without exit:\n{statistics}");
    assert!(statistics.contains("kernel log: rocket fdab0000.npu: NPU job timed out"), "{statistics}");
}

#[test]
fn faults_strike_as_asked() {
    let settings = [("CAIRN_SHIM_FAULTS", "hang=1")];
    let output = Client::new("garbage").run(&[NODE, "7.3", "1"], &settings);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(errors.matches("a good job failed").count(), 20, "every job hangs:\n{errors}");
}

#[test]
fn the_systems_tools_find_node_and_driver() {
    let print = |command: &str| text(&preloaded(Command::new("sh").args(["-c", command]), &[("LC_ALL", "C")]));
    assert_eq!(print("ls /dev/accel"), "accel0\n");
    assert_eq!(print("stat --format '%F %t:%T' /dev/accel/accel0"), "character special file 105:0\n");
    assert_eq!(print("realpath /sys/dev/char/261:0/device"), "/sys/devices/platform/rknn\n");
    assert!(print("cat /sys/bus/platform/drivers/rocket/fdab0000.npu/uevent").contains("rockchip,rk3588-rknn-core"));
    assert!(print("cat /proc/device-tree/compatible").contains("rockchip,rk3588"));
}

#[test]
fn a_setting_that_means_nothing_ends_the_client_before_it_starts() {
    let output = preloaded(&mut Command::new("true"), &[("CAIRN_SHIM_KERNEL", "5.10")]);
    assert_eq!(output.status.code(), Some(2));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(errors, "npu-shim: CAIRN_SHIM_KERNEL=5.10 is none of 7.3, 6.18, cairn\n");
}
