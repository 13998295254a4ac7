/*
 * The rocket driver's interface, to the byte, and a convolution that proves that a device computes.
 *
 * SOURCE: include/uapi/drm/rocket_accel.h and drm.h of Linux 7.3.4; the program's registers as in npu-regs.
 */
#ifndef ROCKET_H
#define ROCKET_H
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct create_bo { uint32_t size, handle; uint64_t dma, offset; };
struct submit { uint64_t jobs; uint32_t job_count, job_struct_size; uint64_t reserved; };
struct prep_bo { uint32_t handle, reserved; int64_t timeout_ns; };
struct fini_bo { uint32_t handle, reserved; };
struct gem_close { uint32_t handle, pad; };
struct get_cap { uint64_t capability, value; };
struct task { uint32_t regcmd, regcmd_count; };
struct job {
	uint64_t tasks, in_bo_handles, out_bo_handles;
	uint32_t task_count, task_struct_size, in_bo_handle_count, out_bo_handle_count;
	uint32_t flags, reserved; /* Interface 1.1. */
};
struct version {
	int major, minor, patchlevel;
	size_t name_len; char *name;
	size_t date_len; char *date;
	size_t desc_len; char *desc;
};
#define MAINLINE_JOB 40
#define BATCHED 1u
#define VERSION _IOWR('d', 0x00, struct version)
#define GEM_CLOSE _IOW('d', 0x09, struct gem_close)
#define GET_CAP _IOWR('d', 0x0c, struct get_cap)
#define CREATE_BO _IOWR('d', 0x40, struct create_bo)
#define SUBMIT _IOW('d', 0x41, struct submit)
#define PREP_BO _IOW('d', 0x42, struct prep_bo)
#define FINI_BO _IOW('d', 0x43, struct fini_bo)

#define PAGE 4096u
/* An address that no buffer object reaches: the core's fetch faults, and the watchdog ends the job. */
#define WILD 0xf0000000u
#define MS 1000000LL
/* Longer than the watchdog needs on the slowest machine that simulates one. */
#define LONG_TIME (60000 * MS)
#define ACCEL_MAJOR 261

static enum { MAINLINE_6_18, MAINLINE_7_3, CAIRN } kernel;
static const char *node;

/* The result of a system call as one number: what it returned, or the error as a negative. */
static inline long outcome(long result)
{
	return result == -1 ? -errno : result;
}

static inline void bail(const char *what)
{
	printf("Bail out! %s: %s\n", what, strerror(errno));
	exit(2);
}

/* ---- the interface ---- */
static inline int64_t now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000 * MS + time.tv_nsec;
}

static inline int open_node(void)
{
	int fd = open(node, O_RDWR | O_CLOEXEC);

	if (fd < 0)
		bail(node);
	return fd;
}

static inline long prep(int fd, uint32_t handle, int64_t deadline)
{
	struct prep_bo prep = { .handle = handle, .timeout_ns = deadline };
	long got;

	do
		got = outcome(ioctl(fd, PREP_BO, &prep));
	while (got == -EINTR);
	return got;
}

static inline long fini(int fd, uint32_t handle)
{
	struct fini_bo fini = { .handle = handle };

	return outcome(ioctl(fd, FINI_BO, &fini));
}

static inline long gem_close(int fd, uint32_t handle)
{
	struct gem_close close = { .handle = handle };

	return outcome(ioctl(fd, GEM_CLOSE, &close));
}

/* A wait that ended well: 6.18 returns what is left of the time, later kernels nothing. rocket_ioctl_prep_bo() */
static inline int waited(long got)
{
	return kernel == MAINLINE_6_18 ? got > 0 : got == 0;
}

struct bo { uint32_t handle; uint32_t dma; uint64_t offset; uint8_t *map; };

static inline struct bo create(int fd, uint32_t size)
{
	struct create_bo args = { .size = size };
	struct bo bo;

	if (ioctl(fd, CREATE_BO, &args))
		bail("CREATE_BO");
	bo = (struct bo){ args.handle, (uint32_t)args.dma, args.offset, NULL };
	bo.map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)args.offset);
	if (bo.map == MAP_FAILED)
		bail("mmap");
	return bo;
}

static inline long submit(int fd, const void *jobs, uint32_t count, uint32_t stride)
{
	struct submit args = { (uintptr_t)jobs, count, stride, 0 };

	return outcome(ioctl(fd, SUBMIT, &args));
}

/* ---- a convolution: 8x8 pixels, 32 channels of 8 bits, 32 kernels of 1x1 ---- */
struct word { uint16_t target; uint16_t offset; uint32_t value; };
enum { CNA = 0x0201, CORE = 0x0801, DPU = 0x1001, RDMA = 0x2001, PC = 0x0101, MARKER = 0x0041, ENABLE = 0x0081 };
enum { LINK = 50, WORDS = LINK + 4 };

struct bed {
	int fd;
	struct bo features, weights, output, programs;
};

/* The program's words; `next` is the DMA address of the next program of a batch, or 0. */
static inline void write_program(uint64_t *to, const struct bed *bed, uint32_t from_dma, uint32_t to_dma, uint32_t next)
{
	const struct word words[WORDS] = {
		{ DPU, 0x4004, 0xe }, { RDMA, 0x5004, 0xe },
		{ CNA, 0x100c, 0 }, { CNA, 0x1010, 0x90 }, { CNA, 0x1014, 0x9 },
		{ CNA, 0x1020, 0x00080008 }, { CNA, 0x1024, 0x001f0020 }, { CNA, 0x1028, 8 }, { CNA, 0x102c, 64 },
		{ CNA, 0x1030, 1024 }, { CNA, 0x1034, 32 }, { CNA, 0x1038, 0x01010020 }, { CNA, 0x1040, 0x39 },
		{ CNA, 0x104c, 0xb }, { CNA, 0x1068, 0 }, { CNA, 0x1070, from_dma },
		{ CNA, 0x107c, 32 }, { CNA, 0x1080, 32 }, { CNA, 0x1084, 0x00080008 }, { CNA, 0x1088, 32 },
		{ CNA, 0x1110, bed->weights.dma }, { CNA, 0x1184, 0 },
		{ CORE, 0x3010, 1 }, { CORE, 0x3014, 0x00070007 }, { CORE, 0x3018, 31 },
		{ DPU, 0x400c, 0x1e4 }, { DPU, 0x4010, 0 }, { DPU, 0x4020, to_dma }, { DPU, 0x4024, 0x400 },
		{ DPU, 0x4030, 7 }, { DPU, 0x4034, 7 }, { DPU, 0x403c, 0x001f001f }, { DPU, 0x4040, 0x00020053 },
		{ DPU, 0x4050, 0x126 }, { DPU, 0x4054, 0 }, { DPU, 0x4058, 31 }, { DPU, 0x405c, 0x00070007 },
		{ DPU, 0x4060, 0x41 }, { DPU, 0x4070, 0x83 }, { DPU, 0x4080, 0 }, { DPU, 0x4084, 1 }, { DPU, 0x4088, 0 },
		{ DPU, 0x40c0, 0x800 },
		{ RDMA, 0x500c, 7 }, { RDMA, 0x5010, 7 }, { RDMA, 0x5014, 31 }, { RDMA, 0x501c, 0 },
		{ RDMA, 0x5020, bed->weights.dma }, { RDMA, 0x5034, 1 }, { RDMA, 0x5044, 0x7810 },
		{ next ? PC : 0, next ? 0x0010 : 0, next }, { PC, 0x0014, next ? (WORDS + 1) / 2 - 1 : 0 },
		{ MARKER, 0, 0 }, { ENABLE, 0x0008, 0x1d },
	};

	for (int i = 0; i < WORDS; i++)
		to[i] = (uint64_t)words[i].target << 48 | (uint64_t)words[i].value << 16 | words[i].offset;
}

static inline struct bed open_bed(void)
{
	struct bed bed = { .fd = open_node() };

	bed.features = create(bed.fd, PAGE);
	bed.weights = create(bed.fd, PAGE);
	bed.output = create(bed.fd, PAGE);
	bed.programs = create(bed.fd, 2 * PAGE);
	memset(bed.features.map, 1, PAGE);
	memset(bed.weights.map, 1, PAGE);
	memset(bed.output.map, 0x77, PAGE);
	/* The first from features to output; the second from there back to the features. */
	write_program((uint64_t *)bed.programs.map, &bed, bed.features.dma, bed.output.dma, 0);
	write_program((uint64_t *)(bed.programs.map + PAGE), &bed, bed.output.dma, bed.features.dma, 0);
	fini(bed.fd, bed.features.handle);
	fini(bed.fd, bed.weights.handle);
	fini(bed.fd, bed.output.handle);
	fini(bed.fd, bed.programs.handle);
	return bed;
}

static inline void close_bed(struct bed *bed)
{
	munmap(bed->features.map, PAGE);
	munmap(bed->weights.map, PAGE);
	munmap(bed->output.map, PAGE);
	munmap(bed->programs.map, 2 * PAGE);
	close(bed->fd);
}

static inline struct task program(const struct bed *bed, int which)
{
	return (struct task){ bed->programs.dma + which * PAGE, WORDS };
}

/* A job with one input and one output. */
static inline struct job job_of(const struct task *tasks, uint32_t count, const uint32_t *in, const uint32_t *out)
{
	return (struct job){
		.tasks = (uintptr_t)tasks, .task_count = count, .task_struct_size = sizeof(*tasks),
		.in_bo_handles = (uintptr_t)in, .in_bo_handle_count = !!in,
		.out_bo_handles = (uintptr_t)out, .out_bo_handle_count = !!out,
	};
}

static inline int filled(const uint8_t *bytes, int value)
{
	for (int i = 0; i < 8 * 8 * 32; i++)
		if (bytes[i] != value)
			return 0;
	return 1;
}

/* Runs the first program, which turns ones into 32. */
static inline int runs(const struct bed *bed)
{
	struct task task = program(bed, 0);
	struct job job = job_of(&task, 1, &bed->features.handle, &bed->output.handle);

	memset(bed->output.map, 0x77, PAGE);
	fini(bed->fd, bed->output.handle);
	return !submit(bed->fd, &job, 1, MAINLINE_JOB) &&
	       waited(prep(bed->fd, bed->output.handle, now() + LONG_TIME)) && filled(bed->output.map, 32);
}

#endif
