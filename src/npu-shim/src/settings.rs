//! What is simulated, from the environment.
//!
//! A value that means nothing ends the process with a message: a client that runs on another device than was asked for
//! would be worse.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::OnceLock;

use npu_sim::{Levers, Options, Rates};

/// Read once, when the library is loaded.
static SETTINGS: OnceLock<Settings> = OnceLock::new();

/// Whose answers the ioctls give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kernel {
    /// Mainline 6.18.
    V6_18,
    /// Mainline 7.3.
    V7_3,
    /// With our patches: interface 1.3, errors are reported, jobs may be batched.
    Cairn,
}

/// How time passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Speed {
    /// Jobs have ended when SUBMIT returns.
    Instant,
    /// Jobs take at least as long as the cost model says.
    Modelled,
    /// As instant, and the client's clock shows that they took what the cost model says.
    Virtual,
}

/// All of it.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) kernel: Kernel,
    /// Whether the module parameter allows batched jobs.
    pub(crate) batch: bool,
    pub(crate) speed: Speed,
    /// Seed and rates of what goes wrong.
    pub(crate) faults: Option<(u64, Rates)>,
    /// Where a line for each job goes.
    pub(crate) trace: Option<PathBuf>,
    /// Where the statistics go at the end: a file, or standard error for `-`.
    pub(crate) statistics: Option<PathBuf>,
}

impl Settings {
    /// From variables as `variable` returns them.
    ///
    /// # Errors
    /// Which variable means nothing.
    fn from(variable: impl Fn(&str) -> Option<OsString>) -> Result<Self, String> {
        let text = |name: &str| -> Result<Option<String>, String> {
            let value = variable(name).filter(|value| !value.is_empty());
            value.map(|value| value.into_string().map_err(|value| format!("{name}={value:?} is not UTF-8"))).transpose()
        };
        let one_of = |name: &str, names: &[&str]| -> Result<usize, String> {
            let Some(value) = text(name)? else { return Ok(0) };
            let found = names.iter().position(|known| *known == value);
            found.ok_or_else(|| format!("{name}={value} is none of {}", names.join(", ")))
        };
        one_of("CAIRN_SHIM_CHIP", &["rk3588"])?;
        let kernel =
            [Kernel::V7_3, Kernel::V6_18, Kernel::Cairn][one_of("CAIRN_SHIM_KERNEL", &["7.3", "6.18", "cairn"])?];
        Ok(Self {
            kernel,
            batch: one_of("CAIRN_SHIM_BATCH", &["on", "off"])? == 0,
            speed: [Speed::Instant, Speed::Modelled, Speed::Virtual]
                [one_of("CAIRN_SHIM_SPEED", &["instant", "modelled", "virtual"])?],
            faults: text("CAIRN_SHIM_FAULTS")?.map(|value| faults(&value)).transpose()?,
            trace: text("CAIRN_SHIM_TRACE")?.map(PathBuf::from),
            statistics: text("CAIRN_SHIM_STATISTICS")?.map(PathBuf::from),
        })
    }

    /// What the simulator is told.
    pub(crate) fn options(&self) -> Options {
        let patched = self.kernel == Kernel::Cairn;
        Options {
            version: if patched { (1, 3, 0) } else { (0, 0, 0) },
            batch_switched_off: !self.batch,
            reports_failed_jobs: patched,
            reports_dropped_jobs: patched,
            ..Options::default()
        }
    }

    /// What goes wrong with jobs.
    pub(crate) fn levers(&self) -> Option<Levers> {
        self.faults.clone().map(|(seed, rates)| Levers::random(seed, rates))
    }
}

/// Reads `seed=7,hang=0.1,…`.
fn faults(text: &str) -> Result<(u64, Rates), String> {
    let mut rates = Rates::default();
    let mut seed = 0;
    for part in text.split(',') {
        let error = || format!("CAIRN_SHIM_FAULTS: `{part}` is no name=rate");
        let (name, value) = part.split_once('=').ok_or_else(error)?;
        if name == "seed" {
            seed = value.parse().map_err(|_| error())?;
            continue;
        }
        let rate: f64 = value.parse().ok().filter(|rate| (0.0..=1.0).contains(rate)).ok_or_else(error)?;
        *match name {
            "hang" => &mut rates.hang,
            "iommu-fault" => &mut rates.iommu_fault,
            "slow" => &mut rates.slow,
            "partial-write" => &mut rates.partial_write,
            "lost-write" => &mut rates.lost_write,
            "swallowed-submit" => &mut rates.swallowed_submit,
            _ => return Err(error()),
        } = rate;
    }
    Ok((seed, rates))
}

/// Reads the environment, or ends the process.
pub(crate) fn read() -> &'static Settings {
    SETTINGS.get_or_init(|| Settings::from(|name| std::env::var_os(name)).unwrap_or_else(|error| fail(&error)))
}

/// Ends the process with a message.
pub(crate) fn fail(message: &str) -> ! {
    eprintln!("npu-shim: {message}");
    // SAFETY: ends the process without running what it has not set up.
    unsafe { libc::_exit(2) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(variables: &[(&str, &str)]) -> Result<Settings, String> {
        Settings::from(|name| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into()))
    }

    #[test]
    fn nothing_set_is_mainline_at_once() {
        let settings = settings(&[]).unwrap();
        assert_eq!((settings.kernel, settings.speed), (Kernel::V7_3, Speed::Instant));
        assert!(settings.faults.is_none() && settings.trace.is_none());
        assert_eq!(settings.options().version, (0, 0, 0));
    }

    #[test]
    fn every_value_is_read() {
        let settings = settings(&[
            ("CAIRN_SHIM_CHIP", "rk3588"),
            ("CAIRN_SHIM_KERNEL", "cairn"),
            ("CAIRN_SHIM_BATCH", "off"),
            ("CAIRN_SHIM_SPEED", "modelled"),
            ("CAIRN_SHIM_FAULTS", "hang=0.5,seed=7,lost-write=1"),
        ])
        .unwrap();
        assert_eq!((settings.kernel, settings.speed, settings.batch), (Kernel::Cairn, Speed::Modelled, false));
        let (seed, rates) = settings.faults.unwrap();
        assert_eq!((seed, rates.hang, rates.lost_write, rates.slow), (7, 0.5, 1.0, 0.0));
    }

    #[test]
    fn a_value_that_means_nothing_is_named() {
        for (name, value) in [
            ("CAIRN_SHIM_KERNEL", "6.1"),
            ("CAIRN_SHIM_CHIP", "rk3576"),
            ("CAIRN_SHIM_SPEED", "fast"),
            ("CAIRN_SHIM_FAULTS", "hang"),
            ("CAIRN_SHIM_FAULTS", "hang=2"),
            ("CAIRN_SHIM_FAULTS", "fire=0.1"),
        ] {
            let error = settings(&[(name, value)]).unwrap_err();
            assert!(error.contains(name) && error.contains(value), "{error}");
        }
    }
}
