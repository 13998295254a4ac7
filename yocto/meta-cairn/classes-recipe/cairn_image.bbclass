# The three image types of the appliance, each made from the one before:
#
#   verity     root file system (erofs) with its hash tree behind it
#   boot       boot partition: kernel, device tree, and the command line that names the root hash
#   wic        disk with both slots, the FAT partition, and the data partition

CAIRN_IMAGE_TOOLS = "${CAIRN_TOP}/yocto/meta-cairn/files/image"
# One salt for one version: two builds of it are the same bytes.
CAIRN_SALT = "${@__import__('hashlib').sha256(('%s %s' % (d.getVar('MACHINE'), d.getVar('DISTRO_VERSION'))).encode()).hexdigest()}"
CAIRN_CMDLINE = "console=${@d.getVar('SERIAL_CONSOLES').split()[0].split(';')[1]},${@d.getVar('SERIAL_CONSOLES').split()[0].split(';')[0]}"
# Where the kernel runs. SOURCE: kernel_addr_r of U-Boot's rk3588_common.h and qemu-arm.env; a multiple of 2 MiB.
CAIRN_KERNEL_LOAD = "0x40400000"
CAIRN_KERNEL_LOAD:rk3588 = "0x02000000"
# Device trees of QEMU come from QEMU, and those of boards get what their mainline trees lack (overlays/README.md).
CAIRN_OVERLAYS = ""
CAIRN_OVERLAYS:rk3588 = "ramoops watchdog"

IMAGE_TYPES += "verity boot"
IMAGE_TYPEDEP:verity = "erofs-lz4hc"
IMAGE_TYPEDEP:boot = "verity"
IMAGE_TYPEDEP:wic = "boot"

EXTRA_IMAGECMD:erofs-lz4hc = "-T ${SOURCE_DATE_EPOCH} -U 00000000-0000-4000-8000-000000000001"

do_image_verity[depends] += "cryptsetup-native:do_populate_sysroot"
IMAGE_CMD:verity () {
    cp ${IMGDEPLOYDIR}/${IMAGE_NAME}.erofs-lz4hc ${IMGDEPLOYDIR}/${IMAGE_NAME}.verity
    ${CAIRN_IMAGE_TOOLS}/verity.sh ${IMGDEPLOYDIR}/${IMAGE_NAME}.verity ${CAIRN_SALT} "${CAIRN_CMDLINE}" > ${WORKDIR}/cmdline.env
}

cairn_device_tree () {
    cp ${DEPLOY_DIR_IMAGE}/$(basename "${KERNEL_DEVICETREE}") $1
}
cairn_device_tree:qemuarm64 () {
    qemu-system-aarch64 ${QB_CPU} ${QB_SMP} -m 1024 -nographic -M virt,dumpdtb=$1
}
do_image_boot[depends] += "${@'qemu-system-native:do_populate_sysroot' if 'qemuarm64' in d.getVar('MACHINEOVERRIDES').split(':') else ''}"
do_image_boot[depends] += "virtual/kernel:do_deploy dtc-native:do_populate_sysroot u-boot-tools-native:do_populate_sysroot \
    dosfstools-native:do_populate_sysroot mtools-native:do_populate_sysroot"
IMAGE_CMD:boot () {
    overlays=""
    for overlay in ${CAIRN_OVERLAYS}; do
        dtc -q -@ -I dts -O dtb -o ${WORKDIR}/$overlay.dtbo ${CAIRN_TOP}/overlays/$overlay.dtso
        overlays="$overlays ${WORKDIR}/$overlay.dtbo"
    done
    cairn_device_tree ${WORKDIR}/board.dtb
    ${CAIRN_IMAGE_TOOLS}/boot.sh ${IMGDEPLOYDIR}/${IMAGE_NAME}.boot ${DEPLOY_DIR_IMAGE}/Image ${CAIRN_KERNEL_LOAD} \
        ${WORKDIR}/cmdline.env ${WORKDIR}/board.dtb $overlays
}
do_image_boot[file-checksums] += "${@' '.join('%s/overlays/%s.dtso:True' % (d.getVar('CAIRN_TOP'), o) for o in d.getVar('CAIRN_OVERLAYS').split())}"
do_image_verity[file-checksums] += "${CAIRN_IMAGE_TOOLS}/verity.sh:True"
do_image_boot[file-checksums] += "${CAIRN_IMAGE_TOOLS}/boot.sh:True"

# The FAT partition: the boot script, and what a person may write there.
IMAGE_BOOT_FILES = "boot.scr cairn-example.toml"
WKS_FILE = "cairn-qemuarm64.wks"
WKS_FILE:rk3588 = "cairn-rk3588.wks"
do_image_wic[depends] += "virtual/bootloader:do_deploy cairn-system:do_deploy"
