//! Tests that need more than one crate; see the files beside this one.
