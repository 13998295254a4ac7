inherit ${@'cairn_series' if d.getVar('DISTRO') == 'cairn' else ''}

# panvk, and Teflon for whoever wants to use the NPU without our services. No screen.
PACKAGECONFIG:append:cairn:rk3588 = " vulkan libclc panfrost rocket teflon"
PACKAGECONFIG:remove:cairn:rk3588 = "virtio zink x11 wayland"
SRC_URI:append:cairn:rk3588 = " ${@cairn_series('mesa-patches/26.0', d)}"
