//! Mesa's own driver for this NPU on the simulator, against LiteRT's reference kernels.
//!
//! ```text
//! models, inputs ─┬─ LiteRT, Mesa's libteflon.so (arm64, qemu-user) ─▶ npu-shim ─▶ npu-sim ─┬─ compare
//!                 └─ LiteRT (PyPI ai-edge-litert), BUILTIN_REF ─────────────────────────────┘
//! ```
//!
//! `cargo xtask teflon` brings the programs. What Mesa 26.1.6 is known to do wrong is [`FAULTS`]; a fault that does not
//! show any more fails here as well, because then this list is wrong.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tests::python;

/// Models with one trait each that Mesa does wrong, and why.
const FAULTS: &[(&str, &str)] = &[
    ("add", "the scales of a sum come from a table, and others than those in it are taken for (6, 27676, 25)"),
    ("channels-24", "the filter of 17 to 31 channels is packed densely, and the registers say 32 channels"),
    ("depthwise-zeros", "the pad value is sign-extended, and odd channels take its second byte (Q24)"),
    ("mnist", "a depthwise filter of one input channel is read as a direct convolution's, without a transposition"),
    ("mnist-v2", "as mnist; besides, layers of 24 channels and a sum"),
    ("mnist-v2-direct", "layers of 24 channels and a sum"),
    ("oblong", "width and height are exchanged in the registers and not in the data"),
];
/// Bytes that an output of a faulty model has right at most.
const MOST_RIGHT: f64 = 0.95;

/// How two results differ.
#[derive(Debug)]
struct Difference {
    bytes: usize,
    equal: usize,
    largest: u8,
    /// Sets of inputs, and how many of them have their largest byte at the same place.
    sets: usize,
    same_class: usize,
}

impl Difference {
    fn right(&self) -> f64 {
        self.equal as f64 / self.bytes as f64
    }
}

fn variable(name: &str) -> PathBuf {
    std::env::var_os(name).unwrap_or_else(|| panic!("{name} is not set: run `cargo xtask teflon`")).into()
}

/// The largest byte's place.
fn class(bytes: &[u8]) -> usize {
    (0..bytes.len()).rev().max_by_key(|&index| bytes[index]).expect("an output has bytes")
}

/// Compares every set of what Teflon made of a model with what the reference made of another.
fn difference(work: &Path, teflon: &str, reference: &str) -> Difference {
    let mut difference = Difference { bytes: 0, equal: 0, largest: 0, sets: 0, same_class: 0 };
    loop {
        let output =
            |model: &str, by: &str| work.join(model).join(by).join(format!("{}/output_0.bin", difference.sets));
        let (ours, theirs) = (output(teflon, "teflon"), output(reference, "reference"));
        if !ours.exists() && difference.sets > 0 {
            return difference;
        }
        let read = |path: &Path| fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let (ours, theirs) = (read(&ours), read(&theirs));
        assert_eq!(ours.len(), theirs.len());
        difference.bytes += ours.len();
        difference.equal += ours.iter().zip(&theirs).filter(|(a, b)| a == b).count();
        difference.largest = ours.iter().zip(&theirs).map(|(a, b)| a.abs_diff(*b)).fold(difference.largest, u8::max);
        difference.same_class += usize::from(class(&ours) == class(&theirs));
        difference.sets += 1;
    }
}

/// Runs all models on both sides, and returns their names.
fn run(work: &Path) -> Vec<String> {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("models");
    python::script("teflon_models.py", &[work, &models]).unwrap_or_else(|error| panic!("{error:#}"));
    let mut folders: Vec<PathBuf> = fs::read_dir(work).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.sort();
    let mut arguments = vec![Path::new("reference"), Path::new("-")];
    arguments.extend(folders.iter().map(PathBuf::as_path));
    python::script("many_models.py", &arguments).unwrap_or_else(|error| panic!("{error:#}"));
    emulated(work, &folders);
    folders.iter().map(|folder| folder.file_name().unwrap().to_str().unwrap().to_owned()).collect()
}

/// Teflon's side: programs of the boards' processor.
fn emulated(work: &Path, folders: &[PathBuf]) {
    let (root, shim) = (variable("CAIRN_TEFLON_ROOT"), variable("CAIRN_TEFLON_SHIM"));
    let packages = python::packages_for_aarch64().unwrap_or_else(|error| panic!("{error:#}"));
    let statistics = work.with_extension("statistics");
    let mut guest = Command::new("qemu-aarch64-static");
    let set = |name: &str, value: &str| format!("{name}={value}");
    let path = |path: &Path| path.to_str().expect("a path in UTF-8").to_owned();
    guest.arg("-L").arg(&root);
    guest.args(["-E", &set("PYTHONPATH", &format!("{}:{}", path(&packages), path(&python::scripts())))]);
    guest.args(["-E", &set("LD_PRELOAD", &path(&shim)), "-E", &set("CAIRN_SHIM_STATISTICS", &path(&statistics))]);
    guest.arg(root.join("usr/bin/python3.13")).arg(python::scripts().join("many_models.py"));
    // The packages keep what Python compiles of them, so that the next start is faster; the tree stays as it is.
    guest.args(["teflon"]).arg(root.join("usr/lib/teflon/libteflon.so")).args(folders);
    guest.env("PYTHONPYCACHEPREFIX", packages.with_extension("compiled"));
    let output = guest.output().expect("qemu-aarch64-static can be started");
    assert!(output.status.success(), "{}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
    let statistics = fs::read_to_string(&statistics).expect("the driver opened the device");
    println!("{statistics}");
    assert!(statistics.contains("hung 0)"), "no job of Mesa's hangs");
}

#[test]
#[ignore = "needs Mesa's driver and an emulator: `cargo xtask teflon`"]
fn mesas_driver_computes_what_the_reference_does_but_for_its_known_faults() {
    let folder = tempfile::tempdir().unwrap();
    let work = folder.path().join("models");
    fs::create_dir(&work).unwrap();
    let differences: BTreeMap<String, Difference> =
        run(&work).into_iter().map(|name| (name.clone(), difference(&work, &name, &name))).collect();
    for (name, difference) in &differences {
        let fault = FAULTS.iter().find(|(faulty, _)| faulty == name).map_or("", |(_, cause)| cause);
        println!("{name:18} {:7.3} % equal, largest {:3} {fault}", 100.0 * difference.right(), difference.largest);
    }
    let plain: Vec<_> = differences.iter().filter(|(name, _)| name.starts_with("plain")).collect();
    // Mesa keeps 15 bits of a scale, so a result is off by one where that moves it over a half: with results as far from
    // zero as these, on average in 1 of 3000, and up to three times as often where the scale is an unlucky one.
    for (name, difference) in &plain {
        assert!(difference.largest <= 1 && difference.right() >= 0.999, "{name}: {difference:?}");
    }
    let sum = |of: fn(&Difference) -> usize| plain.iter().map(|(_, difference)| of(difference)).sum::<usize>() as f64;
    let together = sum(|difference| difference.equal) / sum(|difference| difference.bytes);
    println!("plain models together: {:.3} % equal", 100.0 * together);
    assert!(together >= 0.9995, "{together}");
    for (name, cause) in FAULTS {
        assert!(differences[*name].right() < MOST_RIGHT, "{name} is right now, but the list says: {cause}");
    }
    check_digits(&work, &differences);
}

/// The digits: right where the first layer is a convolution, and otherwise wrong in exactly the way that Mesa reads it.
fn check_digits(work: &Path, differences: &BTreeMap<String, Difference>) {
    // Five convolutions, each off by one here and there.
    let digits = &differences["mnist-direct"];
    assert!(digits.largest <= 2 && digits.same_class == digits.sets, "{digits:?}");
    let misread = difference(work, "mnist", "mnist-misread");
    println!("mnist as Mesa reads it: {misread:?}");
    assert!(misread.largest <= 2 && misread.same_class == misread.sets, "{misread:?}");
}
