//! What one chip can do: limits that the planner keeps, and the constants of the cost model.

use std::fmt;
use std::time::Duration;

use npu_device::DriverInfo;
use npu_regs::Layout;

use crate::emit::Kind;
use crate::error::{Error, Unsupported};
use crate::layout::ATOM;
use crate::matmul::Product;
use crate::ops::ElementType;
use crate::pool::PoolKind;
use crate::{quirks, rk3576};

/// Limits and speeds of one NPU.
///
/// SOURCE: npu-spec 0 (banks, MAC widths), 1.6 and 4.5 (field limits), 8.3 (watchdog), 9.5 (cost).
#[derive(Clone, Debug, PartialEq)]
pub struct Chip {
    /// Name, for people.
    pub name: &'static str,
    /// Whose registers its programs write. It decides which encoder makes them, and which operations there are.
    pub layout: Layout,
    /// Identical cores.
    pub cores: usize,
    /// Banks of CBUF, the on-chip convolution buffer of a core.
    pub cbuf_banks: usize,
    /// Bytes of one bank.
    pub bank_bytes: usize,
    /// Most bytes of CBUF for features.
    pub max_feature_bytes: usize,
    /// Most bytes of CBUF for weights.
    pub max_weight_bytes: usize,
    /// Banks that 8-bit features leave free.
    pub slack_banks: usize,
    /// Most channels of a tensor that may lie in a plane of their own, not padded to a group.
    pub few_channels: usize,
    /// Most channels of one task of a depthwise convolution.
    pub max_depthwise: usize,
    /// Bytes that an 8-bit weight of a depthwise convolution takes.
    pub depthwise_weight_bytes: usize,
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
    /// Whether cores work at once. Where they must not, the workers of a context take turns.
    pub parallel: bool,
    /// How often a job is run again that ended without writing anything.
    pub reruns: usize,
}

impl Chip {
    /// Rockchip RK3588 with mainline `rocket`, as modelled at 600 MHz.
    pub const RK3588: Self = Self {
        name: "RK3588",
        layout: Layout::Rk3588,
        cores: 3,
        cbuf_banks: 12,
        bank_bytes: 32 * 1024,
        // All banks are either's.
        max_feature_bytes: usize::MAX,
        max_weight_bytes: usize::MAX,
        // QUIRK(Q12): the fetch of 8-bit features uses more than it stores.
        slack_banks: 1,
        few_channels: ATOM,
        max_depthwise: usize::MAX,
        depthwise_weight_bytes: 1,
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
        parallel: true,
        reruns: 0,
    };

    /// Rockchip RK3576 with the interface of version 1.5.
    ///
    /// SOURCE: npu-spec-rk3576. Where it gives no limit of a field that it widens, that of the RK3588 stands. The speed is
    /// the one number of its section 8.
    pub const RK3576: Self = Self {
        name: "RK3576",
        layout: Layout::Rk3576,
        cores: 2,
        // Features and weights share 448 KiB.
        cbuf_banks: 14,
        max_feature_bytes: 4096 * 64,
        max_weight_bytes: 144 * 1024,
        slack_banks: 0,
        few_channels: 0,
        // How more channels are rounded is not known.
        max_depthwise: 64,
        depthwise_weight_bytes: 2,
        max_dilation: 1,
        macs_per_cycle_i8: 1024,
        // A task contracts sixteen channels.
        macs_per_cycle_f16: 256,
        clock_hz: 488_000_000,
        job_overhead: Duration::from_micros(400),
        // TIMEOUT: the driver's backstop.
        watchdog: Duration::from_millis(125),
        // TIMEOUT: as far below the backstop as one poll of 50 µs needs, and far above it.
        slow_mark: Duration::from_millis(110),
        // TIMEOUT: a third of the slow mark, as above.
        job_budget: Duration::from_millis(36),
        parallel: false,
        reruns: 8,
        ..Self::RK3588
    };

    /// The chip that a device says it is, if it is a known one.
    ///
    /// ```
    /// # fn open(driver: &dyn npu_device::Driver) -> Result<npu::Context, Box<dyn std::error::Error>> {
    /// let chip = npu::Chip::of(driver.open()?.info()).ok_or("an NPU that nobody knows")?;
    /// Ok(npu::Context::open(driver, &chip, npu::Options::default())?)
    /// # }
    /// ```
    pub fn of(info: &DriverInfo) -> Option<Self> {
        [Self::RK3588, Self::RK3576].into_iter().find(|chip| chip.drives(info).is_ok())
    }

    /// Refuses a device that is another chip: it would not understand the programs.
    ///
    /// # Errors
    /// [`Error::WrongChip`].
    pub(crate) fn drives(&self, info: &DriverInfo) -> Result<(), Error> {
        // Mainline's driver knows the RK3588 alone, and where no device tree can be read none other is meant.
        let found = info.compatible.as_deref().unwrap_or(Layout::Rk3588.compatible());
        match found == self.layout.compatible() {
            true => Ok(()),
            false => Err(Error::WrongChip { chip: self.name, found: found.to_owned() }),
        }
    }

    /// Atoms between planes of extents `[h, w]`. `depthwise`: what writes them.
    pub(crate) const fn plane_pitch(&self, extents: [usize; 2], depthwise: bool) -> usize {
        match self.layout {
            Layout::Rk3588 => quirks::plane_pitch(extents),
            Layout::Rk3576 => rk3576::plane_pitch(extents, depthwise),
        }
    }

    /// Banks that features leave free.
    pub(crate) const fn free_banks(&self, element: ElementType) -> usize {
        if element.is_integer() { self.slack_banks } else { 0 }
    }

    /// Refuses by name what is not known of the chip.
    ///
    /// # Errors
    /// The operation and the chip.
    pub(crate) fn check(&self, operation: Operation) -> Result<(), Unsupported> {
        let known = match self.layout {
            Layout::Rk3588 => true,
            Layout::Rk3576 => rk3576::knows(operation),
        };
        match known {
            true => Ok(()),
            false => Err(Unsupported::new(format!("{operation} on an {}", self.name))),
        }
    }
}

/// What chips differ in, and a caller may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Product(Product),
    /// Results in the element type of the features.
    Convolution(Kind, ElementType),
    /// Sums as results.
    Sums(ElementType),
    Transposed,
    /// The sum of two tensors of a network.
    Addition,
    /// A copy into another quantisation.
    Copy,
    /// Limits on the results beside those of their type.
    Limits,
    /// Zero points of depthwise weights.
    DepthwiseZeroPoints,
    Elementwise,
    Pooling(PoolKind, ElementType),
    PaddedMean,
    HostOrder,
    /// Operands that the task before left in the buffer.
    Reuse,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Product(product) => write!(f, "a product {product}"),
            Self::Convolution(Kind::Direct, element) => write!(f, "a convolution of {element:?}"),
            Self::Convolution(Kind::Depthwise, element) => write!(f, "a depthwise convolution of {element:?}"),
            Self::Sums(element) => write!(f, "a convolution of {element:?} with its sums as results"),
            Self::Transposed => f.write_str("a transposed convolution on the chip"),
            Self::Addition => f.write_str("the sum of two tensors"),
            Self::Copy => f.write_str("a copy into another quantisation"),
            Self::Limits => f.write_str("an activation whose limits are not those of the results' type"),
            Self::DepthwiseZeroPoints => f.write_str("a depthwise convolution whose weights have zero points"),
            Self::Elementwise => f.write_str("an element-wise operation"),
            Self::Pooling(kind, element) => write!(f, "pooling {kind:?} of {element:?}"),
            Self::PaddedMean => f.write_str("a mean with padding"),
            Self::HostOrder => f.write_str("a product of factors in host order"),
            Self::Reuse => f.write_str("a product that reuses operands"),
        }
    }
}
