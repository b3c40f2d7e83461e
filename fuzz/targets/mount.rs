//! `/host:/container`, `volume:/data`.
#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| {
    let _ = dstack_units::path::split_mount_point(text);
    let _ = dstack_units::path::normal_absolute(text);
    let _ = dstack_units::path::parse_user(text);
});
