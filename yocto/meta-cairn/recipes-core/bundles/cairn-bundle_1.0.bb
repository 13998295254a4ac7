SUMMARY = "An update of the Cairn appliance"
DESCRIPTION = "Both slots' images, signed, for machines of one kind."
HOMEPAGE = "https://cairn.invalid/"
LICENSE = "MIT"
# It takes what other recipes made.
SRC_URI = ""

inherit bundle

# otad offers a bundle to machines of its kind only, and RAUC takes none of another.
RAUC_BUNDLE_COMPATIBLE = "cairn-${MACHINE}"
RAUC_BUNDLE_VERSION = "${DISTRO_VERSION}"
RAUC_BUNDLE_BUILD = "${DISTRO_VERSION}"
# dm-verity over the bundle: what is streamed is checked block by block.
RAUC_BUNDLE_FORMAT = "verity"
RAUC_BUNDLE_SLOTS = "boot rootfs"

RAUC_SLOT_boot = "cairn-image"
RAUC_SLOT_boot[fstype] = "boot"
RAUC_SLOT_boot[rename] = "boot.img"
RAUC_SLOT_rootfs = "cairn-image"
RAUC_SLOT_rootfs[fstype] = "verity"
RAUC_SLOT_rootfs[rename] = "rootfs.img"
# Blocks that the device has already are not fetched again.
RAUC_SLOT_rootfs[adaptive] = "block-hash-index"

# A development key that anybody has, with its name. A release is signed with another (../../../README.md).
RAUC_KEY_FILE ?= "${THISDIR}/files/cairn-development.key.pem"
RAUC_CERT_FILE ?= "${THISDIR}/files/cairn-development.cert.pem"
