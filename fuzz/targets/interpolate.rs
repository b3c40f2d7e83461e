//! `${{ namespace.name }}`: what is not known is named.
#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| {
    use dstack_model::interpolate::{GroupMember, Interpolator, check_group_bounds, check_group_references};
    let known = Interpolator::new().namespace("env", [("A", "1")]).skip("secrets").skip_groups();
    if let Ok(filled) = known.interpolate(text) {
        assert!(text.contains('$') || filled == text);
    }
    let _ = check_group_references(text, GroupMember::Nodes);
    let _ = check_group_bounds(text, &[1, 2], GroupMember::Replicas);
});
