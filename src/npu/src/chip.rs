//! What one chip can do: limits that the planner keeps, and the constants of the cost model.

use std::time::Duration;

/// Limits and speeds of one NPU.
///
/// SOURCE: npu-spec 0 (banks, MAC widths), 1.6 and 4.5 (field limits), 8.3 (watchdog), 9.5 (cost).
#[derive(Clone, Debug, PartialEq)]
pub struct Chip {
    /// Name, for people.
    pub name: &'static str,
    /// Identical cores.
    pub cores: usize,
    /// Banks of CBUF, the on-chip convolution buffer of a core.
    pub cbuf_banks: usize,
    /// Bytes of one bank.
    pub bank_bytes: usize,
    /// Largest input width in pixels.
    pub max_width: usize,
    /// Largest input height in pixels of one task: as many rows as the grains field can name.
    pub max_height: usize,
    /// Largest output extent and channel count of the DPU.
    pub max_output: usize,
    /// Largest kernel extent.
    pub max_kernel: usize,
    /// Largest stride.
    pub max_stride: usize,
    /// Largest distance between taps.
    pub max_dilation: usize,
    /// Largest padding at the top and at the left.
    pub max_pad: usize,
    /// Largest kernel in bytes.
    pub max_kernel_bytes: usize,
    /// Most tasks of one kick.
    pub max_tasks: usize,
    /// Multiply-accumulates of one core in one cycle, 8-bit.
    pub macs_per_cycle_i8: u64,
    /// Multiply-accumulates of one core in one cycle, fp16.
    pub macs_per_cycle_f16: u64,
    /// Cycles per second that the cost model assumes.
    pub clock_hz: u64,
    /// Memory bandwidth of one core that the cost model assumes.
    pub bytes_per_second: u64,
    /// Cost of preparing a buffer for the CPU or the device, bytes per second.
    pub sync_bytes_per_second: u64,
    /// Cost of submitting and waiting for a job.
    pub job_overhead: Duration,
    /// Cost of a task that the kernel starts by itself; a batched kick has none of it.
    pub task_overhead: Duration,
    /// The kernel's watchdog retires a job after this time and reports success.
    pub watchdog: Duration,
    /// A wait this long cannot be told from a retired job.
    pub slow_mark: Duration,
    /// Longest modelled time of one job: a safe part of the watchdog.
    pub job_budget: Duration,
}

impl Chip {
    /// Rockchip RK3588 with mainline `rocket`, as modelled at 600 MHz.
    pub const RK3588: Self = Self {
        name: "RK3588",
        cores: 3,
        cbuf_banks: 12,
        bank_bytes: 32 * 1024,
        max_width: 2047,
        max_height: 1022,
        max_output: 8192,
        max_kernel: 31,
        max_stride: 7,
        max_dilation: 32,
        max_pad: 15,
        max_kernel_bytes: 32 * 1024,
        max_tasks: 4095,
        macs_per_cycle_i8: 1024,
        macs_per_cycle_f16: 512,
        clock_hz: 600_000_000,
        bytes_per_second: 6_000_000_000,
        sync_bytes_per_second: 10_600_000_000,
        job_overhead: Duration::from_micros(54),
        task_overhead: Duration::from_micros(10),
        // TIMEOUT: JOB_TIMEOUT_MS of the rocket driver.
        watchdog: Duration::from_millis(500),
        // TIMEOUT: a tenth below the watchdog, so that a retired job never looks fast.
        slow_mark: Duration::from_millis(450),
        // TIMEOUT: the model may be wrong by a factor of three before the slow mark is reached.
        job_budget: Duration::from_millis(150),
    };
}
