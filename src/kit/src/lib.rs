//! Daemon skeleton.
