//! The bundled packages, run on the CPU, and manifests that are refused.

use std::path::PathBuf;

use super::*;
use crate::{Class, Detection, cpu};

fn project(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// A package with its graph, checked.
struct Bundled {
    package: Package,
    graph: Graph,
    inputs: Vec<TensorInfo>,
    outputs: Vec<TensorInfo>,
}

impl Bundled {
    fn read(name: &str) -> Self {
        let package = Package::read(&project("tests/models").join(name)).expect("the package is read");
        let graph = package.graph().expect("the model is read");
        let infos = |ids: &[model::TensorId]| ids.iter().map(|&id| TensorInfo::of(&graph[id])).collect::<Vec<_>>();
        let (inputs, outputs) = (infos(&graph.inputs), infos(&graph.outputs));
        package.check(&inputs, &outputs).expect("the package fits its model");
        Self { package, graph, inputs, outputs }
    }

    fn run(&self, input: &[u8]) -> Vec<Tensor> {
        let values = cpu::evaluate(&self.graph, &[input]).expect("the CPU computes every operator");
        let outputs = self.graph.outputs.iter().zip(&self.outputs);
        let tensor = |(id, info): (&model::TensorId, &TensorInfo)| Tensor {
            name: info.name.clone(),
            dtype: info.dtype,
            shape: info.shape.clone(),
            data: values[id.0].clone().into(),
        };
        outputs.map(tensor).collect()
    }

    fn see(&self, picture: &str) -> Decoded {
        let picture = std::fs::read(project(picture)).expect("the picture is there").into();
        let input = self.package.prepare(&picture, &self.inputs[0]).expect("the picture is decoded");
        self.decode(&self.run(&input))
    }

    fn decode(&self, outputs: &[Tensor]) -> Decoded {
        self.package.decode(&self.inputs, outputs, &self.outputs).expect("the outputs are understood")
    }
}

fn check_golden(name: &str) {
    let bundled = Bundled::read(name);
    let golden = bundled.package.golden(&bundled.inputs, &bundled.outputs).unwrap().expect("it has a golden input");
    let Input::Picture(picture) = &golden.input else { panic!("{:?}", golden.input) };
    let outputs = bundled.run(&bundled.package.prepare(picture, &bundled.inputs[0]).unwrap());
    for (output, expected) in outputs.iter().zip(&golden.outputs) {
        assert!(output.data == expected, "output {:?} differs from the reference kernels'", output.name);
    }
}

#[test]
fn the_golden_outputs_are_met_to_the_byte() {
    check_golden("ssd-oidv4");
    check_golden("mnist");
    check_golden("mnist-v2");
}

#[track_caller]
fn check_best(decoded: &Decoded, label: &str, score: f32, bounds: [f32; 4]) {
    let Decoded::Detections(detections) = decoded else { panic!("{decoded:?}") };
    let best: &Detection = detections.first().expect("something is seen");
    assert_eq!(best.label, label);
    assert!((best.score - score).abs() < 0.03, "{best:?}");
    let off = best.bounds.iter().zip(bounds).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(off < 0.03, "{best:?}");
}

#[test]
fn the_detector_sees_what_is_in_the_pictures() {
    let detector = Bundled::read("ssd-oidv4");
    // SOURCE: LiteRT's reference kernels on Pillow's bicubic resize of the same pictures.
    let see = |name: &str| detector.see(&format!("tests/pictures/{name}.jpg"));
    check_best(&see("astronaut"), "Person", 0.61, [0.05, 0.01, 0.74, 0.99]);
    check_best(&see("chelsea"), "Cat", 0.87, [0.0, 0.0, 0.95, 1.0]);
    check_best(&see("coffee"), "Coffee cup", 0.63, [0.27, 0.03, 0.67, 0.78]);
}

fn check_digits(name: &str) {
    let bundled = Bundled::read(name);
    let digits = std::fs::read(project("tests/models/mnist/digits.bin")).unwrap();
    for (digit, pixels) in digits.chunks_exact(28 * 28).enumerate() {
        let Decoded::Classes(classes) = bundled.decode(&bundled.run(pixels)) else { panic!("no classes") };
        let best: &Class = &classes[0];
        assert_eq!((best.label.as_str(), best.class), (digit.to_string().as_str(), digit));
        assert!(best.score > 0.9, "{classes:?}");
    }
}

#[test]
fn the_digits_are_read() {
    check_digits("mnist");
    check_digits("mnist-v2");
}

const MANIFEST: &str = "name = \"a\"\nversion = \"1\"\ntask = \"tensor\"\nlicense = \"MIT\"\nmodel = \"m.tflite\"\n";

#[track_caller]
fn check_refused(manifest: &str, reason: &str) {
    let error = parse(manifest).err().map(|error| error.to_string());
    assert_eq!(error.as_deref(), Some(reason));
}

#[test]
fn a_manifest_is_refused_with_its_line() {
    parse(MANIFEST).unwrap();
    check_refused(
        &format!("{MANIFEST}colour = 1\n"),
        "model.toml line 6 column 1: unknown field `colour`, expected one of `name`, `version`, `task`, `license`, \
         `notice`, `model`, `labels`, `picture`, `decoder`, `golden`",
    );
    check_refused(
        &format!("{MANIFEST}[picture]\nresize = \"softly\"\n"),
        "model.toml line 7 column 10: unknown variant `softly`, expected one of `nearest`, `bilinear`, `bicubic`, `lanczos`",
    );
    check_refused(
        &format!("{MANIFEST}[decoder.classify]\nscores = \"s\"\nsoftmax = 3\n"),
        "model.toml line 8 column 11: invalid type: integer `3`, expected a boolean",
    );
    check_refused("name = \"a\"", "model.toml line 1 column 1: missing field `version`");
    check_refused("name = ", "model.toml line 1 column 8: string values must be quoted, expected literal string");
}

#[test]
fn a_name_that_no_topic_can_have_is_refused() {
    let reason = "model.toml line 1 column 8: a name is 1 to 64 lower-case letters, digits and inner hyphens";
    for name in ["", "A", "a/b", "a+", "#", "-a", "a-", "é", &"a".repeat(65)] {
        check_refused(&MANIFEST.replacen("\"a\"", &format!("\"{name}\""), 1), reason);
    }
}

#[test]
fn a_file_outside_the_folder_is_refused() {
    for file in ["../model.toml", "/etc/hostname", "golden/../model.toml", ".", ""] {
        let error = read_file(&project("tests/models/mnist"), Path::new(file), 1 << 20).unwrap_err();
        assert_eq!(error.to_string(), format!("{file}: is not the name of a file in the package's folder"));
    }
}

#[test]
fn what_is_not_a_regular_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let made = std::process::Command::new("mkfifo").arg(folder.path().join("pipe")).status().unwrap();
    assert!(made.success());
    std::os::unix::fs::symlink("/etc/hostname", folder.path().join("link")).unwrap();
    std::fs::create_dir(folder.path().join("folder")).unwrap();
    for file in ["pipe", "link", "folder"] {
        let error = read_file(folder.path(), Path::new(file), 1 << 20).unwrap_err();
        assert_eq!(error.to_string(), format!("{file}: is not a regular file"));
    }
}

#[test]
fn a_tolerance_for_other_than_bytes_is_refused() {
    let Bundled { mut package, inputs, mut outputs, .. } = Bundled::read("mnist");
    package.manifest.golden.as_mut().unwrap().tolerance = 1;
    package.golden(&inputs, &outputs).unwrap();
    outputs[0].dtype = DType::F32;
    let error = package.golden(&inputs, &outputs).unwrap_err();
    assert!(error.to_string().ends_with("is F32, a tolerance is for 8-bit elements"), "{error}");
}

#[test]
fn a_file_over_its_limit_is_refused() {
    let error = read_file(&project("tests/models/mnist"), Path::new("labels.txt"), 19).unwrap_err();
    assert_eq!(error.to_string(), "labels.txt: is larger than 19 bytes");
}

#[test]
fn a_decoder_that_does_not_fit_the_model_is_refused() {
    let Bundled { package, inputs, mut outputs, .. } = Bundled::read("ssd-oidv4");
    outputs[0].shape = vec![1, 1916, 4];
    let error = package.check(&inputs, &outputs).unwrap_err();
    assert_eq!(
        error.to_string(),
        "model.toml: decoder: output \"raw_outputs/box_encodings\" is [1, 1916, 4], the anchors need [1, 1917, 4]"
    );
    outputs.remove(0);
    let error = package.check(&inputs, &outputs).unwrap_err();
    assert_eq!(error.to_string(), "model.toml: decoder: the model has no output \"raw_outputs/box_encodings\"");
}
