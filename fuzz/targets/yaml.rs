//! Configuration files: read, or refused with places inside the file.
#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| {
    if let Err(errors) = dstack_model::yaml::parse_configuration(text, "a.dstack.yml") {
        assert!(!errors.to_string().is_empty());
    }
});
