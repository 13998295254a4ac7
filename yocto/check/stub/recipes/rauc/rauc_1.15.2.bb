SUMMARY = "Of the layers that ours stands on"
RRECOMMENDS:${PN}:append = " ${PN}-mark-good"
