//! Any bytes as a TFLite file: the reader must refuse or return a graph, and neither panic nor hang.
//!
//! A good corpus to start from: `tests/models/mnist/model.tflite` and other small models.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = model::tflite::read(bytes);
});
