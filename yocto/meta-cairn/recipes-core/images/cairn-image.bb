SUMMARY = "The Cairn appliance"
DESCRIPTION = "Read-only, verified root with two slots; inference, health and updates as services."
HOMEPAGE = "https://cairn.invalid/"
LICENSE = "MIT"

inherit core-image cairn_image

IMAGE_FEATURES = "read-only-rootfs ssh-server-openssh"
IMAGE_INSTALL = "\
    packagegroup-core-boot \
    cairn-npud cairn-gpud cairn-healthd cairn-otad cairn-provision cairn-ctl cairn-models \
    cairn-system \
    rauc rauc-service rauc-conf libubootenv-bin \
    polkit \
    e2fsprogs-resize2fs dosfstools \
    ca-certificates tzdata \
"
# Wi-Fi as cairn.toml says.
IMAGE_INSTALL += "wpa-supplicant wireless-regdb-static"
IMAGE_INSTALL:append:rk3588 = " mesa-vulkan-drivers vulkan-loader libteflon linux-firmware-mali-csffw-arch108 kernel-modules"
IMAGE_INSTALL:append:qemuarm64 = " kernel-modules"

IMAGE_FSTYPES = "verity boot wic.zst wic.bmap"
# Nothing but the kernel's command line says which slot this is, so nothing of the root may differ between the slots.
ROOTFS_POSTPROCESS_COMMAND += "cairn_root_links"
cairn_root_links () {
    install -d ${IMAGE_ROOTFS}/config
    # What cairn-provision makes of cairn.toml.
    ln -sf /run/cairn/localtime ${IMAGE_ROOTFS}${sysconfdir}/localtime
    ln -sf /run/systemd/resolve/stub-resolv.conf ${IMAGE_ROOTFS}${sysconfdir}/resolv.conf
}
