//! Any text as a block map: it must be refused, or name ranges in order and inside the image.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let Ok(map) = cairnctl::flash::Map::parse(text) else { return };
    let mut end = 0;
    for range in &map.ranges {
        assert!(end <= range.start && range.start < range.end && range.end <= map.bytes);
        end = range.end;
    }
    assert!(map.mapped() <= map.bytes);
});
