//! A program of C that knows nothing of the simulator asks the preloaded device whether it answers as the kernel.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The library, which cargo built for this test.
fn library() -> PathBuf {
    let test = std::env::current_exe().expect("a test has a path");
    test.with_file_name("libnpu_shim.so")
}

/// Compiles a program of `tests/conformance`.
fn compile(name: &str, folder: &Path) -> PathBuf {
    let source =
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/conformance")).join(name).with_extension("c");
    let program = folder.join(name);
    let mut compiler = Command::new("cc");
    compiler.args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"]).arg(&program).arg(source);
    assert!(compiler.status().expect("cc can be started").success(), "{name}.c does not compile");
    program
}

/// Every line of the conformance program, as one of the kernels.
fn conforms(kernel: &str, speed: &str) {
    let folder = tempfile::tempdir().expect("a folder");
    let program = compile("rocket", folder.path());
    let mut client = Command::new(program);
    client.args(["/dev/accel/accel0", kernel]).env("LD_PRELOAD", library());
    client.env("CAIRN_SHIM_KERNEL", kernel).env("CAIRN_SHIM_SPEED", speed);
    let output = client.output().expect("the client can be started");
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{text}{errors}", output.status);
    assert!(text.lines().last().is_some_and(|line| line.starts_with("1..")), "the client stopped early:\n{text}");
}

#[test]
fn the_device_answers_as_mainline_6_18() {
    conforms("6.18", "modelled");
}

#[test]
fn the_device_answers_as_mainline_7_3() {
    conforms("7.3", "modelled");
}

#[test]
fn the_device_answers_as_a_kernel_with_our_patches() {
    conforms("cairn", "modelled");
}
