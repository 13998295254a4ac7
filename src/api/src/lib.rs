//! Interfaces.
