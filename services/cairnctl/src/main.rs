//! cairnctl.
fn main() {}
