//! `dstack catalog diff`.

use clap::Args;
use serde_json::json;

use super::{CliError, Format, Output, open_named};
use crate::{Difference, Offer, diff};

#[derive(Debug, Args)]
pub(super) struct DiffArgs {
    /// The older catalog: a directory, a zip with all providers, `builtin`, or `current`
    before: String,
    /// The newer catalog, likewise
    #[arg(default_value = "current")]
    after: String,
    /// Output format
    #[arg(long, value_enum, default_value = "table")]
    format: Format,
    /// Only counts, provider by provider
    #[arg(long)]
    summary: bool,
}

pub(super) fn run(args: &DiffArgs, output: &mut Output<'_>) -> Result<u8, CliError> {
    let before = open_named(&args.before, output)?;
    let after = open_named(&args.after, output)?;
    let differences = diff(&before, &after);
    for difference in &differences {
        match (args.summary, args.format) {
            (true, _) => print_summary(difference, output)?,
            (false, Format::Table) => {
                print_text(difference, output)?;
                print_summary(difference, output)?;
            }
            (false, Format::Csv) => print_rows(difference, output, false)?,
            (false, Format::Json) => print_rows(difference, output, true)?,
        }
    }
    if differences.is_empty() && args.format == Format::Table {
        writeln!(output.out, "no difference")?;
    }
    Ok(0)
}

fn print_summary(difference: &Difference<'_>, output: &mut Output<'_>) -> Result<(), CliError> {
    writeln!(
        output.out,
        "{}: {} new, {} gone, {} repriced",
        difference.provider,
        difference.new.len(),
        difference.gone.len(),
        difference.repriced.len()
    )?;
    Ok(())
}

fn describe(offer: &Offer<'_>) -> String {
    let spot = if offer.spot() { " spot" } else { "" };
    format!(
        "{} {} {}{spot}",
        offer.provider(),
        offer.instance_name(),
        offer.location()
    )
}

fn print_text(difference: &Difference<'_>, output: &mut Output<'_>) -> Result<(), CliError> {
    for offer in &difference.gone {
        writeln!(output.out, "- {} ${}", describe(offer), offer.price())?;
    }
    for offer in &difference.new {
        writeln!(output.out, "+ {} ${}", describe(offer), offer.price())?;
    }
    for change in &difference.repriced {
        let percent = (change.offer.price() / change.before - 1.0) * 100.0;
        writeln!(
            output.out,
            "~ {} ${} -> ${} ({percent:+.1}%)",
            describe(&change.offer),
            change.before,
            change.offer.price()
        )?;
    }
    Ok(())
}

fn print_rows(difference: &Difference<'_>, output: &mut Output<'_>, as_json: bool) -> Result<(), CliError> {
    let gone = difference
        .gone
        .iter()
        .map(|offer| ("gone", offer, Some(offer.price()), None));
    let new = difference
        .new
        .iter()
        .map(|offer| ("new", offer, None, Some(offer.price())));
    let repriced = difference.repriced.iter().map(|change| {
        (
            "repriced",
            &change.offer,
            Some(change.before),
            Some(change.offer.price()),
        )
    });
    for (kind, offer, before, after) in gone.chain(new).chain(repriced) {
        if as_json {
            let line = json!({
                "change": kind,
                "provider": offer.provider().name(),
                "instance_name": offer.instance_name(),
                "location": offer.location(),
                "spot": offer.spot(),
                "before": before,
                "after": after,
            });
            writeln!(output.out, "{line}")?;
        } else {
            let price = |price: Option<f64>| price.map_or_else(String::new, |price| price.to_string());
            let row = [
                kind.to_owned(),
                offer.provider().name().to_owned(),
                offer.instance_name().to_owned(),
                offer.location().to_owned(),
                offer.spot().to_string(),
                price(before),
                price(after),
            ];
            crate::write::write_record(&mut output.out, row.into_iter().map(Into::into))?;
        }
    }
    Ok(())
}
