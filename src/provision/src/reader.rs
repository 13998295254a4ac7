//! Reads the text, and goes on after a fault so that a person sees all of them at once.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::check::{self, Checked};
use crate::{Ethernet, Fault, MAX_BYTES, Mqtt, Provision, Secret, Wifi};

/// How alike two keys are when one is taken for the other misspelt, from 0 to 1.
const ALIKE: f64 = 0.8;

/// Reads a `cairn.toml`.
///
/// # Errors
/// Every fault, in the order of the text.
pub fn read(text: &str) -> Result<Provision, Vec<Fault>> {
    if text.len() > MAX_BYTES {
        return Err(vec![Fault::at(text, MAX_BYTES, format!("the file is larger than {MAX_BYTES} bytes"))]);
    }
    let (root, errors) = DeTable::parse_recoverable(text);
    let fault = |error: &toml::de::Error| {
        Fault::at(text, error.span().map_or(0, |span| span.start), error.message().replace('\n', ", "))
    };
    let mut reader = Reader { text, faults: errors.iter().map(fault).collect() };
    // What follows from a broken syntax would only confuse.
    if reader.faults.is_empty() {
        let provision = reader.provision(root.get_ref());
        if reader.faults.is_empty() {
            return Ok(provision);
        }
    }
    reader.faults.sort();
    Err(reader.faults)
}

struct Reader<'t> {
    text: &'t str,
    faults: Vec<Fault>,
}

impl Reader<'_> {
    fn provision(&mut self, root: &DeTable<'_>) -> Provision {
        let known = ["hostname", "time-zone", "channel", "ssh", "ethernet", "wifi", "mqtt", "factory-reset"];
        self.refuse_unknown(root, &known);
        Provision {
            hostname: self.text(root, "hostname", check::hostname),
            time_zone: self.text(root, "time-zone", check::time_zone).zip(span_of(root, "time-zone")),
            channel: self.text(root, "channel", check::channel),
            ssh_keys: self.ssh(root).unwrap_or_default(),
            ethernet: self.ethernet(root),
            wifi: self.wifi(root),
            mqtt: self.mqtt(root),
            reset_keeps_keys: self.factory_reset(root),
        }
    }

    fn ssh(&mut self, root: &DeTable<'_>) -> Option<Vec<String>> {
        let (table, span) = self.table(root, "ssh", &["authorized-keys"])?;
        self.require(table, span, "authorized-keys");
        Some(self.list(table, "authorized-keys", check::ssh_key))
    }

    fn ethernet(&mut self, root: &DeTable<'_>) -> Option<Ethernet> {
        let (table, span) = self.table(root, "ethernet", &["address", "gateway", "dns"])?;
        self.require(table, span, "address");
        let address = self.text(table, "address", check::network);
        let gateway = self.text(table, "gateway", check::address);
        let dns = self.list(table, "dns", check::address);
        if let (Some(network), Some(gateway)) = (address, gateway)
            && !check::is_in(network, gateway)
        {
            self.fault_at(table, "gateway", format!("{gateway} is not in the network {}/{}", network.0, network.1));
        }
        Some(Ethernet { address: address?, gateway, dns })
    }

    fn wifi(&mut self, root: &DeTable<'_>) -> Option<Wifi> {
        let (table, span) = self.table(root, "wifi", &["ssid", "passphrase", "country", "hidden"])?;
        self.require(table, span.clone(), "ssid");
        self.require(table, span, "country");
        let ssid = self.text(table, "ssid", check::ssid);
        let passphrase = self.secret(table, "passphrase", check::passphrase);
        let country = self.text(table, "country", check::country);
        let hidden = self.flag(table, "hidden");
        Some(Wifi { ssid: ssid?, passphrase, country: country?, hidden })
    }

    fn mqtt(&mut self, root: &DeTable<'_>) -> Option<Mqtt> {
        let (table, span) = self.table(root, "mqtt", &["url", "username", "password", "ca", "certificate", "key"])?;
        self.require(table, span.clone(), "url");
        let url = self.text(table, "url", check::broker);
        let mqtt = Mqtt {
            url: url.clone().unwrap_or_default(),
            username: self.text(table, "username", check::username),
            password: self.secret(table, "password", check::password),
            ca: self.text(table, "ca", check::certificates),
            certificate: self.text(table, "certificate", check::certificates),
            key: self.secret(table, "key", check::private_key),
        };
        self.belong_together(table, span.clone(), "password", "username");
        self.belong_together(table, span.clone(), "certificate", "key");
        self.belong_together(table, span.clone(), "key", "certificate");
        match url.as_deref().map(|url| url.starts_with("mqtts:")) {
            Some(true) => self.require(table, span, "ca"),
            Some(false) => {
                for key in ["ca", "certificate", "key"] {
                    self.fault_at(table, key, format!("{key:?} does nothing beside a url that is not mqtts"));
                }
            }
            None => {}
        }
        url.map(|_| mqtt)
    }

    fn factory_reset(&mut self, root: &DeTable<'_>) -> bool {
        let Some((table, _)) = self.table(root, "factory-reset", &["keep-keys"]) else { return false };
        self.flag(table, "keep-keys")
    }

    /// The table under `key`, and where its name is.
    fn table<'a>(
        &mut self,
        from: &'a DeTable<'_>,
        key: &str,
        known: &[&str],
    ) -> Option<(&'a DeTable<'a>, Range<usize>)> {
        let (name, value) = from.get_key_value(key)?;
        match value.get_ref() {
            DeValue::Table(table) => {
                self.refuse_unknown(table, known);
                Some((table, name.span()))
            }
            other => {
                self.fault(value.span(), format!("{key:?} is of type {}, not a table", other.type_str()));
                None
            }
        }
    }

    fn refuse_unknown(&mut self, table: &DeTable<'_>, known: &[&str]) {
        for name in table.keys().filter(|name| !known.contains(&name.get_ref().as_ref())) {
            let alike = |known: &&&str| strsim::jaro_winkler(name.get_ref(), known) >= ALIKE;
            let hint = match known.iter().find(alike) {
                Some(known) => format!("did you mean {known:?}?"),
                None => format!("known here: {}", known.join(", ")),
            };
            self.fault(name.span(), format!("unknown key {:?}; {hint}", name.get_ref()));
        }
    }

    fn text<T>(&mut self, table: &DeTable<'_>, key: &str, check: fn(&str) -> Checked<T>) -> Option<T> {
        self.value(key, table.get(key)?, check)
    }

    fn value<T>(&mut self, key: &str, value: &Spanned<DeValue<'_>>, check: fn(&str) -> Checked<T>) -> Option<T> {
        let checked = match value.get_ref() {
            DeValue::String(text) => check(text).map_err(|reason| format!("{key}: {reason}")),
            other => Err(format!("{key}: is of type {}, not a text", other.type_str())),
        };
        checked.map_err(|reason| self.fault(value.span(), reason)).ok()
    }

    fn list<T>(&mut self, table: &DeTable<'_>, key: &str, check: fn(&str) -> Checked<T>) -> Vec<T> {
        let Some(value) = table.get(key) else { return Vec::new() };
        let DeValue::Array(values) = value.get_ref() else {
            self.fault(value.span(), format!("{key}: is of type {}, not a list", value.get_ref().type_str()));
            return Vec::new();
        };
        values.iter().filter_map(|value| self.value(key, value, check)).collect()
    }

    fn flag(&mut self, table: &DeTable<'_>, key: &str) -> bool {
        match table.get(key).map(|value| (value.get_ref(), value.span())) {
            None => false,
            Some((DeValue::Boolean(flag), _)) => *flag,
            Some((other, span)) => {
                self.fault(span, format!("{key}: is of type {}, not true or false", other.type_str()));
                false
            }
        }
    }

    /// A secret, or `true` for one that the device holds.
    fn secret(&mut self, table: &DeTable<'_>, key: &str, check: fn(&str) -> Checked<String>) -> Option<Secret> {
        let value = table.get(key)?;
        if matches!(value.get_ref(), DeValue::Boolean(true)) {
            return Some(Secret { given: None, span: value.span() });
        }
        let given = self.value(key, value, check)?;
        Some(Secret { given: Some(given), span: value.span() })
    }

    fn require(&mut self, table: &DeTable<'_>, span: Range<usize>, key: &str) {
        if !table.contains_key(key) {
            self.fault(span, format!("{key:?} is missing here"));
        }
    }

    fn belong_together(&mut self, table: &DeTable<'_>, span: Range<usize>, key: &str, needed: &str) {
        if table.contains_key(key) && !table.contains_key(needed) {
            self.fault(span, format!("{needed:?} is missing here, it belongs to {key:?}"));
        }
    }

    /// A fault of the value under `key`, if there is one.
    fn fault_at(&mut self, table: &DeTable<'_>, key: &str, message: String) {
        if let Some(span) = span_of(table, key) {
            self.fault(span, message);
        }
    }

    fn fault(&mut self, span: Range<usize>, message: String) {
        self.faults.push(Fault::at(self.text, span.start, message));
    }
}

fn span_of(table: &DeTable<'_>, key: &str) -> Option<Range<usize>> {
    table.get(key).map(Spanned::span)
}
