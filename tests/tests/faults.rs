//! Whatever goes wrong on the NPU, no wrong tensor leaves the engine.
//!
//! Levers of the simulator spoil jobs by chance, in every way that a job is known to fail on a board, while requests
//! run. An answer equals the one that a healthy NPU gives, or it is an error with a name.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use engine::{Engine, Error, Input, Reply, Request, Tensor, Verdict};
use npu_sim::{Lever, Levers, Rates, Simulator};
use rand::rngs::StdRng;
use rand::{RngCore, SeedableRng};

/// The seed of all chance here; another one is set with this variable.
const SEED: (&str, u64) = ("CAIRN_SEED", 0x6361_6972_6e01);
/// Different inputs per model.
const INPUTS: usize = 8;
/// Two small models that are loaded side by side.
const MODELS: [&str; 2] = ["mnist", "mnist-v2"];

/// An input of a model, and what a healthy NPU answers.
struct Case {
    model: String,
    inputs: Vec<Tensor>,
    outputs: Vec<Tensor>,
}

/// How requests ended.
#[derive(Debug, Default)]
struct Outcomes {
    equal: usize,
    wrong: usize,
    retried: usize,
    untrusted: usize,
    others: BTreeMap<String, usize>,
}

impl Outcomes {
    /// Counts an outcome.
    ///
    /// # Panics
    /// An error that a fault of the NPU must not cause.
    fn count(&mut self, case: &Case, reply: Result<Reply, Error>) {
        match reply {
            Ok(reply) => {
                let equal = reply.outputs == case.outputs;
                self.equal += usize::from(equal);
                self.wrong += usize::from(!equal);
                self.retried += usize::from(reply.verdict == Verdict::TrustedAfterRetry);
            }
            Err(Error::ResultUntrusted(_)) => self.untrusted += 1,
            Err(error @ (Error::DeviceLost(_) | Error::OutOfMemory(_))) => {
                *self.others.entry(error.to_string()).or_default() += 1;
            }
            Err(error) => panic!("{}: {error}", case.model),
        }
    }
}

/// An engine on a simulator with the small models.
struct Bench {
    simulator: Simulator,
    engine: Engine,
    runtime: tokio::runtime::Runtime,
}

impl Bench {
    fn new(options: npu_sim::Options, watch_kernel_log: bool, contexts: usize) -> Self {
        let simulator = Simulator::new(options);
        let monitor = watch_kernel_log.then(|| simulator.fault_monitor());
        let options = engine::Options { contexts, ..engine::Options::default() };
        let engine = Engine::start(Arc::new(simulator.clone()), monitor, options).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        for model in MODELS {
            runtime.block_on(engine.load(&models().join(model))).unwrap();
        }
        Self { simulator, engine, runtime }
    }

    fn infer(&self, case: &Case) -> Result<Reply, Error> {
        self.runtime.block_on(self.engine.submit(case.request())?)
    }

    /// Random inputs of every model with the answers of the healthy NPU.
    fn cases(&self, rng: &mut StdRng) -> Vec<Case> {
        let mut cases = Vec::new();
        for model in self.engine.models() {
            assert!(model.report.npu_jobs > 0, "{} does not use the NPU, so it proves nothing here", model.name);
            for _ in 0..INPUTS {
                let inputs = model.inputs.iter().map(|info| {
                    let mut data = vec![0; info.bytes()];
                    rng.fill_bytes(&mut data);
                    Tensor { name: info.name.clone(), dtype: info.dtype, shape: info.shape.clone(), data: data.into() }
                });
                let mut case = Case { model: model.name.clone(), inputs: inputs.collect(), outputs: Vec::new() };
                let reply = self.infer(&case).unwrap();
                assert_eq!(reply.verdict, Verdict::Trusted);
                case.outputs = reply.outputs;
                cases.push(case);
            }
        }
        assert!(different(&cases), "all answers are equal, so a stale one would not be seen");
        cases
    }

    /// Sends `requests` requests, `at_once` at a time.
    fn storm(&self, cases: &[Case], requests: usize, at_once: usize) -> Outcomes {
        let mut outcomes = Outcomes::default();
        let order: Vec<&Case> = cases.iter().cycle().take(requests).collect();
        for batch in order.chunks(at_once) {
            let pending: Vec<_> = batch.iter().map(|case| (case, self.engine.submit(case.request()))).collect();
            for (case, pending) in pending {
                let reply = pending.and_then(|pending| self.runtime.block_on(pending));
                outcomes.count(case, reply);
            }
        }
        println!("{outcomes:?}\n{}", self.simulator.counters());
        assert_eq!(outcomes.wrong, 0, "wrong tensors left the engine: {outcomes:?}");
        outcomes
    }
}

impl Case {
    fn request(&self) -> Request {
        Request {
            model: self.model.clone(),
            input: Input::Tensors(self.inputs.clone()),
            priority: engine::Priority::default(),
            deadline: None,
        }
    }
}

/// Whether each model gives at least two different answers.
fn different(cases: &[Case]) -> bool {
    MODELS.iter().all(|model| {
        let mut answers = cases.iter().filter(|case| case.model == *model).map(|case| &case.outputs);
        let first = answers.next();
        answers.any(|answer| Some(answer) != first)
    })
}

fn models() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/models"))
}

fn seed() -> u64 {
    let seed = std::env::var(SEED.0).ok().map_or(SEED.1, |text| text.parse().expect("a seed is a number"));
    println!("{}={seed}", SEED.0);
    seed
}

/// Every kind of fault at the same rate.
fn rates(each: f64) -> Rates {
    Rates { hang: each, iommu_fault: each, slow: each, partial_write: each, lost_write: each, swallowed_submit: each }
}

fn check_storm(options: npu_sim::Options, watch_kernel_log: bool, contexts: usize, requests: usize) {
    let seed = seed();
    let bench = Bench::new(options, watch_kernel_log, contexts);
    let cases = bench.cases(&mut StdRng::seed_from_u64(seed));
    bench.simulator.inject_random(Some(Levers::random(seed, rates(0.02))));
    let outcomes = bench.storm(&cases, requests, contexts);
    bench.simulator.inject_random(None);
    assert!(outcomes.retried > requests / 100, "too few faults were met to prove anything: {outcomes:?}");
    assert!(outcomes.untrusted > 0, "no request met two faults: {outcomes:?}");
    assert!(outcomes.equal > requests * 9 / 10, "too few requests were answered: {outcomes:?}");
    let after = bench.storm(&cases, cases.len(), 1);
    assert_eq!(after.equal, cases.len(), "the engine did not recover: {after:?}");
}

#[test]
fn ten_thousand_requests_among_random_faults_give_no_wrong_tensor() {
    check_storm(npu_sim::Options::default(), true, 1, 10_000);
}

#[test]
fn no_kind_of_fault_alone_gives_a_wrong_tensor() {
    let seed = seed();
    let bench = Bench::new(npu_sim::Options::default(), true, 1);
    let cases = bench.cases(&mut StdRng::seed_from_u64(seed));
    let none = Rates::default();
    for rates in [
        Rates { hang: 0.1, ..none.clone() },
        Rates { iommu_fault: 0.1, ..none.clone() },
        Rates { slow: 0.1, ..none.clone() },
        Rates { partial_write: 0.1, ..none.clone() },
        Rates { lost_write: 0.1, ..none.clone() },
        Rates { swallowed_submit: 0.1, ..none.clone() },
    ] {
        println!("{rates:?}");
        bench.simulator.inject_random(Some(Levers::random(seed, rates)));
        let outcomes = bench.storm(&cases, 1000, 1);
        assert!(outcomes.retried > 0, "no fault was met: {outcomes:?}");
    }
}

#[test]
fn without_the_kernel_log_no_wrong_tensor_leaves_either() {
    check_storm(npu_sim::Options::default(), false, 1, 3000);
}

#[test]
fn a_driver_with_batched_submit_gives_no_wrong_tensor() {
    check_storm(npu_sim::Options::batched(), true, 1, 3000);
}

#[test]
fn contexts_side_by_side_give_no_wrong_tensor() {
    check_storm(npu_sim::Options::default(), true, 3, 3000);
}

#[test]
fn a_fault_of_one_model_leaves_the_other_alone() {
    let bench = Bench::new(npu_sim::Options::default(), true, 1);
    let cases = bench.cases(&mut StdRng::seed_from_u64(seed()));
    let of = |model| cases.iter().find(|case| case.model == model).expect("every model has cases");
    let (one, other) = (of(MODELS[0]), of(MODELS[1]));
    for lever in [Lever::Hang { task: 0 }, Lever::IommuFault { task: 0 }, Lever::SwallowedSubmit] {
        // Both attempts are spoiled.
        bench.simulator.inject(lever.clone());
        bench.simulator.inject(lever.clone());
        let reply = bench.infer(one);
        assert!(matches!(reply, Err(Error::ResultUntrusted(_))), "{lever:?}: {reply:?}");
        for case in [other, one] {
            let reply = bench.infer(case).unwrap();
            assert_eq!(reply.outputs, case.outputs, "{lever:?}");
            assert_eq!(reply.verdict, Verdict::Trusted, "{lever:?}");
        }
    }
}

#[test]
fn one_fault_is_answered_by_a_second_attempt() {
    let bench = Bench::new(npu_sim::Options::default(), true, 1);
    let cases = bench.cases(&mut StdRng::seed_from_u64(seed()));
    let slow = std::time::Duration::from_millis(600);
    for lever in [
        Lever::Hang { task: 0 },
        Lever::IommuFault { task: 0 },
        Lever::Slow(slow),
        Lever::PartialWrite { task: 0, percent: 50 },
        Lever::LostWrite { task: 0, burst: 0 },
        Lever::SwallowedSubmit,
    ] {
        bench.simulator.inject(lever.clone());
        let reply = bench.infer(&cases[0]).unwrap();
        assert_eq!(reply.outputs, cases[0].outputs, "{lever:?}");
        assert_eq!(reply.verdict, Verdict::TrustedAfterRetry, "{lever:?} went unnoticed");
    }
}
