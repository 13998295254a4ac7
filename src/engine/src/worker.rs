//! A worker: one thread, one context of the device, the sessions of all models in it, and the trust verdict.
//!
//! ```text
//!            untrusted, first attempt                 untrusted again
//!  run ─────────────────────────────▶ fresh context, run ────────────▶ ResultUntrusted
//!   │ trusted                          │ trusted
//!   ▼                                  ▼
//!  Trusted                            TrustedAfterRetry
//! ```

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use npu_device::Device;

use crate::engine::{Command, Job, Shared, Tally};
use crate::info::{Event, JobKind};
use crate::loaded::Model;
use crate::queue::{Abandon, Next};
use crate::session::{Attempt, Session};
use crate::{Error, Reply, Result, Timing, Verdict};

/// How often an idle worker shows that it lives.
// TIMEOUT: well below the shortest watchdog that a unit would set.
const PULSE: Duration = Duration::from_secs(1);

/// A worker's state.
#[derive(Debug)]
pub(crate) struct Worker {
    index: usize,
    shared: Arc<Shared>,
    /// The context; none after an untrusted result, until one is needed.
    device: Option<Arc<dyn Device>>,
    models: BTreeMap<String, Resident>,
    /// What the kernel said during the last attempt.
    heard: Option<String>,
}

/// A model in this worker, with its session in the present context. A fresh context has none until one is needed.
#[derive(Debug)]
struct Resident {
    model: Arc<Model>,
    session: Option<Session>,
}

/// A verified answer of a session.
struct Answer {
    outputs: Vec<crate::Tensor>,
    verdict: Verdict,
    prepare: Duration,
    npu: Duration,
}

/// Works until the queue is closed and empty.
pub(crate) fn run(mut worker: Worker) {
    loop {
        worker.pulse();
        match worker.shared.queue.pop(worker.index, PULSE) {
            Next::Request(job) => worker.serve(job),
            Next::Command(Command::Load { model, done }) => {
                let result = worker.load(model);
                // Whoever asked may have gone; the model stays.
                let _ = done.send(result);
            }
            Next::Command(Command::Unload { name, done }) => {
                worker.models.remove(&name);
                let _ = done.send(Ok(()));
            }
            Next::Idle => {}
            Next::Closed => return,
        }
    }
}

impl Worker {
    pub(crate) fn new(index: usize, shared: Arc<Shared>, device: Arc<dyn Device>) -> Self {
        Self { index, shared, device: Some(device), models: BTreeMap::new(), heard: None }
    }

    /// The present context, or a fresh one.
    fn device(&mut self) -> Result<Arc<dyn Device>> {
        if let Some(device) = &self.device {
            return Ok(Arc::clone(device));
        }
        let device = self.shared.driver.open().map_err(Error::DeviceLost)?;
        self.device = Some(Arc::clone(&device));
        Ok(device)
    }

    fn pulse(&self) {
        *self.shared.pulses[self.index].lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// Makes a model resident and holds it against its golden output, or tries one inference where there is none.
    fn load(&mut self, model: Arc<Model>) -> Result<()> {
        let name = model.info.name.clone();
        let session = Session::new(&model, &self.device()?)?;
        let previous = self.models.insert(name.clone(), Resident { model: Arc::clone(&model), session: Some(session) });
        // Without a golden output, one inference must at least be verifiable.
        let verified = match model.golden() {
            Some(golden) => self.answer(&model, &golden.input).and_then(|answer| golden.check(&answer.outputs)),
            None => self.answer(&model, &model.blank()).map(drop),
        };
        if verified.is_err() {
            match previous {
                // Its session may be in a context that was left meanwhile.
                Some(previous) => self.models.insert(name, Resident { session: None, ..previous }),
                None => self.models.remove(&name),
            };
        }
        verified
    }

    fn serve(&mut self, job: Job) {
        let started = Instant::now();
        if job.is_abandoned() {
            self.shared.count_error(&Error::Cancelled);
            return;
        }
        let result = self.reply(&job, started);
        match &result {
            Ok(reply) => {
                Tally::add(&job.model.answers, 1);
                self.count(reply);
            }
            Err(error) => self.shared.count_error(error),
        }
        // A caller that went away meanwhile does not want the answer.
        let _ = job.reply.send(result);
    }

    fn reply(&mut self, job: &Job, started: Instant) -> Result<Reply> {
        in_time(job.deadline, "in the queue")?;
        let answer = self.answer(&job.model, &job.input)?;
        in_time(job.deadline, "after the inference")?;
        let decoded = job.model.decode(&answer.outputs)?;
        Ok(Reply {
            model: job.model.info.name.clone(),
            version: job.model.info.version.clone(),
            outputs: answer.outputs,
            decoded,
            verdict: answer.verdict,
            timing: Timing {
                queued: started - job.admitted,
                prepare: answer.prepare,
                npu: answer.npu,
                total: job.admitted.elapsed(),
            },
        })
    }

    fn count(&self, reply: &Reply) {
        let tally = &self.shared.tally;
        let counter = match reply.verdict {
            Verdict::Trusted | Verdict::CpuOnly => &tally.trusted,
            Verdict::TrustedAfterRetry => &tally.retried,
        };
        Tally::add(counter, 1);
        Tally::add(&tally.npu_micros, u64::try_from(reply.timing.npu.as_micros()).unwrap_or(u64::MAX));
    }

    /// Runs a model until an answer is trusted, twice at most.
    fn answer(&mut self, model: &Arc<Model>, input: &crate::Input) -> Result<Answer> {
        let started = Instant::now();
        let prepared = model.prepare(input)?;
        let prepare = started.elapsed();
        self.announce(model);
        let answer = self.twice(model, &prepared, prepare);
        self.shared.running(self.index, None);
        answer
    }

    /// Shows what this context does from now on.
    fn announce(&self, model: &Model) {
        let job = self.job_kind(model, false);
        self.shared.running(self.index, Some((model.info.name.clone(), job, Instant::now())));
    }

    fn job_kind(&self, model: &Model, complete: bool) -> JobKind {
        let heard = self.device.as_ref().is_some_and(|device| device.info().has_ppu_done());
        JobKind::of(model.info.report.pools(), heard, complete)
    }

    fn twice(&mut self, model: &Arc<Model>, prepared: &[bytes::Bytes], prepare: Duration) -> Result<Answer> {
        let (first, complete) = match self.attempt(model, prepared) {
            Ok((outputs, npu)) => {
                let verdict = if model.uses_npu() { Verdict::Trusted } else { Verdict::CpuOnly };
                return Ok(Answer { outputs, verdict, prepare, npu });
            }
            Err(Attempt::Fatal(error)) => return Err(error),
            Err(Attempt::Untrusted { reason, complete }) => (reason, complete),
        };
        self.leave_context(model, first.clone(), complete);
        self.pulse();
        match self.attempt(model, prepared) {
            Ok((outputs, npu)) => Ok(Answer { outputs, verdict: Verdict::TrustedAfterRetry, prepare, npu }),
            Err(Attempt::Fatal(error)) => Err(error),
            Err(Attempt::Untrusted { reason, complete }) => {
                self.leave_context(model, reason.clone(), complete);
                Err(Error::ResultUntrusted(format!("{first}; again: {reason}")))
            }
        }
    }

    /// Runs a model once.
    fn attempt(
        &mut self,
        model: &Arc<Model>,
        inputs: &[bytes::Bytes],
    ) -> Result<(Vec<crate::Tensor>, Duration), Attempt> {
        let device = self.device().map_err(Attempt::Fatal)?;
        let resident = self.models.get_mut(&model.info.name).filter(|resident| Arc::ptr_eq(&resident.model, model));
        // A request that was admitted before its model was replaced or unloaded is still served by that model.
        let mut past = None;
        let slot = resident.map_or(&mut past, |resident| &mut resident.session);
        let session = match slot {
            Some(session) => session,
            empty => empty.insert(Session::new(model, &device).map_err(Attempt::Fatal)?),
        };
        let faults = self.shared.monitor.as_ref().map(|monitor| monitor.faults());
        let result = session.run(inputs, self.shared.options.patience);
        let monitor = self.shared.monitor.as_ref().zip(faults);
        self.heard = monitor
            .filter(|(monitor, before)| monitor.faults() != *before)
            .map(|(monitor, _)| monitor.last().unwrap_or_default());
        match (&self.heard, result) {
            (Some(line), Ok(_)) => {
                Err(Attempt::Untrusted { reason: format!("the kernel reported {line:?}"), complete: true })
            }
            (_, result) => result,
        }
    }

    /// Leaves the present context, whose state nobody knows.
    fn leave_context(&mut self, model: &Arc<Model>, reason: String, complete: bool) {
        let job = self.job_kind(model, complete);
        for resident in self.models.values_mut() {
            resident.session = None;
        }
        self.device = None;
        Tally::add(&self.shared.tally.contexts_replaced, 1);
        let (model, kernel_line) = (model.info.name.clone(), self.heard.take());
        let event = Event::ContextReplaced { context: self.index, model, job, reason, kernel_line };
        // Nobody listening is not an error.
        let _ = self.shared.events.send(event);
    }
}

fn in_time(deadline: Option<Instant>, stage: &'static str) -> Result<()> {
    let now = Instant::now();
    match deadline.filter(|deadline| *deadline <= now) {
        Some(deadline) => Err(Error::DeadlineExceeded { late: now - deadline, stage }),
        None => Ok(()),
    }
}
