//! The D-Bus contracts: names, object paths, proxies, and how bytes travel.
//!
//! The contracts themselves are the XML files in `dbus/` of this crate; a test compares them with the live objects.
//!
//! ```text
//! /org/cairn/Npu1                 org.cairn.Models1, org.freedesktop.DBus.ObjectManager
//! /org/cairn/Npu1/device/npu0     org.cairn.Device1
//! /org/cairn/Npu1/model/<name>    org.cairn.Model1, org.cairn.Inference1
//! /org/cairn/Npu1/job/<number>    org.cairn.Job1
//!
//! /org/cairn/Gpu1                 org.cairn.Models1, org.freedesktop.DBus.ObjectManager
//! /org/cairn/Gpu1/device/gpu0     org.cairn.Device1
//! /org/cairn/Gpu1/model/<name>    org.cairn.LanguageModel1, org.cairn.TextGeneration1
//! /org/cairn/Gpu1/job/<number>    org.cairn.Job1
//!
//! /org/cairn/Health1                     org.cairn.Health1, org.freedesktop.DBus.ObjectManager
//! /org/cairn/Health1/incident/<number>   org.cairn.Incident1
//! /org/cairn/Health1/job/<number>        org.cairn.Job1
//!
//! /org/cairn/Update1                     org.cairn.Update1, org.cairn.ModelStore1
//! /org/cairn/Update1/job/<number>        org.cairn.Job1
//! ```

mod blob;
mod proxies;

use std::fmt::Write as _;

use zbus::OwnedObjectPath;

pub use blob::{Blob, INLINE_BYTES, seal, unseal};
pub use proxies::{
    AuthorityProxy, Check, Details, Device1Proxy, Health1Proxy, Incident1Proxy, Inference1Proxy, Job1Proxy,
    LanguageModel1Proxy, Model1Proxy, ModelStore1Proxy, Models1Proxy, Options, Running, Seen, TensorDescription,
    TextGeneration1Proxy, Update1Proxy, WireTensor,
};

/// Bus name of the daemon that owns the NPU.
pub const NPU_NAME: &str = "org.cairn.Npu1";
/// Its root object.
pub const NPU_ROOT: &str = "/org/cairn/Npu1";
/// Its device.
pub const NPU_DEVICE: &str = "/org/cairn/Npu1/device/npu0";
/// Polkit action of `LoadModel` and `UnloadModel`.
pub const MANAGE_MODELS: &str = "org.cairn.npu1.manage-models";

/// Bus name of the daemon that owns the GPU.
pub const GPU_NAME: &str = "org.cairn.Gpu1";
/// Its root object.
pub const GPU_ROOT: &str = "/org/cairn/Gpu1";
/// Its device.
pub const GPU_DEVICE: &str = "/org/cairn/Gpu1/device/gpu0";
/// Polkit action of `LoadModel` and `UnloadModel` on the GPU.
pub const MANAGE_LANGUAGE_MODELS: &str = "org.cairn.gpu1.manage-models";

/// Bus name of the daemon that watches the machine's health.
pub const HEALTH_NAME: &str = "org.cairn.Health1";
/// Its root object.
pub const HEALTH_ROOT: &str = "/org/cairn/Health1";
/// Polkit action of `RunSelfTest`.
pub const RUN_SELF_TEST: &str = "org.cairn.health1.run-self-test";
/// Polkit action of `CreateSupportBundle` and `OpenSupportBundle`.
pub const CREATE_SUPPORT_BUNDLE: &str = "org.cairn.health1.create-support-bundle";

/// Bus name of the daemon that updates the system.
pub const UPDATE_NAME: &str = "org.cairn.Update1";
/// Its root object.
pub const UPDATE_ROOT: &str = "/org/cairn/Update1";
/// Polkit action of `Install`, `Proceed` and `Dismiss`.
pub const INSTALL_UPDATES: &str = "org.cairn.update1.install";
/// Polkit action of `FactoryReset`.
pub const FACTORY_RESET: &str = "org.cairn.update1.factory-reset";

/// Polkit action of `Add` and `Fetch` of the model store.
pub const MANAGE_MODEL_STORE: &str = "org.cairn.update1.manage-models";

/// The contracts, one XML document per interface.
pub const CONTRACTS: &[(&str, &str)] = &[
    ("org.cairn.Device1", include_str!("../../dbus/org.cairn.Device1.xml")),
    ("org.cairn.Health1", include_str!("../../dbus/org.cairn.Health1.xml")),
    ("org.cairn.Incident1", include_str!("../../dbus/org.cairn.Incident1.xml")),
    ("org.cairn.Inference1", include_str!("../../dbus/org.cairn.Inference1.xml")),
    ("org.cairn.Job1", include_str!("../../dbus/org.cairn.Job1.xml")),
    ("org.cairn.LanguageModel1", include_str!("../../dbus/org.cairn.LanguageModel1.xml")),
    ("org.cairn.ModelStore1", include_str!("../../dbus/org.cairn.ModelStore1.xml")),
    ("org.cairn.Model1", include_str!("../../dbus/org.cairn.Model1.xml")),
    ("org.cairn.Models1", include_str!("../../dbus/org.cairn.Models1.xml")),
    ("org.cairn.TextGeneration1", include_str!("../../dbus/org.cairn.TextGeneration1.xml")),
    ("org.cairn.Update1", include_str!("../../dbus/org.cairn.Update1.xml")),
];

/// The object of a model on the NPU. Bytes that a path element may not have become `_` and two hexadecimal digits.
pub fn model_path(name: &str) -> OwnedObjectPath {
    named_path(NPU_ROOT, name)
}

/// The object of a language model, named as [`model_path`] names.
pub fn language_model_path(name: &str) -> OwnedObjectPath {
    named_path(GPU_ROOT, name)
}

fn named_path(root: &str, name: &str) -> OwnedObjectPath {
    let mut path = format!("{root}/model/");
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() {
            path.push(byte.into());
        } else {
            write!(path, "_{byte:02x}").expect("a string takes everything");
        }
    }
    if name.is_empty() {
        path.push('_');
    }
    path.try_into().expect("every byte of the name was made valid")
}

/// The object of a job of the daemon whose root object is `root`.
///
/// # Panics
/// Where `root` is no object path.
pub fn job_path(root: &str, number: u64) -> OwnedObjectPath {
    format!("{root}/job/{number}").try_into().expect("a root is an object path, a number a valid element")
}

/// The object of an incident.
pub fn incident_path(number: u64) -> OwnedObjectPath {
    format!("{HEALTH_ROOT}/incident/{number}").try_into().expect("a number is a valid path element")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_model_name_has_a_path_of_its_own() {
        assert_eq!(model_path("mnist").as_str(), "/org/cairn/Npu1/model/mnist");
        assert_eq!(model_path("ssd-oidv4.2").as_str(), "/org/cairn/Npu1/model/ssd_2doidv4_2e2");
        assert_eq!(model_path("a_b").as_str(), "/org/cairn/Npu1/model/a_5fb");
        assert_eq!(model_path("").as_str(), "/org/cairn/Npu1/model/_");
    }
}
