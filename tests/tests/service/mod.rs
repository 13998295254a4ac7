//! The daemon's inside in this process: engine on the simulator, front ends on a private bus and broker.
#![allow(dead_code, reason = "each test file uses its part")]

pub(crate) mod gate;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use engine::{Engine, Options};
use npu_sim::Simulator;
use serve::dbus::Server;
use testkit::{Bus, model, workspace};
use zbus::{Connection, connection};

use gate::{Gate, Gated};

/// TIMEOUT: far longer than anything here takes on a slow machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);
/// Requests that may wait; few, so that tests can fill the queue.
pub(crate) const QUEUE: usize = 2;

/// An engine with one context on a simulated NPU behind a gate, with the models named.
pub(crate) async fn engine(models: &[&str]) -> (Engine, Gate) {
    let gate = Gate::default();
    let driver = Gated { driver: Simulator::new(npu_sim::Options::default()), gate: gate.clone() };
    let options = Options { contexts: 1, queue_capacity: QUEUE, ..Options::default() };
    let engine = Engine::start(Arc::new(driver), None, options).unwrap();
    for name in models {
        engine.load(&model(name)).await.unwrap();
    }
    (engine, gate)
}

/// An engine on a private bus.
pub(crate) struct OnBus {
    pub(crate) bus: Bus,
    pub(crate) engine: Engine,
    pub(crate) gate: Gate,
    pub(crate) server: Server,
}

impl OnBus {
    pub(crate) async fn start(models: &[&str]) -> Self {
        let policy = workspace().join("services/npud/dist/org.cairn.Npu1.conf");
        let bus = Bus::start(&policy, &["npud"], &["cairn-infer"]).unwrap();
        let (engine, gate) = engine(models).await;
        let server = Server::start(engine.clone(), connection::Builder::address(bus.address())).await.unwrap();
        let following = server.clone();
        tokio::spawn(async move { following.run().await });
        Self { bus, engine, gate, server }
    }

    pub(crate) async fn client(&self) -> Connection {
        connection::Builder::address(self.bus.address()).build().await.unwrap()
    }
}

/// Waits until `condition` holds.
pub(crate) async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let wait = async {
        let mut look = tokio::time::interval(Duration::from_millis(5));
        while !condition() {
            look.tick().await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.unwrap_or_else(|_| panic!("{what} did not come to pass"));
}

/// One of the ten digits that lie beside the model `mnist`: 28 × 28 bytes, as its input takes them.
pub(crate) fn digit(number: usize) -> Bytes {
    const BYTES: usize = 28 * 28;
    let digits = std::fs::read(model("mnist").join("digits.bin")).unwrap();
    Bytes::copy_from_slice(&digits[number * BYTES..][..BYTES])
}

/// A picture of two digits over each other, PNG.
pub(crate) fn golden_picture() -> Bytes {
    std::fs::read(model("mnist").join("golden.png")).unwrap().into()
}
