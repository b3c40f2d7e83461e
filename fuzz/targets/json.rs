//! Requests: what is decoded is decoded again from what is sent.
#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| {
    use dstack_model::configurations::AnyConfiguration;
    let Ok(value) = serde_json::from_str::<serde_json::Value>(text) else { return };
    if let Ok(configuration) = dstack_model::decode::decode_strict::<AnyConfiguration>(&value) {
        let sent = serde_json::to_value(&configuration).unwrap();
        let again = dstack_model::decode::decode_strict::<AnyConfiguration>(&sent);
        assert_eq!(again.ok(), Some(configuration));
    }
});
