//! A story told again and again, each time with the server killed at another place.

use std::collections::BTreeSet;
use std::sync::Arc;

use dstack_engine::failpoint::DieAt;

/// Tells a story once without a kill, and then with a kill at each failpoint that it passed: the n-th time it is passed, for each
/// of `times`, as long as it is passed so often. Returns the failpoints.
///
/// `story` gets the failpoint and the number, starts a server with a [`DieAt`] of them, and returns that.
///
/// # Panics
/// A failpoint that the story passed without a kill is not passed again: the story is not always the same.
pub async fn killed_everywhere<S: Future<Output = Arc<DieAt>>>(
    times: impl IntoIterator<Item = u32> + Clone,
    story: impl Fn(&'static str, u32) -> S,
) -> BTreeSet<&'static str> {
    let points = story("nowhere", 1).await.seen();
    for point in &points {
        for nth in times.clone() {
            if !story(point, nth).await.fired() {
                assert!(nth > 1, "{point} was passed without a kill");
                break;
            }
        }
    }
    points
}
