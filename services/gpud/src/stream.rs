//! A pipe to a client that reads when it likes.
//!
//! ```text
//! answer ─▶ buffer, bounded ─▶ pipe ─▶ client
//! ```
//! Nobody waits for the client: a full buffer is an error of the answer, and a closed pipe its end.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use api::{ErrorCode, Failure};
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};
use tokio::io::AsyncWriteExt as _;
use tokio::net::unix::pipe;
use tokio::sync::Notify;

/// Bytes of the pipe itself: what a client has not read is to wait with us, where it is counted.
const PIPE_BYTES: usize = 4096;
/// How long what is left waits for a client after its answer is complete.
// TIMEOUT: a person may look at a terminal that was stopped for a minute or two.
const LINGER: Duration = Duration::from_secs(300);

/// The answer's side.
#[derive(Clone, Debug)]
pub(crate) struct Stream(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Notify,
    capacity: usize,
}

#[derive(Debug, Default)]
struct State {
    bytes: VecDeque<u8>,
    complete: bool,
}

impl Stream {
    /// A pipe of which `capacity` bytes may wait. Returns the client's end, and the task that fills it.
    pub(crate) fn new(capacity: usize) -> Result<(Self, OwnedFd, impl Future<Output = ()> + Send + use<>)> {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).context("make a pipe")?;
        // A kernel that does not want to makes a larger one.
        let _ = fcntl_setpipe_size(&writer, PIPE_BYTES);
        let writer = pipe::Sender::from_owned_fd(writer).context("make a pipe")?;
        let shared = Shared { state: Mutex::default(), changed: Notify::new(), capacity };
        let stream = Self(Arc::new(shared));
        let fill = fill(stream.clone(), writer);
        Ok((stream, reader, fill))
    }

    /// Adds text.
    ///
    /// # Errors
    /// `Cancelled` where the client does not read.
    pub(crate) fn push(&self, text: &str) -> api::Result<()> {
        let mut state = self.state();
        let waiting = state.bytes.len() + text.len();
        if waiting > self.0.capacity {
            let limit = self.0.capacity;
            let message = format!("the client does not read its pipe: {waiting} bytes wait, the limit is {limit}");
            return Err(Failure::new(ErrorCode::Cancelled, message));
        }
        state.bytes.extend(text.as_bytes());
        drop(state);
        self.0.changed.notify_one();
        Ok(())
    }

    /// There is no more. `keep`: whether what waits is still given.
    pub(crate) fn finish(&self, keep: bool) {
        let mut state = self.state();
        state.complete = true;
        if !keep {
            state.bytes.clear();
        }
        drop(state);
        self.0.changed.notify_one();
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What waits now, none where all is given.
    async fn next(&self) -> Option<Vec<u8>> {
        loop {
            {
                let mut state = self.state();
                if !state.bytes.is_empty() {
                    let bytes = state.bytes.len().min(PIPE_BYTES);
                    return Some(state.bytes.drain(..bytes).collect());
                }
                if state.complete {
                    return None;
                }
            }
            self.0.changed.notified().await;
        }
    }

    fn is_complete(&self) -> bool {
        self.state().complete
    }
}

/// Returns when all is given, the client has closed its end, or an answer that is complete has waited for long enough.
async fn fill(stream: Stream, mut writer: pipe::Sender) {
    loop {
        let bytes = tokio::select! {
            bytes = stream.next() => bytes,
            // The client may close its end while nothing is to be written.
            () = closed(&writer) => return,
        };
        let Some(bytes) = bytes else { return };
        let mut written = std::pin::pin!(writer.write_all(&bytes));
        loop {
            let waited = tokio::time::timeout(LINGER, &mut written).await;
            match waited {
                Ok(Ok(())) => break,
                Ok(Err(_)) => return,
                Err(_) if stream.is_complete() => return,
                // Whether the answer goes on is not decided here.
                Err(_) => {}
            }
        }
    }
}

/// Returns when the reading end is closed.
async fn closed(writer: &pipe::Sender) {
    loop {
        match writer.ready(tokio::io::Interest::WRITABLE).await {
            Ok(ready) if ready.is_write_closed() => return,
            // Ready to take bytes, of which there are none: looked at again a little later.
            Ok(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[tokio::test]
    async fn a_client_reads_all_and_then_the_end() {
        let (stream, reader, fill) = Stream::new(100_000).unwrap();
        let text = "0123456789".repeat(2000);
        stream.push(&text).unwrap();
        stream.finish(true);
        let read = tokio::task::spawn_blocking(move || {
            let mut read = String::new();
            std::fs::File::from(reader).read_to_string(&mut read).unwrap();
            read
        });
        fill.await;
        assert_eq!(read.await.unwrap(), text);
    }

    #[tokio::test]
    async fn a_client_that_does_not_read_fills_the_buffer_and_no_more() {
        let (stream, _reader, fill) = Stream::new(100).unwrap();
        let fill = tokio::spawn(fill);
        let failure = loop {
            if let Err(failure) = stream.push("0123456789") {
                break failure;
            }
            tokio::task::yield_now().await;
        };
        assert!(failure.message.contains("does not read its pipe"), "{failure}");
        fill.abort();
    }

    #[tokio::test]
    async fn a_client_that_closes_its_end_ends_the_stream() {
        let (_stream, reader, fill) = Stream::new(100).unwrap();
        drop(reader);
        tokio::time::timeout(Duration::from_secs(60), fill).await.unwrap();
    }

    #[tokio::test]
    async fn what_nobody_wants_is_not_given() {
        let (stream, reader, fill) = Stream::new(100).unwrap();
        stream.push("abc").unwrap();
        stream.finish(false);
        fill.await;
        let mut read = String::new();
        std::fs::File::from(reader).read_to_string(&mut read).unwrap();
        assert_eq!(read, "");
    }
}
