//! The service manager: readiness, keep-alive, shutdown.

use sd_notify::NotifyState;
use tokio::signal::unix::{SignalKind, signal};

use crate::{Error, Result};

/// Says that the daemon serves. Outside a service nothing happens.
///
/// # Errors
/// [`Error::Notify`].
pub fn ready(status: &str) -> Result<()> {
    sd_notify::notify(&[NotifyState::Ready, NotifyState::Status(status)]).map_err(Error::Notify)
}

/// Says that the daemon is shutting down.
///
/// # Errors
/// [`Error::Notify`].
pub fn stopping() -> Result<()> {
    sd_notify::notify(&[NotifyState::Stopping]).map_err(Error::Notify)
}

/// Feeds the watchdog for as long as `alive` says that the path that does the work moves. Never returns while it may
/// be dropped; without a watchdog it only waits.
///
/// # Errors
/// [`Error::Notify`].
pub async fn keep_alive(alive: impl Fn() -> bool) -> Result<()> {
    let Some(period) = sd_notify::watchdog_enabled() else { return std::future::pending().await };
    // TIMEOUT: sd_watchdog_enabled(3) recommends half the period.
    let mut tick = tokio::time::interval(period / 2);
    loop {
        tick.tick().await;
        if alive() {
            sd_notify::notify(&[NotifyState::Watchdog]).map_err(Error::Notify)?;
        }
    }
}

/// Listens for SIGTERM and SIGINT from now on; the future waits until the daemon shall stop. To be called before
/// [`ready`]: a signal that comes before would end the daemon as a crash does. Must be called inside a runtime.
///
/// # Errors
/// [`Error::Notify`] where signals cannot be caught.
pub fn shutdown() -> impl Future<Output = Result<()>> {
    let signals = [SignalKind::terminate(), SignalKind::interrupt()].map(signal);
    async move {
        let [terminate, interrupt] = signals;
        let (mut terminate, mut interrupt) = (terminate.map_err(Error::Notify)?, interrupt.map_err(Error::Notify)?);
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        Ok(())
    }
}
