//! Writes offers in the published format.

use std::borrow::Cow;
use std::io::{self, Write};

use crate::read::COLUMNS;
use crate::text::float_text;
use crate::{Offer, Vendor};

/// Writes the header and one row per offer.
pub fn write_csv<'a>(offers: impl IntoIterator<Item = Offer<'a>>, mut out: impl Write) -> io::Result<()> {
    write_record(&mut out, COLUMNS.iter().map(|column| Cow::Borrowed(*column)))?;
    for offer in offers {
        write_record(&mut out, fields(&offer).into_iter())?;
    }
    out.flush()
}

/// The fields of an offer as text, in the order of the columns.
pub(crate) fn fields<'a>(offer: &Offer<'a>) -> [Cow<'a, str>; COLUMNS.len()] {
    let optional = |value: Option<f64>| value.map_or(Cow::Borrowed(""), |value| float_text(value).into());
    [
        offer.instance_name().into(),
        offer.location().into(),
        float_text(offer.price()).into(),
        offer.cpu().to_string().into(),
        float_text(offer.memory()).into(),
        offer.gpu_count().to_string().into(),
        offer.gpu_name().unwrap_or_default().into(),
        optional(offer.gpu_memory()),
        if offer.spot() { "True" } else { "False" }.into(),
        optional(offer.disk_size()),
        offer.gpu_vendor().map_or("", Vendor::as_str).into(),
        offer.flags().collect::<Vec<_>>().join(" ").into(),
        offer.cpu_arch().as_str().into(),
        offer.provider_data().into(),
    ]
}

/// Writes one CSV record, quoting only where needed.
pub(crate) fn write_record<'a>(
    out: &mut impl Write,
    fields: impl Iterator<Item = Cow<'a, str>>,
) -> io::Result<()> {
    for (at, field) in fields.enumerate() {
        if at > 0 {
            out.write_all(b",")?;
        }
        if field.contains([',', '"', '\r', '\n']) {
            write!(out, "\"{}\"", field.replace('"', "\"\""))?;
        } else {
            out.write_all(field.as_bytes())?;
        }
    }
    out.write_all(b"\r\n")
}
