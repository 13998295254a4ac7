/*
 * A client that passes garbage, from several threads, and closes its files while jobs run. Whatever the device answers,
 * the client must live, and good jobs must run beside it and after it. Not for a real kernel of mainline: 6.18 would
 * not survive it.
 *
 *     garbage NODE KERNEL SEED
 */
#include "rocket.h"

#define ROUNDS 400
#define SHARED_FILES 4

static int shared[SHARED_FILES];
static int failures;
/* Four bytes before what is not mapped. */
static char *edge;

static uint64_t draw(uint64_t *state)
{
	/* xorshift64 */
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

/* A pointer that may be anything: nothing, unmapped, half mapped, read only, or `good`. */
static uint64_t pointer(uint64_t *state, void *good)
{
	static const char constant[64];

	switch (draw(state) % 8) {
	case 0: return 0;
	case 1: return draw(state);
	case 2: return (uintptr_t)edge;
	case 3: return (uintptr_t)constant;
	default: return (uintptr_t)good;
	}
}

static uint32_t number(uint64_t *state, uint32_t likely)
{
	static const uint32_t odd[] = { 0, 1, 7, 8, 39, 40, 48, 4096, 4097, 0x7fffffff, 0x80000000, 0xffffffff };

	return draw(state) % 3 ? (uint32_t)(draw(state) % likely) : odd[draw(state) % 12];
}

static void submit_garbage(int fd, uint64_t *state)
{
	struct { struct task task; uint64_t tail; } tasks[4];
	uint32_t handles[8];
	struct job jobs[3];
	struct submit args = {
		.jobs = pointer(state, jobs), .job_count = number(state, 4),
		.job_struct_size = draw(state) % 4 ? sizeof(jobs[0]) : number(state, 64),
		.reserved = !(draw(state) % 8),
	};

	for (int i = 0; i < 8; i++)
		handles[i] = number(state, 8);
	for (int i = 0; i < 4; i++) {
		tasks[i].task = (struct task){ number(state, 1 << 16) & ~7u, number(state, 200) };
		tasks[i].tail = !(draw(state) % 4);
	}
	for (int i = 0; i < 3; i++)
		jobs[i] = (struct job){
			.tasks = pointer(state, tasks), .task_count = number(state, 4),
			.task_struct_size = draw(state) % 4 ? sizeof(tasks[0]) : number(state, 24),
			.in_bo_handles = pointer(state, handles), .in_bo_handle_count = number(state, 3),
			.out_bo_handles = pointer(state, handles + 4), .out_bo_handle_count = number(state, 3),
			/* A batch whose programs are garbage has a broken chain. */
			.flags = draw(state) % 3 ? (uint32_t)(draw(state) % 2) : (uint32_t)draw(state),
		};
	ioctl(fd, SUBMIT, &args);
}

/* A job that is well-formed and whose programs are not: wild addresses, garbage words, batches with broken chains. */
static void submit_wild(int fd, uint64_t *state)
{
	struct task tasks[3];
	struct job job = job_of(tasks, 1 + draw(state) % 3, NULL, NULL);

	for (int i = 0; i < 3; i++)
		tasks[i] = (struct task){ number(state, 1 << 16) & ~15u, 1 + draw(state) % 200 };
	job.flags = draw(state) % 2;
	submit(fd, &job, 1, draw(state) % 2 ? sizeof(job) : MAINLINE_JOB);
}

static void any_ioctl(int fd, uint64_t *state)
{
	char bytes[64];
	unsigned long request = (draw(state) % 4) << 30 | (draw(state) % 65) << 16 | 'd' << 8 | draw(state) % 256;

	for (unsigned int i = 0; i < sizeof(bytes); i++)
		bytes[i] = (char)draw(state);
	/* Sizes beyond the buffer would have the client's own stack overwritten, by a kernel as well. */
	ioctl(fd, request, pointer(state, bytes));
}

static void garbage(int fd, uint64_t *state)
{
	struct create_bo create = { .size = number(state, 1 << 18) };
	struct prep_bo prep = { number(state, 8), !(draw(state) % 8), (int64_t)draw(state) % (2 * MS) };
	struct fini_bo fini = { number(state, 8), !(draw(state) % 8) };
	void *at;

	switch (draw(state) % 10) {
	case 0:
		/* Half of 32 bits would use up the machine's memory. */
		create.size &= 0xfffff;
		if (ioctl(fd, CREATE_BO, &create))
			break;
		at = mmap(NULL, create.size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)create.offset);
		if (at == MAP_FAILED)
			break;
		for (uint32_t i = 0; i + 8 <= create.size && i < 4 * PAGE; i += 8)
			*(uint64_t *)((char *)at + i) = draw(state) % 4 ? draw(state) : 0x0041000000000000;
		munmap(at, create.size);
		break;
	case 1: ioctl(fd, PREP_BO, draw(state) % 4 ? &prep : (void *)pointer(state, &prep)); break;
	case 2: ioctl(fd, FINI_BO, draw(state) % 4 ? &fini : (void *)pointer(state, &fini)); break;
	case 3: gem_close(fd, number(state, 8)); break;
	case 4:
		at = mmap(NULL, number(state, 4 * PAGE), PROT_READ, MAP_SHARED, fd, (off_t)(number(state, 64) * PAGE));
		break;
	case 5: any_ioctl(fd, state); break;
	case 6:
	case 7: submit_wild(fd, state); break;
	default: submit_garbage(fd, state); break;
	}
}

/* Garbage into the shared files, and every now and then one of them goes away under the others. */
static void *vandal(void *seed)
{
	uint64_t state = (uintptr_t)seed;

	for (int i = 0; i < ROUNDS; i++) {
		int *fd = &shared[draw(&state) % SHARED_FILES];

		if (draw(&state) % 32)
			garbage(*fd, &state);
		else
			dup2(open_node(), *fd);
	}
	return NULL;
}

/* Good work beside it: jobs that are waited for, and jobs whose file closes while they run. */
static void *worker(void *unused)
{
	(void)unused;
	for (int i = 0; i < 10; i++) {
		struct bed bed = open_bed();
		struct task task = program(&bed, 0);
		struct job job = job_of(&task, 1, &bed.features.handle, &bed.output.handle);

		if (!runs(&bed)) {
			fprintf(stderr, "a good job failed\n");
			__sync_fetch_and_add(&failures, 1);
		}
		submit(bed.fd, &job, 1, MAINLINE_JOB);
		close_bed(&bed);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	char *pages = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	pthread_t threads[4];
	struct bed bed;

	munmap(pages + PAGE, PAGE);
	edge = pages + PAGE - 4;
	if (argc != 4)
		return fprintf(stderr, "usage: %s NODE 6.18|7.3|cairn SEED\n", argv[0]), 2;
	node = argv[1];
	kernel = !strcmp(argv[2], "6.18") ? MAINLINE_6_18 : !strcmp(argv[2], "7.3") ? MAINLINE_7_3 : CAIRN;
	for (int i = 0; i < SHARED_FILES; i++)
		shared[i] = open_node();
	for (int i = 0; i < 4; i++)
		if (pthread_create(&threads[i], NULL, i < 2 ? vandal : worker, (void *)(uintptr_t)(atoi(argv[3]) * 4 + i + 1)))
			bail("pthread_create");
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	bed = open_bed();
	if (!runs(&bed))
		failures++;
	printf("alive, %d failures\n", failures);
	return failures ? 1 : 0;
}
