"""Parses the layer for every machine with bitbake's own parser, and holds what comes out against what must come out.

The layers that ours stands on are stubs (stub/): this sees our syntax, our overrides, our files, not what the classes of
OpenEmbedded make of them. scripts/full-parse.sh does that, where the real layers can be had.

    BUILDDIR=FOLDER python parse.py      prints TAP
"""

import fnmatch
import glob
import os
import sys
from pathlib import Path

YOCTO = Path(__file__).resolve().parent.parent
TOP = YOCTO.parent
MACHINES = {
    "rock-5-itx": ("rk3588-rock-5-itx.dtb", "rock-5-itx-rk3588_defconfig", "1500000;ttyS2"),
    "rock-5b": ("rk3588-rock-5b.dtb", "rock5b-rk3588_defconfig", "1500000;ttyS2"),
    "turing-rk1": ("rk3588-turing-rk1.dtb", "turing-rk1-rk3588_defconfig", "115200;ttyS9"),
    "cairn-qemuarm64": (None, "qemu_arm64_defconfig", "115200;ttyAMA0"),
}
SERVICES = ["cairn-npud", "cairn-gpud", "cairn-healthd", "cairn-otad", "cairn-provision", "cairn-ctl", "cairn-models"]


class Layer:
    """The layer as one machine sees it."""

    def __init__(self, machine):
        import bb.cookerdata

        os.environ["MACHINE"] = machine
        os.environ["DISTRO"] = "cairn"
        configuration = bb.cookerdata.CookerConfiguration()
        configuration.env = dict(os.environ)
        builder = bb.cookerdata.CookerDataBuilder(configuration, worker=True)
        builder.basedata.setVar("MACHINE", machine)
        builder.basedata.setVar("DISTRO", "cairn")
        builder.parseBaseConfiguration()
        files = sorted(sum((glob.glob(pattern) for pattern in builder.data.getVar("BBFILES").split()), []))
        appends = [file for file in files if file.endswith(".bbappend")]
        self.recipes, used = {}, set()
        for file in (file for file in files if file.endswith(".bb")):
            name = os.path.basename(file)[: -len(".bb")]
            mine = [a for a in appends if fnmatch.fnmatch(name, os.path.basename(a)[: -len(".bbappend")].replace("%", "*"))]
            used.update(mine)
            self.recipes[name.split("_")[0]] = builder.parseRecipe(file, mine, "")
        self.dangling = sorted(set(appends) - used)

    def words(self, recipe, variable):
        return (self.recipes[recipe].getVar(variable) or "").split()

    def missing_files(self):
        """Entries of SRC_URI that are in no folder where bitbake looks, as `recipe: entry`."""
        import bb.utils

        for name, recipe in self.recipes.items():
            folders = (recipe.getVar("FILESEXTRAPATHS") or "").replace("__default:", "") + ":" + recipe.getVar("FILESPATH")
            for entry in (recipe.getVar("SRC_URI") or "").split():
                if entry.startswith("file://"):
                    file = entry[len("file://") :].split(";")[0]
                    if not bb.utils.which(folders, file):
                        yield f"{name}: {file}"


def series(folder):
    lines = (TOP / folder / "series").read_text().splitlines()
    return [f"file://{Path(folder).name}/{line.strip()}" for line in lines if line.strip() and not line.startswith("#")]


def expect(layer, machine):
    """What must hold, as pairs of a sentence and whether it does; what is wrong is in the sentence."""
    tree, bootloader, console = MACHINES[machine]
    board = machine != "cairn-qemuarm64"
    image, kernel, bundle = layer.recipes["cairn-image"], layer.recipes["linux-yocto"], layer.recipes["cairn-bundle"]
    yield f"every append finds its recipe {layer.dangling}", not layer.dangling
    overrides = image.getVar("OVERRIDES").split(":")
    confused = [name for name in layer.recipes if name in overrides]
    yield f"no recipe has the name of an override {confused}", not confused
    missing = list(layer.missing_files())
    yield f"every file is there {missing}", not missing
    patches = [entry for entry in layer.words("linux-yocto", "SRC_URI") if entry.endswith(".patch")]
    yield "the kernel has the series, in its order", patches == series("kernel-patches/6.18") and bool(patches)
    fragments = [entry for entry in layer.words("linux-yocto", "SRC_URI") if entry.endswith(".cfg")]
    wanted = ["file://image.cfg", "file://npu.cfg"] + ["file://gpu.cfg"] * board
    yield f"the kernel has its fragments {fragments}", fragments == wanted
    yield "the kernel knows the machine", bb_match(kernel.getVar("COMPATIBLE_MACHINE"), machine)
    yield "the kernel is the one that the patches are made for", kernel.getVar("LINUX_VERSION") == "6.18.16"
    yield "the device tree is the board's", Path(image.getVar("KERNEL_DEVICETREE") or ".").name == (tree or "")
    yield "the bootloader is the board's", layer.recipes["u-boot"].getVar("UBOOT_MACHINE") == bootloader
    yield "the console is where the board has it", image.getVar("SERIAL_CONSOLES") == console
    device, speed = console.split(";")[::-1]
    yield "the kernel's console is the same", image.getVar("CAIRN_CMDLINE") == f"console={device},{speed}"
    yield "the bootloader gets its script", "file://boot.cmd" in layer.words("u-boot", "SRC_URI")
    yield "the image has every service", set(SERVICES) <= set(layer.words("cairn-image", "IMAGE_INSTALL"))
    yield "the image is verified", layer.words("cairn-image", "IMAGE_FSTYPES")[:2] == ["verity", "boot"]
    root = layer.words("cairn-image", "IMAGE_FEATURES")
    yield "the root is read-only, and nobody logs in without a key", root == ["read-only-rootfs", "ssh-server-openssh"]
    mesa = set(layer.words("mesa", "PACKAGECONFIG"))
    wanted = {"vulkan", "libclc", "panfrost", "rocket", "teflon"}
    yield f"Mesa has panvk and Teflon on boards only {sorted(mesa)}", (wanted <= mesa) if board else not (wanted & mesa)
    patches = [entry for entry in layer.words("mesa", "SRC_URI") if entry.endswith(".patch")]
    yield "Mesa has the series, in its order", patches == (series("mesa-patches/26.0") if board else [])
    patches = [entry for entry in layer.words("llama-server", "SRC_URI") if entry.endswith(".patch")]
    yield "llama.cpp has the series, in its order", patches == series("mesa-patches/llama.cpp") and bool(patches)
    yield "llama.cpp uses the GPU on boards only", board == ("vulkan" in layer.words("llama-server", "PACKAGECONFIG"))
    yield "gpud comes with its server", "llama-server" in layer.words("cairn-services", "RDEPENDS:cairn-gpud")
    yield "the GPU's firmware is in the image", board == ("linux-firmware-mali-csffw-arch108" in layer.words("cairn-image", "IMAGE_INSTALL"))
    yield "a bundle is for this machine", bundle.getVar("RAUC_BUNDLE_COMPATIBLE") == f"cairn-{machine}"
    yield "a bundle has the system's version", bundle.getVar("RAUC_BUNDLE_VERSION") == image.getVar("DISTRO_VERSION")
    yield "a bundle is verified", bundle.getVar("RAUC_BUNDLE_FORMAT") == "verity"
    yield "RAUC's own mark-good is left out", not layer.words("rauc", "RRECOMMENDS:rauc")
    yield "extlinux is left out", "u-boot-extlinux" not in layer.words("cairn-image", "MACHINE_ESSENTIAL_EXTRA_RDEPENDS")
    yield "every service has a package", set(SERVICES) <= set(layer.words("cairn-services", "PACKAGES"))


def bb_match(pattern, machine):
    import re

    return bool(pattern) and re.match(pattern, machine) is not None


def main():
    number, failed = 0, 0
    for machine in MACHINES:
        layer = Layer(machine)
        for sentence, holds in expect(layer, machine):
            number += 1
            failed += not holds
            print(f"{'ok' if holds else 'not ok'} {number} {machine}: {sentence}")
    print(f"1..{number}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
