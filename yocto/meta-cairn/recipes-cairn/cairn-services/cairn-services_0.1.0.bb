SUMMARY = "The services of the Cairn appliance"
DESCRIPTION = "Inference on the NPU, health, updates and provisioning, and the command line for them."
HOMEPAGE = "https://cairn.invalid/"
LICENSE = "MIT"
LIC_FILES_CHKSUM = "file://LICENSE;md5=d99724f93f963c39322dd880e97639a7"

# The workspace that this layer is a part of: what is built is what is checked out.
FILESEXTRAPATHS:prepend := "${CAIRN_TOP}:"
SRC_URI = "\
    file://Cargo.toml;subdir=${BP} \
    file://Cargo.lock;subdir=${BP} \
    file://LICENSE;subdir=${BP} \
    file://src;subdir=${BP} \
    file://services;subdir=${BP} \
    file://tests;subdir=${BP} \
    file://yocto/meta-cairn/recipes-bsp/u-boot/files/fw_env.config;subdir=${BP} \
"
require cairn-services-crates.inc

inherit cargo systemd useradd

# Without the simulator: it is a feature that nobody asks for here.
CARGO_BUILD_FLAGS += "${@' '.join('--package ' + name for name in d.getVar('CAIRN_PROGRAMS').split())}"
CAIRN_PROGRAMS = "npud gpud healthd otad cairn-provision cairnctl"

CAIRN_TABLE = "${CAIRN_TOP}/yocto/meta-cairn/recipes-cairn/cairn-services/install.tsv"

def cairn_table(d):
    """The lines of the table: package, mode, source, destination."""
    bb.parse.mark_dependency(d, d.getVar("CAIRN_TABLE"))
    with open(d.getVar("CAIRN_TABLE")) as table:
        return [line.rstrip("\n").split("\t") for line in table if line.strip() and not line.startswith("#")]

python () {
    units = {}
    for package, _, _, destination in cairn_table(d):
        d.appendVar("FILES:" + package, " " + destination)
        if destination.startswith(d.getVar("systemd_system_unitdir")):
            units.setdefault(package, []).append(destination.rsplit("/", 1)[1])
    # Units without an [Install] section are started by others, and templates by udev.
    for package, names in units.items():
        d.setVar("SYSTEMD_SERVICE:" + package, " ".join(names))
}

do_install () {
    grep -v '^#' ${CAIRN_TABLE} | while IFS="$(printf '\t')" read -r package mode source destination; do
        case "$package" in
            # For other recipes.
            cairn-system) continue ;;
            cairn-*) ;;
            *) continue ;;
        esac
        if [ "${source#bin/}" != "$source" ]; then
            install -D -m "$mode" "${B}/target/${CARGO_TARGET_SUBDIR}/${source#bin/}" "${D}$destination"
        elif [ -d "${S}/$source" ]; then
            install -d "${D}$destination"
            install -m "$mode" "${S}/$source"/* "${D}$destination"
        else
            install -D -m "$mode" "${S}/$source" "${D}$destination"
        fi
    done
}
do_install[file-checksums] += "${CAIRN_TABLE}:True"

PACKAGES = "cairn-npud cairn-gpud cairn-healthd cairn-otad cairn-provision cairn-ctl cairn-models ${PN}-dbg"
SYSTEMD_PACKAGES = "cairn-npud cairn-gpud cairn-healthd cairn-otad cairn-provision"
SYSTEMD_AUTO_ENABLE = "enable"
RDEPENDS:cairn-npud = "dbus"
RDEPENDS:cairn-gpud = "dbus llama-server"
RDEPENDS:cairn-healthd = "dbus smartmontools"
RDEPENDS:cairn-otad = "dbus rauc-service"
RDEPENDS:cairn-provision = "openssh-sshd"
CONFFILES:cairn-npud = "${sysconfdir}/cairn/npud.toml"
CONFFILES:cairn-gpud = "${sysconfdir}/cairn/gpud.toml"

# The same as in the sysusers files, which a root that cannot be written has no use for; a test compares them.
USERADD_PACKAGES = "cairn-npud cairn-gpud cairn-healthd cairn-otad cairn-provision"
GROUPADD_PARAM:cairn-npud = "--system cairn-mqtt; --system cairn-infer; --system npud"
USERADD_PARAM:cairn-npud = "--system --gid npud --home-dir / --no-create-home --shell /sbin/nologin npud"
GROUPADD_PARAM:cairn-gpud = "--system cairn-mqtt; --system cairn-infer; --system gpud"
USERADD_PARAM:cairn-gpud = "--system --gid gpud --home-dir / --no-create-home --shell /sbin/nologin gpud"
GROUPADD_PARAM:cairn-healthd = "--system cairn-infer; --system cairn-mqtt; --system healthd"
USERADD_PARAM:cairn-healthd = "--system --gid healthd --groups cairn-infer,cairn-mqtt --home-dir / --no-create-home --shell /sbin/nologin healthd"
GROUPADD_PARAM:cairn-otad = "--system cairn-infer; --system cairn-mqtt; --system otad"
USERADD_PARAM:cairn-otad = "--system --gid otad --groups cairn-infer,cairn-mqtt --home-dir / --no-create-home --shell /sbin/nologin otad"
GROUPADD_PARAM:cairn-provision = "--system cairn-mqtt"

CVE_PRODUCT = "cairn:cairn"
