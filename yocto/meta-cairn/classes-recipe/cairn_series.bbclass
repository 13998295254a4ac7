# The patches of a folder of this repository, in the order of its file "series".

FILESEXTRAPATHS:prepend := "${CAIRN_TOP}/kernel-patches:${CAIRN_TOP}/mesa-patches:"

def cairn_series(folder, d):
    """The entries of SRC_URI for FOLDER, below the top of the repository."""
    import os
    path = os.path.join(d.getVar("CAIRN_TOP"), folder, "series")
    bb.parse.mark_dependency(d, path)
    with open(path) as series:
        names = [line.strip() for line in series if line.strip() and not line.startswith("#")]
    return " ".join("file://%s/%s" % (os.path.basename(folder), name) for name in names)
