FILESEXTRAPATHS:prepend:cairn := "${THISDIR}/files:"

SRC_URI:append:cairn = " file://bootstate.cfg file://boot.cmd"

# boot.scr, which the image puts on the FAT partition.
UBOOT_ENV:cairn = "boot"
UBOOT_ENV_SUFFIX:cairn = "scr"
