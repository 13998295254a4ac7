//! npud.
fn main() {}
