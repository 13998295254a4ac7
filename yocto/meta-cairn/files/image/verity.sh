#!/bin/sh
# Appends the hash tree of dm-verity to a root file system, and prints what the boot script reads as cmdline.env: the
# kernel's command line for either slot. Used by the image class and by `cargo xtask image`.
#
#   verity.sh IMAGE SALT MORE-ARGUMENTS
#
# The kernel itself sets the device up (CONFIG_DM_INIT); there is no initramfs. SOURCE: Linux,
# Documentation/admin-guide/device-mapper/{dm-init,verity}.rst. A block that is damaged ends in a panic, whose last words
# ramoops keeps: the boot script counts the try, and the health service says why.
set -eu
image=$1 salt=$2 arguments=$3

block=4096
bytes=$(stat --format=%s "$image")
if [ $((bytes % block)) -ne 0 ]; then
    echo "verity.sh: $image has $bytes bytes, which is no multiple of $block" >&2
    exit 1
fi
blocks=$((bytes / block))
root_hash=$(veritysetup format --uuid=00000000-0000-4000-8000-000000000000 --salt="$salt" \
    --data-blocks="$blocks" --hash-offset="$bytes" "$image" "$image" | sed -n 's/^Root hash:[[:space:]]*//p')
[ -n "$root_hash" ] || { echo "verity.sh: veritysetup names no root hash" >&2; exit 1; }

for slot in A B; do
    device=PARTLABEL=rootfs_$(echo $slot | tr AB ab)
    # The tree begins behind its superblock.
    table="0 $((blocks * 8)) verity 1 $device $device $block $block $blocks $((blocks + 1)) sha256 $root_hash $salt"
    echo "system_args_$slot=dm-mod.create=\"cairn-root,,,ro,$table 1 panic_on_corruption\" dm-mod.waitfor=$device" \
        "root=/dev/dm-0 rootfstype=erofs ro rootwait $arguments"
done
