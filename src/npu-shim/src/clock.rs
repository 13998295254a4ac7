//! The client's clock, where a job is to take what the cost model says and not what the simulator takes.
//!
//! A client that times its jobs by `CLOCK_MONOTONIC` would time the simulator, on whatever machine that runs. With virtual
//! speed, the first reading of the clock after a thread's calls of the device leaves out what the machine spent in them,
//! and counts the device's own time instead. Later readings are the machine's again, but no reading is before an earlier
//! one: clocks of waits and of other threads are never off for longer than one reading.
//!
//! ```text
//! read, SUBMIT ··· simulating ··· PREP, read              read
//! 0             machine: 700 ms        shown: 11 ms        shown: 701 ms
//! ```

use std::cell::Cell;
use std::time::Duration;

thread_local! {
    /// What the next reading leaves out, less what it counts instead, in nanoseconds.
    static LEAD: Cell<i64> = const { Cell::new(0) };
    /// The latest reading that was not the machine's.
    static SHOWN: Cell<i64> = const { Cell::new(0) };
}

/// The machine spent this in the device's calls.
pub(crate) fn leave_out(spent: Duration) {
    LEAD.set(LEAD.get().saturating_add(nanos(spent)));
}

/// The device's clock passed this.
pub(crate) fn count(passed: Duration) {
    LEAD.set(LEAD.get().saturating_sub(nanos(passed)));
}

/// What is shown where the machine's clock shows this.
pub(crate) fn shown(machine: i64) -> i64 {
    let lead = LEAD.replace(0);
    let shown = machine.saturating_sub(lead).max(SHOWN.get());
    if lead != 0 {
        SHOWN.set(shown);
    }
    shown
}

fn nanos(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: i64 = 1_000_000;

    #[test]
    fn one_reading_shows_the_devices_time_and_the_next_the_machines() {
        assert_eq!(shown(1000 * MS), 1000 * MS);
        count(Duration::from_millis(11));
        leave_out(Duration::from_millis(700));
        assert_eq!(shown(1700 * MS), 1011 * MS);
        assert_eq!(shown(1701 * MS), 1701 * MS);
    }

    #[test]
    fn the_clock_stands_until_the_machine_has_caught_up() {
        count(Duration::from_millis(500));
        leave_out(Duration::from_millis(1));
        assert_eq!([shown(2001 * MS), shown(2002 * MS), shown(2600 * MS)], [2500 * MS, 2500 * MS, 2600 * MS]);
    }
}
