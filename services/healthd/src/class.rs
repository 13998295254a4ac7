//! What can go wrong, as data: classes of incidents, and the kernel's words by which each is known.
//!
//! SOURCE for every format: kernel-lines §1c, read in Linux 6.18.15 and 7.1.8; warnings also in 7.3.4, __warn,
//! kernel/panic.c.

use serde::{Deserialize, Serialize};

/// How bad an incident is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// Known to be harmless.
    Note,
    /// Recovered.
    Warning,
    /// Work was lost.
    Error,
    /// The machine is in danger.
    Critical,
}

/// What should be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Advice {
    /// Nothing.
    None,
    /// The owner of the device should go on with a fresh context.
    FreshContext,
    /// The process that is named should be started again.
    RestartClient,
    /// The daemon that owns the device should be started again.
    RestartWorker,
    /// The driver should be bound anew.
    RebindDriver,
    /// The machine should start again.
    Reboot,
    /// The power supply and its cable.
    CheckPower,
    /// The medium wears out or fails.
    ReplaceStorage,
    /// Fan, heat sink, surroundings.
    CheckCooling,
    /// Something lacks in the image.
    FixImage,
    /// Something needs less memory.
    FreeMemory,
    /// A person should look.
    Look,
}

/// Which part of the machine an incident is about: lines of different parts never join.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// The NPU: a core and its IOMMU.
    Npu,
    /// The GPU.
    Gpu,
    /// Memory.
    Memory,
    /// The processor and the kernel itself.
    Kernel,
    /// Heat.
    Thermal,
    /// Storage.
    Storage,
    /// Supply.
    Power,
    /// Buses and networks.
    Network,
}

/// Where the ladder of actions starts for a class. A class without one never leads to an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// The owner takes a fresh context by itself; more only when that does not help. Counts only where the owner says
    /// that work of its own was hurt.
    FreshContext,
    /// As above, but counts whoever was hurt, or nobody.
    Repeated,
    /// The driver is bound anew.
    Rebind,
    /// Nothing less than a reboot helps.
    Reboot,
}

/// A class of incidents.
#[derive(Debug, PartialEq, Eq)]
pub struct Class {
    /// Its name, the same on every interface and in the catalog.
    pub name: &'static str,
    /// Which part of the machine.
    pub part: Part,
    /// How bad.
    pub severity: Severity,
    /// What should be done.
    pub advice: Advice,
    /// Where the ladder starts.
    pub entry: Option<Entry>,
}

/// How a line belongs to its class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It begins an incident.
    Root,
    /// It begins an incident, and each fault has exactly one: a second is another fault.
    Once,
    /// It belongs to an incident of its part that is open; alone it begins one.
    Detail,
    /// It belongs to an incident that is open; alone it says nothing.
    Tail,
    /// It shows that something is well.
    Fact,
}

/// Whose line it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum From {
    /// A core of the NPU, or the NPU's DRM device.
    Npu,
    /// The IOMMU of a core.
    NpuIommu,
    /// The GPU.
    Gpu,
    /// A device whose name begins so; it is named before the message.
    Device(&'static str),
    /// Any device.
    AnyDevice,
    /// Nobody: the message stands alone.
    Kernel,
}

const fn class(name: &'static str, part: Part, severity: Severity, advice: Advice, entry: Option<Entry>) -> Class {
    Class { name, part, severity, advice, entry }
}

use Advice::{
    CheckCooling, CheckPower, FixImage, FreeMemory, FreshContext, Look, RebindDriver, Reboot, ReplaceStorage,
    RestartClient,
};
use Part::{Gpu, Kernel, Memory, Network, Npu, Power, Storage, Thermal};
use Severity::{Critical, Error, Note, Warning};

/// All classes. Where lines of several classes join, the worst class names the incident, and of equals the earlier here,
/// which is nearer to the cause.
#[rustfmt::skip]
pub static CLASSES: &[Class] = &[
    class("npu-iommu-dead", Npu, Critical, Reboot, Some(Entry::Reboot)),
    class("npu-detach-failed", Npu, Critical, Reboot, Some(Entry::Repeated)),
    class("npu-power", Npu, Critical, RebindDriver, Some(Entry::Rebind)),
    class("npu-probe-failed", Npu, Critical, FixImage, None),
    class("npu-page-fault", Npu, Error, FreshContext, Some(Entry::FreshContext)),
    class("npu-bus-error", Npu, Error, FreshContext, Some(Entry::FreshContext)),
    class("npu-dma-error", Npu, Error, FreshContext, Some(Entry::FreshContext)),
    class("npu-job-timeout", Npu, Error, FreshContext, Some(Entry::FreshContext)),
    class("npu-result-untrusted", Npu, Error, FreshContext, Some(Entry::FreshContext)),
    class("npu-iommu-stall", Npu, Warning, FreshContext, Some(Entry::FreshContext)),
    class("npu-map-failed", Npu, Warning, FreeMemory, None),
    class("npu-foreign-timeout", Npu, Warning, Look, None),
    class("npu-pooling-unheard", Npu, Note, Advice::None, None),
    class("npu-probed", Npu, Note, Advice::None, None),

    class("gpu-lost", Gpu, Critical, Reboot, Some(Entry::Reboot)),
    class("gpu-firmware-missing", Gpu, Critical, FixImage, None),
    class("gpu-page-fault", Gpu, Error, RestartClient, None),
    class("gpu-fatal", Gpu, Error, RestartClient, None),
    class("gpu-fault", Gpu, Error, RestartClient, None),
    class("gpu-progress-timeout", Gpu, Error, RestartClient, None),
    class("gpu-job-timeout", Gpu, Error, RestartClient, None),
    class("gpu-hardware", Gpu, Error, Look, None),
    class("gpu-reset", Gpu, Error, Look, None),
    class("gpu-firmware-stuck", Gpu, Error, Look, None),
    class("gpu-probed", Gpu, Note, Advice::None, None),

    class("scheduler-misuse", Kernel, Warning, Look, None),

    class("oom-kill", Memory, Error, FreeMemory, None),
    class("allocation-failed", Memory, Warning, FreeMemory, None),

    class("kernel-panic", Kernel, Critical, Look, None),
    class("hard-lockup", Kernel, Critical, Look, None),
    class("serror", Kernel, Critical, CheckPower, None),
    class("kernel-oops", Kernel, Critical, Reboot, None),
    class("soft-lockup", Kernel, Error, Look, None),
    class("rcu-stall", Kernel, Error, Look, None),
    class("hung-task", Kernel, Warning, Look, None),
    class("watchdog-unfed", Kernel, Warning, Look, None),
    class("iommu-domain-warning", Kernel, Warning, Look, None),
    class("refcount-saturated", Kernel, Note, Advice::None, None),

    class("thermal-critical", Thermal, Critical, CheckCooling, None),
    class("thermal-sensor", Thermal, Warning, Look, None),

    class("storage-corrupt", Storage, Critical, ReplaceStorage, None),
    class("storage-read-only", Storage, Critical, ReplaceStorage, None),
    class("nvme-lost", Storage, Critical, CheckPower, None),
    class("filesystem-error", Storage, Error, ReplaceStorage, None),
    class("storage-io-error", Storage, Error, ReplaceStorage, None),
    class("nvme-timeout", Storage, Warning, CheckPower, None),
    class("mmc-failed", Storage, Error, ReplaceStorage, None),
    class("mmc-timeout", Storage, Warning, Look, None),
    class("filesystem-mounted", Storage, Note, Advice::None, None),

    class("undervoltage", Power, Critical, CheckPower, None),
    class("over-current", Power, Error, CheckPower, None),

    class("pcie-error", Network, Warning, Look, None),
    class("pcie-link", Network, Error, CheckPower, None),
    class("network-stuck", Network, Error, Look, None),
    class("link-down", Network, Note, Advice::None, None),
    class("link-up", Network, Note, Advice::None, None),
];

/// A class by its name.
pub fn find(name: &str) -> Option<&'static Class> {
    CLASSES.iter().find(|class| class.name == name)
}

/// A row: whose line, its words, the class, how it belongs to it.
pub(crate) type Row = (From, &'static str, &'static str, Role);

/// The kernel's formats that are known, with `{…}` for what differs from line to line.
pub fn formats() -> impl Iterator<Item = &'static str> {
    ROWS.iter().map(|row| row.1)
}

use self::From::{AnyDevice, Device, Kernel as Bare, NpuIommu};
use Role::{Detail, Fact, Once, Root, Tail};

/// Every known line.
#[rustfmt::skip]
pub(crate) static ROWS: &[Row] = &[
    // rocket
    (From::Npu, "NPU job timed out", "npu-job-timeout", Once),
    (From::Npu, "NPU job timed out: RAW_STATUS={x} MASK={x} OP_EN={x}", "npu-job-timeout", Once),
    (From::Npu, "NPU job timed out (device not active)", "npu-job-timeout", Once),
    (From::Npu, "NPU job failed: DMA error", "npu-dma-error", Once),
    (From::Npu, "failed to map buffer: size={d} request_size={d}", "npu-map-failed", Root),
    (From::Npu, "failed to enable ({d}) clocks for core {d}", "npu-power", Root),
    (From::Npu, "failed to get resets for core {d}", "npu-probe-failed", Root),
    (From::Npu, "failed to get clocks for core {d}", "npu-probe-failed", Root),
    (From::Npu, "couldn't find PC registers {d}", "npu-probe-failed", Root),
    (From::Npu, "couldn't find CNA registers {d}", "npu-probe-failed", Root),
    (From::Npu, "couldn't find CORE registers {d}", "npu-probe-failed", Root),
    (From::Npu, "failed to request job irq", "npu-probe-failed", Root),
    (From::Npu, "Failed to create scheduler: {d}.", "npu-probe-failed", Root),
    (From::Npu, "failed to initialize rocket device", "npu-probe-failed", Root),
    (From::Npu, "Rockchip NPU core {d} version: {d}", "npu-probed", Fact),
    // The form of 6.18, and that of 7.x, which may name the condition before the file.
    (Bare, "WARNING: {s} at drivers/accel/rocket/rocket_job.c:{d} rocket_job_irq_handler{*}", "npu-dma-error", Root),
    (Bare, "WARNING: drivers/accel/rocket/rocket_job.c:{d} at rocket_job_irq_handler{*}", "npu-dma-error", Root),
    (Bare, "WARNING: rocket_job.c:{d} at rocket_job_irq_handler{*}", "npu-dma-error", Root),
    (Bare, "WARNING: [{s}] drivers/accel/rocket/rocket_job.c:{d} at rocket_job_irq_handler{*}", "npu-dma-error", Root),

    // rk_iommu
    (NpuIommu, "Page fault at {x} of type {s}", "npu-page-fault", Once),
    (NpuIommu, "iova = {x}: dte_index: {x} pte_index: {x} page_offset: {x}", "npu-page-fault", Detail),
    (NpuIommu, "mmu_dte_addr: {x} dte@{x}: {x} valid: {d} pte@{x}: {x} valid: {d} page@{x} flags: {x}", "npu-page-fault", Detail),
    (NpuIommu, "Page fault while iommu not attached to domain?", "npu-page-fault", Root),
    (NpuIommu, "BUS_ERROR occurred at {x}", "npu-bus-error", Root),
    (NpuIommu, "unexpected int_status: {x}", "npu-bus-error", Root),
    (NpuIommu, "Enable stall request timed out, status: {x}", "npu-iommu-stall", Detail),
    (NpuIommu, "Disable stall request timed out, status: {x}", "npu-iommu-stall", Detail),
    (NpuIommu, "Enable paging request timed out, status: {x}", "npu-iommu-stall", Detail),
    (NpuIommu, "Disable paging request timed out, status: {x}", "npu-iommu-stall", Detail),
    (NpuIommu, "FORCE_RESET command timed out", "npu-iommu-dead", Root),
    (NpuIommu, "Error during raw reset. MMU_DTE_ADDR is not functioning", "npu-iommu-dead", Root),
    // Only the trace says whose domain it was.
    (Bare, "WARNING: {s} at drivers/iommu/iommu.c:{d} __iommu_group_set_core_domain{*}", "iommu-domain-warning", Root),
    (Bare, "WARNING: drivers/iommu/iommu.c:{d} at __iommu_group_set_core_domain{*}", "iommu-domain-warning", Root),
    (Bare, " rocket_reset+{x}/{x}{*}", "npu-detach-failed", Tail),

    // panthor
    (From::Gpu, "job timeout: pid={pid}, comm={comm}, seqno={d}", "gpu-job-timeout", Root),
    (From::Gpu, "job timeout", "gpu-job-timeout", Root),
    (From::Gpu, "CS_FATAL: pid={pid}, comm={comm}", "gpu-fatal", Root),
    (From::Gpu, "CS_FAULT: pid={pid}, comm={comm}", "gpu-fault", Root),
    (From::Gpu, "CSG_PROGRESS_TIMER_EVENT: pid={pid}, comm={comm}", "gpu-progress-timeout", Root),
    (From::Gpu, "CSG slot {d} progress timeout", "gpu-progress-timeout", Detail),
    (From::Gpu, "CSG slot {d} CS slot: {d}\nCS_FATAL.EXCEPTION_TYPE: {x} ({s})\nCS_FATAL.EXCEPTION_DATA: {x}\nCS_FATAL_INFO.EXCEPTION_DATA: {x}", "gpu-fatal", Detail),
    (From::Gpu, "CSG slot {d} CS slot: {d}\nCS_FAULT.EXCEPTION_TYPE: {x} ({s})\nCS_FAULT.EXCEPTION_DATA: {x}\nCS_FAULT_INFO.EXCEPTION_DATA: {x}", "gpu-fault", Detail),
    // The same records line by line, as a serial console shows them.
    (From::Gpu, "CSG slot {d} CS slot: {d}", "gpu-fault", Tail),
    (Bare, "CS_FATAL.EXCEPTION_TYPE: {x} ({s})", "gpu-fatal", Tail),
    (Bare, "CS_FATAL.EXCEPTION_DATA: {x}", "gpu-fatal", Tail),
    (Bare, "CS_FATAL_INFO.EXCEPTION_DATA: {x}", "gpu-fatal", Tail),
    (Bare, "CS_FAULT.EXCEPTION_TYPE: {x} ({s})", "gpu-fault", Tail),
    (Bare, "CS_FAULT.EXCEPTION_DATA: {x}", "gpu-fault", Tail),
    (Bare, "CS_FAULT_INFO.EXCEPTION_DATA: {x}", "gpu-fault", Tail),
    (From::Gpu, "CSG {d} update request timedout", "gpu-firmware-stuck", Root),
    (From::Gpu, "CSG suspend failed, escalating to termination", "gpu-firmware-stuck", Root),
    (From::Gpu, "Invalid state on CSG {d} (state={d})", "gpu-firmware-stuck", Root),
    (From::Gpu, "Failed to extend the tiler heap", "gpu-firmware-stuck", Root),
    (From::Gpu, "FW ping timeout, scheduling a reset", "gpu-reset", Root),
    (From::Gpu, "Timed out waiting for MCU to halt", "gpu-reset", Root),
    (From::Gpu, "Failed to cleanly suspend MCU", "gpu-reset", Root),
    (From::Gpu, "Failed to boot MCU (status={s})", "gpu-reset", Root),
    (From::Gpu, "Failed to stop MCU", "gpu-reset", Root),
    (From::Gpu, "FW fast reset failed", "gpu-reset", Root),
    (From::Gpu, "FW slow reset failed", "gpu-reset", Root),
    (From::Gpu, "Fast reset failed, trying a slow reset", "gpu-reset", Root),
    (From::Gpu, "Failed to boot MCU after reset, making device unusable.", "gpu-lost", Root),
    (From::Gpu, "Unhandled Page fault in AS{d} at VA {x}\nraw fault status: {x}\ndecoded fault status: {s}\nexception type {x}: {s}\naccess type {x}: {s}\nsource id {x}", "gpu-page-fault", Root),
    (From::Gpu, "Unhandled Page fault in AS{d} at VA {x}", "gpu-page-fault", Root),
    (Bare, "raw fault status: {x}", "gpu-page-fault", Tail),
    (Bare, "decoded fault status: {s}", "gpu-page-fault", Tail),
    (Bare, "exception type {x}: {s}", "gpu-page-fault", Tail),
    (Bare, "access type {x}: {s}", "gpu-page-fault", Tail),
    (Bare, "source id {x}", "gpu-page-fault", Tail),
    (From::Gpu, "GPU Fault {x} ({s}) at {x}", "gpu-hardware", Root),
    (From::Gpu, "timeout waiting on {s} power transition", "gpu-hardware", Root),
    (From::Gpu, "Flush caches timeout", "gpu-hardware", Root),
    (From::Gpu, "Soft reset timeout", "gpu-hardware", Root),
    (From::Gpu, "AS_ACTIVE bit stuck", "gpu-hardware", Root),
    (From::Gpu, "Direct firmware load for {s} failed with error {d}", "gpu-firmware-missing", Root),
    (From::Gpu, "Failed to load firmware image '{s}'", "gpu-firmware-missing", Root),
    (From::Gpu, "CSF FW using interface v{d}.{d}.{d}{*}", "gpu-probed", Fact),
    (From::Gpu, "clock rate = {d}", "gpu-probed", Fact),
    (From::Gpu, "Mali-G610 id {x} major {x} minor {x} status {x}", "gpu-probed", Fact),
    (From::Gpu, "mali-g610 id {x} major {x} minor {x} status {x}", "gpu-probed", Fact),
    (From::Gpu, "Features: L2:{x} Tiler:{x} Mem:{x} MMU:{x} AS:{x}", "gpu-probed", Fact),
    (From::Gpu, "shader_present={x} l2_present={x} tiler_present={x}", "gpu-probed", Fact),
    (From::Gpu, "Firmware protected mode entry not be supported, ignoring", "gpu-probed", Fact),
    (From::Gpu, "Firmware protected mode entry is not supported, ignoring", "gpu-probed", Fact),

    // drm_sched
    (AnyDevice, "Trying to push to a killed entity", "scheduler-misuse", Root),
    (Bare, "[drm:{s}] *ERROR* Trying to push to a killed entity", "scheduler-misuse", Root),
    (Bare, "[drm] *ERROR* Trying to push to a killed entity", "scheduler-misuse", Root),
    (Bare, "[drm:{s}] *ERROR* {s}: entity has no rq!", "scheduler-misuse", Root),
    (Bare, "[drm:{s}] *ERROR* fence add callback failed ({d})", "scheduler-misuse", Root),
    (AnyDevice, "fence add callback failed ({d})", "scheduler-misuse", Root),
    (AnyDevice, "Tearing down scheduler while jobs are pending!", "scheduler-misuse", Root),

    // Out of memory
    (Bare, "oom-kill:constraint={s},task_memcg={unit},task={comm},pid={pid},uid={d}", "oom-kill", Detail),
    (Bare, "oom-kill:constraint={s},task={comm},pid={pid},uid={d}", "oom-kill", Detail),
    (Bare, "Out of memory: Killed process {pid} ({comm}) total-vm:{d}kB, anon-rss:{d}kB, file-rss:{d}kB, shmem-rss:{d}kB, UID:{d} pgtables:{d}kB oom_score_adj:{d}", "oom-kill", Detail),
    (Bare, "Memory cgroup out of memory: Killed process {pid} ({comm}) total-vm:{d}kB, anon-rss:{d}kB, file-rss:{d}kB, shmem-rss:{d}kB, UID:{d} pgtables:{d}kB oom_score_adj:{d}", "oom-kill", Detail),
    (Bare, "Out of memory (oom_kill_allocating_task): Killed process {pid} ({comm}) total-vm:{d}kB, anon-rss:{d}kB, file-rss:{d}kB, shmem-rss:{d}kB, UID:{d} pgtables:{d}kB oom_score_adj:{d}", "oom-kill", Detail),
    (Bare, "oom_reaper: reaped process {pid} ({comm}), now anon-rss:{d}kB, file-rss:{d}kB, shmem-rss:{d}kB", "oom-kill", Tail),
    (Bare, "{comm} invoked oom-killer: gfp_mask={x}({s}), order={d}, oom_score_adj={d}", "oom-kill", Root),
    (Bare, "{comm}: page allocation failure: order:{d}, mode:{*}", "allocation-failed", Root),
    (Bare, "cma: {s}alloc failed, req-size: {d} pages, ret: {d}", "allocation-failed", Root),
    (AnyDevice, "swiotlb buffer is full (sz: {d} bytes), total {d} (slots), used {d} (slots)", "allocation-failed", Root),

    // Lock-ups and crashes
    (Bare, "watchdog: BUG: soft lockup - CPU#{d} stuck for {d}s! [{comm}:{pid}]", "soft-lockup", Root),
    (Bare, "CPU{d}: Watchdog detected hard LOCKUP on cpu {d}", "hard-lockup", Root),
    (Bare, "watchdog: CPU{d}: Watchdog detected hard LOCKUP on cpu {d}", "hard-lockup", Root),
    (Bare, "INFO: task {comm}:{pid} blocked for more than {d} seconds.", "hung-task", Root),
    (Bare, "INFO: task {comm}:{pid} blocked in I/O wait for more than {d} seconds.", "hung-task", Root),
    (Bare, "INFO: task {comm}:{pid} blocked on a mutex likely owned by task {s}", "hung-task", Detail),
    (Bare, "rcu: INFO: rcu_preempt self-detected stall on CPU{*}", "rcu-stall", Root),
    (Bare, "rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:{*}", "rcu-stall", Root),
    (Bare, "rcu: INFO: rcu_sched self-detected stall on CPU{*}", "rcu-stall", Root),
    (Bare, "rcu: INFO: rcu_sched detected stalls on CPUs/tasks:{*}", "rcu-stall", Root),
    (Bare, "Kernel panic - not syncing: {s}", "kernel-panic", Root),
    (Bare, "SError Interrupt on CPU{d}, code {x} -- SError", "serror", Root),
    (Bare, "Internal error: Oops{*}", "kernel-oops", Root),
    (Bare, "Unable to handle kernel {s} at virtual address {x}", "kernel-oops", Root),
    (Bare, "watchdog: watchdog{d}: watchdog did not stop!", "watchdog-unfed", Root),
    (Bare, "refcount_t: saturated; leaking memory.", "refcount-saturated", Root),
    (Bare, "WARNING: {s} at lib/refcount.c:{d} refcount_warn_saturate{*}", "refcount-saturated", Root),
    (Bare, "WARNING: lib/refcount.c:{d} at refcount_warn_saturate{*}", "refcount-saturated", Root),

    // Heat
    (Device("thermal_zone"), "{dev}: critical temperature reached", "thermal-critical", Root),
    (Device("thermal_zone"), "{dev}: critical temperature reached, shutting down", "thermal-critical", Root),
    (Device("thermal_zone"), "Temperature check failed ({d})", "thermal-sensor", Root),
    (Device("thermal_zone"), "Unable to get temperature, disabling!", "thermal-sensor", Root),
    (AnyDevice, "invalid temperature, temp={d} error={d}", "thermal-sensor", Root),
    (Bare, "reboot: HARDWARE PROTECTION shutdown (Temperature too high)", "thermal-critical", Root),
    (Bare, "reboot: HARDWARE PROTECTION shutdown ({s})", "undervoltage", Root),
    (Bare, "reboot: Hardware protection timed-out. Trying forced {s}", "kernel-panic", Root),
    (Bare, "Hardware protection timed-out. Trying forced {s}", "kernel-panic", Root),

    // NVMe
    (Device("nvme"), "I/O tag {d} ({x}) opcode {x} ({s}) QID {d} timeout, aborting req_op:{s}({d}) size:{d}", "nvme-timeout", Root),
    (Device("nvme"), "I/O tag {d} ({x}) opcode {x} ({s}) QID {d} timeout, reset controller", "nvme-timeout", Root),
    (Device("nvme"), "I/O tag {d} ({x}) opcode {x} ({s}) QID {d} timeout, completion polled", "nvme-timeout", Root),
    (Device("nvme"), "I/O tag {d} ({x}) opcode {x} ({s}) QID {d} timeout, disable controller", "nvme-timeout", Root),
    (Device("nvme"), "controller is down; will reset: CSTS={x}, PCI_STATUS={x}", "nvme-timeout", Root),
    (Device("nvme"), "controller is down; will reset: CSTS={x}, PCI_STATUS read failed ({d})", "nvme-timeout", Root),
    (Device("nvme"), "Does your device have a faulty power saving mode enabled?", "nvme-timeout", Tail),
    (Device("nvme"), "Try \"nvme_core.default_ps_max_latency_us=0 pcie_aspm=off pcie_port_pm=off\" and report a bug", "nvme-timeout", Tail),
    (Device("nvme"), "Disabling device after reset failure: {d}", "nvme-lost", Root),
    (Device("nvme"), "keep-alive failed: {d}", "nvme-timeout", Root),
    (Bare, "{dev}: {s}({x}) @ LBA {d}, {d} blocks, {s} (sct {x} / sc {x}) {*}", "storage-io-error", Root),

    // Block devices and file systems
    (Bare, "I/O error, dev {dev}, sector {d} op {x}:({s}) flags {x} phys_seg {d} prio class {d}", "storage-io-error", Root),
    (Bare, "timeout error, dev {dev}, sector {d} op {x}:({s}) flags {x} phys_seg {d} prio class {d}", "storage-io-error", Root),
    (Bare, "critical {s} error, dev {dev}, sector {d} op {x}:({s}) flags {x} phys_seg {d} prio class {d}", "storage-io-error", Root),
    (Bare, "Buffer I/O error on dev {dev}, logical block {d}, {s}", "storage-io-error", Root),
    (Bare, "EXT4-fs error (device {dev}): {s}:{d}: {s}", "filesystem-error", Root),
    (Bare, "EXT4-fs ({dev}): Remounting filesystem read-only", "storage-read-only", Root),
    (Bare, "device-mapper: verity: {dev}: data block {d} is corrupted", "storage-corrupt", Root),
    (Bare, "device-mapper: verity: {dev}: metadata block {d} is corrupted", "storage-corrupt", Root),
    (Bare, "device-mapper: verity: {dev}: reached maximum errors", "storage-corrupt", Root),
    // What it says when all is well, before anything else that it says. SOURCE: erofs_info, fs/erofs/super.c.
    (Bare, "erofs: (device {dev}): mounted with root inode @ nid {d}.", "filesystem-mounted", Fact),
    (Bare, "erofs (device {dev}): mounted with root inode @ nid {d}.", "filesystem-mounted", Fact),
    (Bare, "erofs (device {dev}): EXPERIMENTAL {s}", "filesystem-mounted", Fact),
    (Bare, "erofs: (device {dev}): {s}", "filesystem-error", Root),
    (Bare, "erofs (device {dev}): {s}", "filesystem-error", Root),

    // MMC
    (Device("mmc"), "running CQE recovery", "mmc-timeout", Root),
    (Device("mmc"), "cqhci: timeout for tag {d}, qcnt {d}", "mmc-timeout", Root),
    (Device("mmc"), "Timeout waiting for hardware interrupt.", "mmc-timeout", Root),
    (Device("mmc"), "Timeout waiting for hardware cmd interrupt.", "mmc-timeout", Root),
    (Device("mmc"), "Controller never released inhibit bit(s).", "mmc-timeout", Root),
    (Device("mmc"), "Reset {x} never completed.", "mmc-failed", Root),
    (Device("mmc"), "ADMA error: {x}", "mmc-failed", Root),
    (Device("mmc"), "Card is consuming too much power!", "over-current", Root),
    (Device("mmc"), "tuning execution failed: {d}", "mmc-timeout", Root),
    (Device("mmc"), "recovery failed!", "mmc-failed", Root),
    (Device("mmc"), "error {d} whilst initialising SD card", "mmc-failed", Root),
    (Device("mmc"), "error {d} whilst initialising MMC card", "mmc-failed", Root),
    (Device("mmc"), "Undervoltage detected, initiating emergency stop", "undervoltage", Root),

    // Supply
    (Bare, "System critical regulator: voltage drop detected", "undervoltage", Root),
    (AnyDevice, "System critical regulator: voltage drop detected", "undervoltage", Root),
    (AnyDevice, "over-current condition", "over-current", Root),

    // PCIe and networks
    (AnyDevice, "PCIe Bus Error: severity={s}, type={s}, ({s})", "pcie-error", Root),
    (AnyDevice, "device [{x}:{x}] error status/mask={x}/{x}", "pcie-error", Tail),
    (AnyDevice, "Phy link never came up", "pcie-link", Root),
    (AnyDevice, "NETDEV WATCHDOG: CPU: {d}: transmit queue {d} timed out {d} ms", "network-stuck", Root),
    (Bare, "{s} {s}: NETDEV WATCHDOG: CPU: {d}: transmit queue {d} timed out {d} ms", "network-stuck", Root),
    (AnyDevice, "Link is Down", "link-down", Fact),
    (AnyDevice, "Link is Up{*}", "link-up", Fact),
];
