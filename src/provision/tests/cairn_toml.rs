//! What `cairn.toml` may say, every fault at once, and the files that follow.

#![allow(clippy::unwrap_used, reason = "everything in this file is a test")]

use expect_test::{Expect, expect};
use proptest::prelude::*;
use provision::{File, PATHS, Provision, files, read};

const COMPLETE: &str = include_str!("complete.toml");

fn faults(text: &str, wanted: &Expect) {
    let faults = read(text).expect_err("the text has faults");
    wanted.assert_eq(&faults.iter().map(|fault| format!("{fault}\n")).collect::<String>());
}

fn all_files(provision: &Provision) -> Vec<File> {
    files(provision, |name| Some(format!("the {name}")))
}

fn content<'a>(files: &'a [File], path: &str) -> &'a str {
    &files.iter().find(|file| file.path == path).unwrap_or_else(|| panic!("no {path}")).content
}

#[test]
fn a_complete_text_is_read() {
    let provision = read(COMPLETE).unwrap();
    assert_eq!(provision.hostname.as_deref(), Some("workshop-3"));
    assert_eq!(provision.ssh_keys.len(), 2);
    assert!(provision.reset_keeps_keys);
    let secrets: Vec<_> = provision.secrets().map(|(name, secret)| (name, secret.given.is_some())).collect();
    assert_eq!(secrets, [("wifi-passphrase", true), ("mqtt-password", true), ("mqtt-key", true)]);
    assert!(!format!("{provision:?}").contains("correct horse"), "a secret would be logged");
}

#[test]
fn nothing_is_a_complete_text_as_well() {
    assert_eq!(read("").unwrap(), Provision::default());
}

#[test]
fn a_scrubbed_text_says_the_same_without_the_secrets() {
    let provision = read(COMPLETE).unwrap();
    let scrubbed = provision.scrubbed(COMPLETE);
    for secret in ["correct horse", "hunter2", "BEGIN PRIVATE KEY"] {
        assert!(COMPLETE.contains(secret) && !scrubbed.contains(secret), "{scrubbed}");
    }
    let again = read(&scrubbed).unwrap();
    assert!(again.secrets().all(|(_, secret)| secret.given.is_none()));
    assert_eq!(again.secrets().count(), 3);
    assert_eq!(again.scrubbed(&scrubbed), scrubbed);
    assert_eq!(all_files(&again), all_files(&provision));
}

#[test]
fn every_fault_is_named_at_once_in_the_order_of_the_text() {
    let text = r#"hostnmae = "a"
hostname = "a_b"
time-zone = 1
colour = "red"
[ssh]
authorized-keys = ["ssh-ed25519 AAAA me", 7]
[ethernet]
address = "192.168.1.20"
dns = ["192.168.1.300"]
[wifi]
ssid = ""
passphrase = "short"
hidden = "yes"
[mqtt]
url = "http://broker"
password = "p"
"#;
    faults(
        text,
        &expect![[r#"
        line 1 column 1: unknown key "hostnmae"; did you mean "hostname"?
        line 2 column 12: hostname: "a_b" is no host name: 1 to 63 letters, digits and inner hyphens
        line 3 column 13: time-zone: is of type integer, not a text
        line 4 column 1: unknown key "colour"; known here: hostname, time-zone, channel, ssh, ethernet, wifi, mqtt, factory-reset
        line 6 column 20: authorized-keys: is no public key as in id_ed25519.pub: Base64 encoding error: invalid Base64 length
        line 6 column 43: authorized-keys: is of type integer, not a text
        line 8 column 11: address: "192.168.1.20" is no address with prefix length, such as "192.168.1.20/24"
        line 9 column 8: dns: "192.168.1.300" is no IP address
        line 10 column 2: "country" is missing here
        line 11 column 8: ssid: "" is no network name: 1 to 32 bytes
        line 12 column 14: passphrase: is neither 8 to 63 ASCII characters nor 64 hexadecimal digits
        line 13 column 10: hidden: is of type string, not true or false
        line 14 column 2: "username" is missing here, it belongs to "password"
        line 15 column 7: url: "http://broker" is not mqtt://host:port or mqtts://host:port
    "#]],
    );
}

#[test]
fn values_that_do_nothing_or_contradict_are_faults() {
    faults(
        "[ethernet]\naddress = \"10.0.0.2/24\"\ngateway = \"10.0.1.1\"\n",
        &expect![[r#"
        line 3 column 11: 10.0.1.1 is not in the network 10.0.0.2/24
    "#]],
    );
    let certificate = "-----BEGIN CERTIFICATE-----\\nAAAA\\n-----END CERTIFICATE-----";
    faults(
        &format!("[mqtt]\nurl = \"mqtt://b\"\nca = \"{certificate}\"\n"),
        &expect![[r#"
        line 3 column 6: "ca" does nothing beside a url that is not mqtts
    "#]],
    );
    faults(
        &format!("[mqtt]\nurl = \"mqtts://b\"\ncertificate = \"{certificate}\"\n"),
        &expect![[r#"
        line 1 column 2: "ca" is missing here
        line 1 column 2: "key" is missing here, it belongs to "certificate"
    "#]],
    );
    faults(
        "[mqtt]\nurl = \"mqtts://b\"\nca = \"x\"\n",
        &expect![[r#"
        line 3 column 6: ca: has no certificate in PEM form
    "#]],
    );
}

#[test]
fn broken_syntax_is_named_with_its_place() {
    faults(
        "hostname = \"a\nchannel = stable\n",
        &expect![[r#"
        line 1 column 14: invalid basic string, expected `"`
        line 2 column 11: string values must be quoted, expected literal string
    "#]],
    );
    faults(
        "hostname = \"a\"\nhostname = \"b\"\n",
        &expect![[r#"
        line 2 column 1: duplicate key
    "#]],
    );
    faults(
        "wifi = 3",
        &expect![[r#"
        line 1 column 8: "wifi" is of type integer, not a table
    "#]],
    );
}

#[test]
fn the_network_follows() {
    let files = all_files(&read(COMPLETE).unwrap());
    expect![[r#"
        [Match]
        Type=ether
        Kind=!*

        [Network]
        Address=192.168.1.20/24
        Gateway=192.168.1.1
        DNS=192.168.1.1
        DNS=2001:db8::53

        [DHCPv4]
        RouteMetric=10

        [IPv6AcceptRA]
        RouteMetric=10
    "#]]
    .assert_eq(content(&files, "run/systemd/network/30-cairn-ethernet.network"));
    expect![[r#"
        country=DE

        network={
        	ssid=6174746963
        	key_mgmt=WPA-PSK SAE
        	ieee80211w=1
        	psk="the wifi-passphrase"
        }
    "#]]
    .assert_eq(content(&files, "run/cairn/wpa_supplicant.conf"));
    expect![[r#"
        url = "mqtts://broker.example:8883"
        username = "workshop"
        password-file = "/run/cairn/mqtt/password"

        [tls]
        ca = "/run/cairn/mqtt/ca.pem"
        certificate = "/run/cairn/mqtt/certificate.pem"
        key = "/run/cairn/mqtt/key.pem"
    "#]]
    .assert_eq(content(&files, "run/cairn/mqtt/mqtt.toml"));
}

#[test]
fn secrets_are_in_files_that_not_everybody_reads() {
    let mut kept = 0;
    for file in all_files(&read(COMPLETE).unwrap()) {
        if file.content.contains("the wifi-passphrase") || file.content.contains("the mqtt-") {
            assert_eq!(file.mode & 0o007, 0, "{}", file.path);
            kept += 1;
        }
    }
    assert_eq!(kept, 3);
}

#[test]
fn every_file_is_among_those_that_are_removed_again() {
    let files = all_files(&read(COMPLETE).unwrap());
    assert_eq!(files.len(), PATHS.len());
    assert!(files.iter().all(|file| PATHS.contains(&file.path)));
}

#[test]
fn a_wireless_network_whose_secret_is_lost_does_not_become_an_open_one() {
    let provision = read("[wifi]\nssid = \"a\"\ncountry = \"DE\"\npassphrase = true\n").unwrap();
    let files = files(&provision, |_| None);
    assert!(!files.iter().any(|file| file.path == "run/cairn/wpa_supplicant.conf"));
}

proptest! {
    #[test]
    fn no_text_panics(text in ".{0,200}") {
        let _ = read(&text);
    }

    #[test]
    fn no_damaged_text_panics(at in 0..COMPLETE.len(), with in "[ -~\n]{0,3}") {
        let mut text = COMPLETE.to_owned();
        let (start, end) = (text.floor_char_boundary(at), text.ceil_char_boundary(at + 1));
        text.replace_range(start..end, &with);
        if let Ok(provision) = read(&text) {
            let scrubbed = provision.scrubbed(&text);
            let again = read(&scrubbed).unwrap();
            assert!(again.secrets().all(|(_, secret)| secret.given.is_none()));
        }
    }
}
