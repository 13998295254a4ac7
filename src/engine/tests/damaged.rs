//! Damaged models that the reader lets through are computed, or refused, without a panic.

use std::path::Path;

use proptest::prelude::*;

/// Bytes of tensors above which a damaged graph is not worth the time.
const LARGEST: usize = 8 << 20;

fn digits() -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/models/mnist/model.tflite");
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(1500) })]

    #[test]
    fn a_damaged_model_is_computed_or_refused(
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut bytes = digits();
        for (index, byte) in edits {
            let at = index.index(bytes.len());
            bytes[at] = byte;
        }
        let Ok(graph) = model::tflite::read(&bytes) else { return Ok(()) };
        if graph.tensors.iter().map(model::Tensor::bytes).sum::<usize>() > LARGEST {
            return Ok(());
        }
        let inputs: Vec<Vec<u8>> = graph.inputs.iter().map(|&id| vec![200; graph[id].bytes()]).collect();
        let inputs: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
        if let Ok(values) = engine::cpu::evaluate(&graph, &inputs) {
            prop_assert!(graph.outputs.iter().all(|id| values[id.0].len() == graph[*id].bytes()));
        }
    }
}
