//! `org.cairn.Device1`.

use std::collections::HashMap;

use engine::{Engine, ThermalLevel};
use zbus::object_server::SignalEmitter;

/// The device and the queue in front of it.
#[derive(Debug)]
pub(super) struct Device {
    pub(super) engine: Engine,
}

#[zbus::interface(name = "org.cairn.Device1", introspection_docs = false)]
impl Device {
    #[zbus(property(emits_changed_signal = "const"))]
    fn description(&self) -> String {
        self.engine.status().device
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn driver_version(&self) -> String {
        self.engine.status().driver_version
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn contexts(&self) -> u32 {
        count(self.engine.status().contexts)
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn queue_capacity(&self) -> u32 {
        count(self.engine.status().queue_capacity)
    }

    #[zbus(property(emits_changed_signal = "false"))]
    fn queue_depth(&self) -> u32 {
        count(self.engine.status().queue_depth)
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn kernel_log_watched(&self) -> bool {
        self.engine.status().kernel_log_watched
    }

    #[zbus(property)]
    fn thermal_level(&self) -> &'static str {
        thermal_name(self.engine.status().thermal_level)
    }

    #[zbus(property(emits_changed_signal = "false"))]
    fn counters(&self) -> HashMap<&'static str, u64> {
        let counters = self.engine.status().counters;
        HashMap::from([
            ("requests", counters.requests),
            ("trusted", counters.trusted),
            ("retried", counters.retried),
            ("untrusted", counters.untrusted),
            ("queue-full", counters.queue_full),
            ("deadline-exceeded", counters.deadline_exceeded),
            ("cancelled", counters.cancelled),
            ("failed", counters.failed),
            ("contexts-replaced", counters.contexts_replaced),
            ("npu-us", counters.npu_micros),
        ])
    }

    #[zbus(property(emits_changed_signal = "false"))]
    fn in_flight(&self) -> Vec<(u32, String, &'static str, u64)> {
        let row = |run: engine::InFlight| {
            let micros = u64::try_from(run.running.as_micros()).unwrap_or(u64::MAX);
            (count(run.context), run.model, run.job.name(), micros)
        };
        self.engine.in_flight().into_iter().map(row).collect()
    }

    #[zbus(signal)]
    async fn context_replaced(
        emitter: &SignalEmitter<'_>,
        context: u32,
        model: &str,
        job: &str,
        reason: &str,
        kernel_line: &str,
    ) -> zbus::Result<()>;
}

/// A thermal level as interfaces name it.
pub(crate) fn thermal_name(level: ThermalLevel) -> &'static str {
    match level {
        ThermalLevel::Normal => "normal",
        ThermalLevel::Throttled => "throttled",
        ThermalLevel::Critical => "critical",
    }
}

/// A size of ours as D-Bus has it; all are far below 32 bits.
fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
