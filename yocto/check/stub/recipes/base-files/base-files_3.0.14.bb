SUMMARY = "Of the layers that ours stands on"
SRC_URI = "file://fstab"
