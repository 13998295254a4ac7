//! The kernel's structs and ioctl numbers, to the byte.
//!
//! SOURCE: `include/uapi/drm/rocket_accel.h` (Linux 6.18), `include/uapi/drm/drm.h`; npu-spec 8.2 and 8.5.

use std::ffi::{c_char, c_int};

use nix::{ioctl_readwrite, ioctl_write_ptr};

/// `struct drm_rocket_create_bo`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CreateBo {
    /// In: size in bytes.
    pub size: u32,
    /// Out: handle.
    pub handle: u32,
    /// Out: address in the NPU's address space.
    pub dma_address: u64,
    /// Out: offset for `mmap`.
    pub offset: u64,
}

/// `struct drm_rocket_submit`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Submit {
    /// Pointer to the jobs.
    pub jobs: u64,
    /// How many.
    pub job_count: u32,
    /// Bytes from one job to the next.
    pub job_struct_size: u32,
    /// Zero.
    pub reserved: u64,
}

/// `struct drm_rocket_job`, with the batched extension's tail, which mainline ignores.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Job {
    /// Pointer to the tasks.
    pub tasks: u64,
    /// Pointer to handles that are waited for.
    pub in_bo_handles: u64,
    /// Pointer to handles that are written.
    pub out_bo_handles: u64,
    /// How many tasks.
    pub task_count: u32,
    /// Bytes from one task to the next.
    pub task_struct_size: u32,
    /// How many input handles.
    pub in_bo_handle_count: u32,
    /// How many output handles.
    pub out_bo_handle_count: u32,
    /// [`BATCHED`], [`NO_DPU_DONE`], [`PPU_DONE`].
    pub flags: u32,
    /// Zero.
    pub reserved: u32,
}

/// Bytes of `struct drm_rocket_job` on mainline.
pub const MAINLINE_JOB_BYTES: u32 = 40;
/// One kick for all tasks of the job.
pub const BATCHED: u32 = 1 << 0;
/// Do not wait for the DPU's interrupt.
pub const NO_DPU_DONE: u32 = 1 << 1;
/// Completion is the pooling unit's interrupt.
pub const PPU_DONE: u32 = 1 << 2;

/// `struct drm_rocket_task`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Task {
    /// DMA address of the command words.
    pub regcmd: u32,
    /// How many 64-bit words.
    pub regcmd_count: u32,
}

/// `struct drm_rocket_prep_bo`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct PrepBo {
    /// Handle.
    pub handle: u32,
    /// Zero.
    pub reserved: u32,
    /// Absolute `CLOCK_MONOTONIC` time.
    pub timeout_ns: i64,
}

/// `struct drm_rocket_fini_bo`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct FiniBo {
    /// Handle.
    pub handle: u32,
    /// Zero.
    pub reserved: u32,
}

/// A range of the ranged extension.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct BoRange {
    /// First byte.
    pub offset: u64,
    /// Length.
    pub size: u64,
}

/// PREP for ranges.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct PrepBoRanges {
    /// Handle.
    pub handle: u32,
    /// How many ranges.
    pub range_count: u32,
    /// Pointer to the ranges.
    pub ranges: u64,
    /// Absolute `CLOCK_MONOTONIC` time.
    pub timeout_ns: i64,
    /// Zero.
    pub reserved: u64,
}

/// FINI for ranges.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct FiniBoRanges {
    /// Handle.
    pub handle: u32,
    /// How many ranges.
    pub range_count: u32,
    /// Pointer to the ranges.
    pub ranges: u64,
    /// Zero.
    pub reserved: u64,
}

/// `struct drm_version`.
#[repr(C)]
#[derive(Debug)]
pub struct Version {
    /// Major.
    pub major: c_int,
    /// Minor.
    pub minor: c_int,
    /// Patch level.
    pub patchlevel: c_int,
    /// In: room for the name; out: its length.
    pub name_len: usize,
    /// The name.
    pub name: *mut c_char,
    /// In: room for the date; out: its length.
    pub date_len: usize,
    /// The date.
    pub date: *mut c_char,
    /// In: room for the description; out: its length.
    pub desc_len: usize,
    /// The description.
    pub desc: *mut c_char,
}

/// `struct drm_gem_close`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct GemClose {
    /// Handle.
    pub handle: u32,
    /// Zero.
    pub pad: u32,
}

ioctl_readwrite!(
    /// DRM_IOCTL_VERSION.
    version, b'd', 0x00, Version
);
ioctl_write_ptr!(
    /// DRM_IOCTL_GEM_CLOSE.
    gem_close, b'd', 0x09, GemClose
);
ioctl_readwrite!(
    /// DRM_IOCTL_ROCKET_CREATE_BO.
    create_bo, b'd', 0x40, CreateBo
);
ioctl_write_ptr!(
    /// DRM_IOCTL_ROCKET_SUBMIT.
    submit, b'd', 0x41, Submit
);
ioctl_write_ptr!(
    /// DRM_IOCTL_ROCKET_PREP_BO.
    prep_bo, b'd', 0x42, PrepBo
);
ioctl_write_ptr!(
    /// DRM_IOCTL_ROCKET_FINI_BO.
    fini_bo, b'd', 0x43, FiniBo
);
ioctl_write_ptr!(
    /// PREP for ranges, out of tree.
    prep_bo_ranges, b'd', 0x44, PrepBoRanges
);
ioctl_write_ptr!(
    /// FINI for ranges, out of tree.
    fini_bo_ranges, b'd', 0x45, FiniBoRanges
);

#[cfg(test)]
mod tests {
    use std::mem::{offset_of, size_of};

    use nix::{request_code_readwrite, request_code_write};

    use super::*;

    #[test]
    fn structs_have_the_kernels_sizes() {
        assert_eq!(size_of::<CreateBo>(), 24);
        assert_eq!(size_of::<Submit>(), 24);
        assert_eq!(size_of::<Job>(), 48);
        assert_eq!(size_of::<Task>(), 8);
        assert_eq!(size_of::<PrepBo>(), 16);
        assert_eq!(size_of::<FiniBo>(), 8);
        assert_eq!(size_of::<BoRange>(), 16);
        assert_eq!(size_of::<PrepBoRanges>(), 32);
        assert_eq!(size_of::<FiniBoRanges>(), 24);
        assert_eq!(size_of::<GemClose>(), 8);
    }

    #[test]
    fn fields_have_the_kernels_offsets() {
        assert_eq!(offset_of!(CreateBo, handle), 4);
        assert_eq!(offset_of!(CreateBo, dma_address), 8);
        assert_eq!(offset_of!(CreateBo, offset), 16);
        assert_eq!(offset_of!(Submit, job_count), 8);
        assert_eq!(offset_of!(Submit, job_struct_size), 12);
        assert_eq!(offset_of!(Submit, reserved), 16);
        assert_eq!(offset_of!(Job, in_bo_handles), 8);
        assert_eq!(offset_of!(Job, out_bo_handles), 16);
        assert_eq!(offset_of!(Job, task_count), 24);
        assert_eq!(offset_of!(Job, task_struct_size), 28);
        assert_eq!(offset_of!(Job, in_bo_handle_count), 32);
        assert_eq!(offset_of!(Job, out_bo_handle_count), 36);
        assert_eq!(offset_of!(Job, flags), MAINLINE_JOB_BYTES as usize);
        assert_eq!(offset_of!(Job, reserved), 44);
        assert_eq!(offset_of!(Task, regcmd_count), 4);
        assert_eq!(offset_of!(PrepBo, timeout_ns), 8);
        assert_eq!(offset_of!(PrepBoRanges, ranges), 8);
        assert_eq!(offset_of!(PrepBoRanges, timeout_ns), 16);
        assert_eq!(offset_of!(FiniBoRanges, ranges), 8);
    }

    #[test]
    fn ioctls_have_the_kernels_numbers() {
        assert_eq!(request_code_readwrite!(b'd', 0x40, size_of::<CreateBo>()), 0xc018_6440);
        assert_eq!(request_code_write!(b'd', 0x41, size_of::<Submit>()), 0x4018_6441);
        assert_eq!(request_code_write!(b'd', 0x42, size_of::<PrepBo>()), 0x4010_6442);
        assert_eq!(request_code_write!(b'd', 0x43, size_of::<FiniBo>()), 0x4008_6443);
    }
}
