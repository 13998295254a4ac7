//! The server's stream of events: `data: …` lines, each with a JSON object, the last `data: [DONE]`.

use api::{ErrorCode, Failure, Result};
use serde_json::Value;

/// The longest line. One token's event has some hundred bytes.
const LINE: usize = 1 << 20;

/// What came.
#[derive(Debug, PartialEq)]
pub(crate) enum Event {
    /// An object.
    Data(Value),
    /// The end.
    Done,
}

/// Bytes that came and were not read yet.
#[derive(Debug, Default)]
pub(crate) struct Events {
    bytes: Vec<u8>,
}

impl Events {
    /// Takes what came.
    ///
    /// # Errors
    /// `Internal` for a line without an end.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<()> {
        self.bytes.extend_from_slice(bytes);
        if self.bytes.len() > LINE && !self.bytes.contains(&b'\n') {
            return Err(Failure::new(ErrorCode::Internal, "llama-server sends a line without an end"));
        }
        Ok(())
    }

    /// The next event, if it is there whole.
    ///
    /// # Errors
    /// `Internal` for what is no JSON.
    pub(crate) fn next(&mut self) -> Result<Option<Event>> {
        while let Some(end) = self.bytes.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = self.bytes.drain(..=end).collect();
            let Some(data) = line.trim_ascii().strip_prefix(b"data:") else { continue };
            let data = data.trim_ascii();
            if data == b"[DONE]" {
                return Ok(Some(Event::Done));
            }
            let value = serde_json::from_slice(data)
                .map_err(|error| Failure::new(ErrorCode::Internal, format!("llama-server sends no JSON: {error}")))?;
            return Ok(Some(Event::Data(value)));
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn events_are_found_however_the_bytes_are_cut() {
        let text = b"data: {\"a\":1}\n\n: a ping\r\n\r\ndata: {\"b\":2}\r\n\ndata: [DONE]\n\n";
        for step in 1..text.len() {
            let (mut events, mut seen) = (Events::default(), Vec::new());
            for bytes in text.chunks(step) {
                events.push(bytes).unwrap();
                while let Some(event) = events.next().unwrap() {
                    seen.push(event);
                }
            }
            assert_eq!(seen, [Event::Data(json!({"a": 1})), Event::Data(json!({"b": 2})), Event::Done]);
        }
    }

    #[test]
    fn what_is_no_json_and_a_line_without_an_end_are_refused() {
        let mut events = Events::default();
        events.push(b"data: {\n").unwrap();
        assert_eq!(events.next().unwrap_err().code, ErrorCode::Internal);
        events.push(&vec![b'x'; LINE]).unwrap();
        events.push(b"x").unwrap_err();
    }
}
