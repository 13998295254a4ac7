FILESEXTRAPATHS:prepend:cairn := "${THISDIR}/files:"
