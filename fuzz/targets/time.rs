//! Times of peers.
#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| {
    let Ok(value) = text.parse::<dstack_units::Time>() else { return };
    let printed = value.to_string();
    let again = printed.parse::<dstack_units::Time>();
    assert_eq!(again.ok().map(|value| value.to_string()), Some(printed));
});
