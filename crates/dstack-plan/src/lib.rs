//! Pure decisions: job specs, requirements, offers, placement, retry, state machines. No I/O, no clock.
