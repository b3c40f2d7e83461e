//! `1h`, `1d`.
#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| {
    let _ = text.parse::<dstack_units::Seconds>();
});
