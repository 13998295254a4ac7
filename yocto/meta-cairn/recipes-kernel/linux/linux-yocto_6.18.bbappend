inherit ${@'cairn_series' if d.getVar('DISTRO') == 'cairn' else ''}

# The release whose driver the patches are made for: 6.18.16 does not touch what 6.18.15 has of it. 6.18.18 took 0006,
# 6.18.33 took 0005 and 6.18.35 took 0004, so a newer base needs the series without them.
LINUX_VERSION:cairn = "6.18.16"
SRCREV_machine:cairn = "84ff1c125bcfdae85155ffaf1d171463eaa2db8a"
SRCREV_meta:cairn = "8ef043d5cbfe1d4c6b6b92d6d884d23c4d3411a3"

COMPATIBLE_MACHINE:rock-5-itx = "rock-5-itx"
COMPATIBLE_MACHINE:turing-rk1 = "turing-rk1"
COMPATIBLE_MACHINE:cairn-qemuarm64 = "cairn-qemuarm64"
KMACHINE:cairn-qemuarm64 = "qemuarm64"

SRC_URI:append:cairn = " ${@cairn_series('kernel-patches/6.18', d)} file://image.cfg file://npu.cfg"
SRC_URI:append:cairn:rk3588 = " file://gpu.cfg"
