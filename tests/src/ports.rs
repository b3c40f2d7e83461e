//! Ports of this machine for services of tests.

use dstack_system::env;

/// Ports of one test.
const EACH: u16 = 8;

/// A port that no other test has that runs at the same time; `number` is below 8. Tests that nextest does not start share the ports of
/// slot 0.
pub fn own_port(number: u16) -> u16 {
    let slot = env::var("NEXTEST_TEST_GLOBAL_SLOT").and_then(|slot| slot.parse::<u16>().ok());
    18_400 + slot.unwrap_or_default() * EACH + number % EACH
}
