//! Clients that leave the bus take their requests with them.

use futures_util::StreamExt as _;
use tokio::sync::broadcast;
use zbus::Connection;
use zbus::fdo::DBusProxy;
use zbus::message::Header;
use zbus::names::BusName;

/// Clients that may leave before a waiting request looks.
const LEAVING: usize = 256;

/// Tells when a client leaves the bus.
#[derive(Clone, Debug)]
pub struct Clients {
    bus: DBusProxy<'static>,
    left: broadcast::Sender<String>,
}

impl Clients {
    /// Watches the bus from now on.
    ///
    /// # Errors
    /// Where the bus refuses.
    pub async fn watch(connection: &Connection) -> zbus::Result<Self> {
        let bus = DBusProxy::new(connection).await?;
        // Only names that lost their owner: the third argument is empty.
        let mut changes = bus.receive_name_owner_changed_with_args(&[(2, "")]).await?;
        let clients = Self { bus, left: broadcast::Sender::new(LEAVING) };
        let left = clients.left.clone();
        tokio::spawn(async move {
            while let Some(change) = changes.next().await {
                if let Ok(arguments) = change.args() {
                    // Nobody may be waiting.
                    let _ = left.send(arguments.name().to_string());
                }
            }
        });
        Ok(clients)
    }

    /// Returns when the sender of a call has left. Never for a message without a sender.
    pub async fn gone(&self, call: &Header<'_>) {
        match call.sender() {
            Some(sender) => self.left(sender.as_str()).await,
            None => std::future::pending().await,
        }
    }

    /// Returns when `client`, a unique name, has left, also where it had left before.
    pub async fn left(&self, client: &str) {
        let mut left = self.left.subscribe();
        if !self.is_present(client).await {
            return;
        }
        loop {
            match left.recv().await {
                Ok(name) if name == client => return,
                Ok(_) => {}
                Err(broadcast::error::RecvError::Lagged(_)) if self.is_present(client).await => {}
                Err(_) => return,
            }
        }
    }

    async fn is_present(&self, client: &str) -> bool {
        let Ok(name) = BusName::try_from(client) else { return false };
        self.bus.name_has_owner(name).await.unwrap_or(false)
    }
}
