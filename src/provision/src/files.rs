//! The files that follow from a [`Provision`]. They lie under `/run` and are made anew at each start of the machine.

use crate::{Ethernet, MQTT_KEY, MQTT_PASSWORD, Mqtt, Provision, WIFI_PASSPHRASE, Wifi};

/// A file, relative to the root of the file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Its path.
    pub path: &'static str,
    /// Its mode.
    pub mode: u32,
    /// What is in it.
    pub content: String,
}

/// Every path that [`files`] may return.
pub const PATHS: &[&str] = &[
    "run/sysctl.d/50-cairn-hostname.conf",
    "run/cairn/channel",
    "run/cairn/authorized_keys",
    "run/systemd/network/30-cairn-ethernet.network",
    "run/systemd/network/30-cairn-wifi.network",
    "run/cairn/wpa_supplicant.conf",
    "run/cairn/mqtt/mqtt.toml",
    "run/cairn/mqtt/ca.pem",
    "run/cairn/mqtt/certificate.pem",
    "run/cairn/mqtt/key.pem",
    "run/cairn/mqtt/password",
];

/// For everybody.
const PUBLIC: u32 = 0o644;
/// For root alone.
const PRIVATE: u32 = 0o600;
/// For root and the group of the folder: the daemons that talk to the broker.
const SHARED: u32 = 0o640;

/// The files that follow. `secret` returns a secret by its name; a file whose secret is missing is left out.
pub fn files(provision: &Provision, secret: impl Fn(&str) -> Option<String>) -> Vec<File> {
    let mut files = Vec::new();
    let mut add = |path, mode, content: String| files.push(File { path, mode, content });
    if let Some(hostname) = &provision.hostname {
        add("run/sysctl.d/50-cairn-hostname.conf", PUBLIC, format!("kernel.hostname = {hostname}\n"));
    }
    if let Some(channel) = &provision.channel {
        add("run/cairn/channel", PUBLIC, format!("{channel}\n"));
    }
    if !provision.ssh_keys.is_empty() {
        add("run/cairn/authorized_keys", PUBLIC, lines(&provision.ssh_keys));
    }
    let wired = provision.ethernet.as_ref().map_or_else(|| "DHCP=yes\n".into(), fixed);
    add("run/systemd/network/30-cairn-ethernet.network", PUBLIC, network("ether", "10", &wired));
    if let Some(wifi) = &provision.wifi {
        add("run/systemd/network/30-cairn-wifi.network", PUBLIC, network("wlan", "20", "DHCP=yes\n"));
        let passphrase = secret(WIFI_PASSPHRASE);
        if wifi.passphrase.is_none() || passphrase.is_some() {
            add("run/cairn/wpa_supplicant.conf", PRIVATE, wpa_supplicant(wifi, passphrase.as_deref()));
        }
    }
    if let Some(mqtt) = &provision.mqtt {
        add("run/cairn/mqtt/mqtt.toml", SHARED, mqtt_settings(mqtt));
        let texts = [
            ("run/cairn/mqtt/ca.pem", mqtt.ca.clone()),
            ("run/cairn/mqtt/certificate.pem", mqtt.certificate.clone()),
            ("run/cairn/mqtt/key.pem", mqtt.key.as_ref().and_then(|_| secret(MQTT_KEY))),
            ("run/cairn/mqtt/password", mqtt.password.as_ref().and_then(|_| secret(MQTT_PASSWORD))),
        ];
        for (path, content) in texts.into_iter().filter_map(|(path, content)| Some((path, content?))) {
            add(path, SHARED, content);
        }
    }
    files
}

fn lines(lines: &[String]) -> String {
    lines.iter().map(|line| format!("{line}\n")).collect()
}

/// A file of systemd.network(5). `metric`: the lower, the more it is preferred.
fn network(kind: &str, metric: &str, addresses: &str) -> String {
    // Virtual interfaces such as bridges are "ether" as well, and not ours.
    let only = if kind == "ether" { "Kind=!*\n" } else { "" };
    format!(
        "[Match]\nType={kind}\n{only}\n[Network]\n{addresses}\n[DHCPv4]\nRouteMetric={metric}\n\n\
         [IPv6AcceptRA]\nRouteMetric={metric}\n"
    )
}

fn fixed(ethernet: &Ethernet) -> String {
    let (address, length) = ethernet.address;
    let gateway = ethernet.gateway.map(|gateway| format!("Gateway={gateway}\n")).unwrap_or_default();
    let dns: String = ethernet.dns.iter().map(|dns| format!("DNS={dns}\n")).collect();
    format!("Address={address}/{length}\n{gateway}{dns}")
}

/// A file of wpa_supplicant.conf(5). The name goes as hexadecimal digits, which need no quoting.
fn wpa_supplicant(wifi: &Wifi, passphrase: Option<&str>) -> String {
    let ssid: String = wifi.ssid.bytes().map(|byte| format!("{byte:02x}")).collect();
    let scan = if wifi.hidden { "\tscan_ssid=1\n" } else { "" };
    let key = match passphrase {
        None => "\tkey_mgmt=NONE\n".into(),
        // Such a key is made for WPA2: WPA3 needs the passphrase.
        Some(key) if key.len() == 64 => format!("\tkey_mgmt=WPA-PSK\n\tpsk={key}\n"),
        // The quotes are the first and the last; what is between them needs no escapes.
        Some(phrase) => format!("\tkey_mgmt=WPA-PSK SAE\n\tieee80211w=1\n\tpsk=\"{phrase}\"\n"),
    };
    format!("country={}\n\nnetwork={{\n\tssid={ssid}\n{scan}{key}}}\n", wifi.country)
}

/// The table `[mqtt]` of a daemon's configuration, as a file of its own.
fn mqtt_settings(mqtt: &Mqtt) -> String {
    let folder = "/run/cairn/mqtt";
    let text = |text: &str| toml::Value::from(text).to_string();
    let mut settings = format!("url = {}\n", text(&mqtt.url));
    if let Some(username) = &mqtt.username {
        settings += &format!("username = {}\n", text(username));
    }
    if mqtt.password.is_some() {
        settings += &format!("password-file = \"{folder}/password\"\n");
    }
    if mqtt.ca.is_some() {
        settings += &format!("\n[tls]\nca = \"{folder}/ca.pem\"\n");
    }
    if mqtt.certificate.is_some() {
        settings += &format!("certificate = \"{folder}/certificate.pem\"\nkey = \"{folder}/key.pem\"\n");
    }
    settings
}
