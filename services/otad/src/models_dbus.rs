//! `org.cairn.ModelStore1`.

use std::fs::File;
use std::os::fd::OwnedFd as StdFd;

use api::dbus::MANAGE_MODEL_STORE;
use api::{Failure, Result};
use kit::bus::{Authority, Found, JobHandle, Jobs, WireOptions};
use store::Offer;
use zbus::message::Header;
use zbus::{OwnedFd, OwnedObjectPath, Variant};

use crate::models::{Models, Source};

/// The object.
#[derive(Debug)]
pub(crate) struct ModelStore {
    pub(crate) models: Models,
    pub(crate) jobs: Jobs,
    pub(crate) authority: Authority,
}

/// Name, current, previous and candidate version, and why the last one was refused.
type Row = (String, String, String, String, String);

#[zbus::interface(name = "org.cairn.ModelStore1", introspection_docs = false)]
impl ModelStore {
    #[zbus(property)]
    fn models(&self) -> zbus::fdo::Result<Vec<Row>> {
        let models = self.models.list().map_err(|error| zbus::fdo::Error::Failed(format!("{error:#}")))?;
        let version = |release: Option<store::Release>| release.map(|release| release.version).unwrap_or_default();
        let row = |model: store::Model| {
            let reason = model.refused.map(|refused| format!("{}: {}", refused.version, refused.reason));
            let versions = (version(model.current), version(model.previous), version(model.candidate));
            (model.name, versions.0, versions.1, versions.2, reason.unwrap_or_default())
        };
        Ok(models.into_iter().map(row).collect())
    }

    #[zbus(out_args("job"))]
    async fn add(
        &self,
        bundle: OwnedFd,
        options: WireOptions,
        #[zbus(header)] call: Header<'_>,
    ) -> Result<OwnedObjectPath> {
        let offer = parse(&options)?;
        self.authority.check(&call, MANAGE_MODEL_STORE).await?;
        self.start(Source::File(File::from(StdFd::from(bundle))), offer).await
    }

    #[zbus(out_args("job"))]
    async fn fetch(
        &self,
        url: String,
        options: WireOptions,
        #[zbus(header)] call: Header<'_>,
    ) -> Result<OwnedObjectPath> {
        let offer = parse(&options)?;
        if !url.starts_with("http://") && !url.starts_with("https://") {
            return Err(Failure::invalid_args(format!("{url:?} is neither http nor https")));
        }
        self.authority.check(&call, MANAGE_MODEL_STORE).await?;
        self.start(Source::Url(url), offer).await
    }
}

impl ModelStore {
    /// An update survives its client, so the job does too.
    async fn start(&self, source: Source, offer: Offer) -> Result<OwnedObjectPath> {
        let job = self.jobs.create("add-model", MANAGE_MODEL_STORE, None).await?;
        let path = job.path();
        tokio::spawn(add(self.models.clone(), source, offer, job));
        Ok(path)
    }
}

async fn add(models: Models, source: Source, offer: Offer, job: JobHandle) {
    let added = models.add(source, offer, Some(&job)).await;
    job.finish(
        added.map(|candidate| Found { object: Some(api::dbus::model_path(&candidate.name)), ..Found::default() }),
    )
    .await;
}

fn parse(options: &WireOptions) -> Result<Offer> {
    let mut offer = Offer::default();
    for (key, value) in options {
        let place = match key.as_str() {
            "name" => &mut offer.name,
            "version" => &mut offer.version,
            "sha256" => &mut offer.sha256,
            _ => return Err(Failure::invalid_args(format!("unknown option {key:?}"))),
        };
        match &**value {
            Variant::Str(text) => *place = Some(text.to_string()),
            _ => return Err(Failure::invalid_args(format!("option {key:?} is not text"))),
        }
    }
    Ok(offer)
}
