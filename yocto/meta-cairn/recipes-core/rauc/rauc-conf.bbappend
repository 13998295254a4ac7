FILESEXTRAPATHS:prepend:cairn := "${THISDIR}/files:${CAIRN_TOP}/services/otad/dist:"

SRC_URI:remove:cairn = "file://system.conf"
SRC_URI:append:cairn = " file://rauc-system.conf.in"

# What the recipe would install is RAUC's example; ours says where it belongs.
do_install:cairn() {
    install -d ${D}${sysconfdir}/rauc
    sed 's/@MACHINE@/${MACHINE}/' ${UNPACKDIR}/rauc-system.conf.in > ${D}${sysconfdir}/rauc/system.conf
    install -m 0644 ${UNPACKDIR}/${RAUC_KEYRING_FILE} ${D}${sysconfdir}/rauc/keyring.pem
}
