//! Durations of many runs as the numbers that people compare.

use std::fmt;
use std::time::Duration;

/// Median and 95th percentile of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Runs.
    pub runs: usize,
    /// Half of the runs took at most this long.
    pub median: Duration,
    /// 95 of 100 runs took at most this long.
    pub p95: Duration,
}

impl Summary {
    /// Sums up a measurement.
    ///
    /// # Panics
    /// Where nothing was measured.
    pub fn new(mut durations: Vec<Duration>) -> Self {
        assert!(!durations.is_empty(), "nothing was measured");
        durations.sort();
        let runs = durations.len();
        // The nearest rank, counted from 1.
        let rank = |percent: usize| durations[(runs * percent).div_ceil(100) - 1];
        Self { runs, median: rank(50), p95: rank(95) }
    }
}

/// As `median 1.234 ms, p95 2.345 ms of 100`.
impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "median {}, p95 {} of {}", millis(self.median), millis(self.p95), self.runs)
    }
}

/// A duration in milliseconds.
pub fn millis(duration: Duration) -> String {
    format!("{:.3} ms", duration.as_secs_f64() * 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_the_nearest_rank() {
        let summary = Summary::new((1..=100).rev().map(Duration::from_millis).collect());
        assert_eq!(summary.median, Duration::from_millis(50));
        assert_eq!(summary.p95, Duration::from_millis(95));
        assert_eq!(summary.to_string(), "median 50.000 ms, p95 95.000 ms of 100");
    }

    #[test]
    fn one_run_is_its_own_median() {
        let summary = Summary::new(vec![Duration::from_micros(1500)]);
        assert_eq!((summary.median, summary.p95), (Duration::from_micros(1500), Duration::from_micros(1500)));
    }
}
