//! A complete, unchanging catalogue: at most one table per provider.

use std::sync::Arc;

use crate::query::{Offers, Wanted};
use crate::table::Table;
use crate::{Filter, FilterError, Offer, Provider};

/// A complete, unchanging catalogue. Cheap to clone: tables are shared.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    tables: [Option<Arc<Table>>; Provider::COUNT + 1],
}

impl Snapshot {
    /// A catalogue of the given tables; of two tables of one provider the later counts.
    pub fn new(tables: impl IntoIterator<Item = Arc<Table>>) -> Self {
        let mut snapshot = Self::default();
        for table in tables {
            snapshot.insert(table);
        }
        snapshot
    }

    /// Puts a table in, replacing that of the same provider.
    pub fn insert(&mut self, table: Arc<Table>) {
        let at = table.info().provider.index();
        if let Some(slot) = self.tables.get_mut(at) {
            *slot = Some(table);
        }
    }

    /// The table of a provider.
    pub fn table(&self, provider: Provider) -> Option<&Arc<Table>> {
        self.tables.get(provider.index())?.as_ref()
    }

    /// All tables, in the order of equal prices.
    pub fn tables(&self) -> impl Iterator<Item = &Arc<Table>> {
        self.tables.iter().flatten()
    }

    /// How many offers all tables hold.
    pub fn len(&self) -> usize {
        self.tables().map(|table| table.len()).sum()
    }

    /// Whether no table holds an offer.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes held by the tables.
    pub fn size_bytes(&self) -> usize {
        self.tables().map(|table| table.size_bytes()).sum()
    }

    /// The offers that match, in order, found as they are asked for. Does no I/O and never waits.
    ///
    /// A published provider without a table has no offers; a provider queried live that the filter names must have
    /// one, else [`FilterError::NotLoaded`].
    pub fn query(&self, filter: &Filter) -> Result<Offers<'_>, FilterError> {
        let chosen = filter.providers()?;
        if let Some(chosen) = &chosen
            && let Some(missing) = chosen
                .iter()
                .find(|provider| provider.is_online() && self.table(**provider).is_none())
        {
            return Err(FilterError::NotLoaded(missing.name().to_owned()));
        }
        let wanted = Wanted::new(filter);
        let tables = self.tables().map(AsRef::as_ref).filter(|table: &&Table| {
            chosen
                .as_ref()
                .is_none_or(|chosen| chosen.contains(&table.info().provider))
        });
        Ok(Offers::new(tables, &wanted))
    }

    /// The offer of a reference such as `aws:12`, if this catalogue has it.
    pub fn offer(&self, reference: &str) -> Option<Offer<'_>> {
        let (name, row) = reference.split_once(':')?;
        let row: usize = row.parse().ok()?;
        self.table(Provider::from_name(name)?)?.offer_of_row(row)
    }
}
