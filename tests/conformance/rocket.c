/*
 * Does this device answer as the rocket driver? Every rule of its interface, as a TAP test.
 *
 *     rocket NODE KERNEL        e.g. rocket /dev/accel/accel0 7.3
 *
 * KERNEL says whose answers are expected: `6.18` and `7.3` are mainline, `cairn` is either with our patches
 * (interface 1.3: errors are reported, jobs may be batched). Where mainline would corrupt its memory or oops,
 * the line is skipped and says so; nothing here makes a healthy kernel complain but the hung jobs, on purpose.
 *
 * SOURCE: drivers/accel/rocket and drivers/gpu/drm of Linux 6.18.15 and 7.3.4; function names stand at the checks.
 */
#include "rocket.h"

/* ---- TAP ---- */
static int lines, failures;

static void line(int good, const char *name)
{
	printf("%sok %d - %s\n", good ? "" : "not ", ++lines, name);
	failures += !good;
	fflush(stdout);
}

static void skip(const char *name, const char *why)
{
	printf("ok %d - %s # SKIP %s\n", ++lines, name, why);
}

static void expect(long got, long wanted, const char *name)
{
	line(got == wanted, name);
	if (got != wanted)
		printf("# got %ld (%s), expected %ld (%s)\n", got, got < 0 ? strerror((int)-got) : "-", wanted,
		       wanted < 0 ? strerror((int)-wanted) : "-");
}

/* ---- 8.1 node and version ---- */
static void node_and_version(void)
{
	char name[8] = "-------", desc[64] = "";
	struct version version = { .name_len = 3, .name = name, .desc_len = sizeof(desc), .desc = desc };
	struct get_cap cap = { .capability = 5 };
	struct pollfd ready;
	struct stat stat;
	int fd = open_node(), copy;

	line(!fstat(fd, &stat) && S_ISCHR(stat.st_mode) && major(stat.st_rdev) == ACCEL_MAJOR,
	     "the node is a character device of the accel major");
	expect(outcome(open(node, O_RDWR | O_EXCL)), -EBUSY, "open with O_EXCL: EBUSY; drm_open_helper()");
	expect(outcome(ioctl(fd, VERSION, &version)), 0, "VERSION is answered");
	line(version.name_len == 6 && !memcmp(name, "roc----", 7),
	     "VERSION fills the room that there is and tells the whole length; drm_copy_field()");
	line(!strcmp(desc, "rocket DRM"), "VERSION describes the driver");
	line(version.major == (kernel == CAIRN) && version.minor == (kernel == CAIRN ? 3 : 0) && version.patchlevel == 0,
	     "VERSION is 0.0.0 on mainline, 1.3.0 with our patches");
	version = (struct version){ .name_len = 6, .name = (char *)16 };
	expect(outcome(ioctl(fd, VERSION, &version)), -EFAULT, "VERSION into nowhere: EFAULT");
	expect(outcome(ioctl(fd, GET_CAP, &cap)), 0, "GET_CAP PRIME is answered");
	line(cap.value == 3, "GET_CAP PRIME: import and export; drm_getcap()");
	cap.capability = 1;
	expect(outcome(ioctl(fd, GET_CAP, &cap)), -EOPNOTSUPP, "GET_CAP of a display's: EOPNOTSUPP");

	expect(outcome(ioctl(fd, _IOWR('d', 0x5f, struct fini_bo), &cap)), -EINVAL,
	       "a driver ioctl that does not exist: EINVAL; drm_ioctl()");
	expect(outcome(ioctl(fd, _IOWR('e', 0x43, struct fini_bo), &cap)), -ENOTTY, "an ioctl of another type: ENOTTY");
	expect(outcome(ioctl(fd, CREATE_BO, NULL)), -EFAULT, "an ioctl without its struct: EFAULT");

	ready = (struct pollfd){ .fd = fd, .events = POLLIN | POLLOUT };
	expect(outcome(poll(&ready, 1, 0)), 0, "poll has nothing to tell; drm_poll()");
	copy = dup(fd);
	close(fd);
	version = (struct version){ 0 };
	expect(outcome(ioctl(copy, VERSION, &version)), 0, "a duplicate outlives its original");
	close(copy);
	expect(outcome(ioctl(copy, VERSION, &version)), -EBADF, "a closed file: EBADF");
}

/* ---- 8.3 CREATE_BO, mmap, GEM_CLOSE ---- */
static long map(int fd, uint64_t offset, size_t bytes, int flags)
{
	void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, fd, (off_t)offset);

	if (at == MAP_FAILED)
		return -errno;
	munmap(at, bytes);
	return 0;
}

static void buffers(void)
{
	struct create_bo args = { .size = 0 };
	int fd = open_node(), other = open_node(), zero = 1;
	struct bo first = create(fd, 10), second = create(fd, 3 * PAGE), third = create(fd, PAGE), foreign;

	line(first.handle == 1 && second.handle == 2 && third.handle == 3, "handles count from 1");
	line(first.dma == 0 && second.dma == PAGE && third.dma == 4 * PAGE,
	     "addresses ascend from 0 in whole pages; drm_mm_insert_node_generic()");
	for (unsigned int i = 0; i < 3 * PAGE; i++)
		zero &= !second.map[i];
	line(zero, "a buffer object is zero-filled");
	line(first.offset && !(first.offset % PAGE) && first.offset != second.offset, "offsets for mmap are whole pages");
	expect(outcome(ioctl(fd, CREATE_BO, &args)), -ENOSPC,
	       "CREATE_BO of nothing: ENOSPC; drm_gem_create_mmap_offset()");

	expect(map(fd, second.offset, 3 * PAGE, MAP_SHARED), 0, "mmap of the whole object");
	expect(map(fd, second.offset, PAGE, MAP_SHARED), 0, "mmap of its beginning");
	expect(map(fd, second.offset + PAGE, PAGE, MAP_SHARED), -EINVAL,
	       "mmap from its middle: EINVAL; drm_vma_offset_exact_lookup_locked()");
	expect(map(fd, second.offset, 4 * PAGE, MAP_SHARED), -EINVAL, "mmap beyond its end: EINVAL");
	expect(map(fd, 0, PAGE, MAP_SHARED), -EINVAL, "mmap of no object: EINVAL");
	expect(map(fd, second.offset, PAGE, MAP_PRIVATE), -EINVAL, "a private mmap: EINVAL; drm_gem_shmem_mmap()");
	foreign = create(other, PAGE);
	line(foreign.handle == 1 && foreign.dma == 0, "every file has handles and addresses of its own");
	expect(map(fd, foreign.offset, PAGE, MAP_SHARED), -EACCES,
	       "mmap of another file's object: EACCES; drm_vma_node_is_allowed()");

	second.map[5] = 77;
	expect(gem_close(fd, second.handle), 0, "GEM_CLOSE");
	line(second.map[5] == 77, "a mapping outlives GEM_CLOSE");
	expect(gem_close(fd, second.handle), -EINVAL, "GEM_CLOSE once more: EINVAL; drm_gem_handle_delete()");
	expect(prep(fd, second.handle, 0), -ENOENT, "PREP_BO of a closed handle: ENOENT; drm_gem_object_lookup()");
	munmap(second.map, 3 * PAGE);
	second = create(fd, 3 * PAGE);
	line(second.handle == 2, "the lowest free handle is given again");
	line(second.dma == PAGE, "the smallest hole that fits is given again");
	line(!second.map[5], "memory that is given again is zero-filled");
	munmap(first.map, 10);
	munmap(second.map, 3 * PAGE);
	munmap(third.map, PAGE);
	munmap(foreign.map, PAGE);
	close(fd);
	close(other);
}

/* ---- 8.3 PREP_BO, FINI_BO of what is idle ---- */
static void waits(void)
{
	int fd = open_node();
	struct bo bo = create(fd, PAGE);
	struct prep_bo args = { .handle = 99, .reserved = 1 };
	struct fini_bo end = { .handle = 99, .reserved = 1 };
	uint32_t short_struct = bo.handle;

	expect(outcome(ioctl(fd, PREP_BO, &args)), -EINVAL, "PREP_BO with reserved bits: EINVAL, before the handle");
	expect(prep(fd, 99, 0), -ENOENT, "PREP_BO of an unknown handle: ENOENT");
	line(waited(prep(fd, bo.handle, 0)), "PREP_BO of what is idle polls well");
	line(waited(prep(fd, bo.handle, -1)), "PREP_BO with a negative time polls; drm_timeout_abs_to_jiffies()");
	line(waited(prep(fd, bo.handle, now() + 1000 * MS)), "PREP_BO of what is idle waits well");
	expect(outcome(ioctl(fd, FINI_BO, &end)), -EINVAL, "FINI_BO with reserved bits: EINVAL");
	expect(fini(fd, 99), -ENOENT, "FINI_BO of an unknown handle: ENOENT");
	expect(fini(fd, bo.handle), 0, "FINI_BO");
	expect(outcome(ioctl(fd, _IOW('d', 0x43, uint32_t), &short_struct)), 0,
	       "a shorter struct is filled up with zeros; drm_ioctl()");
	munmap(bo.map, PAGE);
	close(fd);
}

/* ---- 8.3 SUBMIT: the ioctl ---- */
static void submits(struct bed *bed)
{
	struct task task = program(bed, 0);
	struct job job = job_of(&task, 1, &bed->features.handle, &bed->output.handle);
	struct submit args = { .jobs = 16, .reserved = 1 };

	expect(outcome(ioctl(bed->fd, SUBMIT, &args)), 0, "SUBMIT of no jobs: 0, before anything else; rocket_ioctl_submit()");
	expect(submit(bed->fd, &job, 1, MAINLINE_JOB - 1), -EINVAL, "SUBMIT of too short jobs: EINVAL");
	args = (struct submit){ (uintptr_t)&job, 1, MAINLINE_JOB, 1 };
	expect(outcome(ioctl(bed->fd, SUBMIT, &args)), -EINVAL, "SUBMIT with reserved bits: EINVAL");
	expect(submit(bed->fd, (void *)16, 1, MAINLINE_JOB), -EFAULT, "SUBMIT of jobs that are nowhere: EFAULT");
	line(runs(bed), "a job runs and its result is there");
}

/* A job that is refused: mainline says nothing and attaches no fence, our patches say why. */
static void refused(const struct bed *bed, struct job job, int error, int safe_on_6_18, const char *name)
{
	char text[200];
	long got;

	snprintf(text, sizeof(text), "%s: %s", name, kernel == CAIRN ? strerror(error) : "dropped in silence");
	if (kernel == MAINLINE_6_18 && !safe_on_6_18) {
		skip(text, "6.18 dereferences NULL or frees twice");
		return;
	}
	got = submit(bed->fd, &job, 1, MAINLINE_JOB);
	expect(got, kernel == CAIRN ? -error : 0, text);
	snprintf(text, sizeof(text), "%s: nothing to wait for", name);
	line(waited(prep(bed->fd, bed->output.handle, 0)), text);
}

static void refusals(struct bed *bed)
{
	const uint32_t unknown = 99, both[2] = { bed->output.handle, bed->output.handle };
	struct task task = program(bed, 0), empty = { bed->programs.dma, 0 };
	const struct job good = job_of(&task, 1, &bed->features.handle, &bed->output.handle);
	struct job job = good;

	job.task_count = 0;
	refused(bed, job, EINVAL, 1, "a job of no tasks");
	job = good;
	job.task_struct_size = sizeof(task) - 1;
	refused(bed, job, EINVAL, 0, "a job of too short tasks");
	job = good;
	job.tasks = 16;
	refused(bed, job, EFAULT, 0, "a job whose tasks are nowhere");
	job = good;
	job.tasks = (uintptr_t)&empty;
	refused(bed, job, EINVAL, 0, "a task of no commands");
	job = good;
	job.in_bo_handles = (uintptr_t)&unknown;
	refused(bed, job, ENOENT, 0, "an unknown input handle");
	job = good;
	job.out_bo_handles = (uintptr_t)&unknown;
	refused(bed, job, ENOENT, 0, "an unknown output handle");
	job = good;
	job.in_bo_handles = 16;
	refused(bed, job, EFAULT, 0, "input handles that are nowhere");
	job = good;
	job.in_bo_handles = (uintptr_t)&bed->output.handle;
	refused(bed, job, EALREADY, 1, "a handle in both lists");
	job = good;
	job.out_bo_handles = (uintptr_t)both;
	job.out_bo_handle_count = 2;
	refused(bed, job, EALREADY, 1, "a handle twice in a list");
	line(runs(bed), "a job runs after those that were refused");
}

/* ---- 8.3 SUBMIT: structs that grow ---- */
static void growth(struct bed *bed)
{
	struct { struct task task; uint64_t tail; } tasks[2] = { { program(bed, 0), 0 }, { program(bed, 1), 0 } };
	struct { struct job job; uint64_t tail; } jobs[2] = {
		{ job_of(&tasks[0].task, 1, &bed->features.handle, &bed->output.handle), 0 },
		{ job_of(&tasks[1].task, 1, &bed->output.handle, &bed->features.handle), 0 },
	};
	long got;

	memset(bed->features.map, 1, PAGE);
	fini(bed->fd, bed->features.handle);
	expect(submit(bed->fd, jobs, 2, sizeof(jobs[0])), 0, "longer jobs: the stride is the caller's");
	line(waited(prep(bed->fd, bed->features.handle, now() + LONG_TIME)) && filled(bed->output.map, 32),
	     "jobs run in order, and a job waits for the writer of its input");
	/* 32 channels of 32 saturate 8 bits. */
	line(filled(bed->features.map, 127), "the second job read what the first had written");
	memset(bed->features.map, 1, PAGE);
	fini(bed->fd, bed->features.handle);
	jobs[0].job.task_count = 2;
	jobs[0].job.task_struct_size = sizeof(tasks[0]);
	memset(bed->output.map, 0x77, PAGE);
	fini(bed->fd, bed->output.handle);
	expect(submit(bed->fd, jobs, 1, sizeof(jobs[0])), 0, "longer tasks: the stride is the caller's");
	waited(prep(bed->fd, bed->output.handle, now() + LONG_TIME));
	line(filled(bed->output.map, 32) && filled(bed->features.map, 127), "tasks of a job run in order");
	memset(bed->features.map, 1, PAGE);
	fini(bed->fd, bed->features.handle);

	jobs[0].job.task_count = 1;
	jobs[0].tail = 1;
	got = submit(bed->fd, jobs, 1, sizeof(jobs[0]));
	expect(got, kernel == CAIRN ? -E2BIG : 0,
	       kernel == CAIRN ? "a job with an unknown tail: E2BIG; copy_struct_from_user()" : "a job's tail is ignored");
	waited(prep(bed->fd, bed->output.handle, now() + LONG_TIME));
	jobs[0].tail = 0;
	jobs[0].job.flags = 1u << 31;
	got = submit(bed->fd, jobs, 1, sizeof(jobs[0]));
	expect(got, kernel == CAIRN ? -EINVAL : 0, kernel == CAIRN ? "unknown flags: EINVAL" : "flags are ignored");
	waited(prep(bed->fd, bed->output.handle, now() + LONG_TIME));
	line(runs(bed), "a job runs after those with tails");
}

/* ---- 8.3 the watchdog ---- */
static void watchdog(struct bed *bed)
{
	struct bo nothing = create(bed->fd, PAGE);
	struct task task = { nothing.dma, 8 };
	struct job job = job_of(&task, 1, &bed->features.handle, &bed->output.handle);
	int64_t start = now();
	long got;

	memset(bed->output.map, 0x77, PAGE);
	fini(bed->fd, bed->output.handle);
	expect(submit(bed->fd, &job, 1, MAINLINE_JOB), 0, "a job whose program does nothing is accepted");
	expect(prep(bed->fd, bed->output.handle, 0), -EBUSY, "PREP_BO polls what is busy: EBUSY");
	expect(prep(bed->fd, bed->output.handle, 1), -EBUSY, "PREP_BO with a time that has passed polls: EBUSY");
	line(waited(prep(bed->fd, bed->features.handle, 0)), "an input has no fence");
	expect(prep(bed->fd, bed->output.handle, now() + 50 * MS), -ETIMEDOUT, "PREP_BO until its deadline: ETIMEDOUT");
	got = prep(bed->fd, bed->output.handle, now() + LONG_TIME);
	if (kernel == CAIRN)
		expect(got, -EIO, "the watchdog ends the job, and PREP_BO says that it failed: EIO");
	else
		line(waited(got), "the watchdog ends the job, and PREP_BO reports a success; Q30");
	printf("# the watchdog took %lld ms\n", (long long)((now() - start) / MS));
	line(filled(bed->output.map, 0x77), "the output is as it was");
	line(runs(bed), "the core runs the next job");

	task.regcmd = WILD;
	expect(submit(bed->fd, &job, 1, MAINLINE_JOB), 0, "a job whose program is nowhere is accepted");
	got = prep(bed->fd, bed->output.handle, now() + LONG_TIME);
	line(kernel == CAIRN ? got == -EIO : waited(got), "and ends as one that hangs does");
	line(runs(bed), "the core runs the next job");
	munmap(nothing.map, PAGE);
}

/* ---- 8.5 batched jobs ---- */
static void batch(struct bed *bed)
{
	struct task tasks[2] = { program(bed, 0), program(bed, 1) };
	struct job job = job_of(tasks, 2, NULL, &bed->output.handle);

	if (kernel != CAIRN) {
		skip("a batched job", "mainline has none");
		return;
	}
	memset(bed->features.map, 1, PAGE);
	memset(bed->output.map, 0x77, PAGE);
	write_program((uint64_t *)bed->programs.map, bed, bed->features.dma, bed->output.dma, tasks[1].regcmd);
	fini(bed->fd, bed->features.handle);
	fini(bed->fd, bed->output.handle);
	fini(bed->fd, bed->programs.handle);
	job.flags = BATCHED;
	expect(submit(bed->fd, &job, 1, sizeof(job)), 0, "a batched job is accepted");
	line(waited(prep(bed->fd, bed->output.handle, now() + LONG_TIME)) && filled(bed->output.map, 32) &&
	     filled(bed->features.map, 127), "its programs run one after the other");
	tasks[0].regcmd += 8;
	expect(submit(bed->fd, &job, 1, sizeof(job)), -EINVAL, "a batched program that is not aligned: EINVAL");
}

/* ---- several files, threads and processes ---- */
static void *many_jobs(void *unused)
{
	struct bed bed = open_bed();
	long good = 0;

	(void)unused;
	for (int i = 0; i < 10; i++)
		good += runs(&bed);
	close_bed(&bed);
	return (void *)good;
}

static long four_threads(void)
{
	pthread_t threads[4];
	long good = 0;

	for (int i = 0; i < 4; i++)
		if (pthread_create(&threads[i], NULL, many_jobs, NULL))
			bail("pthread_create");
	for (int i = 0; i < 4; i++) {
		void *count;

		pthread_join(threads[i], &count);
		good += (long)count;
	}
	return good;
}

static void company(void)
{
	int status;
	pid_t child = fork();

	if (child < 0)
		bail("fork");
	if (!child)
		_exit(four_threads() == 40 ? 0 : 1);
	expect(four_threads(), 40, "four threads with a file each run ten jobs each");
	waitpid(child, &status, 0);
	expect(status, 0, "and so do four threads of a child at the same time");
}

int main(int argc, char **argv)
{
	struct bed bed;

	if (argc != 3)
		return fprintf(stderr, "usage: %s NODE 6.18|7.3|cairn\n", argv[0]), 2;
	node = argv[1];
	if (!strcmp(argv[2], "6.18"))
		kernel = MAINLINE_6_18;
	else if (!strcmp(argv[2], "7.3"))
		kernel = MAINLINE_7_3;
	else if (!strcmp(argv[2], "cairn"))
		kernel = CAIRN;
	else
		return fprintf(stderr, "%s: no such kernel\n", argv[2]), 2;
	setvbuf(stdout, NULL, _IOLBF, 0);
	printf("TAP version 13\n");
	node_and_version();
	buffers();
	waits();
	bed = open_bed();
	submits(&bed);
	refusals(&bed);
	growth(&bed);
	watchdog(&bed);
	batch(&bed);
	close_bed(&bed);
	company();
	printf("1..%d\n", lines);
	return failures ? 1 : 0;
}
