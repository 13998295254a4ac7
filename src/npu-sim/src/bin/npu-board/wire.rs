//! What goes over the socket between QEMU's device and the machine: one request, one reply.
//!
//! `src/npu-sim/qemu/peer-mmio.c` is the other side; change both together.

use std::time::Duration;

use npu_sim::mmio::Access;

/// Bytes of a request: operation, width, offset, value, time; little-endian.
pub(crate) const REQUEST: usize = 32;
/// Bytes of a reply: lines, value, when to ask again.
pub(crate) const REPLY: usize = 24;

/// What QEMU wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// It is there, with a window of this size.
    Hello { lines: u32, bytes: u64 },
    /// A load of the guest.
    Read { now: Duration, access: Access },
    /// A store of the guest.
    Write { now: Duration, access: Access, value: u64 },
    /// The time that a reply named has come.
    Tick { now: Duration },
    /// The machine is reset.
    Reset,
}

impl Request {
    /// Reads a request, or says why it is none.
    pub(crate) fn parse(bytes: &[u8; REQUEST]) -> Result<Self, String> {
        let [a, b, c, d] = bytes.as_chunks::<8>().0 else { return Err("of another length".into()) };
        let [head, offset, value, now] = [a, b, c, d].map(|word| u64::from_le_bytes(*word));
        // CAST: the head's two halves.
        let (operation, width) = (head as u32, (head >> 32) as u32);
        let now = Duration::from_nanos(now);
        let access = || match u32::try_from(offset) {
            Ok(offset) => Ok(Access { offset, bytes: width }),
            Err(_) => Err(format!("an access at {offset:#x}, outside the window")),
        };
        Ok(match operation {
            0 => Self::Hello { lines: width, bytes: offset },
            1 => Self::Read { now, access: access()? },
            2 => Self::Write { now, access: access()?, value },
            3 => Self::Tick { now },
            4 => Self::Reset,
            unknown => return Err(format!("the unknown operation {unknown}")),
        })
    }
}

/// A reply. `due`: when a tick is wanted.
pub(crate) fn reply(lines: u64, value: u64, due: Option<Duration>) -> [u8; REPLY] {
    let due = due.map_or(u64::MAX, |due| u64::try_from(due.as_nanos()).unwrap_or(u64::MAX));
    let mut bytes = [0; REPLY];
    for (to, word) in bytes.as_chunks_mut().0.iter_mut().zip([lines, value, due]) {
        *to = word.to_le_bytes();
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(operation: u32, width: u32, words: [u64; 3]) -> [u8; REQUEST] {
        let head = u64::from(width) << 32 | u64::from(operation);
        let words = [head, words[0], words[1], words[2]].map(u64::to_le_bytes);
        *words.as_flattened().as_array().unwrap()
    }

    #[test]
    fn a_store_is_read_as_the_device_wrote_it() {
        let now = Duration::from_nanos(7);
        let access = Access { offset: 0x10, bytes: 4 };
        assert_eq!(Request::parse(&request(2, 4, [0x10, 0xabc, 7])), Ok(Request::Write { now, access, value: 0xabc }));
        assert_eq!(Request::parse(&request(0, 3, [0x4_0000, 0, 0])), Ok(Request::Hello { lines: 3, bytes: 0x4_0000 }));
    }

    #[test]
    fn what_is_no_request_is_refused() {
        assert_eq!(Request::parse(&request(9, 4, [0; 3])).unwrap_err(), "the unknown operation 9");
        let far = Request::parse(&request(1, 4, [1 << 32, 0, 0]));
        assert_eq!(far.unwrap_err(), "an access at 0x100000000, outside the window");
    }

    #[test]
    fn no_due_time_is_all_ones() {
        assert_eq!(reply(5, 6, None)[16..], [0xff; 8]);
        assert_eq!(reply(5, 6, Some(Duration::from_nanos(1)))[..], *[5u64, 6, 1].map(u64::to_le_bytes).as_flattened());
    }
}
