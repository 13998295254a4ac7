//! The whole product in the guest: npud on the real driver and a real bus, asked by a client.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use api::dbus::{Blob, Inference1Proxy, WireTensor, model_path, unseal};
use bytes::Bytes;
use engine::{Engine, Input, Options, Priority, Request};
use npu_sim::Simulator;
use testkit::{Bus, Daemon};
use zbus::{Variant, connection};

use crate::port::Port;
use crate::tap::{Tap, same};

const MODEL: &str = "ssd-oidv4";
/// TIMEOUT: on the guest's clock, where npud plans and verifies its model in half a minute.
const PATIENCE: Duration = Duration::from_secs(3600);
/// The largest tensor.
const LIMIT: usize = 16 << 20;

/// The outputs of the simulator for the model's own picture, one file each, into `folder`.
pub(crate) fn expect(folder: &Path) -> ExitCode {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let reply = runtime.block_on(async {
        let driver = Arc::new(Simulator::new(npu_sim::Options::default()));
        let engine = Engine::start(driver, None, Options::default()).unwrap();
        engine.load(&folder.join("models").join(MODEL)).await.unwrap();
        let input = Input::Picture(picture(folder));
        let request = Request { model: MODEL.into(), input, priority: Priority::Interactive, deadline: None };
        tokio::task::spawn_blocking(move || engine.submit(request).unwrap().wait().unwrap()).await.unwrap()
    });
    for (index, output) in reply.outputs.iter().enumerate() {
        fs::write(folder.join(format!("expected-{index}")), &output.data).unwrap();
    }
    ExitCode::SUCCESS
}

fn picture(folder: &Path) -> Bytes {
    fs::read(folder.join("models").join(MODEL).join("golden.png")).unwrap().into()
}

/// Starts bus and npud and asks it, with what lies in `folder`.
pub(crate) fn run(folder: &Path) -> ExitCode {
    let mut tap = Tap::default();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    tap.check("npud: the detector gives the simulator's bytes", runtime.block_on(ask(folder)));
    tap.finish()
}

async fn ask(folder: &Path) -> Result<(), String> {
    let say = |error: anyhow::Error| format!("{error:#}");
    let bus = Bus::start(&folder.join("org.cairn.Npu1.conf"), &["npud"], &["cairn-infer"]).map_err(say)?;
    let (models, address) = (folder.join("models"), bus.address());
    let config = format!("models = [{models:?}]\nbus = {{ address = {address:?} }}\n");
    let mut daemon = Daemon::start(&folder.join("npud"), &config, &[], &[]).map_err(say)?;
    daemon.wait_for("READY=1", PATIENCE).map_err(say)?;
    let kicks = Port::open().kicks();
    let (outputs, verdict) = infer(bus.address(), picture(folder)).await.map_err(say)?;
    same("verdict", verdict.as_str(), "trusted")?;
    if Port::open().kicks() == kicks {
        return Err("no core was kicked".into());
    }
    for (index, (name, _, _, data)) in outputs.iter().enumerate() {
        let expected = fs::read(folder.join(format!("expected-{index}"))).map_err(|error| error.to_string())?;
        let data = unseal(data, LIMIT).map_err(|failure| failure.to_string())?;
        same(&format!("{name} equals the simulator's"), data == expected, true)?;
    }
    same("outputs", outputs.len(), 2)?;
    daemon.terminate().map_err(say)
}

async fn infer(address: &str, picture: Bytes) -> anyhow::Result<(Vec<WireTensor>, String)> {
    let client = connection::Builder::address(address).method_timeout(PATIENCE).build().await?;
    let model = Inference1Proxy::new(&client, model_path(MODEL)).await?;
    let picture = Blob::new(picture)?.into_variant();
    let options = HashMap::from([("outputs", Variant::from(true))]);
    let (outputs, _, details) = model.infer_picture(&picture, options).await?;
    Ok((outputs, String::try_from(details["verdict"].try_clone()?)?))
}
