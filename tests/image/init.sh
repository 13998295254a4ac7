#!/bin/busybox sh
# The initramfs of the image's stand-in. Debian's kernel has device mapper as a module, so this does what the image's own
# kernel does (CONFIG_DM_INIT): the same command line, the same table, whoever reads it.

/bin/busybox --install -s /bin
export PATH=/bin:/usr/sbin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev

while read -r module; do
	insmod "/modules/$module.ko"
done </modules/order

# The device that has the partition of that name.
partition() {
	grep -l "^PARTNAME=$1\$" /sys/class/block/*/uevent | sed 's,.*/\([^/]*\)/uevent,/dev/\1,'
}

# dm-mod.create="NAME,,,ro,TABLE"
create=$(sed 's/.*dm-mod.create="\([^"]*\)".*/\1/' /proc/cmdline)
name=${create%%,*}
table=${create#*,*,*,ro,}
label=${table#*PARTLABEL=}
label=${label%% *}
until device=$(partition "$label") && test -n "$device"; do
	sleep 1
done
table=$(echo "$table" | sed "s,PARTLABEL=$label,$device,g")
echo "initramfs: $name on $device: $table"
dmsetup create "$name" --readonly --noudevsync --noudevrules --table "$table" && mount -t erofs -o ro /dev/dm-0 /system ||
	{ echo "initramfs: NO ROOT"; exec sh; }
mount --move /dev /system/dev
umount /proc /sys
exec switch_root /system /sbin/init
