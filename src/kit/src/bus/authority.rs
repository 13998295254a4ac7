//! Who may do what a contract reserves.

use std::collections::HashMap;

use api::dbus::AuthorityProxy;
use api::{ErrorCode, Failure, Result};
use zbus::fdo::DBusProxy;
use zbus::message::{Flags, Header};
use zbus::names::BusName;
use zbus::{Connection, Variant};

/// Bus name of polkit.
const POLKIT: &str = "org.freedesktop.PolicyKit1";
/// Polkit may ask the user. SOURCE: polkit, CheckAuthorizationFlags.AllowUserInteraction.
const ALLOW_USER_INTERACTION: u32 = 1;

/// Asks polkit, or where there is none, the caller's user.
#[derive(Clone, Debug)]
pub struct Authority {
    bus: DBusProxy<'static>,
    polkit: AuthorityProxy<'static>,
}

impl Authority {
    /// Looks for polkit on the bus of `connection` whenever it is asked.
    ///
    /// # Errors
    /// Where the bus refuses.
    pub async fn new(connection: &Connection) -> zbus::Result<Self> {
        Ok(Self { bus: DBusProxy::new(connection).await?, polkit: AuthorityProxy::new(connection).await? })
    }

    /// Checks that the sender of a call may do `action`.
    ///
    /// # Errors
    /// `AccessDenied`.
    pub async fn check(&self, call: &Header<'_>, action: &str) -> Result<()> {
        let sender = call.sender().ok_or_else(|| denied("the call has no sender"))?;
        if !self.polkit_exists().await? {
            return self.check_user(sender.as_str()).await;
        }
        let interactive = call.primary().flags().contains(Flags::ALLOW_INTERACTIVE_AUTH);
        let subject = ("system-bus-name", HashMap::from([("name", Variant::from(sender.as_str()))]));
        let flags = if interactive { ALLOW_USER_INTERACTION } else { 0 };
        match self.polkit.check_authorization(&subject, action, HashMap::new(), flags, "").await {
            Ok((true, ..)) => Ok(()),
            Ok((false, ..)) => Err(denied(format!("polkit does not allow {action}"))),
            Err(error) => Err(denied(format!("polkit does not answer: {error}"))),
        }
    }

    async fn polkit_exists(&self) -> Result<bool> {
        let name = BusName::try_from(POLKIT).expect("the name is well-formed");
        if self.bus.name_has_owner(name).await.map_err(unknown)? {
            return Ok(true);
        }
        let activatable = self.bus.list_activatable_names().await.map_err(unknown)?;
        Ok(activatable.iter().any(|name| name.as_str() == POLKIT))
    }

    async fn check_user(&self, sender: &str) -> Result<()> {
        let name = BusName::try_from(sender).map_err(|error| denied(error.to_string()))?;
        let user = self.bus.get_connection_unix_user(name).await.map_err(unknown)?;
        if user == 0 || user == rustix::process::geteuid().as_raw() {
            return Ok(());
        }
        Err(denied("there is no polkit here, and only root and the daemon's own user may do this then"))
    }
}

fn denied(message: impl Into<String>) -> Failure {
    Failure::new(ErrorCode::AccessDenied, message)
}

/// The bus does not say who calls, so nobody may.
fn unknown(error: zbus::fdo::Error) -> Failure {
    denied(format!("the caller is unknown: {error}"))
}
