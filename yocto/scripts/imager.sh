#!/bin/bash
# Prints what Raspberry Pi Imager must know of an image, for its option "content repository".
#
#   imager.sh cairn-image-rock-5-itx.wic.zst URL-OF-THE-SAME MACHINE VERSION DATE
#
# SOURCE: os-list-schema.json of rpi-imager. "none" keeps it from offering settings that only Raspberry Pi OS reads: ours
# are in cairn.toml.
set -euo pipefail
image=$1 url=$2 machine=$3 version=$4 date=$5

bytes=$(zstd --decompress --stdout --quiet "$image" | wc --bytes)
sha256=$(zstd --decompress --stdout --quiet "$image" | sha256sum | cut --characters=1-64)
cat <<JSON
{
    "os_list": [
        {
            "name": "Cairn $version for $machine",
            "description": "Inference on the RK3588, all open",
            "icon": "",
            "url": "$url",
            "extract_size": $bytes,
            "extract_sha256": "$sha256",
            "image_download_size": $(stat --format=%s "$image"),
            "release_date": "$date",
            "init_format": "none"
        }
    ]
}
JSON
