//! `8080:80`.
#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| {
    let _ = dstack_units::port::tokens(text);
    let _ = text.parse::<dstack_units::PortMapping>();
});
