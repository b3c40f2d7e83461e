//! Reads a provider's published file, leniently: a row that cannot be understood is left out with a warning.

use std::io::{self, Read};

use rustc_hash::FxHashMap;

use crate::item::{ProviderData, cast_arch, cast_vendor};
use crate::records::{Records, split_fields};
use crate::table::{Row, Table, TableBuilder, TableInfo};
use crate::text::{parse_bool, parse_float, parse_int, repr};
use crate::{CpuArch, Provider, Vendor};

/// The columns of a published file, in the order in which they are written.
pub(crate) const COLUMNS: [&str; 14] = [
    "instance_name",
    "location",
    "price",
    "cpu",
    "memory",
    "gpu_count",
    "gpu_name",
    "gpu_memory",
    "spot",
    "disk_size",
    "gpu_vendor",
    "flags",
    "cpu_arch",
    "provider_data",
];

/// Without these a row is no offer.
const REQUIRED: [&str; 7] = [
    "instance_name",
    "location",
    "price",
    "cpu",
    "memory",
    "gpu_count",
    "spot",
];

/// Uncompressed bytes of a file, at most: some seventy times what the largest provider publishes.
pub const MAX_FILE_BYTES: u64 = 256 << 20;

/// Bytes of one field, at most.
const MAX_FIELD: usize = 1 << 17;

/// Warnings kept word for word; the rest is only counted.
const MAX_WARNINGS: usize = 100;

/// Rows that were left out while reading.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Warnings {
    /// The first of them: line of the file and reason.
    pub first: Vec<Warning>,
    /// How many there were.
    pub total: usize,
}

/// One row that was left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    /// Provider whose file it is.
    pub provider: Provider,
    /// Line of the file, the header being line 1; of a row over several lines, the last.
    pub line: u64,
    /// What is wrong with it.
    pub reason: String,
}

impl std::fmt::Display for Warning {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Skipping malformed row in {} catalog at line {}: {}",
            self.provider, self.line, self.reason
        )
    }
}

impl Warnings {
    fn add(&mut self, warning: Warning) {
        self.total += 1;
        if self.first.len() < MAX_WARNINGS {
            self.first.push(warning);
        }
    }

    /// Adds those of another file.
    pub fn extend(&mut self, other: Self) {
        self.total += other.total;
        self.first.extend(other.first);
        self.first.truncate(MAX_WARNINGS);
    }

    /// Writes them to the log.
    pub fn log(&self) {
        for warning in &self.first {
            tracing::warn!(catalog.provider = %warning.provider, catalog.line = warning.line, "{warning}");
        }
        if let Some(more) = self.total.checked_sub(self.first.len())
            && more > 0
        {
            tracing::warn!(rows = more, "Skipping more malformed rows");
        }
    }
}

/// A file that holds no catalogue at all.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The bytes could not be read or unpacked.
    #[error("the file cannot be read")]
    Io(#[source] io::Error),
    /// The first line names too few of the columns.
    #[error("{what}: column `{column}` is missing in the first line")]
    MissingColumn {
        /// What the file looks like.
        what: &'static str,
        /// A required column it lacks.
        column: &'static str,
    },
    /// More than [`MAX_FILE_BYTES`].
    #[error("the file is larger than {} MiB uncompressed: not a catalogue", MAX_FILE_BYTES >> 20)]
    TooLarge,
    /// There are rows, but none can be understood.
    #[error("none of the {rows} rows can be understood; the first: {first}")]
    NoValidRow {
        /// How many there are.
        rows: usize,
        /// What is wrong with the first.
        first: String,
    },
}

/// Reads a provider's CSV file. Keeps the order of the rows. An empty file gives an empty table.
pub fn read_csv(info: TableInfo, source: impl Read) -> Result<(Table, Warnings), ReadError> {
    let provider = info.provider;
    let mut source = Limited {
        source,
        left: MAX_FILE_BYTES,
        exceeded: false,
    };
    let mut reader = Reader::new(provider);
    let result = reader.read_all(&mut source);
    if source.exceeded {
        return Err(ReadError::TooLarge);
    }
    result?;
    if reader.builder.len() == 0
        && let Some(first) = reader.warnings.first.first()
    {
        return Err(ReadError::NoValidRow {
            rows: reader.warnings.total,
            first: first.reason.clone(),
        });
    }
    Ok((reader.builder.finish(info), reader.warnings))
}

/// Ends the stream when too much has come out of it, and remembers that.
struct Limited<R> {
    source: R,
    left: u64,
    exceeded: bool,
}

impl<R: Read> Read for Limited<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.exceeded {
            return Ok(0);
        }
        let count = self.source.read(buffer)?;
        match self.left.checked_sub(count as u64) {
            Some(left) => self.left = left,
            None => {
                self.exceeded = true;
                return Ok(0);
            }
        }
        Ok(count)
    }
}

struct Reader {
    provider: Provider,
    builder: TableBuilder,
    warnings: Warnings,
    /// Shapes by the raw bytes of name and of everything behind the price.
    known: FxHashMap<Box<[u8]>, u32>,
    key: Vec<u8>,
    last_key: Vec<u8>,
    last_shape: u32,
    text: Vec<u8>,
    ends: Vec<usize>,
}

impl Reader {
    fn new(provider: Provider) -> Self {
        Self {
            provider,
            builder: TableBuilder::new(),
            warnings: Warnings::default(),
            known: FxHashMap::default(),
            key: Vec::new(),
            last_key: Vec::new(),
            last_shape: 0,
            text: Vec::new(),
            ends: Vec::new(),
        }
    }

    fn read_all(&mut self, source: impl Read) -> Result<(), ReadError> {
        let mut records = Records::new(source);
        let Some(header) = records.next().map_err(ReadError::Io)? else {
            return Ok(());
        };
        let header = Header::read(records.bytes(&header))?;
        while let Some(record) = records.next().map_err(ReadError::Io)? {
            let outcome = if record.too_long {
                Err("the row is longer than 1 MiB".to_owned())
            } else {
                self.read_row(&header, records.bytes(&record))
            };
            if let Err(reason) = outcome {
                self.builder.skip_row();
                self.warnings.add(Warning {
                    provider: self.provider,
                    line: record.line,
                    reason,
                });
            }
        }
        Ok(())
    }

    fn read_row(&mut self, header: &Header, record: &[u8]) -> Result<(), String> {
        let parts = if header.usual { split_usual(record) } else { None };
        let Some((name, location, price, rest)) = parts else {
            self.read_fields(header, record)?;
            return Ok(());
        };
        self.key.clear();
        self.key.extend_from_slice(name);
        self.key.push(b',');
        self.key.extend_from_slice(rest);
        let known = if self.key == self.last_key {
            Some(self.last_shape)
        } else {
            self.known.get(self.key.as_slice()).copied()
        };
        // Only location and price can be wrong in a row whose other fields were seen before.
        let shape = match (known, plain_float(price), plain_text(location)) {
            (Some(shape), Some(price), Some(location)) => {
                self.builder.push_known(shape, location, price);
                shape
            }
            _ => self.read_fields(header, record)?,
        };
        if known.is_none() && self.builder.text_bytes() < (64 << 20) {
            self.known.insert(self.key.as_slice().into(), shape);
        }
        std::mem::swap(&mut self.key, &mut self.last_key);
        self.last_shape = shape;
        Ok(())
    }

    fn read_fields(&mut self, header: &Header, record: &[u8]) -> Result<u32, String> {
        split_fields(record, &mut self.text, &mut self.ends);
        let fields = Fields {
            header,
            text: &self.text,
            ends: &self.ends,
        };
        fields.check()?;
        push_row(&mut self.builder, &fields)
    }
}

type Usual<'a> = (&'a [u8], &'a [u8], &'a [u8], &'a [u8]);

/// Name, location, price, and the rest of a row whose first three fields carry no quotes.
fn split_usual(record: &[u8]) -> Option<Usual<'_>> {
    let (name, rest) = cut(record)?;
    let (location, rest) = cut(rest)?;
    let (price, rest) = cut(rest)?;
    let head = record.get(..record.len() - rest.len())?;
    memchr::memchr(b'"', head)
        .is_none()
        .then_some((name, location, price, rest))
}

/// What stands before and behind the first comma.
fn cut(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let comma = memchr::memchr(b',', bytes)?;
    Some((bytes.get(..comma)?, bytes.get(comma + 1..)?))
}

/// A price in its usual form; anything else goes the careful way.
fn plain_float(bytes: &[u8]) -> Option<f64> {
    let usual = bytes.iter().all(|byte| byte.is_ascii_digit() || *byte == b'.');
    if !usual {
        return None;
    }
    std::str::from_utf8(bytes).ok()?.parse().ok()
}

fn plain_text(bytes: &[u8]) -> Option<&str> {
    if bytes.is_empty() || bytes.len() > MAX_FIELD {
        None
    } else {
        std::str::from_utf8(bytes).ok()
    }
}

/// Where each known column stands.
struct Header {
    positions: [Option<usize>; COLUMNS.len()],
    /// The first three columns are name, location and price, and each column stands only once.
    usual: bool,
}

impl Header {
    fn read(record: &[u8]) -> Result<Self, ReadError> {
        let (mut text, mut ends) = (Vec::new(), Vec::new());
        let record = record.strip_prefix(b"\xef\xbb\xbf").unwrap_or(record);
        split_fields(record, &mut text, &mut ends);
        let mut positions = [None; COLUMNS.len()];
        let mut start = 0;
        for (at, end) in ends.iter().enumerate() {
            let name = text.get(start..*end).unwrap_or(&[]);
            start = *end;
            let column = COLUMNS.iter().position(|column| column.as_bytes() == name);
            if let Some(slot) = column.and_then(|column| positions.get_mut(column)) {
                *slot = Some(at);
            }
        }
        let header = Self {
            positions,
            usual: positions.starts_with(&[Some(0), Some(1), Some(2)]),
        };
        match REQUIRED
            .into_iter()
            .find(|column| header.position(column).is_none())
        {
            Some(column) => Err(ReadError::MissingColumn {
                what: looks_like(record),
                column,
            }),
            None => Ok(header),
        }
    }

    fn position(&self, column: &str) -> Option<usize> {
        let known = COLUMNS.iter().position(|known| *known == column)?;
        *self.positions.get(known)?
    }
}

fn looks_like(first_line: &[u8]) -> &'static str {
    let start = first_line.trim_ascii_start();
    match start.first() {
        Some(b'<') => "this is a web page or XML, not a catalogue",
        Some(b'{' | b'[') => "this is JSON, not a catalogue",
        _ if start.starts_with(b"PK") => "this is a zip archive, not a CSV file",
        _ => "this is not a catalogue",
    }
}

/// Calls `visit` with line number and fields of every data row, whether it can be understood or not.
pub(crate) fn visit_rows(
    source: impl Read,
    mut visit: impl FnMut(u64, &Fields<'_>),
) -> Result<(), ReadError> {
    let mut records = Records::new(source);
    let Some(header) = records.next().map_err(ReadError::Io)? else {
        return Ok(());
    };
    let header = Header::read(records.bytes(&header))?;
    let (mut text, mut ends) = (Vec::new(), Vec::new());
    while let Some(record) = records.next().map_err(ReadError::Io)? {
        split_fields(records.bytes(&record), &mut text, &mut ends);
        visit(
            record.line,
            &Fields {
                header: &header,
                text: &text,
                ends: &ends,
            },
        );
    }
    Ok(())
}

/// The fields of one row.
pub(crate) struct Fields<'a> {
    header: &'a Header,
    text: &'a [u8],
    ends: &'a [usize],
}

impl<'a> Fields<'a> {
    fn check(&self) -> Result<(), String> {
        let mut start = 0;
        for end in self.ends {
            if end - start > MAX_FIELD {
                return Err(format!("field larger than field limit ({MAX_FIELD})"));
            }
            start = *end;
        }
        Ok(())
    }

    /// A field's text; `None` when the row or the file has no such column.
    pub(crate) fn get(&self, column: &str) -> Result<Option<&'a str>, String> {
        let Some(at) = self.header.position(column) else {
            return Ok(None);
        };
        let Some(end) = self.ends.get(at) else {
            return Ok(None);
        };
        let start = at
            .checked_sub(1)
            .and_then(|before| self.ends.get(before))
            .copied()
            .unwrap_or(0);
        let bytes = self.text.get(start..*end).unwrap_or(&[]);
        let text = std::str::from_utf8(bytes)
            .map_err(|_| format!("Cannot parse field {}: not UTF-8", repr(column)))?;
        Ok(Some(text))
    }

    fn required(&self, column: &str) -> Result<&'a str, String> {
        match self.get(column)? {
            None => Err(format!("Required field {} is missing", repr(column))),
            Some("") => Err(format!("Required field {} is empty", repr(column))),
            Some(text) => Ok(text),
        }
    }

    fn optional(&self, column: &str) -> Result<Option<&'a str>, String> {
        Ok(self.get(column)?.filter(|text| !text.is_empty()))
    }

    fn parsed<T>(&self, column: &str, parse: fn(&str) -> Result<T, String>) -> Result<T, String> {
        parse(self.required(column)?)
            .map_err(|reason| format!("Cannot parse field {}: {reason}", repr(column)))
    }

    fn float(&self, column: &str) -> Result<Option<f64>, String> {
        self.optional(column)?
            .map(|text| {
                parse_float(text).map_err(|reason| format!("Cannot parse field {}: {reason}", repr(column)))
            })
            .transpose()
    }
}

/// Reads a row field by field; the first complaint counts, in the order of the reference.
fn push_row(builder: &mut TableBuilder, fields: &Fields<'_>) -> Result<u32, String> {
    let gpu_count = fields.parsed("gpu_count", parse_int)?;
    let (gpu_name, gpu_vendor) = backfill(
        gpu_count,
        fields.optional("gpu_name")?,
        fields.optional("gpu_vendor")?.map(cast_vendor).transpose()?,
    );
    let cpu_arch = fields.optional("cpu_arch")?.map_or(Ok(CpuArch::X86), cast_arch)?;
    let row = Row {
        instance_name: fields.required("instance_name")?,
        location: fields.required("location")?,
        price: fields.parsed("price", parse_float)?,
        cpu: fields.parsed("cpu", parse_int)?,
        memory: fields.parsed("memory", parse_float)?,
        gpu_count,
        gpu_name,
        gpu_memory: fields.float("gpu_memory")?,
        spot: fields.parsed("spot", parse_bool)?,
        disk_size: fields.float("disk_size")?,
        gpu_vendor,
        flags: &fields
            .get("flags")?
            .unwrap_or("")
            .split_whitespace()
            .collect::<Vec<_>>(),
        cpu_arch,
        provider_data: fields.optional("provider_data")?.unwrap_or("{}"),
    };
    if row.provider_data != "{}" {
        ProviderData::from_text(row.provider_data).map_err(|error| error.to_string())?;
    }
    Ok(builder.push(row))
}

/// Files older than the vendor column mark TPUs in the name and mean NVIDIA otherwise.
fn backfill(
    gpu_count: i64,
    gpu_name: Option<&str>,
    vendor: Option<Vendor>,
) -> (Option<&str>, Option<Vendor>) {
    match gpu_name.and_then(|name| name.strip_prefix("tpu-")) {
        Some(name) => (Some(name), vendor.or(Some(Vendor::Google))),
        None if gpu_count != 0 => (gpu_name, vendor.or(Some(Vendor::Nvidia))),
        None => (gpu_name, vendor),
    }
}
