//! Lines of the kernel log, in the kernel's words.
//!
//! SOURCE: kernel-lines §1c: rocket_job_timedout, rk_iommu_irq, log_iova.

use std::time::Duration;

use npu_regs::Layout;

use crate::Fault;
use crate::controller::watchdog;

/// Bases of the cores and of their IOMMUs. SOURCE: npu-spec 0.1; kernel-lines, line prefix grammar.
const CORES: [(&str, &str); 3] =
    [("fdab0000.npu", "fdab9000.iommu"), ("fdac0000.npu", "fdaca000.iommu"), ("fdad0000.npu", "fdada000.iommu")];
/// The same of an RK3576. SOURCE: npu-spec-rk3576 1.
const RK3576_CORES: [(&str, &str); 2] = [("27700000.npu", "27702000.iommu"), ("27708000.npu", "2770a000.iommu")];
/// Where the page directory lies, for the detail lines; any address would do.
const DIRECTORY: u64 = 0xf000_0000;
/// Banks of an IOMMU, each of which complains. SOURCE: kernel-lines, "one line per MMU bank".
const BANKS: usize = 2;

/// A line and when, after the start of its job, it appears.
pub(super) type Line = (Duration, String);

/// Lines of a job that did not complete.
pub(super) fn lines(chip: Layout, core: usize, fault: &Fault) -> Vec<Line> {
    let watchdog = watchdog(chip);
    let cores: &[_] = match chip {
        Layout::Rk3588 => &CORES,
        Layout::Rk3576 => &RK3576_CORES,
    };
    // A simulated chip with more cores reuses the names.
    let (npu, iommu) = cores[core % cores.len()];
    let mut lines = Vec::new();
    let mut line = |at, text| lines.push((at, text));
    if let Fault::Iommu { direction, dma, .. } = fault {
        let say = |text: String| format!("rk_iommu {iommu}: {text}");
        let (dte, pte, offset) = ((dma >> 22) & 0x3ff, (dma >> 12) & 0x3ff, dma & 0xfff);
        line(Duration::ZERO, say(format!("Page fault at {dma:#018x} of type {}", direction.name())));
        line(
            Duration::ZERO,
            say(format!("iova = {dma:#018x}: dte_index: {dte:#05x} pte_index: {pte:#05x} page_offset: {offset:#05x}")),
        );
        let entry = DIRECTORY + 4 * dte;
        line(
            Duration::ZERO,
            say(format!(
                "mmu_dte_addr: {DIRECTORY:#018x} dte@{entry:#018x}: {0:#08x} valid: 0 pte@{0:#018x}: {0:#08x} valid: 0 \
                 page@{0:#018x} flags: {0:#03x}",
                0
            )),
        );
        line(watchdog, format!("rocket {npu}: NPU job timed out"));
        for _ in 0..BANKS {
            line(watchdog, say("Enable stall request timed out, status: 0x00001d".into()));
        }
        return lines;
    }
    line(watchdog, format!("rocket {npu}: NPU job timed out"));
    lines
}

#[cfg(test)]
mod tests {
    use npu_regs::Block;

    use super::*;
    use crate::fault::Direction;

    #[test]
    fn a_page_fault_reads_as_the_kernel_prints_it() {
        let fault = Fault::Iommu { block: Block::Cna, direction: Direction::Read, dma: 0x12345 };
        let text: Vec<String> = lines(Layout::Rk3588, 1, &fault).into_iter().map(|(_, text)| text).collect();
        assert_eq!(text[0], "rk_iommu fdaca000.iommu: Page fault at 0x0000000000012345 of type read");
        assert_eq!(
            text[1],
            "rk_iommu fdaca000.iommu: iova = 0x0000000000012345: dte_index: 0x000 pte_index: 0x012 page_offset: 0x345"
        );
        assert_eq!(text[3], "rocket fdac0000.npu: NPU job timed out");
        assert_eq!(text.len(), 6);
    }

    #[test]
    fn a_hang_is_one_line_when_the_watchdog_bites() {
        let expected = (watchdog(Layout::Rk3588), "rocket fdab0000.npu: NPU job timed out".to_owned());
        assert_eq!(lines(Layout::Rk3588, 0, &Fault::Injected), [expected]);
    }
}
