//! Requests per second with a tiny model, engine and simulator on this machine: the cost of everything around the NPU.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use bytes::Bytes;
use engine::{Engine, Input, Priority, Request, Tensor};
use npu_sim::Simulator;

/// Requests that are measured.
const REQUESTS: u32 = 2000;
/// Requests that wait or run at the same time: less than the queue holds.
const IN_FLIGHT: usize = 16;

fn main() -> Result<()> {
    println!("{REQUESTS} requests, {IN_FLIGHT} in flight");
    for contexts in [1, 3] {
        measure(contexts)?;
    }
    Ok(())
}

fn measure(contexts: usize) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let simulator = Simulator::new(npu_sim::Options::batched());
    let options = engine::Options { contexts, ..engine::Options::default() };
    let engine = Engine::start(Arc::new(simulator.clone()), Some(simulator.fault_monitor()), options)?;
    let model = runtime.block_on(engine.load(&testkit::model("mnist")))?;
    let inputs = model.inputs.iter().map(|info| Tensor {
        name: info.name.clone(),
        dtype: info.dtype,
        shape: info.shape.clone(),
        data: Bytes::from(vec![0; info.bytes()]),
    });
    let inputs: Vec<Tensor> = inputs.collect();
    let before = engine.status().counters;
    let begin = Instant::now();
    let mut waiting = VecDeque::new();
    for _ in 0..REQUESTS {
        if waiting.len() == IN_FLIGHT
            && let Some(pending) = waiting.pop_front()
        {
            runtime.block_on(pending)?;
        }
        let input = Input::Tensors(inputs.clone());
        waiting.push_back(engine.submit(Request {
            model: model.name.clone(),
            input,
            priority: Priority::Stream,
            deadline: None,
        })?);
    }
    for pending in waiting {
        runtime.block_on(pending)?;
    }
    let wall = begin.elapsed().as_secs_f64();
    let npu = (engine.status().counters.npu_micros - before.npu_micros) as f64 / 1e6;
    println!(
        "{} with {contexts} contexts: {:.0} requests/s ({REQUESTS} in {wall:.3} s); NPU by the cost model {:.3} ms each",
        model.name,
        f64::from(REQUESTS) / wall,
        npu * 1e3 / f64::from(REQUESTS),
    );
    Ok(())
}
