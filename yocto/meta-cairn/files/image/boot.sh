#!/bin/sh
# Makes the image of a boot partition: a FAT with cairn.fit (kernel and device tree) and cmdline.env (from verity.sh).
# Used by the image class and by `cargo xtask image`. Two runs give the same bytes; SOURCE_DATE_EPOCH is the files' date.
# A kernel that cannot set up its root by itself gets the file that INITRAMFS names; the image's needs none.
#
#   boot.sh OUTPUT KERNEL LOAD-ADDRESS CMDLINE.ENV DEVICE-TREE [OVERLAY.dtbo ...]
set -eu
output=$1 kernel=$2 load=$3 cmdline=$4 tree=$5
shift 5

work=$(mktemp -d)
trap 'rm -r "$work"' EXIT
cp "$kernel" "$work/kernel"
cp "$cmdline" "$work/cmdline.env"
if [ $# -gt 0 ]; then
    fdtoverlay -i "$tree" -o "$work/board.dtb" "$@"
else
    cp "$tree" "$work/board.dtb"
fi

image= use=
if [ -n "${INITRAMFS-}" ]; then
    cp "$INITRAMFS" "$work/initramfs"
    image='initramfs {
            data = /incbin/("initramfs");
            type = "ramdisk"; arch = "arm64"; os = "linux"; compression = "none";
            hash { algo = "sha256"; };
        };'
    use='ramdisk = "initramfs";'
fi

cat > "$work/cairn.its" <<FIT
/dts-v1/;
/ {
    description = "Cairn";
    #address-cells = <1>;
    images {
        kernel {
            data = /incbin/("kernel");
            type = "kernel"; arch = "arm64"; os = "linux"; compression = "none";
            load = <$load>; entry = <$load>;
            hash { algo = "sha256"; };
        };
        fdt {
            data = /incbin/("board.dtb");
            type = "flat_dt"; arch = "arm64"; compression = "none";
            hash { algo = "sha256"; };
        };
        $image
    };
    configurations { default = "conf"; conf { kernel = "kernel"; fdt = "fdt"; $use }; };
};
FIT
# FAT knows no date before 1980.
: "${SOURCE_DATE_EPOCH:=315532800}"
export SOURCE_DATE_EPOCH
(cd "$work" && mkimage -f cairn.its cairn.fit >/dev/null)
touch --date="@$SOURCE_DATE_EPOCH" "$work/cairn.fit" "$work/cmdline.env"

# A little more than what is in it; RAUC writes the image as it is.
kilobytes=$(du --apparent-size --block-size=1024 --total "$work/cairn.fit" "$work/cmdline.env" | tail -n 1 | cut -f 1)
rm -f "$output"
truncate --size="$((kilobytes + kilobytes / 16 + 512))K" "$output"
mkfs.vfat --invariant -i ca12b007 -n BOOT "$output" >/dev/null
TZ=UTC mcopy -m -i "$output" "$work/cairn.fit" "$work/cmdline.env" ::
