//! Headers of language models: what is read, and what is refused.

use model::gguf::{Header, read};
use model::{Error, Result};

const U32: u32 = 4;
const STRING: u32 = 8;
const ARRAY: u32 = 9;
const Q4_1: u32 = 3;
const F32: u32 = 0;

/// A file that is well-formed until a test changes it.
struct File {
    magic: [u8; 4],
    version: u32,
    metadata: Vec<(String, Vec<u8>)>,
    /// Name, extents, type, offset.
    tensors: Vec<(String, Vec<u64>, u32, u64)>,
    data: usize,
    cut: usize,
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

fn string(value: &str) -> Vec<u8> {
    [STRING.to_le_bytes().to_vec(), text(value)].concat()
}

fn number(value: u32) -> Vec<u8> {
    [U32.to_le_bytes(), value.to_le_bytes()].concat()
}

fn numbers(values: &[u32]) -> Vec<u8> {
    let values: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    [&ARRAY.to_le_bytes()[..], &U32.to_le_bytes(), &2u64.to_le_bytes(), &values].concat()
}

fn tokens(count: usize) -> Vec<u8> {
    let texts: Vec<u8> = (0..count).flat_map(|token| text(&token.to_string())).collect();
    [&ARRAY.to_le_bytes()[..], &STRING.to_le_bytes(), &(count as u64).to_le_bytes(), &texts].concat()
}

/// Two layers of width 64, four heads of which two are cached, a vocabulary of 100.
fn llama() -> File {
    let metadata = [
        ("general.architecture", string("llama")),
        ("general.name", string("tiny")),
        ("llama.block_count", number(2)),
        ("llama.context_length", number(2048)),
        ("llama.embedding_length", number(64)),
        ("llama.feed_forward_length", number(128)),
        ("llama.attention.head_count", number(4)),
        ("llama.attention.head_count_kv", number(2)),
        ("tokenizer.ggml.tokens", tokens(100)),
        ("tokenizer.chat_template", string("{{ messages }}")),
    ];
    File {
        magic: *b"GGUF",
        version: 3,
        metadata: metadata.map(|(key, value)| (key.to_owned(), value)).into(),
        // 64 × 100 elements in blocks of 32 with 20 bytes each are 4000 bytes, a multiple of 32.
        tensors: vec![("a".into(), vec![64, 100], Q4_1, 0), ("b".into(), vec![64], F32, 4000)],
        data: 4000 + 256,
        cut: 0,
    }
}

impl File {
    fn set(&mut self, key: &str, value: Vec<u8>) {
        let entry = self.metadata.iter_mut().find(|entry| entry.0 == key);
        entry.expect("the key is there").1 = value;
    }

    fn remove(&mut self, key: &str) {
        self.metadata.retain(|entry| entry.0 != key);
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.magic.to_vec();
        bytes.extend(self.version.to_le_bytes());
        bytes.extend((self.tensors.len() as u64).to_le_bytes());
        bytes.extend((self.metadata.len() as u64).to_le_bytes());
        for (key, value) in &self.metadata {
            bytes.extend(text(key));
            bytes.extend(value);
        }
        for (name, extents, kind, offset) in &self.tensors {
            bytes.extend(text(name));
            bytes.extend((extents.len() as u32).to_le_bytes());
            bytes.extend(extents.iter().flat_map(|extent| extent.to_le_bytes()));
            bytes.extend(kind.to_le_bytes());
            bytes.extend(offset.to_le_bytes());
        }
        bytes.resize(bytes.len().next_multiple_of(32) + self.data, 0);
        bytes.truncate(bytes.len() - self.cut);
        bytes
    }

    fn read(&self) -> Result<Header> {
        let bytes = self.bytes();
        read(&bytes[..], bytes.len() as u64)
    }
}

#[track_caller]
fn check(change: impl FnOnce(&mut File), reason: &str) {
    let mut file = llama();
    change(&mut file);
    assert_eq!(file.read().map_err(|error: Error| error.to_string()), Err(reason.to_owned()));
}

#[test]
fn a_header_says_what_the_model_is_and_costs() {
    for version in [2, 3] {
        let header = File { version, ..llama() }.read().unwrap();
        assert_eq!((header.architecture.as_str(), header.name.as_str()), ("llama", "tiny"));
        assert_eq!((header.quantization, header.parameters), ("Q4_1", 6464));
        assert_eq!((header.tensor_bytes, header.largest_tensor_bytes), (4256, 4000));
        assert_eq!((header.layers, header.context_length, header.vocabulary), (2, 2048, 100));
        // Two layers, two heads of 16 elements, keys and values, two bytes each.
        assert_eq!(header.cache_bytes_per_token, 2 * 2 * (16 + 16) * 2);
        assert!(header.has_chat_template && !header.is_embedding && header.gpu_warning.is_none());
    }
}

#[test]
fn memory_grows_with_context_and_ubatch() {
    let header = llama().read().unwrap();
    let small = header.memory(512, 32);
    assert_eq!((small.weights, small.cache), (4256, 512 * header.cache_bytes_per_token));
    // The cache comes in steps of 256 tokens.
    assert_eq!(header.memory(500, 32), small);
    assert!(header.memory(1024, 32).cache > small.cache);
    assert!(header.memory(512, 64).compute > small.compute);
    assert!(small.total(true) > small.total(false));
    // Nothing overflows.
    assert_eq!(header.memory(u64::MAX, u64::MAX).total(true), u64::MAX);
}

#[test]
fn layers_may_have_heads_of_their_own() {
    let mut file = llama();
    file.set("llama.attention.head_count_kv", numbers(&[0, 1]));
    file.set("llama.feed_forward_length", numbers(&[128, 256]));
    let header = file.read().unwrap();
    assert_eq!(header.cache_bytes_per_token, (16 + 16) * 2);
    assert_eq!(header.feed_forward_length, 256);
}

#[test]
fn a_family_that_is_wrong_on_the_gpu_is_warned_of() {
    let mut file = llama();
    for entry in &mut file.metadata {
        entry.0 = entry.0.replace("llama.", "gemma3.");
    }
    file.set("general.architecture", string("gemma3"));
    assert!(file.read().unwrap().gpu_warning.unwrap().contains("Gemma"));
}

#[test]
fn a_malformed_file_is_refused_with_the_place() {
    check(|file| file.magic = *b"GGML", "model: it does not begin with GGUF");
    check(|file| file.version = 1, "model: GGUF version 1, supported are 2 and 3");
    check(
        |file| file.version = 3u32.swap_bytes(),
        "model: GGUF version 50331648, supported are 2 and 3; the byte order seems to be the other one",
    );
    check(|file| file.remove("general.architecture"), "model: general.architecture is missing");
    check(|file| file.set("general.architecture", number(3)), "model: general.architecture is not what it should be");
    check(|file| file.remove("llama.block_count"), "model: llama.block_count is missing");
    check(|file| file.set("llama.block_count", number(0)), "model: llama.block_count is not what it should be");
    check(
        |file| file.set("llama.context_length", number(u32::MAX)),
        "model: llama.context_length is not what it should be",
    );
    check(|file| file.set("general.name", 13u32.to_le_bytes().into()), "model: general.name: type 13 is unknown");
    check(
        |file| file.metadata.push(file.metadata[0].clone()),
        "model: metadata entry 10: \"general.architecture\" is there twice",
    );
    check(|file| file.tensors.clear(), "model: there are no tensors");
}

#[test]
fn a_malformed_tensor_is_refused_with_its_name() {
    check(|file| file.tensors[1].0 = "a".into(), "tensor 1 \"a\": the name is there twice");
    check(|file| file.tensors[0].2 = 4, "tensor 0 \"a\": type 4 is unknown");
    check(|file| file.tensors[0].1 = vec![64; 5], "tensor 0 \"a\": 5 extents, at most 4 are supported");
    check(|file| file.tensors[0].1 = vec![64, 0], "tensor 0 \"a\": extents [64, 0] are 0 or too many");
    check(
        |file| file.tensors[0].1 = vec![u64::MAX, 64],
        &format!("tensor 0 \"a\": extents [{}, 64] are 0 or too many", u64::MAX),
    );
    check(|file| file.tensors[0].1 = vec![48], "tensor 0 \"a\": rows of extents [48] are no blocks of 32 for Q4_1");
    check(|file| file.tensors[1].3 = 32, "tensor 1 \"b\": it begins at 32, the one before ends at 4000");
    let bytes = llama().bytes().len() - 1;
    check(|file| file.cut = 1, &format!("tensor 1 \"b\": 256 bytes at 4000 lie outside the file of {bytes} bytes"));
}

#[test]
fn a_file_that_ends_anywhere_is_refused() {
    let bytes = llama().bytes();
    for length in 0..bytes.len() {
        let cut = &bytes[..length];
        assert!(read(cut, length as u64).is_err(), "{length} of {} bytes were enough", bytes.len());
        // A file that is shorter than its length says.
        if length < bytes.len() - 4256 - 32 {
            assert!(read(cut, bytes.len() as u64).is_err(), "{length} bytes");
        }
    }
}

#[test]
fn a_count_beyond_the_file_is_refused_before_anything_is_kept() {
    for place in [8, 16] {
        let mut bytes = llama().bytes();
        bytes[place..place + 8].copy_from_slice(&u64::MAX.to_le_bytes());
        let error = read(&bytes[..], bytes.len() as u64).unwrap_err().to_string();
        assert!(error.contains("more than the file can hold"), "{error}");
    }
}
