//! How fast the simulator is: seconds of this machine for one inference of the detector.
//!
//! The picture is prepared and the answer decoded in the same time, as in the daemon; the NPU's own time comes from the
//! cost model and is no measurement.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use engine::{Engine, Input, Priority, Request};
use npu_sim::Simulator;
use tests::numbers::{Summary, millis};

/// Inferences that are measured.
const RUNS: usize = 10;

fn main() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let simulator = Simulator::new(npu_sim::Options::batched());
    let options = engine::Options { contexts: 1, ..engine::Options::default() };
    let engine = Engine::start(Arc::new(simulator.clone()), Some(simulator.fault_monitor()), options)?;
    let begin = Instant::now();
    let model = runtime.block_on(engine.load(&testkit::model("ssd-oidv4")))?;
    let report = &model.report;
    println!("model {} {}, loaded and verified in {:.1} s", model.name, model.version, begin.elapsed().as_secs_f64());
    println!("  {} jobs, {} tasks, {} MACs with padding", report.npu_jobs, report.npu_tasks, report.npu_macs);
    let picture = std::fs::read(testkit::picture("astronaut.jpg"))?;
    let mut walls = Vec::new();
    let mut npu = Duration::ZERO;
    for _ in 0..RUNS {
        let request = Request {
            model: model.name.clone(),
            input: Input::Picture(picture.clone().into()),
            priority: Priority::Interactive,
            deadline: None,
        };
        let begin = Instant::now();
        let reply = runtime.block_on(engine.submit(request)?)?;
        walls.push(begin.elapsed());
        npu = reply.timing.npu;
    }
    println!("one inference on this machine: {}", Summary::new(walls));
    println!("one inference on the NPU, by the cost model: {}", millis(npu));
    println!("{}", simulator.counters());
    Ok(())
}
