do_build() {
    :
}
addtask build
do_compile() {
    :
}
addtask compile
do_install() {
    :
}
addtask install after do_compile before do_build
