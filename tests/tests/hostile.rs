//! What clients without a token can do to the server.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use dstack_tests::hostile::Hostile;
use dstack_tests::need;
use dstack_tests::server::Setup;

const MB: f64 = 1e6;

#[test]
fn clients_without_a_token_cannot_fill_the_memory() {
    let server = need!(Setup::without_engine()).start().unwrap();
    let before = server.resident_bytes_at_most().unwrap() / MB;
    let hostile = Hostile {
        clients: 64,
        duration: Duration::from_secs(6),
    };
    let endured = hostile.run(server.port()).unwrap();
    let at_most = server.resident_bytes_at_most().unwrap() / MB;
    println!("{before:.0} MB before, {at_most:.0} MB at most; {endured:?}");
    assert!(
        at_most < 150.0,
        "{at_most:.0} MB were resident, {before:.0} MB before"
    );
    assert!(endured.health.p99 < 5.0, "{endured:?}");
    // All of it was tried, and none of it was let through.
    for status in [413, 422, 401, 403] {
        assert!(endured.answers.contains_key(&status), "{endured:?}");
    }
    assert!(!endured.answers.contains_key(&200), "{endured:?}");
}
