//! What the kernel shows of the driver beside its ioctls: the log, clocks, memory in use, calls of functions, cores that come and go.

use std::fs;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use npu_device::kernel::Rocket;
use npu_device::{Deadline, Device, Driver, Errno};

use crate::clients::NODE;
use crate::driver::{Bench, Outcome};
use crate::port::{Counter, Lever};
use crate::recorder::OwnedJob;
use crate::sample::{self, PATIENCE};
use crate::tap::same;

/// The driver's folder: cores are bound and unbound here.
const DRIVER: &str = "/sys/bus/platform/drivers/rocket";
const CORES: [&str; 3] = ["fdab0000.npu", "fdac0000.npu", "fdad0000.npu"];
/// Where the board's first program mounts what it is named for.
const TRACING: &str = "/sys/kernel/tracing";
const COMPUTE_CLOCK: &str = "/sys/kernel/debug/clk/scmi_clk_npu/clk_enable_count";
/// A group whose members may have little memory, and the group of all.
const SMALL_GROUP: &str = "/sys/fs/cgroup/small";
const ROOT_GROUP: &str = "/sys/fs/cgroup";
/// Names the file that the driver was loaded from.
const MODULE: &str = "ROCKET_MODULE";
/// TIMEOUT: on the board's clock; the driver lets a core sleep 50 ms after its last job.
const ASLEEP: Duration = Duration::from_secs(5);
/// What the board must have for a buffer of 2 GiB, with the kernel and the programs beside it.
const LARGE_KIB: u64 = 2600 << 10;

/// Why a check cannot be made on this machine.
pub(crate) fn lacks(check: &str) -> Option<&'static str> {
    (check == "a buffer of 2 GiB" && memory_kib() < LARGE_KIB).then_some("needs `--memory 3000`")
}

fn memory_kib() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:")).unwrap();
    line.trim_end_matches("kB").trim().parse().unwrap()
}

/// Lines of the kernel's log with a text.
fn logged(text: &str) -> usize {
    let output = Command::new("dmesg").output().unwrap();
    String::from_utf8_lossy(&output.stdout).lines().filter(|line| line.contains(text)).count()
}

fn run(command: &str, arguments: &[&str]) -> Outcome {
    let output = Command::new(command).args(arguments).output().unwrap();
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{command} {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr)))
}

fn write(path: &str, text: &str) -> Outcome {
    fs::write(path, text).map_err(|error| format!("{path}: {error}"))
}

/// Spoils a job by an access that fails, and tells how often a text was logged because of it.
fn logged_by_fault(bench: &Bench, text: &str) -> Result<usize, String> {
    let loaded = bench.open()?;
    let before = logged(text);
    bench.port.pull(Lever::Fault, 0);
    same("SUBMIT", loaded.submit(&loaded.job), None)?;
    loaded.wait();
    bench.works()?;
    Ok(logged(text) - before)
}

pub(crate) fn no_warning(bench: &Bench) -> Outcome {
    let warnings = logged_by_fault(bench, "rocket_job_irq_handler")?;
    same("the handler warned", warnings > 0, !bench.patched)
}

pub(crate) fn reset_first(bench: &Bench) -> Outcome {
    let timeouts = logged_by_fault(bench, "request timed out")?;
    same("a request to the IOMMU timed out", timeouts > 0, !bench.patched)
}

/// Of a second job: its interrupt, which the IOMMU shares, makes it look at its banks; two at most.
pub(crate) fn attached(bench: &Bench) -> Outcome {
    let loaded = bench.open()?;
    let job = OwnedJob { tasks: loaded.job.tasks[..1].to_vec(), ..loaded.job.clone() };
    let run = || same("SUBMIT", loaded.submit(&job), None).and_then(|()| same("PREP_BO", loaded.wait(), None));
    run()?;
    let before = bench.port.count(Counter::IommuAccesses);
    run()?;
    let accesses = bench.port.count(Counter::IommuAccesses) - before;
    println!("# {accesses} accesses to the IOMMU by a job of one task");
    same(&format!("{accesses} accesses are few"), accesses <= 4, bench.patched)
}

/// Calls of kernel functions while `work` runs: a line for each, with the second argument as `value=`.
fn calls(functions: &[&str], work: impl FnOnce() -> Outcome) -> Result<Vec<String>, String> {
    let [probes, enable, trace] =
        ["kprobe_events", "events/kprobes/enable", "trace"].map(|name| format!("{TRACING}/{name}"));
    let lines: Vec<String> = functions.iter().map(|name| format!("p:{name} {name} value=%x1")).collect();
    write(&probes, &lines.join("\n"))?;
    write(&trace, "")?;
    write(&enable, "1")?;
    let worked = work();
    write(&enable, "0")?;
    let text = fs::read_to_string(&trace).map_err(|error| error.to_string())?;
    write(&probes, "\n")?;
    worked?;
    Ok(text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect())
}

pub(crate) fn group_references(bench: &Bench) -> Outcome {
    let loaded = bench.open()?;
    let calls = calls(&["iommu_group_get", "iommu_group_put"], || {
        for _ in 0..8 {
            same("SUBMIT", loaded.submit(&loaded.job), None)?;
            same("PREP_BO", loaded.wait(), None)?;
        }
        Ok(())
    })?;
    let count = |name: &str| calls.iter().filter(|line| line.contains(name)).count();
    let (taken, given) = (count("iommu_group_get:"), count("iommu_group_put:"));
    same(&format!("{taken} taken, {given} given back, the same"), taken == given, bench.patched)
}

pub(crate) fn clocks(bench: &Bench) -> Outcome {
    let loaded = bench.open()?;
    bench.port.pull(Lever::Slow, 100_000);
    let kicks = bench.port.kicks();
    same("SUBMIT", loaded.submit(&loaded.job), None)?;
    await_kicks(bench, kicks + 1)?;
    let running = fs::read_to_string(COMPUTE_CLOCK).map_err(|error| format!("{COMPUTE_CLOCK}: {error}"))?;
    same("PREP_BO", loaded.wait(), None)?;
    same("the compute clock runs", running.trim() != "0", bench.patched)
}

/// Waits until the cores were kicked so often.
fn await_kicks(bench: &Bench, kicks: u64) -> Outcome {
    let start = Instant::now();
    while bench.port.kicks() < kicks {
        if start.elapsed() > PATIENCE {
            return Err(format!("{} kicks instead of {kicks}", bench.port.kicks()));
        }
        thread::yield_now();
    }
    Ok(())
}

/// The size does not fit the number that it was kept in.
pub(crate) fn large_buffer(bench: &Bench) -> Outcome {
    let device = Rocket::at(NODE).open().map_err(|error| sample::chain(&error))?;
    let made = device.create_bo(2 << 30);
    same(
        "CREATE_BO",
        made.as_ref().err().and_then(npu_device::Error::errno),
        (!bench.patched).then_some(Errno::NOMEM),
    )?;
    if let Ok(bo) = made {
        device.close_bo(bo.handle).map_err(|error| sample::chain(&error))?;
    }
    drop(device);
    bench.works()
}

/// Handles count from 1 in a new file.
pub(crate) fn no_memory(bench: &Bench) -> Outcome {
    let device = Rocket::at(NODE).open().map_err(|error| sample::chain(&error))?;
    let process = std::process::id().to_string();
    write(&format!("{ROOT_GROUP}/cgroup.subtree_control"), "+memory")?;
    fs::create_dir_all(SMALL_GROUP).map_err(|error| error.to_string())?;
    write(&format!("{SMALL_GROUP}/memory.max"), "32M")?;
    write(&format!("{SMALL_GROUP}/cgroup.procs"), &process)?;
    let made = device.create_bo(256 << 20);
    write(&format!("{ROOT_GROUP}/cgroup.procs"), &process)?;
    same("CREATE_BO", made.err().and_then(|error| error.errno()), Some(Errno::NOMEM))?;
    let closed = device.close_bo(1);
    same("GEM_CLOSE", closed.err().and_then(|error| error.errno()), Some(Errno::INVAL))?;
    drop(device);
    bench.works()
}

/// The first core's node asks for 600 MHz, the second's for too much, the third's for nothing. SOURCE: tests/board/npu.dtso.
pub(crate) fn compute_clock(bench: &Bench) -> Outcome {
    same("700 MHz are refused", logged("compute clock of 700000000 Hz is over") > 0, true)?;
    let calls = calls(&["clk_set_rate"], || {
        // A core that is bound is resumed, and asks.
        unbind(CORES[0])?;
        bind(CORES[0])?;
        bench.works()
    })?;
    same("clk_set_rate was called", calls.is_empty(), false)?;
    let rate = format!("value={:#x}", 600_000_000);
    let other: Vec<_> = calls.iter().filter(|line| !line.contains(&rate)).collect();
    same("calls but for 600 MHz", other, Vec::new())
}

/// The driver is unloaded and loaded again with a parameter.
pub(crate) fn timeout_parameter(bench: &Bench) -> Outcome {
    let module = std::env::var(MODULE).map_err(|_| format!("{MODULE} does not name the driver"))?;
    run("rmmod", &["rocket"])?;
    run("insmod", &[&module, "rocket_timeout_ms=3000"])?;
    let took = hang(bench);
    run("rmmod", &["rocket"])?;
    run("insmod", &[&module])?;
    let took = took?;
    if took < Duration::from_millis(2900) {
        return Err(format!("a timeout of 3 s took {took:?}"));
    }
    bench.works()
}

/// How long it takes until a job of one task that hangs is ended.
fn hang(bench: &Bench) -> Result<Duration, String> {
    let loaded = bench.open()?;
    let job = OwnedJob { tasks: loaded.job.tasks[..1].to_vec(), ..loaded.job.clone() };
    bench.port.pull(Lever::Hang, 0);
    let before = loaded.device.now();
    same("SUBMIT", loaded.submit(&job), None)?;
    same("PREP_BO", loaded.wait(), Some(Errno::IO))?;
    Ok(loaded.device.now() - before)
}

/// Objects in use in the caches of kmalloc.
fn objects() -> Result<i64, String> {
    let text = fs::read_to_string("/proc/slabinfo").map_err(|error| error.to_string())?;
    let caches = text.lines().filter(|line| line.starts_with("kmalloc"));
    let counts = caches.map(|line| line.split_whitespace().nth(1).and_then(|count| count.parse::<i64>().ok()));
    counts.sum::<Option<i64>>().ok_or_else(|| "/proc/slabinfo has another form".into())
}

fn unbind(core: &str) -> Outcome {
    write(&format!("{DRIVER}/unbind"), core)
}

fn bind(core: &str) -> Outcome {
    write(&format!("{DRIVER}/bind"), core)
}

pub(crate) fn single_core(bench: &Bench) -> Outcome {
    const FILES: u32 = 1024;
    let open = || Rocket::at(NODE).open().map(drop).map_err(|error| sample::chain(&error));
    CORES[1..].iter().rev().try_for_each(|core| unbind(core))?;
    open()?;
    let before = objects()?;
    (0..FILES).try_for_each(|_| open())?;
    let more = objects()? - before;
    CORES[1..].iter().try_for_each(|core| bind(core))?;
    println!("# {more} more objects of kmalloc after {FILES} files");
    same(&format!("{more} objects are a leak"), more > i64::from(FILES) / 2, false)?;
    bench.works()
}

/// The job in flight ends, later ones fail for as long as there is no core, and the node and the file stay what they are.
pub(crate) fn open_file(bench: &Bench) -> Outcome {
    let loaded = bench.open()?;
    bench.port.pull(Lever::Slow, 100_000);
    let kicks = bench.port.kicks();
    same("SUBMIT", loaded.submit(&loaded.job), None)?;
    await_kicks(bench, kicks + 1)?;
    CORES.iter().try_for_each(|core| unbind(core))?;
    same("PREP_BO after the cores went", loaded.prep(Deadline::POLL), None)?;
    same("SUBMIT without cores", loaded.submit(&loaded.job), None)?;
    same("PREP_BO without cores", loaded.wait(), Some(Errno::IO))?;
    let opened = Rocket::at(NODE).open().err().and_then(|error| error.errno());
    same("open without cores", opened, Some(Errno::NODEV))?;
    CORES.iter().try_for_each(|core| bind(core))?;
    same("SUBMIT", loaded.submit(&loaded.job), None)?;
    same("PREP_BO", loaded.wait(), None)?;
    bench.works()
}

/// Whether the cores are suspended as soon as nothing runs, also after a reset.
pub(crate) fn sleeps(bench: &Bench) -> Outcome {
    hang(bench)?;
    let awake = || {
        let status = |core: &&&str| fs::read_to_string(format!("{DRIVER}/{core}/power/runtime_status")).unwrap();
        CORES.iter().filter(|core| status(core).trim() != "suspended").collect::<Vec<_>>()
    };
    let start = Instant::now();
    while start.elapsed() < ASLEEP && !awake().is_empty() {
        thread::yield_now();
    }
    same("cores awake", awake(), Vec::new())
}

/// Afterwards every core still has its own number, which the device checks, and works at the same time as the others.
pub(crate) fn other_order(bench: &Bench) -> Outcome {
    let refused = bench.port.count(Counter::Refused);
    unbind(CORES[0])?;
    unbind(CORES[1])?;
    bind(CORES[1])?;
    bind(CORES[0])?;
    let counters = [Counter::Kicks0, Counter::Kicks1, Counter::Kicks2];
    let before = counters.map(|counter| bench.port.count(counter));
    let loaded = [bench.open()?, bench.open()?, bench.open()?];
    for loaded in &loaded {
        bench.port.pull(Lever::Slow, 100_000);
        same("SUBMIT", loaded.submit(&loaded.job), None)?;
    }
    for loaded in &loaded {
        same("PREP_BO", loaded.wait(), None)?;
    }
    same("refused accesses", bench.port.count(Counter::Refused) - refused, 0)?;
    let idle =
        counters.map(|counter| bench.port.count(counter)).iter().zip(before).filter(|(now, then)| *now == then).count();
    same("idle cores", idle, 0)?;
    bench.works()
}
