//! What somebody wants this machine to become.

use api::mqtt::{DesiredUpdate, UpdateWave, UpdateWindow};
use ring::digest;
use semver::Version;
use serde::{Deserialize, Serialize};

use crate::failure::{Failure, Kind};

/// An offer. Two are the same where they ask for the same bundle.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Offer {
    /// Where the bundle is: an absolute path, or an http(s) address.
    pub url: String,
    /// Its version. Where the offer does not say, the bundle does.
    pub version: Option<Version>,
    /// SHA-256 of its manifest, hexadecimal.
    pub manifest_hash: Option<String>,
    /// The channel that it is for; all where it does not say.
    #[serde(default)]
    pub channel: Option<String>,
    /// Which part of the fleet goes first.
    pub wave: Option<UpdateWave>,
    /// When it may be done.
    pub window: Option<UpdateWindow>,
    /// Whose it is.
    pub source: Source,
    /// Whether a person wants it now: wave and window do not count.
    pub urgent: bool,
    /// Whether it may be older than what runs.
    pub allow_downgrade: bool,
}

/// Whose an offer is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// A caller on D-Bus.
    Bus,
    /// The desired state, over MQTT.
    Mqtt,
    /// An action of hawkBit, by its number.
    Hawkbit(String),
}

impl Source {
    /// The name, as clients see it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Bus => "bus",
            Self::Mqtt => "mqtt",
            Self::Hawkbit(_) => "hawkbit",
        }
    }
}

impl Offer {
    /// An offer of a bundle by somebody on this machine, for now.
    pub fn new(url: impl Into<String>, version: Option<Version>) -> Self {
        Self {
            url: url.into(),
            version,
            manifest_hash: None,
            channel: None,
            wave: None,
            window: None,
            source: Source::Bus,
            urgent: false,
            allow_downgrade: false,
        }
    }

    /// The offer of a desired state.
    ///
    /// # Errors
    /// [`Kind::Offer`] for a version that is none, or an address that is not http(s).
    pub fn desired(desired: DesiredUpdate) -> Result<Self, Failure> {
        if !is_remote(&desired.url) {
            return Err(Failure::new(Kind::Offer, format!("url {:?} is neither http nor https", desired.url)));
        }
        let offer = Self::new(desired.url.clone(), Some(version(&desired.version)?));
        let DesiredUpdate { manifest_hash, channel, wave, window, .. } = desired;
        Ok(Self { manifest_hash, channel, wave, window, source: Source::Mqtt, ..offer })
    }

    /// Whether it is for devices that follow `channel`.
    pub fn is_for(&self, channel: Option<&str>) -> bool {
        self.channel.as_deref().is_none_or(|wanted| Some(wanted) == channel)
    }

    /// Whether both ask for the same bundle on behalf of the same.
    pub fn is_same(&self, other: &Self) -> bool {
        let key = |offer: &Self| (offer.url.clone(), offer.manifest_hash.clone(), offer.source.clone());
        let version = match (&self.version, &other.version) {
            (Some(one), Some(two)) => one == two,
            _ => true,
        };
        version && key(self) == key(other)
    }

    /// Checks that this is not a step back from `running`.
    ///
    /// # Errors
    /// [`Kind::Downgrade`].
    pub fn check_direction(&self, running: &Version) -> Result<(), Failure> {
        match &self.version {
            Some(version) if version.cmp_precedence(running).is_lt() && !self.allow_downgrade => {
                Err(Failure::new(Kind::Downgrade, format!("{version} is older than {running}, which runs")))
            }
            _ => Ok(()),
        }
    }

    /// Whether `device` belongs to the part of the fleet that goes already.
    pub fn wave_reached(&self, device: &str) -> bool {
        self.urgent || self.wave.as_ref().is_none_or(|wave| place(device, &wave.seed) < wave.percent)
    }
}

/// Whether a source is to be fetched.
pub fn is_remote(source: &str) -> bool {
    source.starts_with("https://") || source.starts_with("http://")
}

/// Reads a version.
///
/// # Errors
/// [`Kind::Offer`].
pub fn version(text: &str) -> Result<Version, Failure> {
    Version::parse(text).map_err(|error| Failure::new(Kind::Offer, format!("version {text:?}: {error}")))
}

/// The place of a device in a release's order, in percent, 0 to below 100: the same for ever, different for each seed,
/// and evenly spread over a fleet.
fn place(device: &str, seed: &str) -> f64 {
    let mut context = digest::Context::new(&digest::SHA256);
    for text in [seed, device] {
        // CAST: usize has at most 64 bits.
        context.update(&(text.len() as u64).to_be_bytes());
        context.update(text.as_bytes());
    }
    let hash = context.finish();
    let leading: [u8; 4] = hash.as_ref()[..4].try_into().expect("SHA-256 has 32 bytes");
    f64::from(u32::from_be_bytes(leading)) / (f64::from(u32::MAX) + 1.0) * 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(text: &str) -> Offer {
        Offer::new("https://example.org/a.raucb", Some(Version::parse(text).unwrap()))
    }

    #[test]
    fn only_an_older_version_is_a_downgrade() {
        let running = Version::parse("1.4.0-rc.2").unwrap();
        for older in ["1.3.9", "1.4.0-rc.1", "0.9.0"] {
            assert_eq!(offer(older).check_direction(&running).unwrap_err().kind, Kind::Downgrade, "{older}");
            Offer { allow_downgrade: true, ..offer(older) }.check_direction(&running).unwrap();
        }
        for newer in ["1.4.0-rc.2", "1.4.0-rc.10", "1.4.0", "1.10.0"] {
            offer(newer).check_direction(&running).unwrap();
        }
        // Build metadata is no order.
        offer("1.4.0-rc.2+a").check_direction(&Version::parse("1.4.0-rc.2+b").unwrap()).unwrap();
    }

    #[test]
    fn a_wave_takes_its_part_of_the_fleet_and_grows() {
        let wave = |seed: &str, percent| Some(UpdateWave { seed: seed.into(), percent });
        let members = |seed: &str, percent| -> Vec<usize> {
            let offer = Offer { wave: wave(seed, percent), ..offer("2.0.0") };
            (0..10_000).filter(|device| offer.wave_reached(&format!("device-{device}"))).collect()
        };
        let (tenth, half) = (members("a", 10.0), members("a", 50.0));
        assert!((900..1100).contains(&tenth.len()) && (4800..5200).contains(&half.len()));
        assert!(tenth.iter().all(|device| half.binary_search(device).is_ok()), "a member left");
        assert_ne!(tenth, members("b", 10.0));
        assert_eq!((members("a", 0.0).len(), members("a", 100.0).len()), (0, 10_000));
        assert!(Offer { wave: wave("a", 0.0), urgent: true, ..offer("2.0.0") }.wave_reached("d"));
    }
}
