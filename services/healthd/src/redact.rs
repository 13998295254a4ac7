//! What leaves the machine is made unreadable where it names people, places or secrets.

use std::borrow::Cow;
use std::sync::LazyLock;

use regex::Regex;

/// What is looked for, and what stands in its place. Frames, prompts and models never get this far: no source has them.
static RULES: LazyLock<Vec<(Regex, &'static str)>> = LazyLock::new(|| {
    [
        (r"(?s)-----BEGIN [A-Z ]+-----.*?(-----END [A-Z ]+-----|\z)", "[key]"),
        (r"(?i)\b([a-z][a-z0-9+.-]*://)[^/\s@]+@", "${1}[user]@"),
        (r#"(?i)\b([a-z0-9_-]*(?:password|passwd|passphrase|secret|token|api[_-]?key|psk))("?\s*[:=]\s*)("[^"]*"|'[^']*'|\S+)"#, "${1}${2}[secret]"),
        (r"(?i)\b(bearer|basic)\s+[a-z0-9._~+/=-]{8,}", "${1} [secret]"),
        (r"(?i)\b(?:[0-9a-f]{2}:){5}[0-9a-f]{2}\b", "[mac]"),
        (r"\b(?:\d{1,3}\.){3}\d{1,3}\b", "[address]"),
        (r"(?i)\b(?:[0-9a-f]{1,4}:){3,7}[0-9a-f]{1,4}\b|\b(?:[0-9a-f]{1,4}:){1,6}:(?:[0-9a-f]{1,4})?\b", "[address]"),
        (r"(?i)\b[a-z0-9._%+-]+@[a-z0-9-]+(?:\.[a-z0-9-]+)+\b", "[mail]"),
        (r"\b[0-9a-f]{32}\b", "[id]"),
        (r"(?i)\b(serial(?:[ _-]?(?:number|no))?)(\s*[:=]\s*)\S+", "${1}${2}[serial]"),
    ]
    .into_iter()
    .map(|(pattern, with)| (Regex::new(pattern).expect("a rule of ours compiles"), with))
    .collect()
});

/// `text` without what must not leave the machine.
pub(crate) fn redact(text: &str) -> String {
    let mut text = Cow::Borrowed(text);
    for (pattern, with) in RULES.iter() {
        if let Cow::Owned(changed) = pattern.replace_all(&text, *with) {
            text = Cow::Owned(changed);
        }
    }
    text.into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_places_and_secrets_are_gone() {
        for (text, expected) in [
            ("mqtt://me:pw@broker:1883", "mqtt://[user]@broker:1883"),
            ("password = \"a b\"", "password = [secret]"),
            ("wifi_psk=hunter2 x", "wifi_psk=[secret] x"),
            ("Authorization: Bearer abcdef.012345", "Authorization: Bearer [secret]"),
            ("link 12:34:56:78:9a:bc up", "link [mac] up"),
            ("from 10.1.2.3 to fe80::1", "from [address] to [address]"),
            ("2001:db8:1:2:3:4:5:6", "[address]"),
            ("a.b@example.org", "[mail]"),
            ("0123456789abcdef0123456789abcdef", "[id]"),
            ("-----BEGIN PRIVATE KEY-----\nx\n-----END PRIVATE KEY-----", "[key]"),
            ("-----BEGIN PRIVATE KEY-----\ncut", "[key]"),
            ("Serial: 4711", "Serial: [serial]"),
        ] {
            assert_eq!(redact(text), expected);
        }
    }

    #[test]
    fn what_support_needs_stays() {
        for text in [
            "rk_iommu fdaca000.iommu: Page fault at 0x0000000000012345 of type read",
            "panthor fb000000.gpu: [drm] job timeout: pid=812, comm=llama-server, seqno=7",
            "watchdog: BUG: soft lockup - CPU#3 stuck for 26s! [kworker/3:1:77]",
            "Linux version 7.1.8 (oe-user@oe-host)",
        ] {
            assert_eq!(redact(text), text);
        }
    }
}
