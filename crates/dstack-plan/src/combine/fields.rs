//! How two values of one field become one.

use std::fmt::Display;

use dstack_units::Range;

use super::Conflict;

/// One of them, or what `combine` makes of both.
pub(super) fn both<T>(a: Option<T>, b: Option<T>, combine: impl FnOnce(T, T) -> T) -> Option<T> {
    match (a, b) {
        (Some(a), Some(b)) => Some(combine(a, b)),
        (a, b) => a.or(b),
    }
}

pub(super) fn smaller<T: PartialOrd>(a: Option<T>, b: Option<T>) -> Option<T> {
    both(a, b, |a, b| if b < a { b } else { a })
}

pub(super) fn larger<T: PartialOrd>(a: Option<T>, b: Option<T>) -> Option<T> {
    both(a, b, |a, b| if b > a { b } else { a })
}

/// Items of the fleet that the run names, too. May be nothing, which is not the same as unset.
pub(super) fn intersection<T: Clone>(
    fleet: Option<&[T]>,
    run: Option<&[T]>,
    same: impl Fn(&T, &T) -> bool,
) -> Option<Vec<T>> {
    match (fleet, run) {
        (Some(fleet), Some(run)) => Some(
            fleet
                .iter()
                .filter(|item| run.iter().any(|other| same(item, other)))
                .cloned()
                .collect(),
        ),
        (a, b) => a.or(b).map(<[T]>::to_vec),
    }
}

/// The same for names in any case.
pub(super) fn names(fleet: Option<&[String]>, run: Option<&[String]>) -> Option<Vec<String>> {
    intersection(fleet, run, |a, b| a.to_lowercase() == b.to_lowercase())
}

/// Must be the same if both are set.
pub(super) fn equal<T: Clone + PartialEq + Display>(
    field: &'static str,
    fleet: Option<&T>,
    run: Option<&T>,
) -> Result<Option<T>, Conflict> {
    match (fleet, run) {
        (Some(fleet), Some(run)) if fleet != run => Err(conflict(field, fleet, run)),
        (fleet, run) => Ok(fleet.or(run).cloned()),
    }
}

/// What both ranges contain.
pub(super) fn narrowed<T: PartialOrd + Copy + Display>(
    field: &'static str,
    fleet: Range<T>,
    run: Range<T>,
) -> Result<Range<T>, Conflict> {
    fleet.intersect(&run).ok_or_else(|| conflict(field, &fleet, &run))
}

fn conflict(field: &'static str, fleet: &impl Display, run: &impl Display) -> Conflict {
    Conflict {
        field,
        fleet: fleet.to_string(),
        run: run.to_string(),
    }
}
