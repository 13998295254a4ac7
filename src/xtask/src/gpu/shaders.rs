//! `cargo xtask gpu shaders`: what Mesa's compilers make of llama.cpp's matrix products for the Mali-G610.
//!
//! ```text
//! modules, stock and patched ─▶ tiles as constants ─▶ pipelines ─▶ scratch, spills, instructions, cycles ─▶ table, bounds
//! ```
//!
//! A thread has 64 registers. What does not fit is *spilled* into scratch memory and *filled* from there.

use std::collections::BTreeMap;
use std::fmt;

use anyhow::{Context, Result, ensure};

use super::emulated;
use super::llama::{self, Tree};
use super::mesa::{self, Edit, Variant};
use super::run::{self, Run};
use crate::patches::check;
use crate::step::Counts;

/// Threads of the GPU that have scratch: 2048 for each core number up to the highest, 18.
const SLOTS: u64 = 2048 * 19;
/// Mesa as released, but for a line that says how much scratch a dispatch's threads need.
const TELLING: Variant = Variant {
    name: "telling",
    patches: &[],
    edits: &[Edit {
        file: "csf/panvk_vX_cmd_dispatch.c",
        from: "   struct pan_tls_info tlsinfo = {\n      .tls.size = shader->info.tls_size,\n",
        to: "   fprintf(stderr, \"scratch %u\\n\", shader->info.tls_size);\n\
             \x20  struct pan_tls_info tlsinfo = {\n      .tls.size = shader->info.tls_size,\n",
    }],
};

/// Constants of a tile, in their order: workgroup, rows, columns, depth, rows and columns of a warp, parts of its rows,
/// rows and columns of a thread at a time, unused, warp.
type Tile = [u32; 11];

/// A matrix product: a module, and how ggml_vk_load_shaders specialises it where warps have 16 threads.
struct Product {
    name: &'static str,
    module: &'static str,
    /// Constants after the tile's, as released.
    rest: &'static [u32],
    medium: Tile,
    large: Tile,
    ours: (&'static str, Tile, &'static [u32]),
}

/// Weights of these types as ggml numbers them.
const Q4_K: u32 = 12;
const Q6_K: u32 = 14;
const MEDIUM: Tile = [128, 64, 64, 32, 16, 32, 2, 4, 2, 1, 16];
const LARGE: Tile = [128, 128, 128, 32, 32, 64, 2, 4, 4, 1, 16];
const OURS: Tile = [256, 64, 64, 32, 16, 16, 1, 4, 2, 1, 16];
const MEDIUM_BYTES: Tile = [128, 64, 64, 32, 16, 32, 2, 2, 2, 1, 16];
const MEDIUM_BYTES_K: Tile = [128, 64, 64, 32, 16, 32, 1, 2, 2, 1, 16];
const LARGE_BYTES_K: Tile = [128, 128, 128, 32, 32, 64, 1, 4, 4, 1, 16];
const OURS_BYTES: Tile = [256, 64, 64, 32, 16, 16, 1, 2, 2, 1, 16];

const PRODUCTS: &[Product] = &[
    // What ggml takes on 25.0.7, which has neither numbers of 16 bits nor products of bytes for this GPU; its large tile
    // does not fit the shared memory there.
    Product {
        name: "mul_mm Q4_K, all of 32 bits",
        module: "matmul_quant_f32_fp32",
        rest: &[1, Q4_K],
        medium: MEDIUM,
        large: LARGE,
        ours: ("matmul_quant_f32_fp32", OURS, &[1, Q4_K]),
    },
    Product {
        name: "mul_mm Q4_K",
        module: "matmul_quant_f32",
        rest: &[1, Q4_K],
        medium: MEDIUM,
        large: LARGE,
        ours: ("matmul_quant_f32", OURS, &[1, Q4_K]),
    },
    Product {
        name: "mul_mm Q6_K",
        module: "matmul_quant_f32",
        rest: &[1, Q6_K],
        medium: MEDIUM,
        large: LARGE,
        ours: ("matmul_quant_f32", OURS, &[1, Q6_K]),
    },
    Product {
        name: "mul_mm Q4_K, sums of 16 bits",
        module: "matmul_quant_f32_f16acc",
        rest: &[1, Q4_K],
        medium: MEDIUM,
        large: LARGE,
        ours: ("matmul_quant_f32_f16acc", OURS, &[1, Q4_K]),
    },
    Product {
        name: "mul_mmq Q4_K",
        module: "matmul_q4_k_q8_1",
        rest: &[],
        medium: MEDIUM_BYTES_K,
        large: LARGE_BYTES_K,
        ours: ("matmul_q4_k_q8_1_mali", OURS_BYTES, &[2]),
    },
    Product {
        name: "mul_mmq Q6_K",
        module: "matmul_q6_k_q8_1",
        rest: &[],
        medium: MEDIUM_BYTES_K,
        large: LARGE_BYTES_K,
        ours: ("matmul_q6_k_q8_1_mali", OURS_BYTES, &[2]),
    },
    Product {
        name: "mul_mmq Q8_0",
        module: "matmul_q8_0_q8_1",
        rest: &[],
        medium: MEDIUM_BYTES,
        large: LARGE,
        ours: ("matmul_q8_0_q8_1_mali", OURS_BYTES, &[2]),
    },
];

/// A compiler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Compiler {
    /// Mesa 25.0.7, built here.
    Built,
    /// Mesa 26.1.6 as Debian ships it, in an emulator.
    Shipped,
}

/// Bytes of scratch for each thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scratch {
    /// As the compiler says.
    Exact(u64),
    /// As allocated: rounded up to a power of two.
    AtMost(u64),
}

impl Scratch {
    fn most(self) -> u64 {
        let (Self::Exact(bytes) | Self::AtMost(bytes)) = self;
        bytes
    }
}

impl fmt::Display for Scratch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(bytes) | Self::AtMost(bytes @ 0) => write!(f, "{bytes} B"),
            Self::AtMost(bytes) => write!(f, "≤ {bytes} B"),
        }
    }
}

/// What became of a pipeline.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Figures {
    scratch: Scratch,
    spills: u64,
    fills: u64,
    instructions: u64,
    /// Of the load and store unit, each instruction counted once, loops not multiplied out.
    cycles: f64,
}

/// Compiles everything, prints it, and checks the bounds.
pub(crate) fn all(large: bool, counts: &mut Counts) {
    check(counts, "llama.cpp: the release's modules", llama::leaves_modules_alone);
    check(counts, "llama.cpp: the small tile", small_tile);
    for compiler in [Compiler::Built, Compiler::Shipped] {
        println!(
            "\n{}\n| product | tile | workgroup | sums | scratch per thread | spills:fills | instructions | cycles |\n\
             |---|---|---|---|---|---|---|---|",
            compiler.name()
        );
        for product in PRODUCTS {
            let title = format!("llama.cpp: {}, {}", product.name, compiler.name());
            check(counts, &title, || product.compare(compiler, large));
        }
    }
}

/// That the first workgroup of the release's small tile writes into its neighbour's results where warps have 16 threads,
/// and that ours does not.
fn small_tile() -> Result<()> {
    let module = llama::modules(Tree::Patched)?.join("modules/matmul_f32_f32_fp32.spv");
    let [released, ours] = [32, 16].map(|rows| constants(&[32, 32, 32, 16, rows, 32, 2, 2, 2, 1, 16], &[0]));
    let text = run::lavapipe(&format!("./shader --first {} {released} {ours}", mesa::inside(&module)?))?;
    for (constants, expected) in
        [(&released, "1024 of 1024, and 1024 elsewhere"), (&ours, "1024 of 1024, and 0 elsewhere")]
    {
        ensure!(text.contains(&format!("wrote {constants}: {expected}")), "expected {expected} of {constants}: {text}");
    }
    println!("{text}");
    Ok(())
}

impl Product {
    fn compare(&self, compiler: Compiler, large: bool) -> Result<()> {
        let stock = self.compile(compiler, Tree::Stock, self.module, &self.medium, self.rest, "stock M")?;
        if large {
            self.compile(compiler, Tree::Stock, self.module, &self.large, self.rest, "stock L")?;
        }
        let (module, tile, rest) = &self.ours;
        let ours = self.compile(compiler, Tree::Patched, module, tile, rest, "ours")?;
        ensure!(ours.instructions < stock.instructions, "not fewer instructions than stock M");
        ensure!(ours.cycles < stock.cycles, "not fewer cycles than stock M");
        if compiler == Compiler::Shipped || !self.module.ends_with("q8_1") {
            ensure!(ours.scratch.most() <= 96, "{} of scratch", ours.scratch);
        }
        Ok(())
    }

    fn compile(
        &self,
        compiler: Compiler,
        tree: Tree,
        module: &str,
        tile: &Tile,
        rest: &[u32],
        name: &str,
    ) -> Result<Figures> {
        let module = llama::modules(tree)?.join("modules").join(format!("{module}.spv"));
        let constants = constants(tile, rest);
        let figures = match compiler {
            Compiler::Built => {
                // Vulkan 1.3 is not claimed for this GPU yet, and the modules use it; they never run here.
                let environment =
                    "MESA_SHADER_CACHE_DISABLE=true MESA_VK_VERSION_OVERRIDE=1.3 BIFROST_MESA_DEBUG=shaderdb";
                built(&run::run(&TELLING, environment, &format!("./shader {} {constants}", mesa::inside(&module)?))?)
            }
            Compiler::Shipped => shipped(&emulated::shader(&[module.display().to_string(), constants])?),
        }?;
        let Figures { scratch, spills, fills, instructions, cycles } = figures;
        let sums = tile[4] * tile[5] / tile[10];
        println!(
            "| {} | {name} | {} | {sums} | {scratch} | {spills}:{fills} | {instructions} | {cycles:.0} |",
            self.name, tile[0]
        );
        Ok(figures)
    }
}

impl Compiler {
    fn name(self) -> String {
        match self {
            Self::Built => "Mesa 25.0.7".to_owned(),
            Self::Shipped => format!("Mesa {}", emulated::VERSION),
        }
    }
}

/// `ID=VALUE,…`
fn constants(tile: &Tile, rest: &[u32]) -> String {
    let words: Vec<String> = tile.iter().chain(rest).enumerate().map(|(id, value)| format!("{id}={value}")).collect();
    words.join(",")
}

/// Reads what the compiler of 25.0.7 prints for its own developers.
fn built(run: &Run) -> Result<Figures> {
    let line = run.text.lines().rfind(|line| line.contains("MESA_SHADER_COMPUTE shader: "));
    let line = line.with_context(|| format!("no statistics, status {:?}: {}", run.status, run.text))?;
    let number = |unit: &str| {
        let words: Vec<&str> = line.split([' ', ',']).filter(|word| !word.is_empty()).collect();
        let at = words.iter().position(|word| *word == unit)?;
        Some(words.get(at.checked_sub(1)?)?.to_owned())
    };
    let field = |unit: &str| number(unit).with_context(|| format!("no {unit} in `{line}`"));
    let (spills, fills) = field("spills:fills")?.split_once(':').context("no spills and fills")?;
    let scratch = run.text.lines().find_map(|line| line.strip_prefix("scratch ")).context("no scratch was said")?;
    Ok(Figures {
        scratch: Scratch::Exact(scratch.parse()?),
        spills: spills.parse()?,
        fills: fills.parse()?,
        instructions: field("inst")?.parse()?,
        cycles: field("ls")?.parse()?,
    })
}

/// Reads Vulkan's statistics, and the scratch from what was mapped when the command buffer was ended.
fn shipped(run: &Run) -> Result<Figures> {
    let line = run.text.lines().find(|line| line.starts_with("compiled "));
    let line = line.with_context(|| format!("no statistics, status {:?}: {}", run.status, run.text))?;
    let statistics: BTreeMap<&str, &str> = line.split(" [").filter_map(|part| part.split_once("]=")).collect();
    let field = |name: &str| statistics.get(name).copied().with_context(|| format!("no {name} in `{line}`"));
    let (before, after) = (run.report.live_at("dispatched"), run.report.live_at("ended"));
    let ([before], [after]) = (before.as_slice(), after.as_slice()) else { anyhow::bail!("no marks: {}", run.text) };
    Ok(Figures {
        scratch: Scratch::AtMost(stack((after - before) / SLOTS)),
        spills: field("Spills")?.parse()?,
        fills: field("Fills")?.parse()?,
        instructions: field("Instructions")?.parse()?,
        cycles: field("Load/store")?.parse()?,
    })
}

/// The size of a thread's stack where so much was mapped for it: a power of two, of which slabs map more, or nothing.
///
/// SOURCE: Mesa 25.0.7, src/panfrost/lib/pan_scratch.c: the smallest stack is 16 bytes.
fn stack(bytes: u64) -> u64 {
    bytes.checked_ilog2().filter(|power| *power >= 4).map_or(0, |power| 1 << power)
}

#[cfg(test)]
mod tests {
    use super::super::log::Report;
    use super::{Figures, Run, SLOTS, Scratch, built, shipped, stack};

    #[test]
    fn a_stack_is_a_power_of_two_or_nothing() {
        assert_eq!([0, 3, 15, 16, 63, 64, 65].map(stack), [0, 0, 0, 16, 32, 64, 64]);
    }

    #[test]
    fn statistics_of_both_compilers_are_read() {
        let figures = |scratch| Figures { scratch, spills: 6, fills: 18, instructions: 2065, cycles: 103.0 };
        let text = "scratch 84\nSHADER-DB: MESA_SHADER_COMPUTE shader: 2065 inst, 748.000000 cycles, 0.9 fma, 28.7 cvt, \
                    53.06 sfu, 0.0 v, 0.0 t, 103.000000 ls, 1752 quadwords, 1 threads, 4 loops, 6:18 spills:fills\n";
        let run = |text: &str, report| Run { text: text.into(), status: Some(0), report };
        assert_eq!(built(&run(text, Report::default())).unwrap(), figures(Scratch::Exact(84)));
        let text = "compiled 0=1: [Instructions]=2065 [Load/store]=103.00 [Code size]=1 [Spills]=6 [Fills]=18\n";
        let live = vec![("dispatched".to_owned(), 4096), ("ended".to_owned(), 8192 + 64 * SLOTS)];
        let report = Report { live, ..Report::default() };
        assert_eq!(shipped(&run(text, report)).unwrap(), figures(Scratch::AtMost(64)));
        assert!(shipped(&run("compiled 0=1:", Report::default())).is_err());
        assert!(built(&run("", Report::default())).is_err());
    }
}
