//! What a user whom nobody let in may do on the bus. Needs root, to become that user.

mod machine;
mod service;

use std::process::{Command, Output};

use machine::{Machine, Setup};
use zbus::fdo::ObjectManagerProxy;

/// A busctl of the user nobody, who is in no group.
async fn stranger(machine: &Machine, arguments: &[&str]) -> Output {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "busctl"]);
    command.arg(format!("--address={}", machine.bus.address())).args(arguments);
    // The bus' other side is in this process.
    tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
}

async fn look(machine: &Machine, name: &str, object: &str, interface: &str, property: &str) -> String {
    let output = stranger(machine, &["get-property", name, object, interface, property]).await;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

async fn is_denied(machine: &Machine, call: &[&str]) {
    let output = stranger(machine, &[&["call"], call].concat()).await;
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && message.contains("Access denied"), "{call:?}: {message}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stranger_may_look_but_neither_use_the_npu_nor_ask_for_work() {
    let machine = Machine::start(Setup::default()).await;
    let (npu, model) = ("org.cairn.Npu1", "/org/cairn/Npu1/model/mnist");
    assert_eq!(look(&machine, npu, model, "org.cairn.Model1", "Name").await, "s \"mnist\"\n");
    is_denied(&machine, &[npu, model, "org.cairn.Inference1", "InferPicture", "va{sv}", "ay", "0", "0"]).await;
    is_denied(&machine, &[npu, "/org/cairn/Npu1", "org.cairn.Models1", "UnloadModel", "sa{sv}", "mnist", "0"]).await;
    assert_eq!(machine.infer(1).await.unwrap().1, "trusted");

    let (health, root, interface) = ("org.cairn.Health1", "/org/cairn/Health1", "org.cairn.Health1");
    assert_eq!(look(&machine, health, root, interface, "ThermalLevel").await, "s \"normal\"\n");
    machine.hang().await;
    machine.settled(1).await;
    let incident = "/org/cairn/Health1/incident/0";
    let class = look(&machine, health, incident, "org.cairn.Incident1", "Class").await;
    assert_eq!(class, "s \"npu-job-timeout\"\n");
    is_denied(&machine, &[health, root, interface, "RunSelfTest", "a{sv}", "0"]).await;
    is_denied(&machine, &[health, root, interface, "CreateSupportBundle", "a{sv}", "0"]).await;
    is_denied(&machine, &[health, root, interface, "OpenSupportBundle", "sa{sv}", "x.tar.gz", "0"]).await;
    is_denied(&machine, &[health, root, "org.freedesktop.DBus.Properties", "Set", "ssv", interface, "State", "s", "x"])
        .await;
    let objects = ObjectManagerProxy::builder(&machine.client).destination(health).path(root).build().await.unwrap();
    let paths = objects.get_managed_objects().await.unwrap();
    assert!(paths.keys().all(|path| !path.as_str().contains("/job/")), "{:?}", paths.keys());
}
