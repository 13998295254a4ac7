# Who may talk to RAUC is otad's to say: RAUC's own policy lets everybody install. The gate marks slots good, not a unit
# that only waits for the end of the start.
do_install:append:cairn() {
    rm ${D}${datadir}/dbus-1/system.d/de.pengutronix.rauc.conf
}
RRECOMMENDS:${PN}:remove:cairn = "${PN}-mark-good"
