//! `1..8`.
#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| {
    if let Ok(range) = dstack_units::range::parse_count(text) {
        assert_eq!(dstack_units::range::parse_count(&range.to_string()).ok(), Some(range));
    }
});
