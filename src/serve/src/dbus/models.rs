//! `org.cairn.Models1`.

use std::path::PathBuf;
use std::sync::Arc;

use api::Result;
use api::dbus::{MANAGE_MODELS, model_path};
use engine::Engine;
use kit::bus::{Authority, Found, JobHandle, Jobs, WireOptions, absolute, no_options};
use zbus::OwnedObjectPath;
use zbus::message::Header;

use super::Objects;
use crate::request::failure;

/// Which models the daemon holds.
#[derive(Debug)]
pub(super) struct Models {
    pub(super) engine: Engine,
    pub(super) objects: Arc<Objects>,
    pub(super) jobs: Jobs,
    pub(super) authority: Authority,
}

#[zbus::interface(name = "org.cairn.Models1", introspection_docs = false)]
impl Models {
    #[zbus(out_args("job"))]
    async fn load_model(
        &self,
        path: String,
        options: WireOptions,
        #[zbus(header)] call: Header<'_>,
    ) -> Result<OwnedObjectPath> {
        no_options(&options)?;
        let folder = absolute(path)?;
        self.authority.check(&call, MANAGE_MODELS).await?;
        let client = call.sender().map(|name| name.as_str().to_owned());
        let job = self.jobs.create("load-model", MANAGE_MODELS, client).await?;
        let path = job.path();
        tokio::spawn(load(self.engine.clone(), Arc::clone(&self.objects), folder, job));
        Ok(path)
    }

    async fn unload_model(&self, name: String, options: WireOptions, #[zbus(header)] call: Header<'_>) -> Result<()> {
        no_options(&options)?;
        self.authority.check(&call, MANAGE_MODELS).await?;
        self.engine.unload(&name).await.map_err(|error| failure(&error))?;
        Ok(self.objects.sync().await?)
    }

    #[zbus(out_args("models"))]
    fn list_models(&self, options: WireOptions) -> Result<Vec<OwnedObjectPath>> {
        no_options(&options)?;
        Ok(self.engine.models().iter().map(|model| model_path(&model.name)).collect())
    }
}

/// Loads a model for a job. The engine is never stopped half-way: a model that nobody wants any more when it is ready is
/// unloaded again, except where it replaced another, which is gone by then.
async fn load(engine: Engine, objects: Arc<Objects>, folder: PathBuf, job: JobHandle) {
    let before: Vec<String> = engine.models().iter().map(|model| model.name.clone()).collect();
    let result = engine.load(&folder).await;
    if let Ok(model) = &result
        && job.is_cancelled()
        && !before.contains(&model.name)
    {
        // Somebody else may have unloaded it meanwhile; then it is gone as well.
        let _ = engine.unload(&model.name).await;
    }
    let served = objects.sync().await;
    let result = result.map_err(|error| failure(&error)).and_then(|model| {
        served?;
        Ok(Found { object: Some(model_path(&model.name)), ..Found::default() })
    });
    job.finish(result).await;
}
