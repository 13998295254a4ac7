/*
 * A panthor device for LD_PRELOAD, in front of Mesa's libpanfrost_noop_drm_shim.so: that one brings the node, what the
 * GPU is, and sync objects; buffers, address spaces and groups are here. Nothing is executed but command streams.
 *
 *     LD_PRELOAD="panthor.so libpanfrost_noop_drm_shim.so" PAN_GPU_ID=a867 PANTHOR_LOG=FILE program
 *
 * The log has a line for each event, besides those of stream.c:
 *
 *     create BYTES · refused BYTES · map VM ADDRESS BYTES · unmap VM ADDRESS BYTES · group GROUP · submit GROUP QUEUE BYTES
 *
 * PANTHOR_LARGEST=BYTES refuses buffers that are larger; PANTHOR_REFUSE=N refuses the N-th, counted from 1.
 *
 * SOURCE: include/drm-uapi/panthor_drm.h of Mesa 25.0.7; unknown commands are answered with success, as newer ones are
 * hints (labels, cache maintenance) or settings.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <drm/drm.h>
#include <drm/panthor_drm.h>

#include "panthor.h"

/* Offsets of buffers for mmap start here; no other file is this large. */
#define BUFFERS (1ull << 50)
/* All buffers together, used once; only what is touched takes memory. */
#define STORE (1ull << 42)
#define PAGE 4096ull

enum {
	/* Handles of ours; the other library's are small. */
	FIRST_HANDLE = 1 << 20,
	MOST = 1 << 16,
};

struct buffer {
	uint64_t offset, bytes;
	unsigned users;
	void *view;
};

struct mapping {
	uint32_t vm;
	uint64_t address, bytes, offset;
	struct buffer *buffer;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct buffer *handles[MOST];
static struct mapping *mappings;
static struct stream *streams;
static unsigned last_handle, mapping_count, stream_count, last_group, last_vm;
static uint32_t group_vms[MOST];
static uint64_t used = PAGE;
static int store = -1, log_file = -1;

void say(const char *format, ...)
{
	char line[256];
	va_list arguments;
	int bytes;

	va_start(arguments, format);
	bytes = vsnprintf(line, sizeof(line), format, arguments);
	va_end(arguments);
	/* Whole lines, also from several programs: the file is opened for appending. */
	if (log_file >= 0 && write(log_file, line, bytes) != bytes)
		abort();
}

static uint64_t setting(const char *name, uint64_t otherwise)
{
	const char *text = getenv(name);

	return text ? strtoull(text, NULL, 0) : otherwise;
}

static void start(void)
{
	const char *name = getenv("PANTHOR_LOG");

	if (store >= 0)
		return;
	store = memfd_create("panthor", MFD_CLOEXEC);
	if (store < 0 || ftruncate(store, STORE))
		abort();
	if (name)
		log_file = open(name, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
	if (name && log_file < 0)
		abort();
}

/* ---- memory ---- */
static void drop(struct buffer *buffer)
{
	if (--buffer->users)
		return;
	if (buffer->view)
		munmap(buffer->view, buffer->bytes);
	fallocate(store, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, buffer->offset, buffer->bytes);
	free(buffer);
}

static struct buffer *lookup(uint32_t handle)
{
	return handle > FIRST_HANDLE && handle - FIRST_HANDLE <= last_handle ? handles[handle - FIRST_HANDLE] : NULL;
}

static int bo_create(struct drm_panthor_bo_create *create)
{
	static uint64_t created;
	uint64_t bytes = (create->size + PAGE - 1) & ~(PAGE - 1);
	struct buffer *buffer;

	say("create %llu\n", (unsigned long long)bytes);
	if (bytes > setting("PANTHOR_LARGEST", UINT64_MAX) || ++created == setting("PANTHOR_REFUSE", 0)) {
		say("refused %llu\n", (unsigned long long)bytes);
		return ENOMEM;
	}
	if (used + bytes > STORE || last_handle + 1 == MOST)
		return ENOMEM;
	buffer = calloc(1, sizeof(*buffer));
	if (!buffer)
		return ENOMEM;
	*buffer = (struct buffer){ .offset = used, .bytes = bytes, .users = 1 };
	used += bytes;
	handles[++last_handle] = buffer;
	create->handle = FIRST_HANDLE + last_handle;
	create->size = bytes;
	return 0;
}

static int gem_close(struct drm_gem_close *close)
{
	struct buffer *buffer = lookup(close->handle);

	if (!buffer)
		return EINVAL;
	handles[close->handle - FIRST_HANDLE] = NULL;
	drop(buffer);
	return 0;
}

static int map(uint32_t vm, const struct drm_panthor_vm_bind_op *op)
{
	struct buffer *buffer = lookup(op->bo_handle);
	void *more;

	if (!buffer || op->bo_offset + op->size > buffer->bytes)
		return EINVAL;
	more = realloc(mappings, (mapping_count + 1) * sizeof(*mappings));
	if (!more)
		return ENOMEM;
	mappings = more;
	mappings[mapping_count++] = (struct mapping){ vm, op->va, op->size, op->bo_offset, buffer };
	buffer->users++;
	say("map %u 0x%llx %llu\n", vm, (unsigned long long)op->va, (unsigned long long)op->size);
	return 0;
}

/* Only whole mappings, as Mesa makes them. */
static int unmap(uint32_t vm, uint64_t address, uint64_t bytes)
{
	unsigned kept = 0;

	for (unsigned i = 0; i < mapping_count; i++) {
		struct mapping *mapping = &mappings[i];

		if (mapping->vm == vm && mapping->address >= address &&
		    mapping->address + mapping->bytes <= address + bytes) {
			say("unmap %u 0x%llx %llu\n", vm, (unsigned long long)mapping->address,
			    (unsigned long long)mapping->bytes);
			drop(mapping->buffer);
		} else {
			mappings[kept++] = *mapping;
		}
	}
	mapping_count = kept;
	return 0;
}

void *memory(uint32_t vm, uint64_t address, uint64_t bytes)
{
	for (unsigned i = 0; i < mapping_count; i++) {
		struct mapping *mapping = &mappings[i];
		struct buffer *buffer = mapping->buffer;

		if (mapping->vm != vm || address < mapping->address ||
		    address + bytes > mapping->address + mapping->bytes)
			continue;
		if (!buffer->view)
			buffer->view = mmap(NULL, buffer->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
					    store, buffer->offset);
		if (buffer->view == MAP_FAILED)
			abort();
		return (char *)buffer->view + mapping->offset + (address - mapping->address);
	}
	return NULL;
}

static int vm_bind(const struct drm_panthor_vm_bind *bind)
{
	for (uint32_t i = 0; i < bind->ops.count; i++) {
		const struct drm_panthor_vm_bind_op *op =
			(const void *)(uintptr_t)(bind->ops.array + (uint64_t)i * bind->ops.stride);
		int error = 0;

		switch (op->flags & DRM_PANTHOR_VM_BIND_OP_TYPE_MASK) {
		case DRM_PANTHOR_VM_BIND_OP_TYPE_MAP:
			error = map(bind->vm_id, op);
			break;
		case DRM_PANTHOR_VM_BIND_OP_TYPE_UNMAP:
			error = unmap(bind->vm_id, op->va, op->size);
			break;
		}
		if (error)
			return error;
	}
	return 0;
}

/* ---- groups ---- */
static int group_create(struct drm_panthor_group_create *create)
{
	if (last_group + 1 == MOST)
		return ENOMEM;
	create->group_handle = ++last_group;
	group_vms[last_group] = create->vm_id;
	say("group %u\n", last_group);
	return 0;
}

static struct stream *stream_of(uint32_t group, uint32_t queue)
{
	struct stream *more;

	for (unsigned i = 0; i < stream_count; i++)
		if (streams[i].group == group && streams[i].queue == queue)
			return &streams[i];
	more = realloc(streams, (stream_count + 1) * sizeof(*streams));
	if (!more)
		abort();
	streams = more;
	streams[stream_count] = (struct stream){ .group = group, .queue = queue, .vm = group_vms[group] };
	return &streams[stream_count++];
}

static int group_submit(const struct drm_panthor_group_submit *submit)
{
	if (!submit->group_handle || submit->group_handle > last_group)
		return EINVAL;
	for (uint32_t i = 0; i < submit->queue_submits.count; i++) {
		const struct drm_panthor_queue_submit *one =
			(const void *)(uintptr_t)(submit->queue_submits.array +
						  (uint64_t)i * submit->queue_submits.stride);

		if (!one->stream_size)
			continue;
		say("submit %u %u %u\n", submit->group_handle, one->queue_index, one->stream_size);
		run_stream(stream_of(submit->group_handle, one->queue_index), one->stream_addr, one->stream_size);
	}
	return 0;
}

/* ---- what programs call ---- */
static int answer(unsigned long request, void *argument)
{
	switch (_IOC_NR(request) - DRM_COMMAND_BASE) {
	case DRM_PANTHOR_VM_CREATE:
		((struct drm_panthor_vm_create *)argument)->id = ++last_vm;
		return 0;
	case DRM_PANTHOR_VM_BIND:
		return vm_bind(argument);
	case DRM_PANTHOR_BO_CREATE:
		return bo_create(argument);
	case DRM_PANTHOR_BO_MMAP_OFFSET: {
		struct drm_panthor_bo_mmap_offset *offset = argument;
		struct buffer *buffer = lookup(offset->handle);

		if (!buffer)
			return EINVAL;
		offset->offset = BUFFERS + buffer->offset;
		return 0;
	}
	case DRM_PANTHOR_GROUP_CREATE:
		return group_create(argument);
	case DRM_PANTHOR_GROUP_SUBMIT:
		return group_submit(argument);
	default:
		return 0;
	}
}

int ioctl(int fd, unsigned long request, ...)
{
	static int (*next)(int, unsigned long, ...);
	unsigned number = _IOC_NR(request);
	int is_command = number > DRM_COMMAND_BASE && number < DRM_COMMAND_END;
	va_list arguments;
	void *argument;
	int error;

	va_start(arguments, request);
	argument = va_arg(arguments, void *);
	va_end(arguments);
	if (!next)
		next = (int (*)(int, unsigned long, ...))dlsym(RTLD_NEXT, "ioctl");
	/* DEV_QUERY, the first command, is the other library's. */
	if (_IOC_TYPE(request) != DRM_IOCTL_BASE || !(is_command || request == DRM_IOCTL_GEM_CLOSE))
		return next(fd, request, argument);

	pthread_mutex_lock(&lock);
	start();
	error = is_command ? answer(request, argument) : gem_close(argument);
	pthread_mutex_unlock(&lock);
	errno = error;
	return error ? -1 : 0;
}

void *mmap64(void *address, size_t bytes, int protection, int flags, int fd, off64_t offset)
{
	static void *(*next)(void *, size_t, int, int, int, off64_t);

	if (!next)
		next = (void *(*)(void *, size_t, int, int, int, off64_t))dlsym(RTLD_NEXT, "mmap64");
	/* Others are files, or the other library's registers. */
	if ((uint64_t)offset - BUFFERS >= STORE)
		return next(address, bytes, protection, flags, fd, offset);
	return next(address, bytes, protection, flags, store, offset - BUFFERS);
}

void *mmap(void *address, size_t bytes, int protection, int flags, int fd, off_t offset)
{
	return mmap64(address, bytes, protection, flags, fd, offset);
}
