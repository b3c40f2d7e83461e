//! What changed between two catalogues.

use std::collections::{BTreeMap, BTreeSet};

use crate::{Offer, Provider, Snapshot, Table};

/// A price that changed.
#[derive(Debug, Clone)]
pub struct PriceChange<'a> {
    /// The offer as it is now.
    pub offer: Offer<'a>,
    /// USD per hour before.
    pub before: f64,
}

/// What changed for one provider.
#[derive(Debug)]
pub struct Difference<'a> {
    /// Provider whose offers changed.
    pub provider: Provider,
    /// Offers only the newer catalogue has.
    pub new: Vec<Offer<'a>>,
    /// Offers only the older catalogue has.
    pub gone: Vec<Offer<'a>>,
    /// Offers with another price.
    pub repriced: Vec<PriceChange<'a>>,
}

impl Difference<'_> {
    /// Whether nothing changed.
    pub fn is_empty(&self) -> bool {
        self.new.is_empty() && self.gone.is_empty() && self.repriced.is_empty()
    }
}

/// What makes two offers the same one at possibly different prices.
type Key<'a> = (&'a str, &'a str, bool, i64, Option<&'a str>, String);

fn key<'a>(offer: &Offer<'a>) -> Key<'a> {
    let rest = format!(
        "{:?} {:?}",
        offer.flags().collect::<Vec<_>>(),
        offer.provider_data()
    );
    (
        offer.instance_name(),
        offer.location(),
        offer.spot(),
        offer.gpu_count(),
        offer.gpu_name(),
        rest,
    )
}

/// Compares two catalogues provider by provider; unchanged providers are left out.
pub fn diff<'a>(before: &'a Snapshot, after: &'a Snapshot) -> Vec<Difference<'a>> {
    let differs = |provider: &Provider| {
        let tables = (before.table(*provider), after.table(*provider));
        !matches!(tables, (Some(old), Some(new)) if std::sync::Arc::ptr_eq(old, new))
    };
    Provider::ALL
        .into_iter()
        .filter(differs)
        .map(|provider| {
            diff_tables(
                provider,
                before.table(provider).map(AsRef::as_ref),
                after.table(provider).map(AsRef::as_ref),
            )
        })
        .filter(|difference| !difference.is_empty())
        .collect()
}

fn by_key(table: Option<&Table>) -> BTreeMap<Key<'_>, Vec<Offer<'_>>> {
    let mut offers: BTreeMap<Key<'_>, Vec<Offer<'_>>> = BTreeMap::new();
    for offer in table.into_iter().flat_map(Table::offers) {
        offers.entry(key(&offer)).or_default().push(offer);
    }
    offers
}

fn diff_tables<'a>(
    provider: Provider,
    before: Option<&'a Table>,
    after: Option<&'a Table>,
) -> Difference<'a> {
    let (old, new) = (by_key(before), by_key(after));
    let mut difference = Difference {
        provider,
        new: Vec::new(),
        gone: Vec::new(),
        repriced: Vec::new(),
    };
    for key in old.keys().chain(new.keys()).collect::<BTreeSet<_>>() {
        let empty = Vec::new();
        let (was, is) = (old.get(key).unwrap_or(&empty), new.get(key).unwrap_or(&empty));
        let both = was.len().min(is.len());
        // Several offers under one key (cheapest first in both) are compared one by one.
        difference.repriced.extend(
            was.iter()
                .zip(is)
                .filter(|(was, is)| was.price() != is.price())
                .map(|(was, is)| PriceChange {
                    offer: *is,
                    before: was.price(),
                }),
        );
        difference.gone.extend(was.iter().skip(both));
        difference.new.extend(is.iter().skip(both));
    }
    difference
}
