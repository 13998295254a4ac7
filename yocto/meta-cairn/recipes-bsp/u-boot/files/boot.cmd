# Which of two systems starts, A or B. One script for every board, and for QEMU.
#
#   bootstate ─▶ BOOT_ORDER, BOOT_A_LEFT, BOOT_B_LEFT ─▶ first of the order with tries left ─▶ one try less ─▶ its kernel
#
# The variables are RAUC's: it lets a new system have three tries, and gives them back when the system was found healthy.
# A system that does not come that far loses one at each start, until the other one's turn has come. MACHINE_ID is who this
# machine is: its root cannot keep that, so the first start writes it here (cairn-identity.service), and every later one
# is told.
#
# The state lies on the disk that this script came from, in the partition "bootstate", as two copies of a U-Boot
# environment of 0x4000 bytes with checksum, at 0 and at 0x8000. Linux writes the first alone (fw_env.config), so the first
# is the newer one unless it is damaged. This script writes the second, then the first: one of them is right at any time.
#
# Needs CONFIG_CMD_SETEXPR, CMD_PART, CMD_IMPORTENV, CMD_EXPORTENV and FIT (bootstate.cfg). devtype and devnum come from
# whoever runs this script: "mmc 0", "nvme 0", "virtio 0".

${devtype} dev ${devnum}
part start ${devtype} ${devnum} bootstate state_first
setexpr state_second ${state_first} + 0x40
setenv state_names BOOT_ORDER BOOT_A_LEFT BOOT_B_LEFT MACHINE_ID

setenv load_state '${devtype} read ${ramdisk_addr_r} ${state_copy} 0x20 && env import -c ${ramdisk_addr_r} 0x4000 ${state_names}'
setenv save_state 'env export -c -s 0x4000 ${ramdisk_addr_r} ${state_names} && ${devtype} write ${ramdisk_addr_r} ${state_second} 0x20 && ${devtype} write ${ramdisk_addr_r} ${state_first} 0x20'

setenv BOOT_ORDER
setenv BOOT_A_LEFT
setenv BOOT_B_LEFT
setenv MACHINE_ID
setenv state_copy ${state_first}
if run load_state; then
  true
else
  echo "cairn: the first copy of the boot state is damaged, taking the second"
  setenv state_copy ${state_second}
  if run load_state; then
    true
  else
    echo "cairn: BOTH COPIES OF THE BOOT STATE ARE DAMAGED, starting anew"
  fi
fi
setenv named
for candidate in ${BOOT_ORDER}; do
  if test "${candidate}" = A -o "${candidate}" = B; then setenv named yes; fi
done
if test -z "${named}"; then
  test -z "${BOOT_ORDER}" || echo "cairn: the boot order ${BOOT_ORDER} names no system, taking A B"
  setenv BOOT_ORDER "A B"
fi
test -n "${BOOT_A_LEFT}" || setenv BOOT_A_LEFT 3
test -n "${BOOT_B_LEFT}" || setenv BOOT_B_LEFT 3

# The first system of the order that has tries left, and takes one.
setenv pick '
  for candidate in ${BOOT_ORDER}; do
    if test -z "${slot}" -a "${candidate}" = A -a 0x${BOOT_A_LEFT} -gt 0; then
      setenv slot A; setenv slot_label boot_a; setexpr BOOT_A_LEFT ${BOOT_A_LEFT} - 1
    elif test -z "${slot}" -a "${candidate}" = B -a 0x${BOOT_B_LEFT} -gt 0; then
      setenv slot B; setenv slot_label boot_b; setexpr BOOT_B_LEFT ${BOOT_B_LEFT} - 1
    fi
  done'
setenv slot
setenv exhausted
run pick
if test -z "${slot}"; then
  # A bootloader that gave up would need a person; what was wrong may have passed. The system that starts is told.
  echo "cairn: BOTH SYSTEMS ARE BAD: no tries left; each gets one more"
  setenv exhausted cairn.exhausted
  setenv BOOT_A_LEFT 1
  setenv BOOT_B_LEFT 1
  run pick
fi

run save_state || echo "cairn: THE BOOT STATE CANNOT BE SAVED, this try is not counted"
echo "cairn: starting ${slot}, tries left A=${BOOT_A_LEFT} B=${BOOT_B_LEFT}, order ${BOOT_ORDER}"

part number ${devtype} ${devnum} ${slot_label} slot_part
setenv system_args_A
setenv system_args_B
load ${devtype} ${devnum}:${slot_part} ${ramdisk_addr_r} cmdline.env && env import -t ${ramdisk_addr_r} ${filesize} system_args_A system_args_B
setenv identity
test -z "${MACHINE_ID}" || setenv identity systemd.machine_id=${MACHINE_ID}
if test "${slot}" = A; then
  setenv bootargs "${system_args_A} rauc.slot=A ${exhausted} ${identity}"
else
  setenv bootargs "${system_args_B} rauc.slot=B ${exhausted} ${identity}"
fi
load ${devtype} ${devnum}:${slot_part} ${ramdisk_addr_r} cairn.fit && bootm ${ramdisk_addr_r}

echo "cairn: ${slot} CANNOT BE STARTED"
reset
