//! The end of a daemon. A process of its own, because a signal is for all of it.

use std::time::Duration;

use kit::systemd::shutdown;
use rustix::process::{Signal, getpid, kill_process};

/// TIMEOUT: far longer than anything here takes on a slow machine.
const PATIENCE: Duration = Duration::from_secs(120);

#[tokio::test]
async fn a_signal_that_comes_before_anybody_waits_for_it_is_heard() {
    for signal in [Signal::TERM, Signal::INT] {
        let shutdown = shutdown();
        kill_process(getpid(), signal).unwrap();
        tokio::time::timeout(PATIENCE, shutdown).await.unwrap().unwrap();
    }
}
