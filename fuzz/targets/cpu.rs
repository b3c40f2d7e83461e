//! `arm:4..`.
#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| {
    let _ = dstack_units::cpu::tokens(text);
});
