//! hawkBit's Direct Device Integration: actions come in, how they end goes out.
//!
//! An action is closed only when its end is certain: with success after the health gate has marked the slot good, with
//! failure after a rollback or when the last attempt failed. Until then it is `proceeding`, also across reboots, because
//! the offer remembers its action.
//!
//! SOURCE: hawkBit's DDI API, `/{tenant}/controller/v1/{controllerId}` and below.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{info, warn};
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};

use crate::agent::{Handle, Status};
use crate::config::Hawkbit;
use crate::offer::{Offer, Source};
use crate::state::State;

/// How long an answer may take.
// TIMEOUT: an answer is a few hundred bytes; a slow link must not hold the poll for ever.
const PATIENCE: Duration = Duration::from_secs(60);
/// The largest answer, in bytes.
const LARGEST: u64 = 1 << 20;
/// The shortest and the longest time between two questions that a server may wish for.
const SLEEP: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(24 * 3600));
/// How a bundle's file name ends.
const BUNDLE: &str = ".raucb";

/// What the server wants of this device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wishes {
    /// When it wants to be asked again.
    pub sleep: Option<Duration>,
    /// The action to carry out, and the query that its address had.
    pub deployment: Option<(String, String)>,
    /// The action to give up, and the query that its address had.
    pub cancel: Option<(String, String)>,
    /// Whether it wants to know what this device is.
    pub attributes: bool,
}

/// An action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deployment {
    /// Its number.
    pub action: String,
    /// Where its bundle is.
    pub url: String,
    /// Whether it may be done now.
    pub open: bool,
}

/// What the server is told of an action.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Feedback {
    action: String,
    execution: &'static str,
    finished: &'static str,
    details: Vec<String>,
}

impl Hawkbit {
    /// The value of the header `Authorization`.
    ///
    /// # Errors
    /// A token file that cannot be read, or two of them.
    pub fn authorization(&self) -> Result<Option<String>> {
        let (kind, file) = match (&self.token_file, &self.gateway_token_file) {
            (None, None) => return Ok(None),
            (Some(file), None) => ("TargetToken", file),
            (None, Some(file)) => ("GatewayToken", file),
            (Some(_), Some(_)) => bail!("setting hawkbit: token-file and gateway-token-file exclude each other"),
        };
        let token = fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
        Ok(Some(format!("{kind} {}", token.trim())))
    }
}

/// Asks and tells the server until the agent ends.
///
/// # Errors
/// Settings that cannot work.
pub(crate) async fn run(settings: &Hawkbit, device: &str, handle: Handle) -> Result<()> {
    let server = Server::new(settings, device)?;
    let mut status = handle.status();
    let mut front = FrontEnd { server, handle, told: None, attributes: None };
    let usual = Duration::from_secs(settings.poll_seconds.max(1));
    let mut next = Instant::now();
    loop {
        let polls = tokio::select! {
            () = tokio::time::sleep_until(next) => true,
            changed = status.changed() => {
                changed.context("the agent ended")?;
                false
            }
        };
        if polls {
            let sleep = front.poll().await.unwrap_or_else(|error| {
                warn!(error = format!("{error:#}"), "hawkBit cannot be asked");
                None
            });
            next = Instant::now() + sleep.unwrap_or(usual).clamp(SLEEP.0, SLEEP.1);
        }
        if let Err(error) = front.tell(&mut status).await {
            warn!(error = format!("{error:#}"), "hawkBit cannot be told");
        }
    }
}

struct FrontEnd {
    server: Server,
    handle: Handle,
    told: Option<Feedback>,
    /// What the server knows of this device.
    attributes: Option<Value>,
}

impl FrontEnd {
    async fn poll(&mut self) -> Result<Option<Duration>> {
        let wishes = self.server.ask(|server| read_wishes(&server.get("")?)).await?;
        let attributes = attributes(&self.handle.status().borrow());
        if wishes.attributes || self.attributes.as_ref() != Some(&attributes) {
            let body = json!({"mode": "merge", "data": attributes});
            self.server.ask(move |server| server.put("/configData", &body)).await?;
            self.attributes = Some(attributes);
        }
        if let Some((action, query)) = wishes.cancel {
            self.cancel(action, query).await?;
        } else if let Some((action, query)) = wishes.deployment {
            self.deploy(action, query).await?;
        }
        Ok(wishes.sleep)
    }

    async fn deploy(&mut self, action: String, query: String) -> Result<()> {
        let known = self.handle.status().borrow().clone();
        let source = Source::Hawkbit(action.clone());
        if known.reported.as_ref() == Some(&action) || known.state.offer().is_some_and(|it| it.source == source) {
            return Ok(());
        }
        let path = format!("/deploymentBase/{action}{query}");
        let deployment = self.server.ask(move |server| read_deployment(&server.get(&path)?)).await;
        let deployment = match deployment {
            Ok(deployment) => deployment,
            Err(error) => {
                let details = vec![format!("{error:#}")];
                let failure = Feedback { action, execution: "closed", finished: "failure", details };
                return self.server.ask(move |server| server.feedback("deploymentBase", &failure)).await;
            }
        };
        if !deployment.open {
            return Ok(());
        }
        info!(action, url = deployment.url, "hawkBit has an action");
        let offer = Offer { source, ..Offer::new(deployment.url, None) };
        if let Err(failure) = self.handle.offer(offer).await {
            // It is offered again with the next poll, unless the agent keeps the refusal as its state.
            info!(%failure, "hawkBit's action waits");
        }
        Ok(())
    }

    async fn cancel(&mut self, action: String, query: String) -> Result<()> {
        let path = format!("/cancelAction/{action}{query}");
        let stop = self.server.ask(move |server| read_cancel(&server.get(&path)?)).await?;
        let (execution, finished, detail) = match self.handle.withdraw(Source::Hawkbit(stop)).await {
            Ok(()) => ("closed", "success", "taken back".to_owned()),
            Err(failure) => ("rejected", "none", failure.message),
        };
        let feedback = Feedback { action, execution, finished, details: vec![detail] };
        self.server.ask(move |server| server.feedback("cancelAction", &feedback)).await
    }

    /// Tells how the present action stands, if that is news.
    async fn tell(&mut self, status: &mut watch::Receiver<Status>) -> Result<()> {
        let now = status.borrow_and_update().clone();
        let Some(feedback) = feedback(&now) else { return Ok(()) };
        if self.told.as_ref() == Some(&feedback) || now.reported.as_ref() == Some(&feedback.action) {
            return Ok(());
        }
        let sent = feedback.clone();
        self.server.ask(move |server| server.feedback("deploymentBase", &sent)).await?;
        if feedback.execution == "closed" {
            self.handle.reported(feedback.action.clone()).await?;
        }
        self.told = Some(feedback);
        Ok(())
    }
}

/// What the server chooses devices by.
fn attributes(status: &Status) -> Value {
    let channel = status.channel.as_deref().unwrap_or_default();
    json!({"version": status.version, "slot": status.slot, "channel": channel})
}

/// What the server is to know of the present action.
fn feedback(status: &Status) -> Option<Feedback> {
    let Some(Source::Hawkbit(action)) = status.state.offer().map(|offer| offer.source.clone()) else { return None };
    let (execution, finished, details) = match &status.state {
        State::Healthy { slot, .. } => ("closed", "success", vec![format!("slot {} runs and is good", slot.bootname)]),
        State::RolledBack { rollback, .. } => {
            let details = std::iter::once(rollback.text()).chain(rollback.kernel_tail.iter().cloned());
            ("closed", "failure", details.collect())
        }
        State::Failed { failure, .. } if status.given_up => ("closed", "failure", vec![failure.to_string()]),
        State::Failed { failure, .. } => ("proceeding", "none", vec![format!("tried again after: {failure}")]),
        state => {
            let waiting = status.waiting.iter().map(|waiting| format!("waits for {waiting}"));
            ("proceeding", "none", std::iter::once(state.name().to_owned()).chain(waiting).collect())
        }
    };
    Some(Feedback { action, execution, finished, details })
}

/// The server, as this device sees it.
#[derive(Clone, Debug)]
struct Server {
    agent: ureq::Agent,
    base: String,
    authorization: Option<String>,
}

impl Server {
    fn new(settings: &Hawkbit, device: &str) -> Result<Self> {
        let url = settings.url.trim_end_matches('/');
        let mut config = ureq::Agent::config_builder().timeout_global(Some(PATIENCE)).max_redirects(0);
        if url.starts_with("https://") {
            config = config.tls_config(tls(&settings.ca)?).https_only(true);
        } else {
            ensure!(url.starts_with("http://"), "setting hawkbit.url: {url:?} is neither http nor https");
        }
        let base = format!("{url}/{}/controller/v1/{}", encode(&settings.tenant), encode(device));
        Ok(Self { agent: config.build().new_agent(), base, authorization: settings.authorization()? })
    }

    /// Does blocking work elsewhere.
    async fn ask<T: Send + 'static>(&self, work: impl FnOnce(&Self) -> Result<T> + Send + 'static) -> Result<T> {
        let server = self.clone();
        tokio::task::spawn_blocking(move || work(&server)).await.context("a question to hawkBit panicked")?
    }

    fn get(&self, path: &str) -> Result<Vec<u8>> {
        let url = format!("{}{path}", self.base);
        let mut request = self.agent.get(&url).header("Accept", "application/hal+json, application/json");
        if let Some(authorization) = &self.authorization {
            request = request.header("Authorization", authorization);
        }
        let mut answer = request.call().with_context(|| format!("get {url}"))?;
        answer.body_mut().with_config().limit(LARGEST).read_to_vec().with_context(|| format!("read {url}"))
    }

    fn put(&self, path: &str, value: &impl Serialize) -> Result<()> {
        let url = format!("{}{path}", self.base);
        self.send(self.agent.put(&url), value).with_context(|| format!("put {url}"))
    }

    fn feedback(&self, kind: &str, feedback: &Feedback) -> Result<()> {
        let Feedback { action, execution, finished, details } = feedback;
        let url = format!("{}/{kind}/{action}/feedback", self.base);
        let status = json!({"execution": execution, "result": {"finished": finished}, "details": details});
        match self.send(self.agent.post(&url), &json!({"id": action, "status": status})) {
            // The server closed the action by itself; there is nobody to tell.
            Err(error) if matches!(error.downcast_ref(), Some(ureq::Error::StatusCode(404 | 410))) => Ok(()),
            sent => sent.with_context(|| format!("post {url}")),
        }
    }

    fn send(&self, request: ureq::RequestBuilder<ureq::typestate::WithBody>, value: &impl Serialize) -> Result<()> {
        let mut request = request.content_type("application/json");
        if let Some(authorization) = &self.authorization {
            request = request.header("Authorization", authorization);
        }
        request.send(serde_json::to_vec(value)?)?;
        Ok(())
    }
}

/// Trusts the authorities of a PEM file.
pub(crate) fn tls(ca: &Path) -> Result<TlsConfig> {
    let pem = fs::read(ca).with_context(|| format!("read {}", ca.display()))?;
    let mut certificates = Vec::new();
    for item in parse_pem(&pem) {
        if let PemItem::Certificate(certificate) = item.with_context(|| format!("{} is no PEM file", ca.display()))? {
            certificates.push(certificate);
        }
    }
    ensure!(!certificates.is_empty(), "{} has no certificate", ca.display());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let roots = RootCerts::new_with_certs(&certificates);
    Ok(TlsConfig::builder().root_certs(roots).unversioned_rustls_crypto_provider(provider).build())
}

/// `text` as one element of an address. SOURCE: RFC 3986, 2.3.
fn encode(text: &str) -> String {
    let unreserved = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let encoded = text.bytes().map(|byte| match byte {
        byte if unreserved(byte) => char::from(byte).to_string(),
        byte => format!("%{byte:02X}"),
    });
    encoded.collect()
}

#[derive(Deserialize)]
struct WireLink {
    href: String,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct WireLinks {
    deployment_base: Option<WireLink>,
    cancel_action: Option<WireLink>,
    config_data: Option<WireLink>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WirePolling {
    sleep: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireConfig {
    polling: WirePolling,
}

#[derive(Deserialize)]
struct WireBase {
    #[serde(default)]
    config: WireConfig,
    #[serde(default, rename = "_links")]
    links: WireLinks,
}

/// Reads what the server wants.
///
/// # Errors
/// What is no such answer.
pub fn read_wishes(body: &[u8]) -> Result<Wishes> {
    let base: WireBase = serde_json::from_slice(body).context("hawkBit's answer")?;
    let link = |link: Option<WireLink>| link.map(|link| action(&link.href)).transpose();
    Ok(Wishes {
        sleep: seconds(&base.config.polling.sleep),
        deployment: link(base.links.deployment_base)?,
        cancel: link(base.links.cancel_action)?,
        attributes: base.links.config_data.is_some(),
    })
}

/// The action that an address ends with, and its query. Only these are taken over: the rest of the address is ours, so
/// that our token goes nowhere else.
fn action(href: &str) -> Result<(String, String)> {
    let (path, query) = href.split_once('?').map_or((href, String::new()), |(path, query)| (path, format!("?{query}")));
    let action = path.rsplit('/').next().unwrap_or_default();
    let plain = |text: &str, more: &[u8]| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || more.contains(&byte));
    ensure!(!action.is_empty() && plain(action, b"-_") && plain(&query, b"?=&-_.%~"), "{href:?} names no action");
    Ok((action.to_owned(), query))
}

/// Seconds of `HH:MM:SS`.
fn seconds(text: &str) -> Option<Duration> {
    let mut parts = text.splitn(3, ':').map(|part| part.parse::<u32>().ok().filter(|_| part.len() <= 3));
    let (hours, minutes, seconds) = (parts.next()??, parts.next()??, parts.next()??);
    Some(Duration::from_secs(u64::from(hours) * 3600 + u64::from(minutes) * 60 + u64::from(seconds)))
}

#[derive(Deserialize)]
struct WireDeployment {
    id: String,
    deployment: WireChunks,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireChunks {
    #[serde(default)]
    update: String,
    #[serde(default)]
    maintenance_window: Option<String>,
    #[serde(default)]
    chunks: Vec<WireChunk>,
}

#[derive(Deserialize)]
struct WireChunk {
    #[serde(default)]
    artifacts: Vec<WireArtifact>,
}

#[derive(Deserialize)]
struct WireArtifact {
    filename: String,
    #[serde(default, rename = "_links")]
    links: WireDownloads,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
struct WireDownloads {
    download: Option<WireLink>,
    download_http: Option<WireLink>,
}

/// Reads an action.
///
/// # Errors
/// What is no action of exactly one bundle.
pub fn read_deployment(body: &[u8]) -> Result<Deployment> {
    let WireDeployment { id, deployment } = serde_json::from_slice(body).context("hawkBit's action")?;
    let artifacts = deployment.chunks.into_iter().flat_map(|chunk| chunk.artifacts);
    let mut bundles: Vec<_> = artifacts.filter(|artifact| artifact.filename.ends_with(BUNDLE)).collect();
    ensure!(bundles.len() == 1, "action {id} has {} files that end in {BUNDLE}, not one", bundles.len());
    let links = bundles.remove(0).links;
    let link = links.download.or(links.download_http).with_context(|| format!("action {id} has no download link"))?;
    ensure!(crate::offer::is_remote(&link.href), "action {id} has {:?} as download link", link.href);
    let open = deployment.update != "skip" && deployment.maintenance_window.as_deref() != Some("unavailable");
    Ok(Deployment { action: id, url: link.href, open })
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireCancel {
    cancel_action: WireStop,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireStop {
    stop_id: String,
}

fn read_cancel(body: &[u8]) -> Result<String> {
    let cancel: WireCancel = serde_json::from_slice(body).context("hawkBit's cancellation")?;
    Ok(cancel.cancel_action.stop_id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wishes_are_read_and_addresses_reduced_to_their_action() {
        let body = json!({
            "config": {"polling": {"sleep": "00:05:30"}},
            "_links": {
                "deploymentBase": {"href": "https://elsewhere/T/controller/v1/d/deploymentBase/3?c=-21"},
                "configData": {"href": "https://elsewhere/T/controller/v1/d/configData"},
            },
        });
        let wishes = read_wishes(body.to_string().as_bytes()).unwrap();
        assert_eq!(wishes.sleep, Some(Duration::from_secs(330)));
        assert_eq!(wishes.deployment, Some(("3".into(), "?c=-21".into())));
        assert!(wishes.attributes && wishes.cancel.is_none());
        assert_eq!(read_wishes(b"{}").unwrap(), Wishes::default());
        for href in ["https://h/deploymentBase/", "https://h/d/..%2f", "https://h/3?c=\r\nX: y", "https://h/3#x"] {
            let body = json!({"_links": {"deploymentBase": {"href": href}}});
            read_wishes(body.to_string().as_bytes()).unwrap_err();
        }
    }

    #[test]
    fn an_action_has_exactly_one_bundle() {
        let artifact = |name: &str| json!({"filename": name, "hashes": {"sha1": ""}, "size": 1, "_links": {"download": {"href": format!("https://h/{name}")}}});
        let action = |artifacts: Vec<Value>, update: &str| {
            let deployment = json!({"download": "forced", "update": update, "chunks": [{"part": "os", "version": "1", "name": "n", "artifacts": artifacts}]});
            read_deployment(json!({"id": "3", "deployment": deployment}).to_string().as_bytes())
        };
        let found = action(vec![artifact("readme.txt"), artifact("a.raucb")], "forced").unwrap();
        assert_eq!(found, Deployment { action: "3".into(), url: "https://h/a.raucb".into(), open: true });
        assert!(!action(vec![artifact("a.raucb")], "skip").unwrap().open);
        action(vec![], "forced").unwrap_err();
        action(vec![artifact("a.raucb"), artifact("b.raucb")], "forced").unwrap_err();
        action(vec![json!({"filename": "a.raucb"})], "forced").unwrap_err();
        action(vec![json!({"filename": "a.raucb", "_links": {"download": {"href": "file:///a"}}})], "forced")
            .unwrap_err();
    }

    #[test]
    fn a_token_goes_into_one_header() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        fs::write(&file, "abc\n").unwrap();
        let settings = |text: &str| toml::from_str::<Hawkbit>(&format!("url = \"http://h\"\n{text}")).unwrap();
        let token = |key: &str| format!("{key} = {file:?}\n");
        assert_eq!(settings("").authorization().unwrap(), None);
        let both = token("token-file") + &token("gateway-token-file");
        assert_eq!(settings(&token("token-file")).authorization().unwrap().unwrap(), "TargetToken abc");
        assert_eq!(settings(&token("gateway-token-file")).authorization().unwrap().unwrap(), "GatewayToken abc");
        settings(&both).authorization().unwrap_err();
    }

    #[test]
    fn a_name_is_encoded_as_one_element() {
        assert_eq!(encode("a-b_c.d~1"), "a-b_c.d~1");
        assert_eq!(encode("a b/ü"), "a%20b%2F%C3%BC");
    }
}
