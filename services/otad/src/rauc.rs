//! RAUC over D-Bus, from 1.8 to 1.15 and on.
//!
//! What a RAUC can do is found out, not derived from a version: methods by introspection, arguments by leaving out what
//! it refuses. Its job is never touched: an installation, ours or another's, is waited for.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::time::Duration;

use futures_util::StreamExt as _;
use zbus::fdo::IntrospectableProxy;
use zbus::message::Sequence;
use zbus::wire::OwnedVariant;
use zbus::{Connection, Variant};

use crate::failure::{Failure, Kind};
use crate::offer::{Offer, is_remote};
use crate::state::{Attempt, Slot};

/// Bus name of RAUC.
const NAME: &str = "de.pengutronix.rauc";
/// What RAUC's `Operation` says while it does nothing.
const IDLE: &str = "idle";
/// How often a mark is tried again at least, while RAUC is busy.
// TIMEOUT: the end of RAUC's work is announced; this is for the case that it ended just before we listened.
const MARK_AGAIN: Duration = Duration::from_secs(1);
/// How long RAUC may take to say how it stands.
// TIMEOUT: it answers from memory, unless it looks into a bundle for somebody; whoever asks tries again. The watchdog of
// this daemon has 120 s.
const ANSWER: Duration = Duration::from_secs(10);

/// SOURCE: de.pengutronix.rauc.Installer.xml of RAUC 1.15.2.
#[zbus::proxy(interface = "de.pengutronix.rauc.Installer", default_service = "de.pengutronix.rauc", default_path = "/")]
trait Installer {
    fn info(&self, bundle: &str) -> zbus::Result<(String, String)>;
    fn inspect_bundle(
        &self,
        bundle: &str,
        args: &HashMap<&str, Variant<'_>>,
    ) -> zbus::Result<HashMap<String, OwnedVariant>>;
    fn mark(&self, state: &str, slot: &str) -> zbus::Result<(String, String)>;
    fn get_slot_status(&self) -> zbus::Result<Vec<(String, HashMap<String, OwnedVariant>)>>;
    fn get_primary(&self) -> zbus::Result<String>;
    #[zbus(property(emits_changed_signal = "false"))]
    fn operation(&self) -> zbus::Result<String>;
    #[zbus(property(emits_changed_signal = "false"))]
    fn last_error(&self) -> zbus::Result<String>;
    #[zbus(property(emits_changed_signal = "false"))]
    fn compatible(&self) -> zbus::Result<String>;
    #[zbus(property)]
    fn progress(&self) -> zbus::Result<Progress>;
    #[zbus(signal)]
    fn completed(&self, result: i32) -> zbus::Result<()>;
}

/// Percentage, what is being done, nesting depth.
pub type Progress = (i32, String, i32);

/// A slot as RAUC sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlotStatus {
    /// RAUC's name.
    pub name: String,
    /// The bootloader's name; empty for a slot that is not booted.
    pub bootname: String,
    /// Whether it runs.
    pub booted: bool,
    /// Whether the bootloader may choose it.
    pub good: bool,
    /// Whether it was written to its end.
    pub complete: bool,
    /// How often it was written.
    pub count: u32,
    /// The transaction that wrote it last, where this RAUC remembers.
    pub transaction: String,
    /// Version of the bundle that wrote it; empty where none did.
    pub version: String,
}

/// What is in a bundle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bundle {
    /// The kind of machine that it is for.
    pub compatible: String,
    /// Its version.
    pub version: String,
    /// SHA-256 of its manifest, where this RAUC tells.
    pub manifest_hash: Option<String>,
}

/// How a bundle is fetched.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// Authority that the server's certificate must come from.
    pub ca: Option<PathBuf>,
    /// HTTP headers, such as an authorization.
    pub headers: Vec<String>,
}

/// RAUC.
#[derive(Clone, Debug)]
pub struct Rauc {
    proxy: InstallerProxy<'static>,
}

impl Rauc {
    /// RAUC on a bus; it need not be there yet.
    ///
    /// # Errors
    /// A bus that does not answer.
    pub async fn new(connection: &Connection) -> zbus::Result<Self> {
        Ok(Self { proxy: InstallerProxy::new(connection).await? })
    }

    /// Whether RAUC does something, for whomever.
    ///
    /// # Errors
    /// [`Kind::Unreachable`].
    pub async fn is_busy(&self) -> Result<bool, Failure> {
        Ok(answer(self.proxy.operation()).await? != IDLE)
    }

    /// All slots, with the one first that the bootloader prefers.
    ///
    /// # Errors
    /// [`Kind::Unreachable`].
    pub async fn slots(&self) -> Result<Vec<SlotStatus>, Failure> {
        let slots = answer(self.proxy.get_slot_status()).await?;
        Ok(slots.into_iter().map(|(name, status)| slot_status(name, &status)).collect())
    }

    /// RAUC's name of the slot that the bootloader prefers; `None` where it has no preference.
    pub async fn primary(&self) -> Option<String> {
        answer(self.proxy.get_primary()).await.ok()
    }

    /// The slot that runs.
    ///
    /// # Errors
    /// [`Kind::Unreachable`], or [`Kind::Unsupported`] where RAUC does not know.
    pub async fn booted(&self) -> Result<SlotStatus, Failure> {
        let booted = self.slots().await?.into_iter().find(|slot| slot.booted);
        booted.ok_or_else(|| Failure::new(Kind::Unsupported, "rauc does not know which slot runs"))
    }

    /// Looks into a bundle; RAUC verifies its signature.
    ///
    /// # Errors
    /// What RAUC says; [`Kind::Unsupported`] where it cannot tell what the offer demands.
    pub async fn inspect(&self, offer: &Offer, access: &Access) -> Result<Bundle, Failure> {
        if !self.has_method("InspectBundle").await? {
            if offer.manifest_hash.is_some() {
                let message = "this RAUC does not tell a bundle's manifest hash, which the offer demands";
                return Err(Failure::new(Kind::Unsupported, message));
            }
            let (compatible, version) = self.info(&offer.url).await?;
            return Ok(Bundle { compatible, version, manifest_hash: None });
        }
        let arguments = access.arguments(&offer.url);
        let info = self.proxy.inspect_bundle(&offer.url, &arguments).await.map_err(|error| failure(&error))?;
        let update = info.get("update").map(|update| &**update);
        Ok(Bundle {
            compatible: inner_text(update, "compatible"),
            version: inner_text(update, "version"),
            manifest_hash: Some(text(&info, "manifest-hash")).filter(|hash| !hash.is_empty()),
        })
    }

    /// Looks into a bundle as RAUC before 1.9 does, which says neither why it cannot nor that it is busy.
    async fn info(&self, source: &str) -> Result<(String, String), Failure> {
        for _ in 0..2 {
            match self.proxy.info(source).await.map_err(|error| failure(&error)) {
                Err(unexplained) if unexplained.message == "rauc info error" => {}
                explained => return explained,
            }
            if self.is_busy().await? {
                return Err(Failure::new(Kind::Busy, "rauc works for somebody else"));
            }
            // It may have been busy until just now.
        }
        // What is fetched may be had another time.
        let kind = if is_remote(source) { Kind::Download } else { Kind::Bundle };
        Err(Failure::new(kind, "rauc refuses the bundle, and this version does not say why"))
    }

    /// The kind of machine that RAUC updates.
    ///
    /// # Errors
    /// [`Kind::Unreachable`].
    pub async fn compatible(&self) -> Result<String, Failure> {
        answer(self.proxy.compatible()).await
    }

    /// Installs a bundle and waits for the end.
    ///
    /// # Errors
    /// What RAUC says; [`Kind::Busy`] where it does something else, [`Kind::Interrupted`] where it ended.
    pub async fn install(
        &self,
        offer: &Offer,
        attempt: &Attempt,
        access: &Access,
        progress: impl FnMut(Progress),
    ) -> Result<(), Failure> {
        let mut arguments = access.arguments(&offer.url);
        arguments.insert("transaction-id", attempt.transaction.as_str().into());
        if let Some(hash) = &offer.manifest_hash {
            arguments.insert("require-manifest-hash", hash.as_str().into());
        }
        // Listened to before, so that nothing is missed.
        let watch = Watch::new(&self.proxy).await?;
        let begun = loop {
            match self.proxy.inner().call_method("InstallBundle", &(&offer.url, &arguments)).await {
                Ok(reply) => break reply.recv_position(),
                // What was inspected is verified again by its signature; these arguments only make it tighter.
                Err(error) => match refused_argument(&error, &arguments) {
                    Some(argument) => arguments.remove(argument),
                    None => return Err(failure(&error)),
                },
            };
        };
        watch.end(&self.proxy, begun, progress).await
    }

    /// Waits until RAUC does nothing, if it does anything.
    ///
    /// # Errors
    /// What RAUC says of the installation that ended meanwhile.
    pub async fn finish(&self, progress: impl FnMut(Progress)) -> Result<(), Failure> {
        let watch = Watch::new(&self.proxy).await?;
        if !self.is_busy().await? {
            return Ok(());
        }
        watch.end(&self.proxy, Sequence::default(), progress).await
    }

    /// Marks the slot that runs as good. Tries again while RAUC is busy.
    ///
    /// # Errors
    /// What RAUC says.
    pub async fn mark_good(&self) -> Result<String, Failure> {
        loop {
            let mut completed = self.proxy.receive_completed().await.map_err(|error| failure(&error))?;
            match self.proxy.mark("good", "booted").await {
                Ok((_, message)) => return Ok(message),
                Err(error) if failure(&error).kind == Kind::Busy => {
                    let _ = tokio::time::timeout(MARK_AGAIN, completed.next()).await;
                }
                Err(error) => return Err(failure(&error)),
            }
        }
    }

    async fn has_method(&self, name: &str) -> Result<bool, Failure> {
        let connection = self.proxy.inner().connection();
        let proxy = IntrospectableProxy::builder(connection).destination(NAME).path("/").build().await;
        let xml = proxy.map_err(|error| failure(&error))?.introspect().await;
        let xml = xml.map_err(|error| failure(&error.into()))?;
        Ok(xml.contains(&format!("<method name=\"{name}\"")))
    }
}

impl Access {
    fn arguments(&self, source: &str) -> HashMap<&'static str, Variant<'_>> {
        let mut arguments = HashMap::new();
        if !is_remote(source) {
            return arguments;
        }
        if let Some(ca) = &self.ca {
            arguments.insert("tls-ca", Variant::from(ca.to_string_lossy().into_owned()));
        }
        if !self.headers.is_empty() {
            arguments.insert("http-headers", Variant::from(self.headers.clone()));
        }
        arguments
    }
}

/// The end of RAUC's work, and the way there.
struct Watch {
    completed: CompletedStream,
    owners: zbus::proxy::OwnerChangedStream<'static>,
    steps: zbus::proxy::PropertyStream<'static, Progress>,
}

impl Watch {
    async fn new(proxy: &InstallerProxy<'static>) -> Result<Self, Failure> {
        Ok(Self {
            completed: proxy.receive_completed().await.map_err(|error| failure(&error))?,
            owners: proxy.inner().receive_owner_changed().await.map_err(|error| failure(&error))?,
            steps: proxy.receive_progress_changed().await,
        })
    }

    /// Waits for the end of what RAUC had begun at the message `begun`.
    async fn end(
        mut self,
        proxy: &InstallerProxy<'_>,
        begun: Sequence,
        mut progress: impl FnMut(Progress),
    ) -> Result<(), Failure> {
        loop {
            tokio::select! {
                Some(end) = self.completed.next() => {
                    if end.message().recv_position() < begun {
                        // Another's, which made room for ours.
                        continue;
                    }
                    if end.args().map_err(|error| failure(&error))?.result == 0 {
                        return Ok(());
                    }
                    return Err(Failure::said(&proxy.last_error().await.map_err(|error| failure(&error))?));
                }
                Some(None) = self.owners.next() => {
                    return Err(Failure::new(Kind::Interrupted, "rauc ended during the installation"));
                }
                Some(step) = self.steps.next() => {
                    if let Ok(step) = step.get().await {
                        progress(step);
                    }
                }
            }
        }
    }
}

/// The slot that an attempt has written and the bootloader prefers, if it came so far. `boot_id` is the boot of now: in
/// another one than the attempt's, the slot may run already.
pub fn written(slots: &[SlotStatus], primary: Option<&str>, attempt: &Attempt, boot_id: &str) -> Option<Slot> {
    let slot = slots.iter().find(|slot| Some(slot.name.as_str()) == primary)?;
    // A RAUC that remembers no transaction still counts.
    let ours = if slot.transaction.is_empty() {
        slot.count > attempt.counts.get(&slot.name).copied().unwrap_or(0)
    } else {
        slot.transaction == attempt.transaction
    };
    let may_run = boot_id != attempt.boot_id;
    let usable = (may_run || !slot.booted) && slot.good && slot.complete && !slot.bootname.is_empty();
    (ours && usable).then(|| Slot { name: slot.name.clone(), bootname: slot.bootname.clone() })
}

/// How often each slot was written.
pub fn counts(slots: &[SlotStatus]) -> BTreeMap<String, u32> {
    slots.iter().map(|slot| (slot.name.clone(), slot.count)).collect()
}

fn slot_status(name: String, status: &HashMap<String, OwnedVariant>) -> SlotStatus {
    let count = match status.get("installed.count").map(|value| &**value) {
        Some(Variant::U32(count)) => *count,
        _ => 0,
    };
    SlotStatus {
        name,
        bootname: text(status, "bootname"),
        booted: text(status, "state") == "booted",
        good: text(status, "boot-status") == "good",
        complete: text(status, "status") == "ok",
        count,
        transaction: text(status, "installed.transaction"),
        version: text(status, "bundle.version"),
    }
}

fn text(map: &HashMap<String, OwnedVariant>, key: &str) -> String {
    match map.get(key).map(|value| &**value) {
        Some(Variant::Str(text)) => text.as_str().to_owned(),
        _ => String::new(),
    }
}

/// A text in a dictionary in a variant.
fn inner_text(dictionary: Option<&Variant<'_>>, key: &str) -> String {
    let Some(Variant::Dict(dictionary)) = dictionary.map(unwrap) else { return String::new() };
    let found = dictionary.iter().find_map(|(name, value)| match name {
        Variant::Str(name) if name.as_str() == key => Some(unwrap(value)),
        _ => None,
    });
    match found {
        Some(Variant::Str(text)) => text.as_str().to_owned(),
        _ => String::new(),
    }
}

/// What is in a variant, however often it is wrapped: RAUC wraps dictionaries twice.
fn unwrap<'a, 'v>(mut value: &'a Variant<'v>) -> &'a Variant<'v> {
    while let Variant::Variant(inner) = value {
        value = inner;
    }
    value
}

/// The argument that RAUC does not know, if that is why it refused.
fn refused_argument<'a>(error: &zbus::Error, arguments: &HashMap<&'a str, Variant<'_>>) -> Option<&'a str> {
    // SOURCE: r_on_handle_install_bundle of RAUC 1.8 to 1.15.2: "Unsupported key: %s".
    let key = error.to_string().split_once("Unsupported key: ")?.1.trim().to_owned();
    arguments.keys().copied().find(|argument| *argument == key)
}

/// What RAUC says of how it stands, if it says it soon.
async fn answer<T>(call: impl Future<Output = zbus::Result<T>>) -> Result<T, Failure> {
    match tokio::time::timeout(ANSWER, call).await {
        Ok(answer) => answer.map_err(|error| failure(&error)),
        Err(_) => Err(Failure::new(Kind::Unreachable, "rauc does not answer")),
    }
}

/// What RAUC says, or that it says nothing.
fn failure(error: &zbus::Error) -> Failure {
    match error {
        zbus::Error::MethodError(name, message, _) => {
            let message = message.as_deref().unwrap_or_default();
            if name.starts_with("org.freedesktop.DBus.Error.") && !name.ends_with(".Failed") {
                return Failure::new(Kind::Unreachable, format!("rauc: {name}: {message}"));
            }
            Failure::said(message)
        }
        zbus::Error::FDO(error) => Failure::new(Kind::Unreachable, format!("rauc: {error}")),
        error => Failure::new(Kind::Unreachable, format!("rauc: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt(count: u32) -> Attempt {
        let counts = BTreeMap::from([("rootfs.1".into(), count)]);
        Attempt { transaction: "t2".into(), counts, boot_id: "boot1".into() }
    }

    fn slots(change: impl FnOnce(&mut SlotStatus)) -> [SlotStatus; 2] {
        let slot = |name: &str, bootname: &str| SlotStatus {
            name: name.into(),
            bootname: bootname.into(),
            good: true,
            complete: true,
            count: 3,
            ..SlotStatus::default()
        };
        let mut slots = [SlotStatus { booted: true, ..slot("rootfs.0", "A") }, slot("rootfs.1", "B")];
        change(&mut slots[1]);
        slots
    }

    #[test]
    fn a_text_is_found_in_a_dictionary_of_variants() {
        let update = HashMap::from([("compatible", Variant::from("board")), ("build", Variant::from(7u32))]);
        let update = Variant::Variant(Box::new(Variant::from(update)));
        assert_eq!(inner_text(Some(&update), "compatible"), "board");
        assert_eq!(inner_text(Some(&update), "build"), "");
        assert_eq!(inner_text(Some(&update), "version"), "");
        assert_eq!(inner_text(None, "compatible"), "");
    }

    #[test]
    fn a_slot_counts_as_written_only_if_this_attempt_wrote_it_to_the_end_and_it_boots_next() {
        let primary = Some("rootfs.1");
        let written =
            |slots: [SlotStatus; 2], primary, count| written(&slots, primary, &attempt(count), "boot1").is_some();
        assert!(written(slots(|_| {}), primary, 2));
        assert!(!written(slots(|_| {}), primary, 3), "it was written by another");
        assert!(!written(slots(|_| {}), Some("rootfs.0"), 2), "the old slot boots next");
        assert!(!written(slots(|_| {}), None, 2));
        assert!(!written(slots(|slot| slot.good = false), primary, 2));
        assert!(!written(slots(|slot| slot.complete = false), primary, 2));
        assert!(!written(slots(|slot| slot.booted = true), primary, 2));
        assert!(super::written(&slots(|slot| slot.booted = true), primary, &attempt(2), "boot2").is_some());
        assert!(written(slots(|slot| slot.transaction = "t2".into()), primary, 3));
        assert!(!written(slots(|slot| slot.transaction = "t1".into()), primary, 2));
    }
}
