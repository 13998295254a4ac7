#!/bin/bash
# Parses every recipe for each machine with the real layers, and resolves the image's tasks without running them.
#
#   full-parse.sh FOLDER [MACHINE ...]
#
# FOLDER holds clones of the layers, named and pinned as in kas/cairn.yml (`kas checkout` makes them). Not as root:
# bitbake refuses that. Ten minutes of processor time for each machine.
set -euo pipefail
layers=$(realpath "$1")
shift
yocto=$(realpath "$(dirname "${BASH_SOURCE[0]}")/..")
machines=("$@")
[[ ${#machines[@]} -gt 0 ]] || machines=(rock-5-itx rock-5b turing-rk1 cairn-qemuarm64)

build=$layers/build
mkdir --parents "$build/conf"
cat > "$build/conf/bblayers.conf" <<CONF
BBPATH = "\${TOPDIR}"
BBFILES ?= ""
BBLAYERS = "$layers/openembedded-core/meta $layers/meta-openembedded/meta-oe $layers/meta-arm/meta-arm-toolchain \
$layers/meta-arm/meta-arm $layers/meta-rockchip $layers/meta-rauc $yocto/meta-cairn"
CONF
cat > "$build/conf/local.conf" <<CONF
DISTRO = "cairn"
BB_NO_NETWORK = "1"
CONNECTIVITY_CHECK_URIS = ""
BB_SERVER_TIMEOUT = "0"
${FULL_PARSE_CONF:-}
CONF

export BITBAKEDIR=$layers/bitbake BB_ENV_PASSTHROUGH_ADDITIONS=MACHINE LC_ALL=en_US.UTF-8
cd "$layers"
set +u
# shellcheck disable=SC1091
. openembedded-core/oe-init-build-env build > /dev/null
set -u
for MACHINE in "${machines[@]}"; do
    export MACHINE
    echo "== $MACHINE: parse"
    bitbake --parse-only
    echo "== $MACHINE: the image's tasks"
    bitbake --dry-run cairn-image cairn-bundle
done
