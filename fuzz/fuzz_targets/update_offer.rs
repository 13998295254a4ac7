//! Any bytes as a desired state over MQTT and as hawkBit's answers: they are refused, or give an offer that can be judged.
#![no_main]

use api::mqtt::DesiredUpdate;
use libfuzzer_sys::fuzz_target;
use otad::offer::{Offer, is_remote};
use semver::Version;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(Some(desired)) = DesiredUpdate::decode(bytes)
        && let Ok(offer) = Offer::desired(desired)
    {
        assert!(is_remote(&offer.url));
        offer.wave_reached("device");
        let downgrade = offer.check_direction(&Version::new(1, 2, 3)).is_err();
        assert!(!downgrade || offer.version.is_some_and(|version| version < Version::new(1, 2, 3)));
    }
    if let Ok(deployment) = otad::hawkbit::read_deployment(bytes) {
        assert!(is_remote(&deployment.url));
    }
    if let Ok(wishes) = otad::hawkbit::read_wishes(bytes) {
        for (action, query) in wishes.deployment.into_iter().chain(wishes.cancel) {
            assert!(!action.is_empty() && !action.contains(['/', '?', '#']) && !query.contains(['/', '#', '\n']));
        }
    }
});
