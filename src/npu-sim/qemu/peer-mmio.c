// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * peer-mmio: a QEMU device whose registers, interrupt lines and sense of time live in another process, the peer.
 *
 *   -device peer-mmio,socket=PATH,base=0xfdab0000,size=0x40000,spi=110,lines=3
 *
 * It is preloaded into Debian's own qemu-system-aarch64 7.2: that binary loads modules, so it exports what a device needs.
 *
 * Over the stream socket goes one Request at a time, and each is answered by one Reply, little-endian. The guest stands
 * still until the answer is there, so an interrupt line is already low when the store that lowers it retires. A Reply says
 * when, on the guest's clock, the peer wants to be asked again; by then the device sends TICK. So how long the peer computes
 * is not seen by the guest, and a slow host changes nothing.
 *
 * src/npu-sim/src/bin/npu-board/wire.rs is the other side; change both together.
 */
#include "qemu/osdep.h"
#include "qemu/bswap.h"
#include "qemu/error-report.h"
#include "qemu/module.h"
#include "qemu/timer.h"
#include "qapi/error.h"
#include "exec/address-spaces.h"
#include "exec/memory.h"
#include "hw/irq.h"
#include "hw/qdev-core.h"
#include "hw/qdev-properties.h"
#include "qom/object.h"
#include "sysemu/reset.h"
#include <sys/socket.h>
#include <sys/un.h>

#define TYPE_PEER_MMIO "peer-mmio"
OBJECT_DECLARE_SIMPLE_TYPE(PeerMmio, PEER_MMIO)

#define MAX_LINES 32
#define NEVER UINT64_MAX

enum { OP_HELLO = 0, OP_READ = 1, OP_WRITE = 2, OP_TICK = 3, OP_RESET = 4 };

typedef struct QEMU_PACKED {
    uint32_t op;
    uint32_t bytes;     /* width of the access; HELLO: number of lines */
    uint64_t offset;    /* in the window; HELLO: the window's size */
    uint64_t value;     /* what is written */
    uint64_t now;       /* nanoseconds on the guest's clock */
} Request;

typedef struct QEMU_PACKED {
    uint64_t lines;     /* levels of the interrupt lines, from bit 0 */
    uint64_t value;     /* what was read */
    uint64_t due;       /* when to send TICK, or NEVER */
} Reply;

struct PeerMmio {
    DeviceState parent_obj;
    MemoryRegion window;
    char *socket;
    uint64_t base, size;
    uint32_t spi, line_count;
    qemu_irq line[MAX_LINES];
    QEMUTimer *timer;
    int fd;
};

/* A board whose NPU is gone is of no use, and a guest that waits for it would wait for ever. */
static void lost(PeerMmio *s, const char *why)
{
    error_report(TYPE_PEER_MMIO ": the peer at %s is lost: %s", s->socket, why);
    exit(1);
}

static void transfer(PeerMmio *s, void *data, size_t bytes, bool out)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t n = out ? send(s->fd, (uint8_t *)data + done, bytes - done, MSG_NOSIGNAL)
                        : recv(s->fd, (uint8_t *)data + done, bytes - done, 0);
        if (n > 0) {
            done += n;
        } else if (n == 0) {
            lost(s, "it closed the connection");
        } else if (errno != EINTR) {
            lost(s, strerror(errno));
        }
    }
}

static uint64_t call(PeerMmio *s, uint32_t op, uint32_t bytes, uint64_t offset, uint64_t value)
{
    Request request = {
        .op = cpu_to_le32(op),
        .bytes = cpu_to_le32(bytes),
        .offset = cpu_to_le64(offset),
        .value = cpu_to_le64(value),
        .now = cpu_to_le64(qemu_clock_get_ns(QEMU_CLOCK_VIRTUAL)),
    };
    Reply reply;
    uint64_t lines, due;

    transfer(s, &request, sizeof(request), true);
    transfer(s, &reply, sizeof(reply), false);
    lines = le64_to_cpu(reply.lines);
    for (unsigned i = 0; i < s->line_count; i++) {
        qemu_set_irq(s->line[i], lines >> i & 1);
    }
    due = le64_to_cpu(reply.due);
    if (due == NEVER) {
        timer_del(s->timer);
    } else {
        timer_mod(s->timer, MIN(due, INT64_MAX));
    }
    return le64_to_cpu(reply.value);
}

static uint64_t window_read(void *opaque, hwaddr offset, unsigned bytes)
{
    return call(opaque, OP_READ, bytes, offset, 0);
}

static void window_write(void *opaque, hwaddr offset, uint64_t value, unsigned bytes)
{
    call(opaque, OP_WRITE, bytes, offset, value);
}

static const MemoryRegionOps window_ops = {
    .read = window_read,
    .write = window_write,
    .endianness = DEVICE_LITTLE_ENDIAN,
    .valid = { .min_access_size = 1, .max_access_size = 8 },
    .impl = { .min_access_size = 1, .max_access_size = 8 },
};

static void tick(void *opaque)
{
    call(opaque, OP_TICK, 0, 0, 0);
}

static void machine_reset(void *opaque)
{
    call(opaque, OP_RESET, 0, 0, 0);
}

static bool connect_peer(PeerMmio *s, Error **errp)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };

    if (strlen(s->socket) >= sizeof(address.sun_path)) {
        error_setg(errp, "the path of the socket is too long: %s", s->socket);
        return false;
    }
    strcpy(address.sun_path, s->socket);
    s->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (s->fd < 0 || connect(s->fd, (struct sockaddr *)&address, sizeof(address)) < 0) {
        error_setg_errno(errp, errno, "no peer at %s", s->socket);
        return false;
    }
    return true;
}

static void realize(DeviceState *dev, Error **errp)
{
    PeerMmio *s = PEER_MMIO(dev);
    Object *gic = object_resolve_path_type("", "arm-gicv3-common", NULL);

    if (!s->socket || !s->size || s->line_count > MAX_LINES || !gic) {
        error_setg(errp, TYPE_PEER_MMIO " needs socket, base, size, at most 32 lines and a machine with a GICv3");
        return;
    }
    for (unsigned i = 0; i < s->line_count; i++) {
        s->line[i] = qdev_get_gpio_in(DEVICE(gic), s->spi + i);
    }
    if (!connect_peer(s, errp)) {
        return;
    }
    s->timer = timer_new_ns(QEMU_CLOCK_VIRTUAL, tick, s);
    memory_region_init_io(&s->window, OBJECT(s), &window_ops, s, TYPE_PEER_MMIO, s->size);
    memory_region_add_subregion(get_system_memory(), s->base, &s->window);
    call(s, OP_HELLO, s->line_count, s->size, 0);
    qemu_register_reset(machine_reset, s);
}

static Property properties[] = {
    DEFINE_PROP_STRING("socket", PeerMmio, socket),
    DEFINE_PROP_UINT64("base", PeerMmio, base, 0),
    DEFINE_PROP_UINT64("size", PeerMmio, size, 0),
    DEFINE_PROP_UINT32("spi", PeerMmio, spi, 0),
    DEFINE_PROP_UINT32("lines", PeerMmio, line_count, 0),
    DEFINE_PROP_END_OF_LIST(),
};

static void class_init(ObjectClass *klass, void *data)
{
    DeviceClass *dc = DEVICE_CLASS(klass);

    dc->realize = realize;
    dc->hotpluggable = false;
    dc->user_creatable = true;
    dc->desc = "MMIO window and interrupt lines of another process";
    device_class_set_props(dc, properties);
}

static const TypeInfo info = {
    .name = TYPE_PEER_MMIO,
    .parent = TYPE_DEVICE,
    .instance_size = sizeof(PeerMmio),
    .class_init = class_init,
};

static void register_type(void)
{
    type_register_static(&info);
}
type_init(register_type)

/* The library is for this process only, not for its children. */
static void __attribute__((constructor)) preloaded(void)
{
    unsetenv("LD_PRELOAD");
}
