//! How a model is placed: which device reads prompts, how long the context is, how many tokens are read at once.
//!
//! ```text
//! header, room ─▶ GPU and CPU, ubatch 512 ─▶ … 256 … 128 … 64 … 32 ─▶ CPU alone
//!                        └── a step further down each time the device failed ──┘
//! ```
//! Reading a prompt is arithmetic, which the GPU is better at; writing an answer is moving all weights once for each
//! token, which the CPU's cores are better at on RK3588. So the weights stay in the machine's memory, the server offloads
//! no layer, and llama.cpp takes each product of 32 tokens or more to the GPU by itself.
//! SOURCE: ggml_backend_vk_device_offload_op, ggml-vulkan.cpp.

use api::{ErrorCode, Failure, Result};
use model::gguf::Header;

use crate::machine::Gpu;

/// The shortest context that is worth a server.
const SHORTEST: u64 = 512;
/// Fewer tokens than this at once are never taken to the GPU.
const SMALLEST: u64 = 32;
/// Bytes of a mebibyte.
const MIB: u64 = 1 << 20;

/// What may be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    /// Bytes of memory.
    pub(crate) available: u64,
    /// The GPU, if there is one that may be used.
    pub(crate) gpu: Option<Gpu>,
}

/// The most that is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wish {
    /// Tokens of the context.
    pub(crate) context: u64,
    /// Tokens that are read at once.
    pub(crate) ubatch: u64,
    /// The same where the GPU reads them; none where it shall not.
    pub(crate) on_gpu: Option<u64>,
}

impl Wish {
    /// The next step down after the device failed; none below the CPU.
    pub(crate) fn smaller(self, failed: &Placement) -> Option<Self> {
        failed.gpu.as_ref()?;
        Some(Self { on_gpu: Some(failed.ubatch / 2).filter(|&ubatch| ubatch >= SMALLEST), ..self })
    }
}

/// How a server is started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Placement {
    pub(crate) gpu: Option<String>,
    pub(crate) context: u64,
    pub(crate) ubatch: u64,
    /// Bytes by estimate.
    pub(crate) memory: u64,
}

impl Placement {
    /// For people.
    pub(crate) fn name(&self) -> String {
        self.gpu.as_ref().map_or_else(|| "CPU".to_owned(), |gpu| format!("{gpu} + CPU"))
    }
}

/// Finds the largest context, and for it the largest ubatch, that fit. The GPU is left out before the context shrinks.
///
/// # Errors
/// `OutOfMemory`, with what is needed at least and what there is.
pub(crate) fn place(header: &Header, room: &Room, wish: Wish) -> Result<Placement> {
    let mut context = wish.context.min(header.context_length).max(1);
    loop {
        let on_gpu = room.gpu.as_ref().zip(wish.on_gpu).map(|(gpu, ubatch)| (Some(gpu), ubatch));
        for (gpu, ubatch) in on_gpu.into_iter().chain([(None, wish.ubatch)]) {
            if let Some(placement) = fit(header, room, context, ubatch, gpu) {
                return Ok(placement);
            }
        }
        if context <= SHORTEST {
            break;
        }
        context = (context / 2).max(SHORTEST);
    }
    let least = header.memory(context, SMALLEST).total(false);
    Err(Failure::new(
        ErrorCode::OutOfMemory,
        format!(
            "{} MiB are needed with the smallest context of {context} tokens, {} MiB are available",
            least.div_ceil(MIB),
            room.available / MIB
        ),
    ))
}

fn fit(header: &Header, room: &Room, context: u64, ubatch: u64, gpu: Option<&Gpu>) -> Option<Placement> {
    let mut ubatch = ubatch.max(SMALLEST);
    loop {
        let need = header.memory(context, ubatch);
        let memory = need.total(gpu.is_some());
        if memory <= room.available && gpu.is_none_or(|gpu| need.gpu <= gpu.free_bytes) {
            return Some(Placement { gpu: gpu.map(|gpu| gpu.name.clone()), context, ubatch, memory });
        }
        if ubatch <= SMALLEST {
            return None;
        }
        ubatch = (ubatch / 2).max(SMALLEST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header {
            version: 3,
            architecture: "llama".into(),
            name: String::new(),
            quantization: "Q4_1",
            parameters: 3_000_000_000,
            tensor_bytes: 1800 * MIB,
            largest_tensor_bytes: 200 * MIB,
            file_bytes: 1801 * MIB,
            layers: 36,
            context_length: 32_768,
            embedding_length: 2048,
            feed_forward_length: 11_008,
            vocabulary: 151_936,
            cache_bytes_per_token: 36 * 2 * 256 * 2,
            has_chat_template: true,
            is_embedding: false,
            gpu_warning: None,
        }
    }

    fn gpu(free_mib: u64) -> Option<Gpu> {
        Some(Gpu { name: "Vulkan0".into(), description: "a GPU".into(), free_bytes: free_mib * MIB })
    }

    const WISH: Wish = Wish { context: 4096, ubatch: 512, on_gpu: Some(512) };

    #[test]
    fn with_room_everything_is_as_wished() {
        let room = Room { available: 8192 * MIB, gpu: gpu(4096) };
        let placement = place(&header(), &room, WISH).unwrap();
        assert_eq!((placement.context, placement.ubatch, placement.name().as_str()), (4096, 512, "Vulkan0 + CPU"));
        assert_eq!(placement.memory, header().memory(4096, 512).total(true));
    }

    #[test]
    fn a_small_heap_makes_the_ubatch_small_and_a_tiny_one_leaves_the_gpu_out() {
        let available = 8192 * MIB;
        let placement = place(&header(), &Room { available, gpu: gpu(550) }, WISH).unwrap();
        assert!(placement.gpu.is_some() && placement.ubatch < 512, "{placement:?}");
        let placement = place(&header(), &Room { available, gpu: gpu(300) }, WISH).unwrap();
        assert_eq!((placement.name().as_str(), placement.context, placement.ubatch), ("CPU", 4096, 512));
    }

    #[test]
    fn little_memory_makes_the_context_short_and_too_little_is_refused_with_numbers() {
        let placement = place(&header(), &Room { available: 2000 * MIB, gpu: None }, WISH).unwrap();
        assert!(placement.context < 4096 && placement.memory <= 2000 * MIB, "{placement:?}");
        let failure = place(&header(), &Room { available: 1000 * MIB, gpu: None }, WISH).unwrap_err();
        assert_eq!(failure.code, ErrorCode::OutOfMemory);
        let needed = header().memory(512, 32).total(false).div_ceil(MIB);
        assert!(failure.message.contains(&format!("{needed} MiB are needed")), "{failure}");
        assert!(failure.message.contains("1000 MiB are available"), "{failure}");
    }

    #[test]
    fn a_device_that_fails_is_asked_for_less_and_less_and_then_left_alone() {
        let room = Room { available: 8192 * MIB, gpu: gpu(4096) };
        let mut wish = WISH;
        let mut seen = Vec::new();
        loop {
            let placement = place(&header(), &room, wish).unwrap();
            seen.push((placement.gpu.is_some(), placement.ubatch));
            match wish.smaller(&placement) {
                Some(smaller) => wish = smaller,
                None => break,
            }
        }
        let expected = [(true, 512), (true, 256), (true, 128), (true, 64), (true, 32), (false, 512)];
        assert_eq!(seen, expected);
    }

    #[test]
    fn a_model_with_a_short_context_gets_no_longer_one() {
        let short = Header { context_length: 100, ..header() };
        let placement = place(&short, &Room { available: 8192 * MIB, gpu: None }, WISH).unwrap();
        assert_eq!(placement.context, 100);
    }
}
