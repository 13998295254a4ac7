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
mount -t debugfs debug /sys/kernel/debug
mount -t tracefs trace /sys/kernel/tracing
mount -t cgroup2 groups /sys/fs/cgroup

# The bus looks up whom it works for.
mkdir -p /etc
echo 'root:x:0:0:root:/:/bin/sh' >/etc/passwd
echo 'root:x:0:' >/etc/group

# TIMEOUT: on the guest's clock; a crowd of clients needs seconds of it.
LIMIT=7200
# One check takes seconds, half a minute at most; one that waits for a driver that died in an oops never ends.
CHECK_LIMIT=600
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

# What a healthy kernel never says.
COMPLAINTS='BUG|WARNING|Oops|Unable to handle|refcount_t|blocked for more than|Internal error'

no_oops() {
	! dmesg | grep -E "$COMPLAINTS"
}

# healthy NAME: after a driver's turn. The stock driver gives up a file's addresses while jobs still use them, and the kernel
# says so now and then.
healthy() {
	test "$1" = stock || check "$1: the kernel has nothing to complain about" no_oops
}

unload() {
	rmmod rocket && ! test -e /dev/accel/accel0
}

# driver NAME KERNEL: the driver from its first load to its last unload; KERNEL as for the conformance program.
driver() {
	export ROCKET_MODULE="/modules/rocket-$1.ko"
	dmesg -c >/dev/null
	check "$1: loads" load "$1"
	check "$1: finds three cores" three_cores
	run /board/virtual_board driver "$1" "$crowd"
	run /board/conformance /dev/accel/accel0 "$2"
	check "$1: unloads" unload
	check "$1: loads again" load "$1"
	check "$1: unloads again" unload
	healthy "$1"
}

service() {
	check "patched: loads for npud" load patched
	run /board/virtual_board service /board
	check "npud: the kernel has nothing to complain about" no_oops
}

# Of tests that have nothing to do on this chip.
OTHER_CHIP=the_rk3576_

# lists PROGRAM: the names of its tests.
lists() {
	names=$("/board/$1" --list --format terse --skip $OTHER_CHIP) && echo "$names" | sed 's/: test$//'
}

# passes PROGRAM TEST: exactly one test. A name that a program does not know runs none, and the program is content.
passes() {
	said=$(CAIRN_DEVICE=/dev/accel/accel0 timeout $CHECK_LIMIT "/board/$1" --exact "$2" 2>&1)
	status=$?
	echo "$said"
	echo "ended with $status"
	test $status = 0 && echo "$said" | grep -q '^test result: ok. 1 passed'
}

# interrupts: how many the NPU has sent to the one processor.
interrupts() {
	awk '/\.npu/ { sum += $2 } END { print sum + 0 }' /proc/interrupts
}

# matrices NAME PROGRAMS: the tests of these programs with the driver, each in a process of its own.
matrices() {
	dmesg -c >/dev/null
	check "$1: loads" load "$1"
	for program in $2; do
		before=$(interrupts)
		for title in $(lists "$program"); do
			check "$1: $program: $title" passes "$program" "$title"
		done
		# Neither a program without tests nor the simulator that is in every program is a driver's test.
		check "$1: $program: the NPU has worked" test "$(interrupts)" -gt "$before"
	done
	check "$1: unloads" unload
	healthy "$1"
}

# lacking NAME CHECK: a driver that lacks a patch does not pass the check, whether it fails it or does not survive it.
lacking() {
	export ROCKET_MODULE="/modules/rocket-$1.ko"
	dmesg -c >/dev/null
	checks=$((checks + 1))
	if ! load "$1"; then
		# Only what takes the kernel down shows something; a module that is not there does not.
		complaint=$(dmesg | grep -E "$COMPLAINTS") || complaint="ok 0 - ${2#conformance: }: the driver does not load"
	elif test "${2#conformance: }" != "$2"; then
		complaint=$(timeout $CHECK_LIMIT /board/conformance /dev/accel/accel0 cairn 2>&1)
	else
		complaint=$(timeout $CHECK_LIMIT /board/virtual_board check patched "$crowd" "$2" 2>&1)
	fi
	if echo "$complaint" | grep -qE "^ok [0-9]+ - ${2#conformance: }"; then
		failed=1
		echo "not ok $checks - $1 passes: $2"
	else
		echo "ok $checks - $1 does not pass: $2"
	fi
	{
		echo "$complaint" | grep -A 2 '^not ok'
		dmesg | grep -E "$COMPLAINTS"
	} | head -n 6 | sed 's/^/# /'
	# A driver that died does not unload.
	dmesg | grep -q 'Internal error' || rmmod rocket
}

tests() {
	while read -r verb name rest <&3; do
		"$verb" "$name" "$rest"
	done 3</board/plan
	return $failed
}

while read -r module; do
	insmod "/modules/$module.ko"
done </modules/order

crowd=$(cat /board/crowd)
case $(cat /board/mode) in
tests) tests ;;
command) load patched && sh -c "$(cat /board/command)" ;;
shell)
	load patched
	setsid cttyhack sh
	;;
esac
echo "board: finished $?"
# Not by poweroff: that waits for the locks of devices, and a task that died in an oops never gives one back.
echo b >/proc/sysrq-trigger
