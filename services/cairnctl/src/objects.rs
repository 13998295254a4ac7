//! Objects of a daemon, each with all its properties from one call.

use std::collections::HashMap;

use anyhow::{Context as _, Result};
use zbus::fdo::{ObjectManagerProxy, PropertiesProxy};
use zbus::names::InterfaceName;
use zbus::wire::OwnedVariant;
use zbus::{Connection, OwnedObjectPath};

/// Properties of an interface by their names.
pub(crate) type Properties = HashMap<String, OwnedVariant>;

/// All interfaces of all objects below the `root` of a daemon.
pub(crate) async fn all(
    connection: &Connection,
    daemon: &'static str,
    root: &'static str,
) -> Result<Vec<(OwnedObjectPath, HashMap<String, Properties>)>> {
    let manager = ObjectManagerProxy::builder(connection).destination(daemon).path(root).build().await?;
    let objects = manager.get_managed_objects().await.with_context(|| format!("ask {daemon}"))?;
    let named = |interfaces: HashMap<_, _>| interfaces.into_iter().map(|(name, of)| (ToString::to_string(&name), of));
    Ok(objects.into_iter().map(|(path, interfaces)| (path, named(interfaces).collect())).collect())
}

/// The properties of one interface of one object.
pub(crate) async fn properties(
    connection: &Connection,
    daemon: &'static str,
    path: &str,
    interface: &'static str,
) -> Result<Properties> {
    let proxy = PropertiesProxy::builder(connection).destination(daemon).path(path).build().await?;
    let interface = InterfaceName::try_from(interface)?;
    proxy.get_all(interface).await.with_context(|| format!("ask {daemon}"))
}

/// Takes a property out of its interface's.
pub(crate) fn take<T>(properties: &mut Properties, name: &str) -> Result<T>
where
    T: TryFrom<OwnedVariant>,
    T::Error: std::error::Error + Send + Sync + 'static,
{
    let value = properties.remove(name).with_context(|| format!("property {name} is missing"))?;
    T::try_from(value).with_context(|| format!("property {name} has another type"))
}
