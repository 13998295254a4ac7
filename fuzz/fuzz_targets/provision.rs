//! Any text as a `cairn.toml`: it must be refused with places in the text, or give files without the secrets' text left.
//!
//! A good corpus to start from: `src/provision/tests/complete.toml`.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let provision = match provision::read(text) {
        Ok(provision) => provision,
        Err(faults) => {
            assert!(!faults.is_empty());
            assert!(faults.iter().all(|fault| fault.line <= text.matches('\n').count() + 1));
            return;
        }
    };
    let again = provision::read(&provision.scrubbed(text)).expect("a scrubbed text is as right as before");
    assert!(again.secrets().all(|(_, secret)| secret.given.is_none()));
    assert_eq!(again.secrets().count(), provision.secrets().count());
    let files = provision::files(&provision, |name| Some(name.to_owned()));
    assert_eq!(files, provision::files(&again, |name| Some(name.to_owned())));
});
