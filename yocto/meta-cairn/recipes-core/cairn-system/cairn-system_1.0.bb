SUMMARY = "The machine around the services: data partition, boot state"
DESCRIPTION = "What lets the data partition grow, what it holds at first, and the boot state of a new disk."
HOMEPAGE = "https://cairn.invalid/"
LICENSE = "MIT"
LIC_FILES_CHKSUM = "file://${COMMON_LICENSE_DIR}/MIT;md5=0835ade698e0bcf8506ecda2f7b4f302"

SRC_URI = "file://50-data.conf file://50-journal.conf file://cairn-var.tmpfiles"
FILESEXTRAPATHS:prepend := "${CAIRN_TOP}/src/provision/tests:"
SRC_URI += "file://complete.toml"
S = "${UNPACKDIR}"

DEPENDS = "u-boot-mkenvimage-native"

inherit deploy

do_compile () {
    # A new disk: both systems have all their tries. Two copies, as boot.cmd keeps them.
    printf 'BOOT_ORDER=A B\nBOOT_A_LEFT=3\nBOOT_B_LEFT=3\n' > ${B}/bootstate.txt
    mkenvimage -s 0x4000 -o ${B}/bootstate.copy ${B}/bootstate.txt
    truncate --size=65536 ${B}/bootstate.img
    dd if=${B}/bootstate.copy of=${B}/bootstate.img conv=notrunc
    dd if=${B}/bootstate.copy of=${B}/bootstate.img conv=notrunc bs=32768 seek=1
}

do_install () {
    install -D -m 0644 ${UNPACKDIR}/50-data.conf ${D}${nonarch_libdir}/repart.d/50-data.conf
    install -D -m 0644 ${UNPACKDIR}/50-journal.conf ${D}${nonarch_libdir}/systemd/journald.conf.d/50-cairn.conf
    install -D -m 0644 ${UNPACKDIR}/cairn-var.tmpfiles ${D}${nonarch_libdir}/tmpfiles.d/cairn-var.conf
}

do_deploy () {
    install -m 0644 ${B}/bootstate.img ${DEPLOYDIR}/bootstate.img
    install -m 0644 ${UNPACKDIR}/complete.toml ${DEPLOYDIR}/cairn-example.toml
}
addtask deploy after do_compile before do_build

FILES:${PN} = "${nonarch_libdir}"
