//! On which CPUs workers' threads run. A hint: it changes no result, and where the kernel refuses it nothing happens.

use std::fs;

use rustix::thread::{CpuSet, sched_setaffinity};

/// Which CPUs workers' threads are pinned to, in turn.
///
/// The first worker of a call is the thread that calls, and stays where its owner put it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Affinity {
    /// None: threads run where the kernel puts them.
    Off,
    /// Those of the highest frequency, where the machine has slower ones too: the big cores.
    #[default]
    Fastest,
    /// These; one that the machine does not have, or that the process may not use, pins nothing.
    Cpus(Vec<usize>),
}

impl Affinity {
    /// `off`, `fastest`, or a list such as `4-7,2`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        match text {
            "off" => return Some(Self::Off),
            "fastest" => return Some(Self::Fastest),
            _ => {}
        }
        let mut cpus = Vec::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
            if first > last || last >= CpuSet::MAX_CPU {
                return None;
            }
            cpus.extend(first..=last);
        }
        Some(Self::Cpus(cpus))
    }

    /// The CPUs; none where nothing is to be pinned.
    pub(crate) fn cpus(&self) -> Vec<usize> {
        match self {
            Self::Off => Vec::new(),
            Self::Fastest => fastest(&frequencies()),
            Self::Cpus(cpus) => cpus.clone(),
        }
    }
}

/// Pins the calling thread.
pub(crate) fn pin(cpu: usize) {
    if cpu >= CpuSet::MAX_CPU {
        return;
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    // A CPU that is offline or not allowed: the thread stays where it is.
    let _ = sched_setaffinity(None, &set);
}

/// The largest frequency of each CPU, where the machine says so.
fn frequencies() -> Vec<(usize, u64)> {
    let read = |cpu: usize| {
        let path = format!("/sys/devices/system/cpu/cpu{cpu}/cpufreq/cpuinfo_max_freq");
        fs::read_to_string(path).ok()?.trim().parse().ok()
    };
    let cpus = std::thread::available_parallelism().map_or(0, usize::from);
    (0..cpus).filter_map(|cpu| Some((cpu, read(cpu)?))).collect()
}

/// The CPUs of the highest frequency; none where all have it.
fn fastest(frequencies: &[(usize, u64)]) -> Vec<usize> {
    let highest = frequencies.iter().map(|(_, frequency)| *frequency).max();
    let fast = frequencies.iter().filter(|(_, frequency)| Some(*frequency) == highest);
    let fast: Vec<_> = fast.map(|(cpu, _)| *cpu).collect();
    if fast.len() == frequencies.len() { Vec::new() } else { fast }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_big_cores_of_an_rk3588_are_the_fastest() {
        let board: Vec<_> = (0..8).map(|cpu| (cpu, if cpu < 4 { 1_800_000 } else { 2_400_000 })).collect();
        assert_eq!(fastest(&board), [4, 5, 6, 7]);
        assert_eq!(fastest(&board[..4]), [0; 0], "equal CPUs are nothing to choose from");
        assert_eq!(fastest(&[]), [0; 0]);
    }

    #[test]
    fn a_list_is_numbers_and_ranges() {
        assert_eq!(Affinity::parse("4-6,2"), Some(Affinity::Cpus(vec![4, 5, 6, 2])));
        assert_eq!(Affinity::parse("off"), Some(Affinity::Off));
        for text in ["", "a", "3-2", "1,", "9999999"] {
            assert_eq!(Affinity::parse(text), None, "{text}");
        }
        pin(usize::MAX);
    }

    #[test]
    fn a_pinned_thread_runs_where_it_was_put() {
        let here = rustix::thread::sched_getaffinity(None).unwrap();
        let cpu = (0..CpuSet::MAX_CPU).rev().find(|cpu| here.is_set(*cpu)).unwrap();
        let set = std::thread::spawn(move || {
            pin(cpu);
            rustix::thread::sched_getaffinity(None).unwrap()
        });
        let set = set.join().unwrap();
        assert!(set.is_set(cpu) && set.count() == 1);
        assert_eq!(rustix::thread::sched_getaffinity(None).unwrap(), here, "this thread is not");
    }
}
