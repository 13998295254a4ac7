//! The engine behind a delegate, and the parts of graphs that it holds.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use engine::{Engine, Input, ModelInfo, Options, Priority, Request, Tensor, chain};
use model::Graph;
use npu_device::FaultMonitor;
use npu_device::kernel::Rocket;
use npu_device::kmsg::KernelLog;

use crate::settings::Settings;

/// Requests that may wait. Each has a thread of the host that waits for it, so there are never many.
const QUEUE_CAPACITY: usize = 1024;

/// An engine on one device, for all interpreters that a delegate is given to.
#[derive(Debug)]
pub(crate) struct Accelerator {
    settings: Settings,
    /// None once it is dropped.
    threads: Option<Threads>,
    /// The process that the threads live in.
    process: u32,
    parts: AtomicU64,
}

/// What has threads.
#[derive(Debug)]
struct Threads {
    engine: Engine,
    /// Waits for the engine's answers to loads; requests wait without it.
    runtime: tokio::runtime::Runtime,
}

/// A part of a graph that is resident.
#[derive(Debug)]
pub(crate) struct Part {
    accelerator: Arc<Accelerator>,
    info: Arc<ModelInfo>,
}

impl Accelerator {
    /// Opens the device and starts the engine.
    ///
    /// # Errors
    /// What the device or the machine refuses, with the cause.
    pub(crate) fn start(settings: Settings) -> Result<Self, String> {
        let driver = Arc::new(Rocket::at(&settings.device));
        // Who may not read the kernel log gets verdicts by time and sentinels alone, as in npud.
        let monitor = KernelLog::open().ok().map(|log| Arc::new(log) as Arc<dyn FaultMonitor>);
        let options = Options { contexts: settings.contexts, queue_capacity: QUEUE_CAPACITY, ..Options::default() };
        let engine = Engine::start(driver, monitor, options).map_err(|error| chain(&error))?;
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        let runtime = runtime.map_err(|error| format!("start a runtime: {error}"))?;
        let threads = Some(Threads { engine, runtime });
        Ok(Self { settings, threads, process: std::process::id(), parts: AtomicU64::new(0) })
    }

    /// Makes a graph resident; a first inference must be verifiable.
    ///
    /// # Errors
    /// What cannot be planned, loaded or trusted.
    pub(crate) fn load(self: &Arc<Self>, graph: Graph) -> Result<Part, String> {
        let Threads { engine, runtime } = self.threads()?;
        let name = format!("part-{}", self.parts.fetch_add(1, Ordering::Relaxed));
        let info = runtime.block_on(engine.load_graph(&name, graph)).map_err(|error| chain(&error))?;
        Ok(Part { accelerator: Arc::clone(self), info })
    }

    /// What the delegate was created with.
    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// A forked process has the memory of its parent, but not the threads.
    fn threads(&self) -> Result<&Threads, String> {
        let threads = self.threads.as_ref().filter(|_| self.process == std::process::id());
        threads.ok_or_else(|| "the process has forked since the delegate was created; create it after the fork".into())
    }
}

impl Drop for Accelerator {
    fn drop(&mut self) {
        if self.threads().is_err() {
            // Threads that are not in this process would be waited for in vain.
            std::mem::forget(self.threads.take());
        }
    }
}

impl Part {
    /// What the part is made of.
    pub(crate) fn info(&self) -> &ModelInfo {
        &self.info
    }

    /// Runs one inference. `inputs`: the bytes of each input in order.
    ///
    /// # Errors
    /// Every error of the engine; a result that cannot be trusted is one.
    pub(crate) fn run(&self, inputs: Vec<Bytes>) -> Result<Vec<Tensor>, String> {
        let engine = &self.accelerator.threads()?.engine;
        let tensor = |(data, info): (Bytes, &engine::TensorInfo)| Tensor {
            // Names of a runtime need not differ, so inputs go by position.
            name: String::new(),
            dtype: info.dtype,
            shape: info.shape.clone(),
            data,
        };
        let inputs = inputs.into_iter().zip(&self.info.inputs).map(tensor).collect();
        let request = Request {
            model: self.info.name.clone(),
            input: Input::Tensors(inputs),
            priority: Priority::Interactive,
            deadline: None,
        };
        let reply = engine.submit(request).and_then(engine::Pending::wait);
        reply.map(|reply| reply.outputs).map_err(|error| chain(&error))
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if let Ok(Threads { engine, runtime }) = self.accelerator.threads() {
            // The engine knows the part, unless it is shutting down, which frees it as well.
            let _ = runtime.block_on(engine.unload(&self.info.name));
        }
    }
}
