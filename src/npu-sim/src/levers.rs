//! Test levers: ways to make jobs go wrong as real ones do.
//!
//! A lever spoils one job. It is pulled for the next job, or drawn by chance from [`Levers`].

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// One way in which a job goes wrong. Tasks count from 0 inside the job; a task that it does not have is not spoiled.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Lever {
    /// The task never completes and writes nothing; the watchdog retires the job as a success.
    Hang {
        /// Which task.
        task: usize,
    },
    /// The task reads an unmapped address: a page fault in the kernel log, then as [`Lever::Hang`].
    IommuFault {
        /// Which task.
        task: usize,
    },
    /// The job starts late. From 500 ms on, the watchdog kills it before it writes anything.
    Slow(Duration),
    /// The task writes only the first part of its output, and the job completes without a complaint.
    PartialWrite {
        /// Which task.
        task: usize,
        /// How much of the output is written.
        percent: u8,
    },
    /// One burst of 64 bytes of the output is not written, and the job completes without a complaint.
    LostWrite {
        /// Which task.
        task: usize,
        /// Which burst, modulo their number.
        burst: usize,
    },
    /// SUBMIT returns 0, nothing is queued, no fence is attached.
    SwallowedSubmit,
}

impl Lever {
    /// The task that it spoils.
    pub(crate) fn task(&self) -> Option<usize> {
        match self {
            Self::Hang { task }
            | Self::IommuFault { task }
            | Self::PartialWrite { task, .. }
            | Self::LostWrite { task, .. } => Some(*task),
            Self::Slow(_) | Self::SwallowedSubmit => None,
        }
    }
}

/// Probabilities per job of each lever. The first that is drawn wins; zeros are a baseline that spoils nothing.
#[derive(Clone, Debug, Default)]
pub struct Rates {
    /// Of [`Lever::Hang`].
    pub hang: f64,
    /// Of [`Lever::IommuFault`].
    pub iommu_fault: f64,
    /// Of [`Lever::Slow`], by up to twice the watchdog's time.
    pub slow: f64,
    /// Of [`Lever::PartialWrite`].
    pub partial_write: f64,
    /// Of [`Lever::LostWrite`].
    pub lost_write: f64,
    /// Of [`Lever::SwallowedSubmit`].
    pub swallowed_submit: f64,
}

/// Levers drawn by chance. The same seed and the same jobs draw the same levers.
#[derive(Debug)]
pub struct Levers {
    rng: StdRng,
    rates: Rates,
}

impl Levers {
    /// Draws from `seed` with these rates.
    pub fn random(seed: u64, rates: Rates) -> Self {
        Self { rng: StdRng::seed_from_u64(seed), rates }
    }

    /// The lever of a job of `tasks` tasks, if any.
    pub(crate) fn draw(&mut self, tasks: usize) -> Option<Lever> {
        let dice: f64 = self.rng.random();
        let task = self.rng.random_range(0..tasks.max(1));
        let (percent, burst) = (self.rng.random_range(0..100), self.rng.random_range(0..1 << 20));
        let delay = Duration::from_millis(self.rng.random_range(0..1000));
        let rates = &self.rates;
        let choices = [
            (rates.hang, Lever::Hang { task }),
            (rates.iommu_fault, Lever::IommuFault { task }),
            (rates.slow, Lever::Slow(delay)),
            (rates.partial_write, Lever::PartialWrite { task, percent }),
            (rates.lost_write, Lever::LostWrite { task, burst }),
            (rates.swallowed_submit, Lever::SwallowedSubmit),
        ];
        let mut below = 0.0;
        choices.into_iter().find_map(|(rate, lever)| {
            below += rate;
            (dice < below).then_some(lever)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_draws_the_same_levers() {
        let rates = Rates { hang: 0.2, lost_write: 0.3, ..Rates::default() };
        let draw = || {
            let mut levers = Levers::random(7, rates.clone());
            (0..100).map(|_| levers.draw(3)).collect::<Vec<_>>()
        };
        assert_eq!(draw(), draw());
        let hangs = draw().iter().filter(|lever| matches!(lever, Some(Lever::Hang { .. }))).count();
        assert!((5..40).contains(&hangs), "{hangs} of 100 at a rate of 0.2");
    }

    #[test]
    fn rates_of_zero_draw_nothing() {
        let mut levers = Levers::random(1, Rates::default());
        assert!((0..1000).all(|_| levers.draw(1).is_none()));
    }
}
