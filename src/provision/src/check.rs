//! What a single value must be. Each returns the value, or what is wrong with it.

use std::net::IpAddr;

use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

/// A value, or what is wrong with it.
pub(crate) type Checked<T> = Result<T, String>;

/// A label of the domain name system.
pub(crate) fn hostname(text: &str) -> Checked<String> {
    let inner = |c: char| c.is_ascii_alphanumeric() || c == '-';
    let valid =
        (1..=63).contains(&text.len()) && text.chars().all(inner) && !text.starts_with('-') && !text.ends_with('-');
    kept(text, valid, "is no host name: 1 to 63 letters, digits and inner hyphens")
}

/// The form of a time zone's name; whether the machine knows it is another question.
pub(crate) fn time_zone(text: &str) -> Checked<String> {
    let part = |part: &str| {
        part.starts_with(|c: char| c.is_ascii_alphanumeric())
            && part.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '+'))
    };
    kept(text, text.len() <= 64 && text.split('/').all(part), "is no time zone such as \"Europe/Berlin\"")
}

pub(crate) fn channel(text: &str) -> Checked<String> {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let valid = (1..=32).contains(&text.len()) && text.chars().all(inner);
    kept(text, valid, "is no channel: 1 to 32 lower-case letters, digits and hyphens")
}

/// A line of `authorized_keys`, with options or without.
pub(crate) fn ssh_key(text: &str) -> Checked<String> {
    let line = text.trim();
    if line.contains(['\n', '\r']) || line.starts_with('#') {
        return Err("is not one line with one public key".into());
    }
    let entry: ssh_key::authorized_keys::Entry =
        line.parse().map_err(|error| format!("is no public key as in id_ed25519.pub: {error}"))?;
    Ok(entry.to_string())
}

pub(crate) fn address(text: &str) -> Checked<IpAddr> {
    text.parse().map_err(|_| format!("{text:?} is no IP address"))
}

/// An address and the length of its network's prefix.
pub(crate) fn network(text: &str) -> Checked<(IpAddr, u8)> {
    let fault = || format!("{text:?} is no address with prefix length, such as \"192.168.1.20/24\"");
    let (address, length) = text.split_once('/').ok_or_else(fault)?;
    let address: IpAddr = address.parse().map_err(|_| fault())?;
    let length: u8 = length.parse().map_err(|_| fault())?;
    let bits = if address.is_ipv4() { 32 } else { 128 };
    if (1..=bits).contains(&length) { Ok((address, length)) } else { Err(fault()) }
}

/// Whether `other` lies in the network; a link-local router of IPv6 always does.
pub(crate) fn is_in(network: (IpAddr, u8), other: IpAddr) -> bool {
    let length = u32::from(network.1);
    match (network.0, other) {
        (IpAddr::V4(a), IpAddr::V4(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros() >= length,
        (IpAddr::V6(_), IpAddr::V6(b)) if b.is_unicast_link_local() => true,
        (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros() >= length,
        _ => false,
    }
}

pub(crate) fn ssid(text: &str) -> Checked<String> {
    kept(text, (1..=32).contains(&text.len()), "is no network name: 1 to 32 bytes")
}

/// SOURCE: IEEE 802.11, as wpa_supplicant.conf(5) repeats it. The value itself is never part of a message.
pub(crate) fn passphrase(text: &str) -> Checked<String> {
    let key = text.len() == 64 && text.chars().all(|c| c.is_ascii_hexdigit());
    let phrase = (8..=63).contains(&text.len()) && text.chars().all(|c| (' '..='~').contains(&c));
    if key || phrase {
        Ok(text.into())
    } else {
        Err("is neither 8 to 63 ASCII characters nor 64 hexadecimal digits".into())
    }
}

pub(crate) fn country(text: &str) -> Checked<String> {
    kept(text, text.len() == 2 && text.chars().all(|c| c.is_ascii_uppercase()), "is no country code such as \"DE\"")
}

/// The form that the link to the broker takes.
pub(crate) fn broker(text: &str) -> Checked<String> {
    let rest = text.strip_prefix("mqtt://").or_else(|| text.strip_prefix("mqtts://")).unwrap_or_default();
    let (host, port) = match rest.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, port)) => (host, port.strip_prefix(':')),
        None => rest.split_once(':').map_or((rest, None), |(host, port)| (host, Some(port))),
    };
    let part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':');
    let valid = !host.is_empty() && host.chars().all(part) && port.is_none_or(|port| port.parse::<u16>().is_ok());
    kept(text, valid, "is not mqtt://host:port or mqtts://host:port")
}

pub(crate) fn username(text: &str) -> Checked<String> {
    kept(text, !text.is_empty() && !text.chars().any(char::is_control), "is empty or has control characters")
}

/// One line: the password's file has no more.
pub(crate) fn password(text: &str) -> Checked<String> {
    let valid = !text.is_empty() && !text.chars().any(char::is_control);
    if valid { Ok(text.into()) } else { Err("is empty or has control characters".into()) }
}

pub(crate) fn certificates(text: &str) -> Checked<String> {
    let certificates = CertificateDer::pem_slice_iter(text.as_bytes()).collect::<Result<Vec<_>, _>>();
    match certificates {
        Ok(certificates) if !certificates.is_empty() => Ok(text.into()),
        Ok(_) => Err("has no certificate in PEM form".into()),
        Err(error) => Err(format!("is no certificate in PEM form: {error}")),
    }
}

pub(crate) fn private_key(text: &str) -> Checked<String> {
    match PrivateKeyDer::from_pem_slice(text.as_bytes()) {
        Ok(_) => Ok(text.into()),
        Err(error) => Err(format!("is no private key in PEM form: {error}")),
    }
}

fn kept(text: &str, valid: bool, fault: &str) -> Checked<String> {
    if valid { Ok(text.into()) } else { Err(format!("{text:?} {fault}")) }
}
