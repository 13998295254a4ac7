//! Any bytes as a model bundle: it must be refused, or unpacked into a folder with nothing but regular files.
//!
//! The input is the archive behind a well-formed signature, or if its first byte is odd, the whole bundle.
#![no_main]

use libfuzzer_sys::fuzz_target;

/// A signature as minisign writes it. Whether it fits is not this target's affair.
const SIGNATURE: &[u8] = b"untrusted comment: signature from a key that nobody has
RURHk4bZSJdmVoYn4YFZ8qXTp9xGWuN7v7KcVqIgc9xuHXMGCtZXUZnnhXlaDnPbbzoCVnzM9Sv1gsUsVGb4SKUBIpFPdGpDYww=
trusted comment: timestamp:1790000000
1BoT5VTJRzfnj9dD8jM2pyVoYEMzyovrjAlHIvZPWZgmFdFwBmP1XYjvbYRmmPrUcMnX4jbbXYi2xrZGFBu7AQ==
";

fuzz_target!(|bytes: &[u8]| {
    let Some((&choice, rest)) = bytes.split_first() else { return };
    let bundle = if choice & 1 == 1 { rest.to_vec() } else { [SIGNATURE, rest].concat() };
    let folder = tempfile::tempdir().expect("a folder can be made");
    if store::bundle::unpack(&bundle[..], folder.path()).is_err() {
        return;
    }
    for entry in folder.path().read_dir().expect("the folder can be read") {
        let kind = entry.expect("the folder can be read").file_type().expect("an entry has a type");
        assert!(kind.is_file());
    }
});
