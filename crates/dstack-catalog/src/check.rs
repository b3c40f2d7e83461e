//! The integrity rules a catalogue must keep before it is published.
//!
//! Reference: dstack 0.22.5's catalogue, integrity checks. Each broken rule names the row that breaks it, or says
//! what is missing from the whole.

use std::fmt;

use crate::read::visit_rows;
use crate::{Offer, Provider, ReadError, Table, TableInfo, read_csv};

mod places;
mod providers;

/// A broken rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Provider whose catalogue it is.
    pub provider: Provider,
    /// The zero-based data row that breaks it; `None` when the catalogue as a whole does.
    pub row: Option<usize>,
    /// What is wrong.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.row {
            // The header is line 1, and published files have one line per row.
            Some(row) => write!(f, "{}:{row} (line {}): {}", self.provider, row + 2, self.what),
            None => write!(f, "{}: {}", self.provider, self.what),
        }
    }
}

/// Checks a provider's file: the form of its rows, then what they say.
pub fn check_file(info: TableInfo, csv: &[u8]) -> Result<Vec<Violation>, ReadError> {
    let provider = info.provider;
    let mut violations = check_form(provider, csv)?;
    match read_csv(info, csv) {
        Ok((table, _)) => violations.extend(check_table(&table)),
        // The form check has named every row already.
        Err(ReadError::NoValidRow { .. }) => {}
        Err(error) => return Err(error),
    }
    Ok(violations)
}

/// Checks offers, of a file or just collected.
pub fn check_table(table: &Table) -> Vec<Violation> {
    let mut checks = Checks {
        provider: table.info().provider,
        found: Vec::new(),
    };
    let offers: Vec<Offer<'_>> = table.offers().collect();
    checks.whole(!offers.is_empty(), || "there is no offer".to_owned());
    for offer in &offers {
        check_offer(&mut checks, offer);
    }
    providers::check(&mut checks, &offers);
    checks.found
}

/// Collects broken rules.
struct Checks {
    provider: Provider,
    found: Vec<Violation>,
}

impl Checks {
    fn row(&mut self, holds: bool, offer: &Offer<'_>, what: impl FnOnce() -> String) {
        if !holds {
            self.found.push(Violation {
                provider: self.provider,
                row: Some(offer.row()),
                what: what(),
            });
        }
    }

    fn whole(&mut self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.found.push(Violation {
                provider: self.provider,
                row: None,
                what: what(),
            });
        }
    }
}

fn check_offer(checks: &mut Checks, offer: &Offer<'_>) {
    checks.row(!offer.instance_name().is_empty(), offer, || {
        "instance_name is empty".into()
    });
    checks.row(!offer.location().is_empty(), offer, || "location is empty".into());
    checks.row(offer.price() > 0.0, offer, || {
        format!("price must be above 0, is {}", offer.price())
    });
    checks.row(offer.cpu() > 0, offer, || {
        format!("cpu must be above 0, is {}", offer.cpu())
    });
    checks.row(offer.memory() > 0.0, offer, || {
        format!("memory must be above 0, is {}", offer.memory())
    });
    checks.row(offer.disk_size().is_none_or(|disk| disk > 0.0), offer, || {
        format!(
            "disk_size must be above 0 or empty, is {}",
            offer.disk_size().unwrap_or_default()
        )
    });
    let name = offer.gpu_name().filter(|name| !name.is_empty());
    if offer.gpu_count() > 0 {
        checks.row(name.is_some(), offer, || {
            "gpu_name is missing although gpu_count is above 0".into()
        });
        checks.row(offer.gpu_memory().is_some_and(|gib| gib > 0.0), offer, || {
            "gpu_memory must be above 0 when gpu_count is".into()
        });
        checks.row(offer.gpu_vendor().is_some(), offer, || {
            "gpu_vendor is missing".into()
        });
    } else {
        checks.row(offer.gpu_count() == 0, offer, || {
            format!("gpu_count is {}", offer.gpu_count())
        });
        let none = offer.gpu_name().is_none() && offer.gpu_memory().is_none() && offer.gpu_vendor().is_none();
        checks.row(none, offer, || {
            "gpu_name, gpu_memory or gpu_vendor is set although gpu_count is 0".into()
        });
    }
}

/// Columns that may be empty in a published file.
const MAY_BE_EMPTY: [&str; 5] = ["gpu_name", "gpu_memory", "gpu_vendor", "disk_size", "flags"];

fn check_form(provider: Provider, csv: &[u8]) -> Result<Vec<Violation>, ReadError> {
    let mut violations = Vec::new();
    let mut row = 0;
    visit_rows(csv, |_, fields| {
        let mut complain = |what: String| {
            violations.push(Violation {
                provider,
                row: Some(row),
                what,
            });
        };
        for column in crate::read::COLUMNS {
            match fields.get(column) {
                Ok(text) if text.is_none_or(str::is_empty) && !MAY_BE_EMPTY.contains(&column) => {
                    complain(format!("{column} is empty"));
                }
                Ok(_) => {}
                Err(reason) => complain(reason),
            }
        }
        let has = |column: &str| {
            fields
                .get(column)
                .ok()
                .flatten()
                .is_some_and(|text| !text.is_empty())
        };
        let gpus = fields
            .get("gpu_count")
            .ok()
            .flatten()
            .and_then(|text| text.parse::<i64>().ok());
        if gpus.is_some_and(|gpus| gpus > 0) && !has("gpu_vendor") {
            complain("gpu_vendor is empty although gpu_count is above 0".into());
        }
        if let Ok(Some(spot)) = fields.get("spot")
            && !matches!(spot, "" | "True" | "False")
        {
            complain(format!("spot must be True or False, is {spot:?}"));
        }
        row += 1;
    })?;
    let unreadable = match read_csv(TableInfo::unversioned(provider), csv) {
        Ok((_, warnings)) => warnings,
        Err(_) => return Ok(violations),
    };
    for warning in unreadable.first {
        violations.push(Violation {
            provider,
            row: None,
            what: format!("line {}: {}", warning.line, warning.reason),
        });
    }
    Ok(violations)
}
