/*
 * The command stream frontend of a Mali v10: moves, loads, stores, calls and branches are carried out, so that
 * descriptors in memory become what a job would read. Jobs are written to the log instead of run:
 *
 *     wait GROUP QUEUE MASK             all jobs of these scoreboard slots are done
 *     run GROUP QUEUE SLOT W0 … W5      a compute job starts; six words of its local storage descriptor
 *
 * Waits for other queues are taken as over, since submissions are run one after the other.
 *
 * SOURCE: Mesa 25.0.7, src/panfrost/lib/genxml/v10.xml, for the encoding; decode_csf.c, for calls and jumps.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "panthor.h"

enum opcode {
	MOVE = 1,
	MOVE32 = 2,
	WAIT = 3,
	RUN_COMPUTE = 4,
	ADD_IMMEDIATE32 = 16,
	ADD_IMMEDIATE64 = 17,
	UMIN32 = 18,
	LOAD_MULTIPLE = 20,
	STORE_MULTIPLE = 21,
	BRANCH = 22,
	SET_SB_ENTRY = 23,
	CALL = 32,
	JUMP = 33,
	RUN_COMPUTE_INDIRECT = 44,
};

enum {
	/* The first of four registers that a job's local storage descriptor may be in. */
	LOCAL_STORAGE = 24,
	CALLS = 8,
	/* A driver's streams are a few thousand; this many is a loop. */
	LONGEST = 50 * 1000 * 1000,
};

struct span {
	uint64_t next, end;
};

static uint32_t bits(uint64_t word, unsigned from, unsigned count)
{
	return word >> from & ((1ull << count) - 1);
}

static uint64_t pair(const struct stream *stream, unsigned index)
{
	return stream->registers[index] | (uint64_t)stream->registers[(index + 1) & 255] << 32;
}

static void set_pair(struct stream *stream, unsigned index, uint64_t value)
{
	stream->registers[index] = (uint32_t)value;
	stream->registers[(index + 1) & 255] = value >> 32;
}

static void fault(const struct stream *stream, const char *what, uint64_t address)
{
	say("fault %u %u %s at 0x%llx\n", stream->group, stream->queue, what, (unsigned long long)address);
	fprintf(stderr, "panthor: %s at 0x%llx\n", what, (unsigned long long)address);
	abort();
}

static void transfer(struct stream *stream, uint64_t word, int store)
{
	uint64_t address = pair(stream, bits(word, 40, 8)) + (int64_t)(int16_t)bits(word, 0, 16);

	for (unsigned i = 0; i < 16; i++) {
		uint32_t *value = &stream->registers[(bits(word, 48, 8) + i) & 255];
		uint32_t *place;

		if (!(bits(word, 16, 16) >> i & 1))
			continue;
		place = memory(stream->vm, address + 4 * i, 4);
		if (!place)
			fault(stream, store ? "store" : "load", address + 4 * i);
		*(store ? place : value) = *(store ? value : place);
	}
}

static int holds(unsigned condition, int32_t value)
{
	switch (condition) {
	case 0: return value <= 0;
	case 1: return value > 0;
	case 2: return value == 0;
	case 3: return value != 0;
	case 4: return value < 0;
	case 5: return value >= 0;
	default: return 1;
	}
}

static void job(struct stream *stream, uint64_t word)
{
	uint64_t address = pair(stream, LOCAL_STORAGE + 2 * bits(word, 44, 2));
	uint32_t *words = memory(stream->vm, address, 32);

	if (!words)
		fault(stream, "local storage descriptor", address);
	say("run %u %u %u %08x %08x %08x %08x %08x %08x\n", stream->group, stream->queue, stream->slot, words[0],
	    words[1], words[2], words[3], words[4], words[5]);
}

/* What changes nothing but registers and memory. */
static void simple(struct stream *stream, uint64_t word)
{
	unsigned to = bits(word, 48, 8), from = bits(word, 40, 8);
	int32_t immediate = (int32_t)bits(word, 0, 32);
	uint32_t *registers = stream->registers;

	switch (word >> 56) {
	case MOVE:
		set_pair(stream, to, word & ((1ull << 48) - 1));
		break;
	case MOVE32:
		registers[to] = immediate;
		break;
	case ADD_IMMEDIATE32:
		registers[to] = registers[from] + immediate;
		break;
	case ADD_IMMEDIATE64:
		set_pair(stream, to, pair(stream, from) + (int64_t)immediate);
		break;
	case UMIN32: {
		uint32_t other = registers[bits(word, 32, 8)];

		registers[to] = registers[from] < other ? registers[from] : other;
		break;
	}
	case LOAD_MULTIPLE:
	case STORE_MULTIPLE:
		transfer(stream, word, word >> 56 == STORE_MULTIPLE);
		break;
	case SET_SB_ENTRY:
		stream->slot = bits(word, 0, 4);
		break;
	case WAIT:
		say("wait %u %u %02x\n", stream->group, stream->queue, bits(word, 16, 8));
		break;
	case RUN_COMPUTE:
	case RUN_COMPUTE_INDIRECT:
		job(stream, word);
		break;
	}
}

void run_stream(struct stream *stream, uint64_t address, uint32_t bytes)
{
	struct span calls[CALLS] = { { address, address + bytes } };
	unsigned depth = 0;

	for (unsigned long done = 0;; done++) {
		struct span *span = &calls[depth];
		const uint64_t *word;

		if (span->next >= span->end) {
			if (!depth--)
				return;
			continue;
		}
		word = memory(stream->vm, span->next, 8);
		if (!word || done == LONGEST)
			fault(stream, word ? "endless stream" : "instruction", span->next);
		span->next += 8;
		switch (*word >> 56) {
		case BRANCH:
			if (holds(bits(*word, 28, 3), (int32_t)stream->registers[bits(*word, 40, 8)]))
				span->next += 8 * (int64_t)(int16_t)bits(*word, 0, 16);
			break;
		case CALL:
			if (++depth == CALLS)
				fault(stream, "call stack", span->next);
			span = &calls[depth];
			/* fall through */
		case JUMP:
			span->next = pair(stream, bits(*word, 40, 8));
			span->end = span->next + stream->registers[bits(*word, 32, 8)];
			break;
		default:
			simple(stream, *word);
		}
	}
}
