//! npud.
