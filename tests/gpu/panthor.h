/* The parts of the device that the files share. */
#ifndef PANTHOR_H
#define PANTHOR_H

#include <stdint.h>

/* Writes one line of the log. */
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Memory of the GPU as the CPU sees it; NULL if not all of it is mapped. */
void *memory(uint32_t vm, uint64_t address, uint64_t bytes);

/* A queue of a group: a command stream interface. */
struct stream {
	uint32_t group, queue, vm;
	uint32_t registers[256];
	/* Where jobs are counted until they are done. */
	unsigned slot;
};

/* Runs a command stream, but not the jobs that it starts. */
void run_stream(struct stream *stream, uint64_t address, uint32_t bytes);

#endif
