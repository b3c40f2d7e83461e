use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Duration;

use dstack_compute::{ComputeError, Sign};
use futures_util::future::join_all;
use futures_util::{StreamExt as _, stream};

/// How long a place may take: the signs of those that do answer wait for it, and the notice of a spot instance comes two minutes
/// before its end at most.
const PLACE_LIMIT: Duration = Duration::from_secs(20);

/// How things are, of a cloud that is asked place by place (regions, clusters), all at the same time.
///
/// `place` says where a thing is asked for; `None`: nowhere, and nothing is told of it. `ask` tells of all things of a place, in their
/// order, as signs or as `Option`s of them: `None` where one thing cannot be asked for. A place that does not tell leaves its things
/// without a sign, and the others as they are.
///
/// # Errors
/// No place tells: what the last one said.
pub async fn look_by_place<'k, T, S, P, F, O>(
    things: &'k [T],
    place: impl Fn(&'k T) -> Option<S>,
    ask: impl Fn(S, Vec<&'k T>) -> F,
) -> Result<Vec<Option<Sign<P>>>, ComputeError>
where
    S: Ord + Clone + Debug,
    F: Future<Output = Result<Vec<O>, ComputeError>>,
    O: Into<Option<Sign<P>>>,
{
    let mut places: BTreeMap<S, Vec<(usize, &'k T)>> = BTreeMap::new();
    for (at, thing) in things.iter().enumerate() {
        if let Some(place) = place(thing) {
            places.entry(place).or_default().push((at, thing));
        }
    }
    let asked = places.into_iter().map(|(place, things)| {
        let (at, things): (Vec<usize>, Vec<&'k T>) = things.into_iter().unzip();
        let told = tokio::time::timeout(PLACE_LIMIT, ask(place.clone(), things));
        async move { (place, at, told.await.unwrap_or_else(|_| Err(late()))) }
    });
    let (mut told, mut failed) = (BTreeMap::new(), None);
    for (place, at, answer) in join_all(asked).await {
        match answer.and_then(|signs| whole(signs, at.len())) {
            Ok(signs) => told.extend(at.into_iter().zip(signs.into_iter().map(Into::into))),
            Err(error) => {
                // A place that is wrongly configured does not come back by itself.
                match &error {
                    ComputeError::Configuration(_) => {
                        tracing::warn!(?place, count = at.len(), %error, "it is not told how things are there");
                    }
                    _ => {
                        tracing::debug!(?place, count = at.len(), %error, "it is not told how things are there");
                    }
                }
                failed = Some(error);
            }
        }
    }
    match failed.filter(|_| told.is_empty()) {
        Some(error) => Err(error),
        None => Ok((0..things.len()).map(|at| told.remove(&at).flatten()).collect()),
    }
}

/// Most things of a place that are asked for by themselves in one look; the others wait until these are settled.
const MOST_ASKED: usize = 20;

/// So many of them are asked for at the same time.
const ASKED_AT_ONCE: usize = 8;

/// How long one of them may take, so that all are asked for within [`PLACE_LIMIT`].
const ASK_LIMIT: Duration = Duration::from_secs(5);

/// How things of a place are, of which `listed` finds most in a list. What is new may not be listed yet, and while others end, a page may
/// begin one entry later than the one before it ended: what is missing is asked for by itself (`ask`; `None`: it is gone). Of what does not
/// answer, nothing is told.
pub async fn listed_signs<'k, T, X, P, F>(
    things: Vec<&'k T>,
    listed: impl Fn(&'k T) -> Option<X>,
    ask: impl Fn(&'k T) -> F,
    sign: impl Fn(&'k T, Option<X>) -> Sign<P>,
) -> Vec<Option<Sign<P>>>
where
    F: Future<Output = Result<Option<X>, ComputeError>>,
{
    let mut missing = 0;
    let (ask, sign) = (&ask, &sign);
    let each: Vec<_> = things
        .into_iter()
        .map(|thing| {
            let found = listed(thing);
            missing += usize::from(found.is_none());
            let may_ask = missing <= MOST_ASKED;
            async move {
                if found.is_some() {
                    return Some(sign(thing, found));
                }
                if !may_ask {
                    return None;
                }
                match tokio::time::timeout(ASK_LIMIT, ask(thing)).await {
                    Ok(Ok(told)) => Some(sign(thing, told)),
                    Ok(Err(error)) => {
                        tracing::debug!(%error, "what is not listed is not told of by itself either");
                        None
                    }
                    Err(_) => None,
                }
            }
        })
        .collect();
    stream::iter(each).buffered(ASKED_AT_ONCE).collect().await
}

fn late() -> ComputeError {
    ComputeError::Unclear(format!("no answer within {} s", PLACE_LIMIT.as_secs()))
}

/// An answer about others than those that were asked for tells nothing.
fn whole<O>(signs: Vec<O>, asked: usize) -> Result<Vec<O>, ComputeError> {
    let told = signs.len();
    match told == asked {
        true => Ok(signs),
        false => Err(ComputeError::Unclear(format!(
            "it told of {told} and not of {asked}"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use dstack_compute::CALL_LIMIT;

    use super::*;

    const THINGS: &[(&str, &str)] = &[("b", "1"), ("a", "2"), ("", "3"), ("b", "4"), ("c", "5")];

    fn lost(why: &str) -> Sign<()> {
        Sign::Lost(why.to_owned())
    }

    async fn looked(away: impl Fn(&str) -> bool + Copy) -> Result<Vec<Option<Sign<()>>>, ComputeError> {
        let place = |(place, _): &'static (&'static str, &'static str)| {
            Some(*place).filter(|place| !place.is_empty())
        };
        look_by_place(THINGS, place, |place, things| async move {
            match away(place) {
                true => Err(ComputeError::Unclear(place.to_owned())),
                false => Ok(things.into_iter().map(|(_, name)| lost(name)).collect()),
            }
        })
        .await
    }

    #[tokio::test(start_paused = true)]
    async fn a_place_that_is_away_is_told_nothing_of_and_the_others_are() {
        let all = looked(|_| false).await.unwrap();
        assert_eq!(
            all,
            [
                Some(lost("1")),
                Some(lost("2")),
                None,
                Some(lost("4")),
                Some(lost("5"))
            ]
        );
        let some = looked(|place| place == "b").await.unwrap();
        assert_eq!(some, [None, Some(lost("2")), None, None, Some(lost("5"))]);
        looked(|_| true).await.unwrap_err();
    }

    #[tokio::test(start_paused = true)]
    async fn one_thing_that_cannot_be_asked_for_hides_no_other() {
        let place = |(place, _): &'static (&'static str, &'static str)| Some(*place);
        let told = look_by_place(THINGS, place, |_, things| async move {
            let sign = |(_, name): &(&str, &str)| (*name != "4").then(|| lost(name));
            Ok(things.into_iter().map(sign).collect())
        });
        let told = told.await.unwrap();
        assert_eq!((&told[0], &told[3]), (&Some(lost("1")), &None));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_not_listed_is_asked_for_and_what_hangs_hides_nothing() {
        let things: Vec<usize> = (0..30).collect();
        let asked = Cell::new(0);
        let signs = listed_signs(
            things.iter().collect(),
            |thing| (*thing == 0).then_some("listed"),
            |thing| {
                asked.set(asked.get() + 1);
                async move {
                    match thing {
                        1 => std::future::pending().await,
                        2 => Err(ComputeError::Unclear("500".to_owned())),
                        3 => Ok(None),
                        _ => Ok(Some("asked")),
                    }
                }
            },
            |_, found| match found {
                Some(_) => Sign::Well,
                None => lost("gone"),
            },
        );
        let signs = tokio::time::timeout(PLACE_LIMIT, signs).await.unwrap();
        assert_eq!(asked.get(), MOST_ASKED);
        assert_eq!(
            signs[..5],
            [Some(Sign::Well), None, None, Some(lost("gone")), Some(Sign::Well)]
        );
        assert_eq!((&signs[20], &signs[21]), (&Some(Sign::Well), &None));
    }

    #[tokio::test(start_paused = true)]
    async fn a_place_that_hangs_or_tells_of_others_is_away() {
        let told = look_by_place(
            &["hangs", "more", "well"],
            |place| Some(*place),
            |place, _| async move {
                match place {
                    "hangs" => std::future::pending().await,
                    "more" => Ok(vec![lost("1"), lost("2")]),
                    _ => Ok(vec![Sign::Well]),
                }
            },
        );
        let told = tokio::time::timeout(CALL_LIMIT, told).await.unwrap().unwrap();
        assert_eq!(told, [None, None, Some(Sign::Well)]);
    }
}
