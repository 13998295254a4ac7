SUMMARY = "Of the layers that ours stands on"
COMPATIBLE_MACHINE = "^(qemuarm64)$"
COMPATIBLE_MACHINE:rock-5b = "rock-5b"
LINUX_VERSION ?= "6.18.39"
