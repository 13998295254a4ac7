//! The metrics' socket: whoever connects gets one answer. Prometheus' own reader, curl and an exporter's proxy will do.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};

use crate::view::Shared;

/// How long a client may take.
// TIMEOUT: both ends are on this machine.
const PATIENCE: Duration = Duration::from_secs(5);

/// Listens at `socket` from now on.
pub(crate) fn listen(socket: &Path) -> Result<UnixListener> {
    // Ours, of an earlier run.
    let _ = std::fs::remove_file(socket);
    UnixListener::bind(socket).with_context(|| format!("listen at {}", socket.display()))
}

/// Answers for ever.
pub(crate) async fn serve(listener: Result<UnixListener>, view: &Shared) -> Result<()> {
    let listener = listener?;
    loop {
        let (client, _) = listener.accept().await.context("accept a client of the metrics")?;
        let text = view.get().metrics();
        // A client that does not read must not keep the next one waiting.
        tokio::spawn(tokio::time::timeout(PATIENCE, async move { answer(client, &text).await }));
    }
}

async fn answer(mut client: UnixStream, text: &str) -> std::io::Result<()> {
    // Which page is asked for does not matter: there is one.
    let mut request = [0; 1024];
    let _ = client.read(&mut request).await?;
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        text.len()
    );
    client.write_all(head.as_bytes()).await?;
    client.write_all(text.as_bytes()).await?;
    client.shutdown().await
}
