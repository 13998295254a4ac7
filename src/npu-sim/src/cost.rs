//! A model of how long jobs take. It ranks plans; it is not a measurement.
//!
//! SOURCE: npu-spec 9.5, which fits it to a few published numbers of an RK3588 at 600 MHz.

use std::time::Duration;

use npu_regs::Precision;

/// Parameters of the model.
#[derive(Clone, Debug)]
pub struct CostModel {
    /// Clock of the cores.
    pub clock_hz: f64,
    /// Submitting and waiting for a job with one trivial task.
    pub job: Duration,
    /// Interrupt and next kick of a job whose tasks the kernel kicks one by one.
    pub kick: Duration,
    /// Memory bandwidth of a core.
    pub bytes_per_second: f64,
    /// PREP or FINI of a small buffer object.
    pub sync: Duration,
    /// Cache maintenance of PREP and FINI.
    pub sync_bytes_per_second: f64,
}

impl Default for CostModel {
    fn default() -> Self {
        Self {
            clock_hz: 600e6,
            job: Duration::from_micros(54),
            kick: Duration::from_micros(10),
            bytes_per_second: 6e9,
            sync: Duration::from_micros(1),
            sync_bytes_per_second: 10.6e9,
        }
    }
}

/// What a task does, in countable things.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Multiplications of the MAC array, those with padding included.
    pub macs: u64,
    /// Multiplications per cycle of its precision.
    pub macs_per_cycle: u64,
    /// Bytes read, command words included.
    pub bytes_read: u64,
    /// Bytes written.
    pub bytes_written: u64,
}

/// MAC array width. SOURCE: npu-spec 0.
pub(crate) fn macs_per_cycle(precision: Precision) -> u64 {
    match precision {
        Precision::Int4 => 2048,
        Precision::Int8 => 1024,
        Precision::Int16 | Precision::Fp16 | Precision::Bf16 => 512,
        Precision::Int32 | Precision::Fp32 | Precision::Tf32 => 256,
    }
}

impl CostModel {
    /// Time of one task on a core, by the model.
    pub fn task(&self, work: &Work) -> Duration {
        let compute = work.macs as f64 / (work.macs_per_cycle.max(1) as f64 * self.clock_hz);
        let transfer = (work.bytes_read + work.bytes_written) as f64 / self.bytes_per_second;
        Duration::from_secs_f64(compute.max(transfer))
    }

    /// Time of PREP or FINI, by the model.
    pub fn sync(&self, bytes: u64) -> Duration {
        self.sync + Duration::from_secs_f64(bytes as f64 / self.sync_bytes_per_second)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slower_of_compute_and_transfer_decides() {
        let model = CostModel::default();
        let compute = Work { macs: 614_400_000, macs_per_cycle: 1024, bytes_read: 6, bytes_written: 0 };
        assert_eq!(model.task(&compute), Duration::from_millis(1));
        let transfer = Work { macs: 1, macs_per_cycle: 1024, bytes_read: 5_000_000, bytes_written: 1_000_000 };
        assert_eq!(model.task(&transfer), Duration::from_millis(1));
    }
}
