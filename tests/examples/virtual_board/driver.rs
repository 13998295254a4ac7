//! The driver by its ioctls: what it computes, what it counts, and what it says when jobs go wrong.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use npu::Resident;
use npu_device::kernel::Rocket;
use npu_device::{Deadline, Device, Driver, Errno, JobFlags, Task};

use crate::clients::{self, Limit, NODE};
use crate::kernel;
use crate::port::{Counter, Lever, Port};
use crate::recorder::{OwnedJob, Recorder};
use crate::sample::{self, PATIENCE, Sample, block, chain_of};
use crate::tap::{Tap, same};

pub(crate) type Outcome = Result<(), String>;

/// Where the link's address stands in a program of 126 words. SOURCE: npu-spec 2.3.
const LINK_BYTE: usize = 122 * 8;
/// More tasks than one kick can have. SOURCE: npu-spec 2.3.
const TOO_MANY: usize = 4096;

/// What every check has.
pub(crate) struct Bench {
    /// Whether the driver has our patches.
    pub(crate) patched: bool,
    pub(crate) port: Port,
    /// 64 tasks in one job.
    pub(crate) sample: Sample,
    /// How long crowds of clients work.
    crowd: Limit,
}

/// A sample on the driver, having run once.
pub(crate) struct Loaded<'a> {
    bench: &'a Bench,
    pub(crate) device: Arc<Recorder>,
    resident: Resident,
    pub(crate) job: OwnedJob,
}

/// How a job ends that cannot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    /// By the driver's watchdog.
    Timeout,
    /// At once, where the driver looks at the error.
    Error,
}

/// A sentence, and what shows that it is true.
type Check = (&'static str, fn(&Bench) -> Outcome);
/// What every driver is checked for.
const CHECKS: &[Check] = &[
    ("the driver says which it is", version),
    ("networks give the simulator's bytes", networks),
    ("a job of 64 tasks is as many kicks and interrupts as it should", kicks),
    ("a wait ends at its deadline", deadline),
    ("a job that hangs", hang),
    ("a page fault by a lever", fault),
    ("a program at an address that is not mapped", unmapped),
    ("an IOMMU that does not stall", stall),
    ("a task without words", no_words),
    ("a job without tasks", no_tasks),
    ("a buffer that does not exist", no_buffer),
    ("a buffer named twice", twice),
    ("a network runs again after its job failed", again),
    ("an access that fails is no warning", kernel::no_warning),
    ("a core that faulted is reset before its IOMMU is stalled", kernel::reset_first),
    ("the IOMMU is left alone between the jobs of a file", kernel::attached),
    ("no reference to the IOMMU's group is left behind", kernel::group_references),
    ("every clock of the core runs while it computes", kernel::clocks),
    ("a buffer of 2 GiB", kernel::large_buffer),
];

/// What a patched driver is checked for as well.
const PATCHED: &[Check] = &[
    ("a chain that is cut", cut_chain),
    ("more tasks than one kick can have", too_many),
    ("a flag that does not exist", flag),
    ("a job that ends in the pooling unit", pooling),
    ("a batch that interrupts after its first task as well is waited for", first_task),
    ("a buffer that cannot be had leaves no handle", kernel::no_memory),
    ("an interrupt that was left over does not end the next job", left_over),
    ("the compute clock is what the device tree asks for", kernel::compute_clock),
    ("the timeout is a parameter", kernel::timeout_parameter),
    ("files of a driver with one core leave nothing behind", kernel::single_core),
    ("a file that is closed during its job", closed),
    ("crowds of clients leave nothing behind", crowds),
    ("all cores worked", cores),
    ("cores may be unbound and bound again in another order", kernel::other_order),
    ("cores may be unbound while a file is open", kernel::open_file),
    ("a core sleeps after its job failed", kernel::sleeps),
];

/// What a stock driver is not checked for, because it does not survive it.
const DEADLY: &[&str] = &["a file that is closed during its job", "crowds of clients leave nothing behind"];

/// Checks the driver that is loaded. `crowd`: how long crowds of clients work.
pub(crate) fn run(patched: bool, crowd: Limit) -> ExitCode {
    let bench = Bench { patched, port: Port::open(), sample: chain_of(64), crowd };
    let mut tap = Tap::default();
    let name = if patched { "patched" } else { "stock" };
    let more = if patched { PATCHED } else { &[] };
    for (what, check) in CHECKS.iter().chain(more) {
        match kernel::lacks(what) {
            Some(why) => tap.skip(&format!("{name}: {what}"), why),
            None => tap.check(&format!("{name}: {what}"), check(&bench)),
        }
    }
    for what in DEADLY.iter().filter(|_| !patched) {
        tap.skip(&format!("stock: {what}"), "the stock driver uses freed memory and takes the kernel down");
    }
    tap.check(
        &format!("{name}: the driver used nothing that the hardware does not have"),
        same("refused accesses", bench.port.count(Counter::Refused), 0),
    );
    tap.finish()
}

/// One check alone, also one that the driver does not survive.
pub(crate) fn check(patched: bool, crowd: Limit, name: &str) -> ExitCode {
    let Some((_, check)) = CHECKS.iter().chain(PATCHED).find(|(what, _)| *what == name) else {
        eprintln!("there is no check `{name}`");
        return ExitCode::FAILURE;
    };
    let bench = Bench { patched, port: Port::open(), sample: chain_of(64), crowd };
    let mut tap = Tap::default();
    tap.check(name, check(&bench));
    tap.finish()
}

impl Bench {
    pub(crate) fn open(&self) -> Result<Loaded<'_>, String> {
        let device = Recorder::new(Rocket::at(NODE).open().map_err(|error| sample::chain(&error))?);
        let seam: Arc<dyn Device> = device.clone();
        let mut resident = self.sample.load(&seam)?;
        self.sample.check(&mut resident)?;
        let job = device.last();
        Ok(Loaded { bench: self, device, resident, job })
    }

    /// What PREP says of a job that failed: nothing where the driver is stock.
    fn failure(&self) -> Option<Errno> {
        self.patched.then_some(Errno::IO)
    }

    /// What SUBMIT says of a job that it drops: nothing where the driver is stock.
    fn refusal(&self, errno: Errno) -> Option<Errno> {
        self.patched.then_some(errno)
    }

    /// Whether a sample still runs on a new file.
    pub(crate) fn works(&self) -> Outcome {
        self.open().map(drop)
    }
}

impl Loaded<'_> {
    pub(crate) fn prep(&self, deadline: Deadline) -> Option<Errno> {
        self.device.inner.prep_bo(self.job.outputs[0], deadline).err().map(|error| error.errno().unwrap())
    }

    /// Waits for the job as long as it takes.
    pub(crate) fn wait(&self) -> Option<Errno> {
        self.prep(Deadline::after(&*self.device, PATIENCE))
    }

    pub(crate) fn submit(&self, job: &OwnedJob) -> Option<Errno> {
        job.submit(&*self.device.inner).err().map(|error| error.errno().unwrap())
    }

    /// That a job that cannot end is ended, reported as this driver reports it, and does not harm the next one.
    fn fails(self, job: &OwnedJob, ending: Ending) -> Outcome {
        let resets = self.bench.port.count(Counter::Resets);
        let before = self.device.now();
        same("SUBMIT", self.submit(job), None)?;
        same("PREP_BO", self.wait(), self.bench.failure())?;
        let took = self.device.now() - before;
        let at_once = self.bench.patched && ending == Ending::Error;
        if (took < Duration::from_millis(450)) != at_once {
            return Err(format!("the driver gave up after {took:?} of its own clock"));
        }
        if self.bench.port.count(Counter::Resets) == resets {
            return Err("the core was not reset".into());
        }
        same("the next SUBMIT", self.submit(&self.job), None)?;
        same("the next PREP_BO", self.wait(), None)?;
        self.bench.works().map_err(|why| format!("a new file: {why}"))
    }

    /// That a job is not run, and does not harm the next one.
    fn refused(mut self, job: &OwnedJob, errno: Errno) -> Outcome {
        let kicks = self.bench.port.kicks();
        same("SUBMIT", self.submit(job), self.bench.refusal(errno))?;
        same("PREP_BO", self.wait(), None)?;
        same("kicks", self.bench.port.kicks() - kicks, 0)?;
        self.bench.sample.check(&mut self.resident).map_err(|why| format!("the next job: {why}"))
    }
}

fn version(bench: &Bench) -> Outcome {
    let device = Rocket::at(NODE).open().map_err(|error| sample::chain(&error))?;
    same("name", device.info().name.as_str(), "rocket")?;
    same("batched submit", device.info().has_batched_submit(), bench.patched)
}

fn networks(_: &Bench) -> Outcome {
    let device: Arc<dyn Device> = Rocket::at(NODE).open().map_err(|error| sample::chain(&error))?;
    for sample in (0..6).map(block).chain([sample::large()]) {
        let mut resident = sample.load(&device)?;
        for _ in 0..2 {
            sample.check(&mut resident)?;
        }
    }
    Ok(())
}

fn kicks(bench: &Bench) -> Outcome {
    let Loaded { mut resident, .. } = bench.open()?;
    let count = || (bench.port.kicks(), bench.port.count(Counter::Interrupts), bench.port.count(Counter::Tasks));
    let before = count();
    bench.sample.check(&mut resident)?;
    let after = count();
    let tasks = bench.sample.tasks() as u64;
    let kicks = if bench.patched { 1 } else { tasks };
    same("tasks of the sample", tasks, 64)?;
    same(
        "kicks, interrupts, tasks",
        (after.0 - before.0, after.1 - before.1, after.2 - before.2),
        (kicks, kicks, tasks),
    )
}

fn deadline(bench: &Bench) -> Outcome {
    let loaded = bench.open()?;
    bench.port.pull(Lever::Slow, 200_000);
    same("SUBMIT", loaded.submit(&loaded.job), None)?;
    same("poll", loaded.prep(Deadline::POLL), Some(Errno::BUSY))?;
    same("1 ms", loaded.prep(Deadline::after(&*loaded.device, Duration::from_millis(1))), Some(Errno::TIMEDOUT))?;
    same("long enough", loaded.wait(), None)?;
    same("poll afterwards", loaded.prep(Deadline::POLL), None)
}

fn hang(bench: &Bench) -> Outcome {
    let loaded = bench.open()?;
    let hangs = bench.port.count(Counter::Hangs);
    bench.port.pull(Lever::Hang, 0);
    let job = loaded.job.clone();
    loaded.fails(&job, Ending::Timeout)?;
    same("hangs", bench.port.count(Counter::Hangs) - hangs, 1)
}

fn fault(bench: &Bench) -> Outcome {
    let loaded = bench.open()?;
    let faults = bench.port.count(Counter::PageFaults);
    bench.port.pull(Lever::Fault, 0);
    let job = loaded.job.clone();
    loaded.fails(&job, Ending::Error)?;
    same("page faults", bench.port.count(Counter::PageFaults) - faults, 1)
}

fn unmapped(bench: &Bench) -> Outcome {
    let loaded = bench.open()?;
    let faults = bench.port.count(Counter::PageFaults);
    let tasks = vec![Task { dma: 0xf000_0000, words: 126 }];
    let job = OwnedJob { tasks, ..loaded.job.clone() };
    loaded.fails(&job, Ending::Error)?;
    same("page faults", bench.port.count(Counter::PageFaults) - faults, 1)
}

fn stall(bench: &Bench) -> Outcome {
    let mut loaded = bench.open()?;
    bench.port.pull(Lever::Stall, 1);
    let _ = bench.sample.run(&mut loaded.resident);
    bench.port.pull(Lever::Stall, 0);
    bench.sample.check(&mut loaded.resident)?;
    bench.works()
}

/// The third program of eight leads nowhere.
fn cut_chain(bench: &Bench) -> Outcome {
    let loaded = bench.open()?;
    let job = OwnedJob { tasks: loaded.job.tasks[..8].to_vec(), ..loaded.job.clone() };
    let first = job.tasks[0].dma;
    let (memory, handle) = loaded.device.memory(first);
    let at = (job.tasks[2].dma - first) as usize + LINK_BYTE;
    let mut link = [0; 8];
    memory.read(at, &mut link);
    let store = |word: &[u8]| {
        memory.write(at, word);
        loaded.device.inner.fini_bo(handle).map_err(|error| sample::chain(&error))
    };
    store(&[0; 8])?;
    let tasks = bench.port.count(Counter::Tasks);
    same("SUBMIT", loaded.submit(&job), None)?;
    same("PREP_BO", loaded.wait(), bench.failure())?;
    same("tasks", bench.port.count(Counter::Tasks) - tasks, 3)?;
    store(&link)?;
    bench.works()
}

fn too_many(bench: &Bench) -> Outcome {
    let loaded = bench.open()?;
    let job = OwnedJob { tasks: vec![loaded.job.tasks[0]; TOO_MANY], ..loaded.job.clone() };
    loaded.refused(&job, Errno::INVAL)
}

fn no_words(bench: &Bench) -> Outcome {
    let loaded = bench.open()?;
    let tasks = vec![Task { words: 0, ..loaded.job.tasks[0] }];
    let job = OwnedJob { tasks, ..loaded.job.clone() };
    loaded.refused(&job, Errno::INVAL)
}

fn no_tasks(bench: &Bench) -> Outcome {
    let loaded = bench.open()?;
    let job = OwnedJob { tasks: Vec::new(), ..loaded.job.clone() };
    loaded.refused(&job, Errno::INVAL)
}

fn no_buffer(bench: &Bench) -> Outcome {
    let loaded = bench.open()?;
    let job = OwnedJob { inputs: vec![9999], ..loaded.job.clone() };
    loaded.refused(&job, Errno::NOENT)
}

/// QUIRK(Q29): the second lock of the same reservation fails.
fn twice(bench: &Bench) -> Outcome {
    let loaded = bench.open()?;
    let job = OwnedJob { inputs: loaded.job.outputs.clone(), ..loaded.job.clone() };
    loaded.refused(&job, Errno::ALREADY)
}

fn flag(bench: &Bench) -> Outcome {
    let loaded = bench.open()?;
    let job = OwnedJob { flags: JobFlags { no_dpu_done: true, ..loaded.job.flags }, ..loaded.job.clone() };
    loaded.refused(&job, Errno::INVAL)
}

/// A network is loaded once and has to survive what becomes of its jobs.
fn again(bench: &Bench) -> Outcome {
    let mut loaded = bench.open()?;
    for lever in [Lever::Hang, Lever::Fault] {
        bench.port.pull(lever, 0);
        if bench.sample.run(&mut loaded.resident).is_ok() {
            return Err(format!("{lever:?}: the run has a result"));
        }
        bench.sample.check(&mut loaded.resident).map_err(|why| format!("after {lever:?}: {why}"))?;
    }
    Ok(())
}

/// What the job waits for is told apart from what it does not, and ends it at once.
fn pooling(bench: &Bench) -> Outcome {
    let loaded = bench.open()?;
    bench.port.pull(Lever::Pooling, 1);
    let pooling = OwnedJob { flags: JobFlags { ppu_done: true, ..loaded.job.flags }, ..loaded.job.clone() };
    let before = loaded.device.now();
    let submitted = loaded.submit(&pooling);
    let waited = loaded.wait();
    let took = loaded.device.now() - before;
    bench.port.pull(Lever::Pooling, 0);
    same("SUBMIT", submitted, None)?;
    same("PREP_BO", waited, None)?;
    if took >= Duration::from_millis(450) {
        return Err(format!("the job took {took:?}"));
    }
    bench.works()
}

/// It is not known whether the hardware interrupts after each task of a batch or after the last, so both must work.
fn first_task(bench: &Bench) -> Outcome {
    const WORK: Duration = Duration::from_millis(100);
    let loaded = bench.open()?;
    let interrupts = bench.port.count(Counter::Interrupts);
    bench.port.pull(Lever::First, 1);
    bench.port.pull(Lever::Slow, 100_000);
    let before = loaded.device.now();
    let submitted = loaded.submit(&loaded.job);
    let waited = loaded.wait();
    let took = loaded.device.now() - before;
    bench.port.pull(Lever::First, 0);
    same("SUBMIT", submitted, None)?;
    same("PREP_BO", waited, None)?;
    same("interrupts", bench.port.count(Counter::Interrupts) - interrupts, 2)?;
    if took < WORK {
        return Err(format!("a job of {WORK:?} ended after {took:?}"));
    }
    bench.works()
}

fn left_over(bench: &Bench) -> Outcome {
    const WORK: Duration = Duration::from_millis(100);
    let loaded = bench.open()?;
    let stops = bench.port.count(Counter::Stops);
    bench.port.pull(Lever::Slow, 100_000);
    bench.port.pull(Lever::Spurious, 0);
    let before = loaded.device.now();
    same("SUBMIT", loaded.submit(&loaded.job), None)?;
    same("PREP_BO", loaded.wait(), None)?;
    let took = loaded.device.now() - before;
    if took < WORK {
        return Err(format!("a job of {WORK:?} ended after {took:?}"));
    }
    same("cores stopped while they computed", bench.port.count(Counter::Stops) - stops, 0)?;
    bench.works()
}

fn closed(bench: &Bench) -> Outcome {
    for _ in 0..4 {
        let loaded = bench.open()?;
        bench.port.pull(Lever::Slow, 100_000);
        same("SUBMIT", loaded.submit(&loaded.job), None)?;
        drop(loaded);
    }
    bench.works()
}

fn crowds(bench: &Bench) -> Outcome {
    clients::leaks(bench.crowd)
}

fn cores(bench: &Bench) -> Outcome {
    let idle = |counter| bench.port.count(counter) == 0;
    let idle = [Counter::Kicks0, Counter::Kicks1, Counter::Kicks2].map(idle);
    same("cores without a kick", idle, [false; 3])
}
