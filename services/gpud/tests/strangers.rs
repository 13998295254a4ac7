//! What a user whom nobody let in may do on the bus. Needs root, to become that user.

#![allow(clippy::unwrap_used, reason = "functions beside the tests unwrap as the tests themselves do")]

#[allow(dead_code, reason = "other tests use the rest")]
mod stand;

use std::process::{Command, Output};

use stand::Stand;

/// A busctl of the user nobody, who is in no group.
async fn stranger(stand: &Stand, arguments: &[&str]) -> Output {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "busctl"]);
    command.arg(format!("--address={}", stand.bus())).args(arguments);
    // The bus' other side is in this process.
    tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stranger_may_look_but_neither_ask_nor_manage_models() {
    let stand = Stand::empty().await;
    // Who gets past the bus may do everything.
    let _polkit = stand.polkit(true).await;
    let (name, root, device) = ("org.cairn.Gpu1", "/org/cairn/Gpu1", api::dbus::GPU_DEVICE);
    let seen = stranger(&stand, &["get-property", name, device, "org.cairn.Device1", "Description"]).await;
    assert_eq!(String::from_utf8(seen.stdout).unwrap(), "s \"CPU\"\n");
    let model = api::dbus::language_model_path("smollm2");
    for call in [
        &[name, model.as_str(), "org.cairn.TextGeneration1", "Generate", "a(ss)a{sv}", "1", "user", "x", "0"][..],
        &[name, root, "org.cairn.Models1", "LoadModel", "sa{sv}", "/x.gguf", "0"],
        &[name, root, "org.cairn.Models1", "UnloadModel", "sa{sv}", "smollm2", "0"],
        &[name, "/org/cairn/Gpu1/job/0", "org.cairn.Job1", "Cancel", "a{sv}", "0"],
    ] {
        let output = stranger(&stand, &[&["call"], call].concat()).await;
        let message = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && message.contains("Access denied"), "{call:?}: {message}");
    }
}
