//! `cargo xtask gpu test`: what the patches are for, measured, and every rule that they must keep, on stock as well.
//!
//! Numbers are peaks of what is mapped below 4 GiB. Bounds come from what a test needs: 304 MiB for 8 KiB of each thread
//! of the GPU, 9.5 MiB for 32 KiB of each workgroup that it can run at a time, and 64 KiB slabs.

use anyhow::{Context, Result, bail, ensure};

use super::mesa::{self, Edit, PATCHED, STOCK, Variant};
use super::run::{self, Run};
use crate::patches::check;
use crate::step::Counts;

/// Only what Mesa has since 26.0.
const CLAMP: Variant = Variant { name: "clamp only", patches: &["1001", "1002"], edits: &[] };
/// One half of the series.
const SHARED_TLS: Variant =
    Variant { name: "+ shared TLS only", patches: &["1001", "1002", "1003", "1004"], edits: &[] };
/// The other half.
const WLS_REUSE: Variant = Variant { name: "+ WLS reuse only", patches: &["1001", "1002", "1003", "1005"], edits: &[] };
/// Shared TLS whose stride stays behind.
const NO_STRIDE: Variant =
    Variant { name: "without the stride", patches: &["1002", "1003", "1004", "1005"], edits: &[] };
/// Reused WLS that nobody waits for.
const NO_WAIT: Variant = Variant {
    name: "without the wait",
    patches: PATCHED.patches,
    edits: &[Edit { file: "csf/panvk_vX_cmd_dispatch.c", from: "SB_ALL_ITERS_MASK", to: "SB_MASK(LS)" }],
};
/// A second queue, which this Mesa does not offer, and newer ones do.
const SECOND_QUEUE: Edit = Edit { file: "panvk_physical_device.c", from: ".queueCount = 1,", to: ".queueCount = 2," };
/// With the whole series and two queues.
const QUEUES: Variant = Variant { name: "patched, two queues", patches: PATCHED.patches, edits: &[SECOND_QUEUE] };
/// Two queues that share one WLS.
const SHARED_WLS: Variant = Variant {
    name: "one WLS for both",
    patches: PATCHED.patches,
    edits: &[
        SECOND_QUEUE,
        Edit {
            file: "csf/panvk_vX_cmd_dispatch.c",
            from: "if (dev->queue_count[0] == 1)",
            to: "if (dev->queue_count[0] >= 1)",
        },
    ],
};
/// Everything that is measured or must fail.
pub(crate) const VARIANTS: [Variant; 9] =
    [STOCK, CLAMP, SHARED_TLS, WLS_REUSE, PATCHED, NO_STRIDE, NO_WAIT, QUEUES, SHARED_WLS];
/// Tokens of a batch.
const UBATCHES: [u32; 6] = [32, 64, 128, 256, 512, 1024];
const MB: u64 = 1_000_000;
/// What Mesa 25.0.7 leaves mapped of a device that it has destroyed: it maps its ring of descriptors twice, one behind
/// the other, and unmaps the first.
const LEFT_BEHIND: u64 = 512 << 10;

/// All of it.
pub(crate) fn all(counts: &mut Counts) {
    check(counts, "gpu: command buffers in flight", buffers);
    check(counts, "gpu: workgroup storage", workgroups);
    check(counts, "gpu: growth, secondaries, indirect, reset, destroy", lifetimes);
    check(counts, "gpu: allocations that fail", refusals);
    check(counts, "gpu: descriptors", descriptors);
    check(counts, "gpu: two queues", queues);
    check(counts, "gpu: a prefill of ggml", prefill);
}

/// `scratch` with these arguments.
fn scratch(variant: &Variant, arguments: &str) -> Result<Run> {
    run::run(variant, "MESA_SHADER_CACHE_DISABLE=true", &format!("./scratch {arguments}"))
}

/// What a table says of a run: the peak, or where it ended.
fn cell(run: &Run) -> Result<String> {
    let (done, wanted, error) = run::recorded(run)?;
    let peak = run.report.peak / MB;
    Ok(if done == wanted { format!("{peak} MB") } else { format!("{peak} MB, {done} of {wanted}, error {error}") })
}

/// All recorded, nothing wrong with any job, at most so much mapped.
fn expect(run: &Run, megabytes: u64) -> Result<()> {
    let (done, wanted, error) = run::recorded(run)?;
    ensure!(
        done == wanted && run.status == Some(0),
        "{done} of {wanted}, error {error}, {:?}: {}",
        run.status,
        run.text
    );
    ensure!(run.report.faults.is_empty(), "{:?}", run.report.faults);
    ensure!(run.report.jobs > 0, "no job was started");
    let peak = run.report.peak;
    ensure!(peak <= megabytes * MB, "{peak} bytes, more than {megabytes} MB");
    Ok(())
}

/// 8 KiB for each thread.
fn buffers() -> Result<()> {
    println!("\n8 KiB for each thread      stock                          patched");
    for (count, bound) in [(1, 350), (4, 350), (12, 350), (13, 350), (14, 350), (64, 400)] {
        let arguments = format!("--buffers {count} thread.spv");
        let (stock, patched) = (scratch(&STOCK, &arguments)?, scratch(&PATCHED, &arguments)?);
        println!("{count:>4} command buffers       {:<30} {}", cell(&stock)?, cell(&patched)?);
        expect(&patched, bound)?;
        let (done, ..) = run::recorded(&stock)?;
        ensure!((done == count) == (count < 14), "stock records {done} of {count}: is this the device that we think?");
    }
    Ok(())
}

/// 32 KiB for each workgroup beside it.
fn workgroups() -> Result<()> {
    println!("\n… and 32 KiB for each workgroup, 32 dispatches      stock                          patched");
    for (count, bound) in [(1, 450), (4, 450), (12, 450), (64, 450)] {
        let arguments = format!("--buffers {count} --dispatches 32 both.spv");
        let (stock, patched) = (scratch(&STOCK, &arguments)?, scratch(&PATCHED, &arguments)?);
        println!("{count:>4} command buffers                                {:<30} {}", cell(&stock)?, cell(&patched)?);
        expect(&patched, bound)?;
    }
    let mut peaks = Vec::new();
    for (dispatches, grid) in [(1, 16), (1, 4096), (4, 16), (4, 65535)] {
        let run = scratch(&PATCHED, &format!("--buffers 12 --dispatches {dispatches} --grid {grid} both.spv"))?;
        expect(&run, 450)?;
        peaks.push(run.report.peak);
    }
    println!("12 command buffers with 1 or 4 dispatches of 16 to 65535 workgroups: {peaks:?} bytes");
    // The same slabs hold the descriptors of one and of four dispatches.
    ensure!(peaks.iter().all(|peak| *peak == peaks[0]), "the peak depends on the grid or the number of dispatches");
    Ok(())
}

fn lifetimes() -> Result<()> {
    println!("\n                                         stock                          patched");
    for (title, arguments, bound) in [
        ("growth: 24, 512 B and 8 KiB by turns", "--buffers 24 small-thread.spv thread.spv", 400),
        ("shrinking: 24, the large one first", "--buffers 24 thread.spv small-thread.spv", 400),
        ("12 with secondaries", "--buffers 12 --dispatches 2 --secondary both.spv", 450),
        ("12 with 4 indirect dispatches", "--buffers 12 --dispatches 4 --indirect both.spv", 450),
        ("3 rounds of 8, reset between", "--buffers 8 --rounds 3 both.spv small-thread.spv", 450),
    ] {
        let (stock, patched) = (scratch(&STOCK, arguments)?, scratch(&PATCHED, arguments)?);
        println!("{title:<40} {:<30} {}", cell(&stock)?, cell(&patched)?);
        expect(&patched, bound)?;
        let live = patched.report.live_at("recorded");
        ensure!(live.last() <= live.get(1).or(live.first()), "each round leaves something behind: {live:?}");
        ensure!(patched.report.live_at("destroyed") == [LEFT_BEHIND], "not all is gone with the device");
    }
    Ok(())
}

fn refusals() -> Result<()> {
    // The large one cannot be had; the small ones before and after it can.
    let arguments = "./scratch --buffers 4 small-thread.spv thread.spv";
    for variant in [STOCK, PATCHED] {
        let run = run::run(&variant, "PANTHOR_LARGEST=100000000 MESA_SHADER_CACHE_DISABLE=true", arguments)?;
        ensure!(run::recorded(&run)? == (2, 4, -2), "{}: {}", variant.name, run.text);
        ensure!(run.report.faults.is_empty(), "{}: {:?}", variant.name, run.report.faults);
        ensure!(run.report.live_at("destroyed") == [LEFT_BEHIND], "{}: not all is gone with the device", variant.name);
    }
    // Every buffer once that is asked for after the device is there.
    let arguments = "./scratch --buffers 3 --dispatches 2 --rounds 2 both.spv small-thread.spv";
    let whole = run::run(&PATCHED, "MESA_SHADER_CACHE_DISABLE=true", arguments)?;
    let (Some(first), Some(last)) = (whole.report.buffers_at("device"), whole.report.buffers_at("freed")) else {
        bail!("no marks: {}", whole.text);
    };
    let mut failed = 0;
    for number in first + 1..=last {
        let run = run::run(&PATCHED, &format!("PANTHOR_REFUSE={number} MESA_SHADER_CACHE_DISABLE=true"), arguments)?;
        ensure!(matches!(run.status, Some(0..=2)), "refusing buffer {number}: {:?}: {}", run.status, run.text);
        ensure!(run.report.faults.is_empty(), "refusing buffer {number}: {:?}", run.report.faults);
        failed += u32::from(run.status != Some(0));
    }
    println!("\n{} buffers refused, one in each run: {failed} runs report it, none dies", last - first);
    ensure!(last > first && failed > 0, "no buffer was refused");
    Ok(())
}

/// Dispatches without barriers between them, of shaders that need different amounts.
fn descriptors() -> Result<()> {
    let arguments = "--buffers 3 --dispatches 6 --alternate both.spv small-thread.spv small-group.spv group.spv";
    println!("\nwhat the descriptors of 18 jobs and of 12 with secondaries say");
    for (variant, expected) in [
        (STOCK, Some("thread storage: a stride")),
        (PATCHED, None),
        (NO_STRIDE, Some("thread storage: a stride")),
        (NO_WAIT, Some("workgroup storage: the same bytes")),
    ] {
        let mut faults = scratch(&variant, arguments)?.report.faults;
        faults.extend(scratch(&variant, "--buffers 3 --dispatches 2 --secondary both.spv group.spv")?.report.faults);
        audited(&variant, &faults, expected)?;
    }
    Ok(())
}

/// Prints the faults of a variant, which must be of the kind that is expected.
fn audited(variant: &Variant, faults: &[String], expected: Option<&str>) -> Result<()> {
    println!("{:<20} {}", variant.name, if faults.is_empty() { "nothing wrong".into() } else { faults.join("; ") });
    let as_expected = match expected {
        None => faults.is_empty(),
        Some(fault) => faults.iter().any(|found| found.starts_with(fault)),
    };
    ensure!(as_expected, "{}: expected {expected:?}", variant.name);
    Ok(())
}

/// Command buffers that go to two queues by turns, which run at the same time.
fn queues() -> Result<()> {
    println!("\n12 command buffers on two queues, patched");
    let mut peaks = Vec::new();
    for (dispatches, grid) in [(2, 16), (2, 4096), (8, 16)] {
        let arguments = format!("--queues 2 --buffers 12 --dispatches {dispatches} --grid {grid} both.spv");
        let patched = scratch(&QUEUES, &arguments)?;
        println!("{dispatches} dispatches of {grid} workgroups: {}", cell(&patched)?);
        expect(&patched, 500)?;
        ensure!(patched.report.queues.len() == 2, "jobs on {:?}", patched.report.queues);
        peaks.push(patched.report.peak);
    }
    ensure!(peaks.iter().all(|peak| *peak == peaks[0]), "the peak depends on the grid or the number of dispatches");
    let shaders = "both.spv small-thread.spv group.spv";
    for (variant, expected) in
        [(QUEUES, None), (SHARED_WLS, Some("workgroup storage: the same bytes as a job of another"))]
    {
        let mut faults = Vec::new();
        for how in ["--alternate", "--secondary"] {
            let run = scratch(&variant, &format!("--queues 2 --buffers 6 --dispatches 4 {how} {shaders}"))?;
            ensure!(run.report.queues.len() == 2, "jobs on {:?}", run.report.queues);
            faults.extend(run.report.faults);
        }
        audited(&variant, &faults, expected)?;
    }
    Ok(())
}

/// The matrix products of Qwen2.5-3B by ggml. This Mesa maps what a program asks for below 4 GiB as well.
fn prefill() -> Result<()> {
    let variants = [STOCK, CLAMP, SHARED_TLS, WLS_REUSE, PATCHED];
    println!();
    row("tokens", variants.map(|variant| variant.name.to_owned()), "of that ggml's own, scratch, the rest");
    for tokens in UBATCHES {
        let mut runs = Vec::new();
        for variant in variants {
            runs.push(prefill_of(&variant, tokens)?);
        }
        let cells = std::array::from_fn(|at| {
            let fails = if runs[at].status == Some(0) { "" } else { ", fails" };
            format!("{} MB{fails}", runs[at].report.peak / MB)
        });
        let [.., patched] = runs.as_slice() else { bail!("there are variants") };
        let (own, peak) = (own_bytes(patched)?, patched.report.peak);
        let scratch: u64 = patched.report.scratch.values().sum();
        let rest = peak.checked_sub(own + scratch).context("more is used than is mapped")?;
        row(&tokens.to_string(), cells, &format!("{} MB, {} MB, {} MB", own / MB, scratch / MB, rest / MB));
        ensure!(patched.status == Some(0), "{tokens} tokens: {:?}: {}", patched.status, patched.text);
        ensure!(patched.report.faults.is_empty(), "{tokens} tokens: {:?}", patched.report.faults);
        ensure!(scratch <= 110 * MB && rest <= 10 * MB, "{tokens} tokens: {scratch} bytes of scratch, {rest} more");
        ensure!(tokens > 512 || peak <= 300 * MB, "{tokens} tokens: {peak} bytes");
    }
    Ok(())
}

fn row(first: &str, cells: [String; 5], last: &str) {
    let cells = cells.map(|cell| format!("{cell:<20}"));
    println!("{first:>6}  {} {last}", cells.join(" "));
}

/// What `prefill` asked for itself.
fn own_bytes(run: &Run) -> Result<u64> {
    let line = run.text.lines().find(|line| line.ends_with("bytes of its own")).with_context(|| run.text.clone())?;
    let number = line.split(' ').rev().nth(4).context("a number before its unit")?;
    number.parse().with_context(|| format!("`{number}` is no number"))
}

fn prefill_of(variant: &Variant, tokens: u32) -> Result<Run> {
    // Mesa 25.0.7 says Vulkan 1.1 for this GPU, and ggml wants 1.2; it never runs here. Compiled shaders are kept.
    let environment = "MESA_VK_VERSION_OVERRIDE=1.3 MESA_SHADER_CACHE_DIR=/cache/mesa/shaders";
    run::run(variant, environment, &format!("./prefill {tokens}"))
}

/// Whether everything that takes minutes has been built here.
///
/// # Errors
/// Patches that cannot be read.
pub(crate) fn is_warm() -> Result<bool> {
    for variant in &VARIANTS {
        if !mesa::is_built(variant)? {
            return Ok(false);
        }
    }
    Ok(true)
}
