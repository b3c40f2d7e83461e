//! `A100:80GB:1..8`.
#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| {
    let Ok(value) = text.parse::<dstack_units::GpuSpec>() else { return };
    let printed = value.to_string();
    let again = printed.parse::<dstack_units::GpuSpec>();
    assert_eq!(again.ok().map(|value| value.to_string()), Some(printed));
});
