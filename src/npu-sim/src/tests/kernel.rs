//! The kernel's side: what a driver of the device sees.

use std::time::Duration;

use npu_device::{Bo, Deadline, Driver, Errno, Job, JobFlags, Range, Task};
use npu_regs::{Precision, Register, Word, pc};

use crate::kernel::FIRST_OFFSET;
use crate::testbed::{Bed, Conv, Stream, open};
use crate::{Fault, Lever, Levers, Options, Rates, Simulator};

fn conv() -> Conv {
    Conv::pointwise(Precision::Int8, Precision::Int8)
}

fn bed(options: Options) -> (Bed, Stream) {
    let mut bed = Bed::new(options);
    open(&mut bed.features).fill(1);
    open(&mut bed.weights).fill(1);
    let stream = conv().program(&bed);
    (bed, stream)
}

#[test]
fn addresses_ascend_and_memory_is_zero() {
    let simulator = Simulator::default();
    let device = simulator.open().unwrap();
    let mut first = Bo::new(&device, 10).unwrap();
    let second = Bo::new(&device, 4096).unwrap();
    assert_eq!([first.dma(), second.dma()], [0, 4096]);
    assert_eq!([first.handle(), second.handle()], [1, 2]);
    assert!(open(&mut first).iter().all(|byte| *byte == 0));
    assert_eq!(device.create_bo(0).unwrap_err().errno(), Some(Errno::NOSPC));
}

#[test]
fn an_unknown_handle_is_no_entry() {
    let device = Simulator::default().open().unwrap();
    assert_eq!(device.prep_bo(1, Deadline::POLL).unwrap_err().errno(), Some(Errno::NOENT));
    assert_eq!(device.fini_bo(1).unwrap_err().errno(), Some(Errno::NOENT));
    assert!(device.close_bo(1).is_err());
}

#[test]
fn a_job_is_pending_until_the_clock_passes_its_end() {
    let (mut bed, stream) = bed(Options::default());
    let slow = Duration::from_millis(10);
    bed.simulator.inject(Lever::Slow(slow));
    bed.submit(&[&stream], false);
    let handle = bed.output.handle();
    let error = |deadline| bed.device.prep_bo(handle, deadline).unwrap_err().errno();
    assert_eq!(error(Deadline::POLL), Some(Errno::BUSY));
    let soon = bed.device.now() + Duration::from_millis(1);
    assert_eq!(error(Deadline::At(soon)), Some(Errno::TIMEDOUT));
    bed.device.prep_bo(handle, Deadline::Never).unwrap();
    assert!(bed.device.now() >= slow + Options::default().cost.job);
}

#[test]
fn an_output_that_is_not_waited_for_is_stale() {
    let (mut bed, stream) = bed(Options::default());
    bed.simulator.inject(Lever::Slow(Duration::from_millis(10)));
    bed.submit(&[&stream], false);
    let mapping = bed.device.map_bo(&info(&bed.output)).unwrap();
    let mut byte = [0];
    mapping.read(0, &mut byte);
    assert_eq!(byte, [0]);
    assert_eq!(open(&mut bed.output)[0], 32);
}

/// What CREATE_BO said of a buffer of the bed: buffers of one size, in order.
fn info(bo: &Bo) -> npu_device::BoInfo {
    let map_offset = FIRST_OFFSET + u64::from(bo.handle() - 1) * u64::from(bo.bytes());
    npu_device::BoInfo { handle: bo.handle(), bytes: bo.bytes(), dma: bo.dma(), map_offset }
}

#[test]
fn malformed_jobs_are_dropped_in_silence() {
    let (bed, _) = bed(Options::default());
    let task = Task { dma: 0, words: 4 };
    let out = bed.output.handle();
    let jobs: [(&[Task], &[u32], &[u32]); 5] = [
        (&[], &[], &[out]),
        (&[Task { dma: 0, words: 0 }], &[], &[out]),
        (&[task], &[99], &[out]),
        (&[task], &[out], &[out]),
        (&[task], &[], &[out, out]),
    ];
    for (tasks, inputs, outputs) in jobs {
        bed.device.submit(&[Job { tasks, inputs, outputs, flags: JobFlags::default() }]).unwrap();
        bed.device.prep_bo(out, Deadline::POLL).unwrap();
    }
    let counters = bed.simulator.counters();
    assert_eq!([counters.jobs, counters.dropped_jobs], [0, 5]);
}

#[test]
fn a_patched_driver_reports_dropped_and_failed_jobs() {
    let options = Options { reports_failed_jobs: true, reports_dropped_jobs: true, ..Options::default() };
    let (mut bed, stream) = bed(options);
    let job = Job { tasks: &[], inputs: &[], outputs: &[], flags: JobFlags::default() };
    assert!(bed.device.submit(&[job]).is_err());
    bed.simulator.inject(Lever::Hang { task: 0 });
    bed.submit(&[&stream], false);
    let error = bed.device.prep_bo(bed.output.handle(), Deadline::Never).unwrap_err();
    assert_eq!(error.errno(), Some(Errno::IO));
}

#[test]
fn q30_a_hung_job_is_a_success_after_half_a_second() {
    let (mut bed, stream) = bed(Options::default());
    let monitor = bed.simulator.fault_monitor();
    bed.simulator.inject(Lever::Hang { task: 0 });
    let before = bed.device.now();
    let output = bed.run(&[&stream]);
    assert!(output.iter().all(|byte| *byte == 0), "stale bytes");
    assert!(bed.device.now() - before >= Duration::from_millis(500));
    assert_eq!(monitor.faults(), 1);
    assert_eq!(monitor.last().as_deref(), Some("rocket fdab0000.npu: NPU job timed out"));
    assert_eq!(bed.run(&[&stream])[0], 32, "the next job runs");
    assert_eq!(monitor.faults(), 1);
}

#[test]
fn q31_an_unmapped_address_is_a_page_fault_and_a_timeout() {
    let (mut bed, mut stream) = bed(Options::default());
    crate::testbed::set(&mut stream, npu_regs::cna::FeatureDataAddr::INFO, 0x4000_0000);
    bed.run(&[&stream]);
    assert!(matches!(bed.fault(), Some(Fault::Iommu { dma: 0x4000_0000, .. })));
    let log = bed.simulator.kernel_log();
    assert_eq!(log[0], "rk_iommu fdab9000.iommu: Page fault at 0x0000000040000000 of type read");
    assert_eq!(log.len(), 6);
}

#[test]
fn a_slow_job_is_late_and_a_slower_one_is_killed() {
    let (mut bed, stream) = bed(Options::default());
    bed.simulator.inject(Lever::Slow(Duration::from_millis(400)));
    assert_eq!(bed.run(&[&stream])[0], 32);
    assert!(bed.device.now() >= Duration::from_millis(400));
    open(&mut bed.output).fill(0);
    bed.simulator.inject(Lever::Slow(Duration::from_millis(600)));
    assert_eq!(bed.run(&[&stream])[0], 0);
    assert_eq!(bed.fault(), Some(Fault::Overtime));
}

#[test]
fn partial_and_lost_writes_leave_no_trace_but_in_the_data() {
    let (mut bed, stream) = bed(Options::default());
    bed.simulator.inject(Lever::PartialWrite { task: 0, percent: 25 });
    let written = |output: &[u8]| output.iter().filter(|byte| **byte == 32).count();
    assert_eq!(written(&bed.run(&[&stream])), 512);
    open(&mut bed.output).fill(0);
    bed.simulator.inject(Lever::LostWrite { task: 0, burst: 35 });
    let output = bed.run(&[&stream]);
    assert_eq!(written(&output), 2048 - 64);
    assert_eq!(bed.simulator.kernel_log().len() + bed.simulator.faults().len(), 0);
}

#[test]
fn a_swallowed_submit_attaches_no_fence() {
    let (mut bed, stream) = bed(Options::default());
    bed.simulator.inject(Lever::SwallowedSubmit);
    bed.submit(&[&stream], false);
    bed.device.prep_bo(bed.output.handle(), Deadline::POLL).unwrap();
    assert_eq!(bed.simulator.counters().jobs, 0);
    assert_eq!(bed.run(&[&stream])[0], 32);
}

#[test]
fn a_lever_for_another_core_waits_for_it() {
    let (mut bed, stream) = bed(Options::default());
    bed.simulator.inject_on(1, Lever::Hang { task: 0 });
    assert_eq!(bed.run(&[&stream])[0], 32);
    assert!(bed.simulator.faults().is_empty());
}

/// Links `streams` as they lie one page apart from the start of the command buffer.
fn chain(bed: &Bed, streams: &mut [Stream]) {
    for i in 1..streams.len() {
        let (next, words) = (bed.commands.dma() + 4096 * i as u32, streams[i].len());
        let link = streams[i - 1].len() - 4;
        streams[i - 1][link] = Word::write(pc::BaseAddress::INFO, next);
        streams[i - 1][link + 1] = Word::write(pc::RegisterAmounts::INFO, npu_regs::beats_minus_one(words));
    }
}

#[test]
fn a_batched_job_is_one_kick_along_its_chain() {
    let (mut bed, stream) = bed(Options::batched());
    let mut streams = vec![stream; 3];
    chain(&bed, &mut streams);
    bed.submit(&streams.iter().collect::<Vec<_>>(), true);
    let counters = bed.simulator.counters();
    assert_eq!([counters.kicks, counters.tasks, counters.interrupts], [1, 3, 1]);
    assert_eq!(bed.fault(), None);
}

#[test]
fn a_batched_job_without_links_stalls_after_its_first_task() {
    let (mut bed, stream) = bed(Options::batched());
    bed.submit(&[&stream, &stream], true);
    assert_eq!(bed.fault(), Some(Fault::BrokenChain { done: 1, tasks: 2 }));
}

#[test]
fn a_stock_driver_ignores_links_and_the_batch_flag() {
    let (mut bed, stream) = bed(Options::default());
    let mut streams = vec![stream; 2];
    chain(&bed, &mut streams);
    bed.submit(&streams.iter().collect::<Vec<_>>(), true);
    let counters = bed.simulator.counters();
    assert_eq!([counters.kicks, counters.tasks], [2, 2]);
}

#[test]
fn delta_tasks_take_the_group_before_the_last() {
    let (mut bed, full) = bed(Options::default());
    let small = Conv { output: [4, 8], input: [4, 8], ..conv() }.program(&bed);
    let delta: Stream = full[full.len() - 4..].to_vec();
    let wrote_last_row = |bed: &mut Bed, streams: &[&Stream]| {
        open(&mut bed.output).fill(0);
        let output = bed.run(streams);
        assert_eq!(bed.fault(), None);
        output[conv().output_at(7, 7, 16)] == 32
    };
    assert!(wrote_last_row(&mut bed, &[&full, &full, &delta, &delta]));
    open(&mut bed.output).fill(0);
    // Small, full, delta: the delta is the small one again, which leaves what the full one wrote.
    bed.run(&[&small, &full]);
    assert!(!wrote_last_row(&mut bed, &[&delta]));
}

#[test]
fn ranges_need_their_driver_and_must_lie_inside() {
    let (bed, _) = bed(Options { version: (1, 5, 0), ..Options::batched() });
    let handle = bed.output.handle();
    let range = |offset, bytes| [Range { offset, bytes }];
    bed.device.prep_bo_ranges(handle, &range(4096, 64), Deadline::POLL).unwrap();
    bed.device.fini_bo_ranges(handle, &range(4096, 64)).unwrap();
    for outside in [range(1 << 20, 1), range(u64::MAX, 2)] {
        assert!(bed.device.fini_bo_ranges(handle, &outside).is_err());
    }
    let (stock, _) = self::bed(Options::default());
    assert!(stock.device.fini_bo_ranges(stock.output.handle(), &range(0, 1)).is_err());
}

#[test]
fn a_job_beyond_the_work_limit_never_completes() {
    let (mut bed, stream) = bed(Options { work_limit: 1000, ..Options::default() });
    bed.run(&[&stream]);
    assert!(matches!(bed.fault(), Some(Fault::TooMuchWork { left: 1000, .. })));
}

#[test]
fn files_have_their_own_addresses_and_clocks() {
    let simulator = Simulator::default();
    let (a, b) = (simulator.open().unwrap(), simulator.open().unwrap());
    let bo = Bo::new(&a, 1 << 20).unwrap();
    assert_eq!(Bo::new(&b, 4096).unwrap().dma(), 0);
    a.prep_bo(bo.handle(), Deadline::POLL).unwrap();
    assert!(a.now() > b.now());
}

#[test]
fn ten_thousand_faulty_requests_are_counted_one_by_one() {
    let (mut bed, stream) = bed(Options::default());
    bed.simulator.inject_random(Some(Levers::random(1, Rates { hang: 0.5, ..Rates::default() })));
    for _ in 0..10_000 {
        bed.submit(&[&stream], false);
        bed.device.prep_bo(bed.output.handle(), Deadline::Never).unwrap();
    }
    let counters = bed.simulator.counters();
    assert_eq!(counters.jobs, 10_000);
    assert_eq!(bed.simulator.kernel_log().len() as u64, counters.hung_jobs);
    assert!((4000..6000).contains(&counters.hung_jobs), "{counters}");
}
