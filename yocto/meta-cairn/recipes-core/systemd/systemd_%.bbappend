# Partitions that grow at the first start, what a crashed kernel left behind, and rules for who may reboot.
PACKAGECONFIG:append:cairn = " repart openssl pstore polkit"
