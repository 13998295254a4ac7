//! What a host may say when it creates the delegate.
//!
//! ```text
//! CAIRN_DELEGATE="report=stderr,contexts=3" ─▶ ┐
//! options of the host: {"device": "/dev/accel/accel0"} ─▶ ┴▶ Settings      the host wins
//! ```
//!
//! Hosts that give no options at all, as Frigate does, can be configured by the variable.

use std::path::PathBuf;

/// Contexts beyond this are surely a mistake: the NPU has three cores.
const MAX_CONTEXTS: usize = 16;
/// The environment variable.
pub(crate) const VARIABLE: &str = "CAIRN_DELEGATE";

/// How a delegate works.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    /// Device node of the NPU.
    pub(crate) device: PathBuf,
    /// Inferences that run at once, each in an open file of the driver.
    pub(crate) contexts: usize,
    /// Where to say which operators are claimed and why not the others.
    pub(crate) report: Option<Destination>,
}

/// Where a report goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Destination {
    /// Standard error.
    Stderr,
    /// The end of a file.
    File(PathBuf),
}

impl Settings {
    /// Defaults, changed by the variable's value and then by the host's options.
    ///
    /// # Errors
    /// The key or value at fault, and what there is.
    pub(crate) fn read(variable: Option<&str>, options: &[(String, String)]) -> Result<Self, String> {
        let mut settings = Self { device: "/dev/accel/accel0".into(), contexts: 1, report: None };
        for part in variable.unwrap_or_default().split(',').filter(|part| !part.is_empty()) {
            let (key, value) = part.split_once('=').ok_or_else(|| format!("{VARIABLE}: {part:?} is not key=value"))?;
            settings.set(key, value).map_err(|reason| format!("{VARIABLE}: {reason}"))?;
        }
        for (key, value) in options {
            settings.set(key, value)?;
        }
        Ok(settings)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        match key {
            "device" if value.is_empty() => return Err("option device is empty".into()),
            "device" => self.device = value.into(),
            "contexts" => {
                let contexts = value.parse().ok().filter(|contexts| (1..=MAX_CONTEXTS).contains(contexts));
                let refused = || format!("option contexts is {value:?}, not a number from 1 to {MAX_CONTEXTS}");
                self.contexts = contexts.ok_or_else(refused)?;
            }
            "report" if value.is_empty() => self.report = None,
            "report" if value == "stderr" => self.report = Some(Destination::Stderr),
            "report" => self.report = Some(Destination::File(value.into())),
            _ => return Err(format!("option {key:?} does not exist; there are device, contexts and report")),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variable: Option<&str>, options: &[(&str, &str)]) -> Result<Settings, String> {
        let options: Vec<_> = options.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
        Settings::read(variable, &options)
    }

    #[test]
    fn without_options_the_first_device_is_driven_by_one_context() {
        let settings = read(None, &[]).unwrap();
        assert_eq!(settings, Settings { device: "/dev/accel/accel0".into(), contexts: 1, report: None });
    }

    #[test]
    fn the_host_overrides_the_variable() {
        let settings = read(Some("device=/dev/a,contexts=2,report=stderr"), &[("device", "/dev/b")]).unwrap();
        let report = Some(Destination::Stderr);
        assert_eq!(settings, Settings { device: "/dev/b".into(), contexts: 2, report });
    }

    #[test]
    fn what_has_no_meaning_is_refused_by_name() {
        let refused = |variable, options: &[(&str, &str)]| read(variable, options).unwrap_err();
        assert_eq!(
            refused(None, &[("devices", "x")]),
            "option \"devices\" does not exist; there are device, contexts and report"
        );
        assert_eq!(refused(None, &[("contexts", "0")]), "option contexts is \"0\", not a number from 1 to 16");
        assert_eq!(refused(None, &[("device", "")]), "option device is empty");
        assert_eq!(refused(Some("report"), &[]), "CAIRN_DELEGATE: \"report\" is not key=value");
        assert_eq!(
            refused(Some("contexts=-1"), &[]),
            "CAIRN_DELEGATE: option contexts is \"-1\", not a number from 1 to 16"
        );
    }
}
