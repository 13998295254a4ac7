//! The engine as an external delegate of TFLite: `libcairn_delegate.so`.
//!
//! ```text
//! tflite_plugin_create_delegate ─▶ Settings ─▶ Accelerator: one engine on one device
//! runtime: Prepare ─▶ survey: which operators, and why not the others ─▶ claims
//! runtime: init    ─▶ sketch: a claimed subset as our graph ─▶ loaded into the engine as a Part
//! runtime: invoke  ─▶ Part::run ─▶ verified outputs, or an error and no bytes
//! ```
//!
//! A host (LiteRT in Python or C++, Frigate, …) opens the library and calls it through the C structures of
//! TFLite's public headers. They are declared in `ffi`, the only module with `unsafe`; everything else works on owned
//! descriptions. No panic crosses the border: it becomes an error of the runtime.

#![deny(unsafe_code)]

mod accelerator;
mod ffi;
mod kernel;
mod settings;
mod sketch;
mod survey;
