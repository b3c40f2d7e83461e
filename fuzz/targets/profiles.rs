//! `profiles.yml`.
#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| {
    if let Err(errors) = dstack_model::yaml::parse_profiles(text, "profiles.yml") {
        assert!(!errors.to_string().is_empty());
    }
});
