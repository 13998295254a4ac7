SUMMARY = "Of the layers that ours stands on"
SRC_URI = "file://system.conf ${RAUC_KEYRING_URI}"
RAUC_KEYRING_URI ??= "file://${RAUC_KEYRING_FILE}"
