//! How a [`Context`](crate::Context) runs its operations.

use std::str::FromStr;
use std::time::Duration;

use crate::affinity::Affinity;
use crate::error::Unsupported;
use crate::trace::Trace;

/// Most rows and columns of a matrix product's tile. SOURCE: npu-spec 9.4.
pub(crate) const MOST_TILE: usize = 256;

/// Everything that can be chosen about how operations run. Only [`Options::symmetric_int4`] is a promise about data; no
/// other choice changes integer results, and only [`Options::accumulate_on_chip`] and tiles of the depth change how real
/// ones are rounded.
///
/// ```
/// let options = npu::Options { workers: 1, ..npu::Options::default() };
/// assert!(options.batched);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Open files, each with its own queue: as many cores can work at once. `CAIRN_NPU_WORKERS`.
    pub workers: usize,
    /// One kick for all tasks of a job, where the driver can do that (version 1.1) and is not told otherwise. A driver
    /// that cannot is never given a chained program. `CAIRN_NPU_BATCHED`.
    pub batched: bool,
    /// Half-precision products of more than one depth tile may be summed by the NPU, rounded to half precision after each
    /// tile. Otherwise single-precision partial sums are added in double precision. `CAIRN_NPU_ACCUMULATE_ON_CHIP`.
    pub accumulate_on_chip: bool,
    /// All depth tiles that are summed on the chip may be one job. Otherwise every depth tile is a job of its own.
    /// `CAIRN_NPU_CHAIN_ACCUMULATION`.
    pub chain_accumulation: bool,
    /// Which operand stays in the on-chip buffer from one task to the next. `CAIRN_NPU_REUSE`.
    pub reuse: OperandReuse,
    /// Tiles of fewer rows or columns and more depth. Otherwise as many rows and columns as allowed.
    /// `CAIRN_NPU_ASYMMETRIC_TILES`.
    pub asymmetric_tiles: bool,
    /// Of several ways to cut and to sum a product the cheapest by the cost model, so that options which change what is
    /// cheap may change how real results are rounded. Otherwise the published rule's.
    /// `CAIRN_NPU_CHEAPEST_PLAN`.
    pub cheapest_plan: bool,
    /// 16-bit and 8-bit factors are read and results written in host order, without packing. Slower on the device per
    /// byte, as rows are scattered. `CAIRN_NPU_HOST_ORDER`.
    pub host_order: bool,
    /// 4-bit codes are promised to be from −7 to 7, which allows longer depth tiles; a code of −8 is then refused.
    /// `CAIRN_NPU_SYMMETRIC_INT4`.
    pub symmetric_int4: bool,
    /// Transposed convolutions of steps 2, 4 and 8 in half precision let the NPU put zeros between inputs. Otherwise the
    /// host does. `CAIRN_NPU_TRANSPOSED_ON_CHIP`.
    pub transposed_on_chip: bool,
    /// Most rows of a tile, up to 256. `CAIRN_NPU_TILE_ROWS`.
    pub tile_rows: usize,
    /// Most columns of a tile, up to 256. `CAIRN_NPU_TILE_COLUMNS`.
    pub tile_columns: usize,
    /// Most depth of a tile; the on-chip buffer and the datatype set other limits. `CAIRN_NPU_TILE_DEPTH`.
    pub tile_depth: usize,
    /// Tasks that are gathered into one job, beside those that must be together. `CAIRN_NPU_TASKS_PER_JOB`.
    pub tasks_per_job: usize,
    /// After this time on the device's clock a call gives up. `CAIRN_NPU_DEADLINE_MS`.
    pub deadline: Duration,
    /// On which CPUs the threads of workers run. `CAIRN_NPU_CPUS`: `off`, `fastest`, or a list such as `4-7`.
    pub affinity: Affinity,
    /// Which of these CPUs the first worker has; the others follow. Contexts that run at once should have different ones.
    /// `CAIRN_NPU_CPU_BASE`.
    pub affinity_base: usize,
    /// What is told of every call that reached the device.
    pub trace: Option<Trace>,
}

/// Which operand consecutive tasks share without loading it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperandReuse {
    /// None.
    Off,
    /// The first factor.
    Features,
    /// The second factor.
    Weights,
    /// The one that more tasks share, where sums stay on the chip; else none.
    Auto,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            workers: 3,
            batched: true,
            accumulate_on_chip: true,
            chain_accumulation: true,
            reuse: OperandReuse::Auto,
            asymmetric_tiles: true,
            cheapest_plan: true,
            host_order: false,
            symmetric_int4: false,
            transposed_on_chip: true,
            tile_rows: MOST_TILE,
            tile_columns: MOST_TILE,
            tile_depth: usize::MAX,
            // SOURCE: npu-spec 9.4.
            tasks_per_job: 64,
            // TIMEOUT: far above any product that fits the address space.
            deadline: Duration::from_secs(30),
            affinity: Affinity::default(),
            affinity_base: 0,
            trace: None,
        }
    }
}

impl Options {
    /// These options with what the environment says instead.
    ///
    /// # Errors
    /// A variable whose text means nothing.
    pub fn with_environment(self) -> Result<Self, Unsupported> {
        self.with_overrides(|name| std::env::var(name).ok())
    }

    /// These options with what `lookup` says instead, by the name of each option's variable.
    ///
    /// # Errors
    /// A text that means nothing.
    pub fn with_overrides(mut self, lookup: impl Fn(&str) -> Option<String>) -> Result<Self, Unsupported> {
        let lookup = |name: &'static str| lookup(name).map(|text| (name, text));
        let switches = [
            ("CAIRN_NPU_BATCHED", &mut self.batched),
            ("CAIRN_NPU_ACCUMULATE_ON_CHIP", &mut self.accumulate_on_chip),
            ("CAIRN_NPU_CHAIN_ACCUMULATION", &mut self.chain_accumulation),
            ("CAIRN_NPU_ASYMMETRIC_TILES", &mut self.asymmetric_tiles),
            ("CAIRN_NPU_CHEAPEST_PLAN", &mut self.cheapest_plan),
            ("CAIRN_NPU_HOST_ORDER", &mut self.host_order),
            ("CAIRN_NPU_SYMMETRIC_INT4", &mut self.symmetric_int4),
            ("CAIRN_NPU_TRANSPOSED_ON_CHIP", &mut self.transposed_on_chip),
        ];
        for (name, option) in switches {
            let Some((name, text)) = lookup(name) else { continue };
            *option = match text.as_str() {
                "0" => false,
                "1" => true,
                _ => return Err(meaningless(name, &text, "0 or 1")),
            };
        }
        let counts = [
            ("CAIRN_NPU_WORKERS", &mut self.workers),
            ("CAIRN_NPU_TILE_ROWS", &mut self.tile_rows),
            ("CAIRN_NPU_TILE_COLUMNS", &mut self.tile_columns),
            ("CAIRN_NPU_TILE_DEPTH", &mut self.tile_depth),
            ("CAIRN_NPU_TASKS_PER_JOB", &mut self.tasks_per_job),
            ("CAIRN_NPU_CPU_BASE", &mut self.affinity_base),
        ];
        for (name, option) in counts {
            if let Some((name, text)) = lookup(name) {
                *option = number(name, &text)?;
            }
        }
        if let Some((name, text)) = lookup("CAIRN_NPU_DEADLINE_MS") {
            self.deadline = Duration::from_millis(number(name, &text)?);
        }
        if let Some((name, text)) = lookup("CAIRN_NPU_CPUS") {
            let affinity = Affinity::parse(&text);
            self.affinity = affinity.ok_or_else(|| meaningless(name, &text, "off, fastest or a list of CPUs"))?;
        }
        if let Some((name, text)) = lookup("CAIRN_NPU_REUSE") {
            self.reuse = match text.as_str() {
                "off" => OperandReuse::Off,
                "features" => OperandReuse::Features,
                "weights" => OperandReuse::Weights,
                "auto" => OperandReuse::Auto,
                _ => return Err(meaningless(name, &text, "off, features, weights or auto")),
            };
        }
        Ok(self)
    }
}

fn number<T: FromStr>(name: &str, text: &str) -> Result<T, Unsupported> {
    text.parse().map_err(|_| meaningless(name, text, "a number"))
}

fn meaningless(name: &str, text: &str, expected: &str) -> Unsupported {
    Unsupported::new(format!("{name} is {text:?}, which is not {expected}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(name: &str, text: &str) -> Result<Options, Unsupported> {
        Options::default().with_overrides(|asked| (asked == name).then(|| text.to_owned()))
    }

    #[test]
    fn a_variable_changes_its_option_alone() {
        let batched = with("CAIRN_NPU_BATCHED", "0").unwrap();
        assert_eq!(batched, Options { batched: false, ..Options::default() });
        assert_eq!(with("CAIRN_NPU_TILE_DEPTH", "64").unwrap().tile_depth, 64);
        assert_eq!(with("CAIRN_NPU_REUSE", "weights").unwrap().reuse, OperandReuse::Weights);
        assert_eq!(with("CAIRN_NPU_DEADLINE_MS", "7").unwrap().deadline, Duration::from_millis(7));
        assert_eq!(with("CAIRN_NPU_CPUS", "4-5").unwrap().affinity, Affinity::Cpus(vec![4, 5]));
        assert_eq!(with("CAIRN_NPU_OTHER", "7").unwrap(), Options::default());
    }

    #[test]
    fn a_text_without_meaning_is_refused_by_name() {
        let error = with("CAIRN_NPU_BATCHED", "yes").unwrap_err();
        assert_eq!(error.what, "CAIRN_NPU_BATCHED is \"yes\", which is not 0 or 1");
        assert!(with("CAIRN_NPU_WORKERS", "-1").unwrap_err().what.contains("which is not a number"));
        assert!(with("CAIRN_NPU_REUSE", "both").unwrap_err().what.contains("auto"));
        assert!(with("CAIRN_NPU_CPUS", "5-4").unwrap_err().what.contains("a list of CPUs"));
    }
}
