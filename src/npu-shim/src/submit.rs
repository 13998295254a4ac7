//! SUBMIT: jobs out of the client's memory into the queue.
//!
//! ```text
//! struct drm_rocket_submit ─▶ jobs ─▶ for each: tasks, input handles, output handles ─▶ npu_sim::File::queue
//! ```
//!
//! SOURCE: `rocket_ioctl_submit`, `rocket_ioctl_submit_job`, `rocket_copy_tasks`, `drm_gem_objects_lookup`.

use std::ffi::c_int;
use std::mem::{offset_of, size_of};

use npu_device::{Device as _, Errno, Job, JobFlags, Task, abi};
use npu_sim::Receipt;

use crate::drm::{Call, u32_at, u64_at};
use crate::settings::Kernel;
use crate::{client, lock, trace};

/// What one allocation of the kernel may take. SOURCE: `kvmalloc_node`, which refuses more than `INT_MAX`.
const LARGEST_ALLOCATION: u64 = i32::MAX as u64;
/// Bytes that the kernel keeps for a task: `struct rocket_task`.
const KEPT_TASK: u64 = 16;
/// Bounds of our patches.
const MOST_JOBS: u32 = 1024;
const MOST_TASKS: u32 = 65536;
const MOST_WORDS: u32 = 1 << 17;
const LONGEST_STRUCT: u32 = 4096;
/// TASK_NUMBER has 12 bits.
const MOST_BATCHED: u32 = 4095;
/// The PC drops the low bits of an address.
const PROGRAM_ALIGN: u32 = 16;

/// A job's struct, in the layout of the batched extension; what a client did not give is zero.
type RawJob = [u8; size_of::<abi::Job>()];

/// A list of structs in the client's memory.
struct List {
    address: u64,
    /// Bytes from one to the next.
    stride: u32,
    /// Bytes that every kernel knows.
    least: usize,
    /// Bytes that this kernel knows.
    known: usize,
    patched: bool,
}

impl List {
    /// One of the structs into `to`.
    fn read(&self, index: u32, to: &mut [u8]) -> Result<(), Errno> {
        if !self.patched {
            // The product has 32 bits there.
            let at = self.address.wrapping_add(u64::from(index.wrapping_mul(self.stride)));
            return client::read(at, &mut to[..self.least]);
        }
        // SOURCE: `copy_struct_from_user`, which refuses a tail that it does not know unless it is zero.
        let at = self.address.wrapping_add(u64::from(index) * u64::from(self.stride));
        let stride = self.stride as usize;
        let both = self.known.min(stride);
        let mut tail = vec![0; stride - both];
        client::read(at.wrapping_add(both as u64), &mut tail)?;
        if tail.iter().any(|byte| *byte != 0) {
            return Err(Errno::TOOBIG);
        }
        client::read(at, &mut to[..both])
    }
}

/// `rocket_ioctl_submit`.
pub(crate) fn submit(call: &Call<'_>, data: &mut [u8]) -> Result<c_int, Errno> {
    let patched = call.file.device.settings.kernel == Kernel::Cairn;
    let (count, stride) =
        (u32_at(data, offset_of!(abi::Submit, job_count)), u32_at(data, offset_of!(abi::Submit, job_struct_size)));
    if count == 0 {
        return Ok(0);
    }
    if stride < abi::MAINLINE_JOB_BYTES || (patched && (stride > LONGEST_STRUCT || count > MOST_JOBS)) {
        return Err(Errno::INVAL);
    }
    if u64_at(data, offset_of!(abi::Submit, reserved)) != 0 {
        return Err(Errno::INVAL);
    }
    let known = if patched { size_of::<abi::Job>() } else { abi::MAINLINE_JOB_BYTES as usize };
    if u64::from(count) * known as u64 > LARGEST_ALLOCATION {
        return Err(Errno::NOMEM);
    }
    let address = u64_at(data, offset_of!(abi::Submit, jobs));
    let list = List { address, stride, least: abi::MAINLINE_JOB_BYTES as usize, known, patched };
    let mut jobs = Vec::new();
    for index in 0..count {
        let mut job: RawJob = [0; size_of::<abi::Job>()];
        list.read(index, &mut job)?;
        jobs.push(job);
    }
    for job in &jobs {
        let result = submit_job(call, job, patched);
        // Mainline drops a bad job, and its error with it.
        if patched {
            result?;
        }
    }
    Ok(0)
}

/// `rocket_ioctl_submit_job`.
fn submit_job(call: &Call<'_>, job: &RawJob, patched: bool) -> Result<(), Errno> {
    let flags = u32_at(job, offset_of!(abi::Job, flags));
    let batched = patched && flags & abi::BATCHED != 0;
    let parsed = parse(call, job, patched, batched);
    let (tasks, inputs, outputs) = parsed.as_ref().map_or_else(|_| Default::default(), Clone::clone);
    let flags = JobFlags { batched, ppu_done: patched && flags & abi::PPU_DONE != 0, ..JobFlags::default() };
    let job = Job { tasks: &tasks, inputs: &inputs, outputs: &outputs, flags };
    // What cannot be read becomes a job of no tasks, so that it is counted where others are dropped.
    let now = call.file.npu.now();
    let queued: Result<Receipt, Errno> = call.file.npu.queue(&job);
    let result = parsed.and(queued);
    trace::job(call.file, call.fd, &job, &result);
    call.file.device.submitted(&result?, now);
    Ok(())
}

type Parsed = (Vec<Task>, Vec<u32>, Vec<u32>);

fn parse(call: &Call<'_>, job: &RawJob, patched: bool, batched: bool) -> Result<Parsed, Errno> {
    let count = u32_at(job, offset_of!(abi::Job, task_count));
    if count == 0 {
        return Err(Errno::INVAL);
    }
    if patched {
        check_flags(call, job, count, batched)?;
    }
    let tasks = tasks(job, count, patched, batched)?;
    let inputs = handles(
        call,
        u64_at(job, offset_of!(abi::Job, in_bo_handles)),
        u32_at(job, offset_of!(abi::Job, in_bo_handle_count)),
    )?;
    let outputs = handles(
        call,
        u64_at(job, offset_of!(abi::Job, out_bo_handles)),
        u32_at(job, offset_of!(abi::Job, out_bo_handle_count)),
    )?;
    Ok((tasks, inputs, outputs))
}

/// Of our patches.
fn check_flags(call: &Call<'_>, job: &RawJob, count: u32, batched: bool) -> Result<(), Errno> {
    let unknown = u32_at(job, offset_of!(abi::Job, flags)) & !(abi::BATCHED | abi::PPU_DONE);
    if unknown != 0 || u32_at(job, offset_of!(abi::Job, reserved)) != 0 {
        return Err(Errno::INVAL);
    }
    if batched && !call.file.device.settings.batch {
        return Err(Errno::OPNOTSUPP);
    }
    if batched && count > MOST_BATCHED { Err(Errno::INVAL) } else { Ok(()) }
}

/// `rocket_copy_tasks`.
fn tasks(job: &RawJob, count: u32, patched: bool, batched: bool) -> Result<Vec<Task>, Errno> {
    let stride = u32_at(job, offset_of!(abi::Job, task_struct_size));
    let least = size_of::<abi::Task>();
    if (stride as usize) < least || (patched && (stride > LONGEST_STRUCT || count > MOST_TASKS)) {
        return Err(Errno::INVAL);
    }
    if u64::from(count) * KEPT_TASK > LARGEST_ALLOCATION {
        return Err(Errno::NOMEM);
    }
    let list = List { address: u64_at(job, offset_of!(abi::Job, tasks)), stride, least, known: least, patched };
    let mut tasks = Vec::new();
    for index in 0..count {
        let mut raw = [0; size_of::<abi::Task>()];
        list.read(index, &mut raw)?;
        let dma = u32_at(&raw, offset_of!(abi::Task, regcmd));
        let words = u32_at(&raw, offset_of!(abi::Task, regcmd_count));
        if words == 0 || (patched && words > MOST_WORDS) || (batched && !dma.is_multiple_of(PROGRAM_ALIGN)) {
            return Err(Errno::INVAL);
        }
        tasks.push(Task { dma, words: fetched(words) });
    }
    Ok(tasks)
}

/// The words that REGISTER_AMOUNTS makes the PC fetch: it has 16 bits for their pairs, less one.
fn fetched(words: u32) -> u32 {
    if words <= MOST_WORDS {
        return words;
    }
    (((words.wrapping_add(1) / 2).wrapping_sub(1) & 0xffff) + 1) * 2
}

/// `drm_gem_objects_lookup`.
fn handles(call: &Call<'_>, address: u64, count: u32) -> Result<Vec<u32>, Errno> {
    if u64::from(count) * size_of::<u64>() as u64 > LARGEST_ALLOCATION {
        return Err(Errno::NOMEM);
    }
    let mut handles = Vec::new();
    for index in 0..u64::from(count) {
        let mut handle = [0; 4];
        client::read(address.wrapping_add(index * 4), &mut handle)?;
        handles.push(u32::from_ne_bytes(handle));
    }
    let objects = lock(&call.file.objects);
    match handles.iter().all(|handle| objects.contains_key(handle)) {
        true => Ok(handles),
        false => Err(Errno::NOENT),
    }
}

#[cfg(test)]
mod tests {
    use super::fetched;

    #[test]
    fn a_count_beyond_the_register_is_cut_as_the_kernel_cuts_it() {
        assert_eq!(fetched(1), 1);
        assert_eq!(fetched(1 << 17), 1 << 17);
        assert_eq!(fetched((1 << 17) + 1), 2);
        assert_eq!(fetched(u32::MAX), 1 << 17);
    }
}
