//! Any bytes as the header of a language model: the reader must refuse or tell what the model costs, without a panic.
//!
//! A good corpus to start from: the first 2 MiB of any GGUF file, and what `src/model/tests/gguf.rs` writes.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    // The weights need not be there: a file may be as long as it likes.
    let declared = u64::try_from(bytes.len()).map_or(u64::MAX, |len| len << 20);
    for file_bytes in [bytes.len() as u64, declared] {
        if let Ok(header) = model::gguf::read(bytes, file_bytes) {
            let memory = header.memory(header.context_length, 512);
            assert!(memory.total(true) >= memory.total(false));
        }
    }
});
