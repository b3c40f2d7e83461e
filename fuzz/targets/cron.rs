//! `0 8 * * mon`: the next time is never past.
#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| {
    let Ok(cron) = text.parse::<dstack_units::Cron>() else { return };
    let now: dstack_units::Time = "2026-02-27T23:59:59+00:00".parse().unwrap();
    if let Some(next) = cron.next_at_or_after(now) {
        assert!(next >= now);
    }
});
