#!/bin/busybox sh
# The first and only program of the virtual board. It loads the driver, does what /board/mode says, prints how that went and
# switches the machine off. Checks are lines of TAP.

/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm
mount -t tmpfs shm /dev/shm
mount -t tmpfs tmp /tmp

# The bus looks up whom it works for.
mkdir -p /etc
echo 'root:x:0:0:root:/:/bin/sh' >/etc/passwd
echo 'root:x:0:' >/etc/group

# TIMEOUT: on the guest's clock; a crowd of clients needs seconds of it.
LIMIT=7200
checks=0
failed=0

# check NAME COMMAND…: one line of TAP for a command; what it prints is its reason.
check() {
	name=$1
	shift
	checks=$((checks + 1))
	if why=$("$@" 2>&1); then
		echo "ok $checks - $name"
		return
	fi
	failed=1
	echo "not ok $checks - $name"
	echo "$why" | sed 's/^/# /'
}

# run COMMAND…: a program that prints TAP itself.
run() {
	timeout $LIMIT "$@"
	status=$?
	test $status = 0 && return
	failed=1
	echo "not ok 0 - $* ended with $status"
}

load() {
	insmod "/modules/rocket-$1.ko" || return
	test -c /dev/accel/accel0
}

three_cores() {
	test "$(dmesg | grep -c 'Rockchip NPU core [012] version')" = 3 && return
	dmesg | grep rocket
	return 1
}

# What a healthy kernel never says, but for the driver's own warning of a page fault, which the tests cause.
no_oops() {
	! dmesg | grep -E 'BUG|WARNING|Oops|Unable to handle|refcount_t|blocked for more than|Internal error' |
		grep -v 'WARNING: .*rocket_job_irq_handler'
}

unload() {
	rmmod rocket && ! test -e /dev/accel/accel0
}

# The driver from its first load to its last unload.
driver() {
	dmesg -c >/dev/null
	check "$1: loads" load "$1"
	check "$1: finds three cores" three_cores
	run /board/virtual_board driver "$1" "$(cat /board/command)"
	run /board/conformance /dev/accel/accel0 "$2"
	check "$1: unloads" unload
	check "$1: loads again" load "$1"
	check "$1: unloads again" unload
	# The stock driver gives up a file's addresses while jobs still use them, and the kernel says so now and then.
	test "$1" = stock || check "$1: the kernel has nothing to complain about" no_oops
}

tests() {
	driver stock 7.3
	driver patched cairn
	check "patched: loads for npud" load patched
	run /board/virtual_board service /board
	check "npud: the kernel has nothing to complain about" no_oops
	return $failed
}

while read -r module; do
	insmod "/modules/$module.ko"
done </modules/order

case $(cat /board/mode) in
tests) tests ;;
command) load patched && sh -c "$(cat /board/command)" ;;
shell)
	load patched
	setsid cttyhack sh
	;;
esac
echo "board: finished $?"
poweroff -f
