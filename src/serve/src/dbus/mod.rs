//! The D-Bus front end: the objects of the contracts in `api`.
//!
//! The objects follow the engine: a model's object exists while the model is loaded. Interfaces hold no lock while they
//! wait, so a slow inference delays nobody.
//!
//! Who may call what is decided twice: the bus policy lets only the group `cairn-infer` call at all, and polkit is asked
//! before models are loaded or unloaded. Without polkit on the machine only root and the daemon's own user may.

mod device;
mod infer;
mod model;
mod models;

use std::collections::BTreeMap;
use std::sync::Arc;

use api::dbus::{NPU_DEVICE, NPU_NAME, NPU_ROOT, model_path};
use engine::{Engine, Event, ModelInfo, ThermalLevel};
use kit::bus::{Authority, Clients, Jobs};
use tokio::sync::Mutex;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use zbus::object_server::SignalEmitter;
use zbus::{Connection, connection};

use crate::{Error, Result};
pub(crate) use device::thermal_name;
use device::{Device, DeviceSignals as _};
use infer::Inference;
use model::Model;
use models::Models;

/// A daemon on a bus.
#[derive(Clone, Debug)]
pub struct Server {
    connection: Connection,
    engine: Engine,
    objects: Arc<Objects>,
    clients: Clients,
}

impl Server {
    /// Connects, serves all objects, and then owns the name, so that nobody sees half of them.
    ///
    /// # Errors
    /// [`Error::Bus`] or [`Error::Name`].
    pub async fn start(engine: Engine, bus: connection::Builder<'_>) -> Result<Self> {
        let connection = bus.build().await.map_err(Error::Bus)?;
        let clients = Clients::watch(&connection).await.map_err(Error::Bus)?;
        let objects = Arc::new(Objects {
            connection: connection.clone(),
            engine: engine.clone(),
            clients: clients.clone(),
            served: Mutex::default(),
        });
        let server = Self { connection, engine, objects, clients };
        server.serve().await.map_err(Error::Bus)?;
        let name = |source| Error::Name { name: NPU_NAME, source };
        kit::bus::own(&server.connection, NPU_NAME).await.map_err(name)?;
        Ok(server)
    }

    async fn serve(&self) -> zbus::Result<()> {
        let authority = Authority::new(&self.connection).await?;
        let jobs = Jobs::new(self.connection.clone(), NPU_ROOT, self.clients.clone(), authority.clone());
        let models = Models { engine: self.engine.clone(), objects: Arc::clone(&self.objects), jobs, authority };
        let server = self.connection.object_server();
        server.at(NPU_ROOT, zbus::fdo::ObjectManager).await?;
        server.at(NPU_ROOT, models).await?;
        server.at(NPU_DEVICE, Device { engine: self.engine.clone() }).await?;
        self.objects.sync().await
    }

    /// Follows the engine from now on, until the bus goes away, which is an error, or the future is dropped.
    ///
    /// # Errors
    /// [`Error::Bus`].
    pub fn run(&self) -> impl Future<Output = Result<()>> {
        // What happens before the future is polled first is told as well.
        self.follow(self.engine.events())
    }

    async fn follow(&self, mut events: Receiver<Event>) -> Result<()> {
        loop {
            let event = tokio::select! {
                event = events.recv() => event,
                () = self.connection.closed() => {
                    return Err(Error::Bus(zbus::Error::Failure("the bus closed the connection".into())));
                }
            };
            match event {
                Ok(Event::ContextReplaced { context, model, job, reason, kernel_line }) => {
                    let context = u32::try_from(context).unwrap_or(u32::MAX);
                    let line = kernel_line.unwrap_or_default();
                    let signals = self.device_signals().map_err(Error::Bus)?;
                    signals.context_replaced(context, &model, job.name(), &reason, &line).await
                }
                Ok(Event::ModelLoaded(_) | Event::ModelUnloaded(_)) | Err(RecvError::Lagged(_)) => {
                    self.objects.sync().await
                }
                // The engine lives as long as this server.
                Err(RecvError::Closed) => return Ok(()),
            }
            .map_err(Error::Bus)?;
        }
    }

    /// Tells the engine how hot the machine is, and clients about it.
    ///
    /// # Errors
    /// [`Error::Bus`].
    pub async fn set_thermal_level(&self, level: ThermalLevel) -> Result<()> {
        if self.engine.status().thermal_level == level {
            return Ok(());
        }
        self.engine.set_thermal_level(level);
        let device = self.connection.object_server().interface::<_, Device>(NPU_DEVICE).await.map_err(Error::Bus)?;
        device.get().await.thermal_level_changed(device.signal_emitter()).await.map_err(Error::Bus)
    }

    /// The connection to the bus.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    fn device_signals(&self) -> zbus::Result<SignalEmitter<'_>> {
        SignalEmitter::new(&self.connection, NPU_DEVICE)
    }
}

/// The objects of loaded models.
#[derive(Debug)]
struct Objects {
    connection: Connection,
    engine: Engine,
    clients: Clients,
    served: Mutex<BTreeMap<String, Arc<ModelInfo>>>,
}

impl Objects {
    /// Makes the objects those of the engine's models. A replaced model gets a new object.
    async fn sync(&self) -> zbus::Result<()> {
        let mut served = self.served.lock().await;
        let loaded: BTreeMap<_, _> =
            self.engine.models().into_iter().map(|model| (model.name.clone(), model)).collect();
        let server = self.connection.object_server();
        for (name, model) in served.clone() {
            if loaded.get(&name).is_none_or(|loaded| !Arc::ptr_eq(loaded, &model)) {
                let path = model_path(&name);
                server.remove::<Inference, _>(&path).await?;
                server.remove::<Model, _>(&path).await?;
                served.remove(&name);
            }
        }
        for (name, model) in loaded {
            if served.contains_key(&name) {
                continue;
            }
            let path = model_path(&name);
            server.at(&path, Inference::new(&self.engine, &model, &self.clients)).await?;
            server.at(&path, Model { engine: self.engine.clone(), info: Arc::clone(&model) }).await?;
            served.insert(name, model);
        }
        Ok(())
    }
}
