//! The machine's name towards brokers and clients.
//!
//! `/etc/machine-id` must not leave the machine, so the name is derived from it with a keyed hash, as
//! `sd_id128_get_machine_app_specific` does. SOURCE: machine-id(5), sd_id128_get_machine(3).

use std::path::Path;

use ring::hmac;

use crate::{Error, Result};

/// The application whose names these are. A new value renames every machine.
const APPLICATION: [u8; 16] = 0x6b1f_9d0c_5e55_4c7c_93a0_1d1e_2c4b_7a90_u128.to_be_bytes();
/// Digits of a device's name: 60 random bits, so that a fleet of a million has no two alike.
const DIGITS: usize = 16;

/// Where the machine's identity is. SOURCE: machine-id(5).
const MACHINE_ID: &str = "/etc/machine-id";

/// The device's name: `configured`, or one derived from the machine identity.
///
/// # Errors
/// [`Error::Identity`] where the machine has none.
pub fn device(configured: Option<&str>) -> Result<String> {
    device_of(configured, Path::new(MACHINE_ID))
}

fn device_of(configured: Option<&str>, machine_id: &Path) -> Result<String> {
    if let Some(name) = configured {
        return Ok(name.to_owned());
    }
    let error = || Error::Identity { path: machine_id.into() };
    let text = std::fs::read_to_string(machine_id).map_err(|_| error())?;
    let mut name = app_specific(text.trim()).ok_or_else(error)?;
    name.truncate(DIGITS);
    Ok(name)
}

/// HMAC-SHA256 of the application under the machine identity, as a version-4 identifier of 32 hexadecimal digits.
fn app_specific(machine_id: &str) -> Option<String> {
    if machine_id.len() != 32 || !machine_id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let key = u128::from_str_radix(machine_id, 16).ok()?.to_be_bytes();
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &key), &APPLICATION);
    let mut id: [u8; 16] = tag.as_ref().get(..16)?.try_into().ok()?;
    id[6] = id[6] & 0x0f | 0x40;
    id[8] = id[8] & 0x3f | 0x80;
    Some(format!("{:032x}", u128::from_be_bytes(id)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_derived_as_systemd_does() {
        // SOURCE: `systemd-id128 machine-id --app-specific=…` of systemd 252 with this machine identity.
        assert_eq!(app_specific("0123456789abcdef0123456789abcdef").unwrap(), "64c38244a5cf423886e6fcb3a215df07");
    }

    #[test]
    fn a_malformed_identity_is_refused() {
        for id in ["", "uninitialized", "0123", "+123456789abcdef0123456789abcdef", "0123456789abcdef0123456789abcdeg"]
        {
            assert_eq!(app_specific(id), None);
        }
    }

    #[test]
    fn a_configured_name_needs_no_machine_identity() {
        assert_eq!(device_of(Some("lab"), Path::new("/nowhere")).unwrap(), "lab");
        assert!(matches!(device_of(None, Path::new("/nowhere")), Err(Error::Identity { .. })));
    }
}
