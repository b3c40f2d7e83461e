//! A table as bytes: the form of the compiled-in snapshot.
//!
//! Little-endian columns behind a header, all lengths first; unsigned 32-bit unless said otherwise. Reading checks
//! every number that is used as a position, so that bytes from elsewhere cannot do more than be refused.

use dstack_units::Time;

use super::builder::{ascending, capability, postings};
use super::{Origin, Shape, Spec, Table, TableInfo};
use crate::texts::Texts;
use crate::{CpuArch, Provider, Vendor};

const MAGIC: &[u8; 8] = b"dstkcat1";
const NONE: u32 = u32::MAX;

/// The bytes are no table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BinaryError {
    /// They do not begin as a table does.
    #[error("not a catalogue table")]
    NotATable,
    /// They end too early.
    #[error("the catalogue table is cut short")]
    Truncated,
    /// A number in them is out of its range.
    #[error("the catalogue table contradicts itself ({0})")]
    Invalid(&'static str),
}

impl Table {
    /// Writes the table as bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend_from_slice(MAGIC);
        let (texts, ends) = self.texts.parts();
        put_text(&mut out, self.info.provider.name());
        put_text(&mut out, &self.info.version);
        out.extend_from_slice(&self.info.as_of.map_or(i64::MIN, Time::as_micros).to_le_bytes());
        for count in [
            ends.len(),
            self.specs.len(),
            self.shapes.len(),
            self.len(),
            self.gaps.len(),
        ] {
            put(&mut out, count as u32);
        }
        put_text(&mut out, texts);
        put_all(&mut out, ends);
        for spec in &self.specs {
            put_spec(&mut out, spec);
        }
        for shape in &self.shapes {
            put_all(&mut out, &[shape.instance_name, shape.provider_data, shape.spec]);
        }
        for price in &self.prices {
            out.extend_from_slice(&price.to_le_bytes());
        }
        put_all(&mut out, &self.row_shapes);
        put_all(&mut out, &self.row_locations);
        put_all(&mut out, &self.gaps);
        out
    }

    /// Reads a table from the front of `bytes`; returns it with the bytes behind it.
    pub fn from_bytes(bytes: &[u8], origin: Origin) -> Result<(Self, &[u8]), BinaryError> {
        let mut input = Input(bytes);
        if input.take(MAGIC.len())? != MAGIC {
            return Err(BinaryError::NotATable);
        }
        let provider = Provider::from_name(input.text()?).ok_or(BinaryError::Invalid("provider"))?;
        let version = input.text()?.to_owned();
        let micros = input.i64()?;
        let as_of = (micros != i64::MIN).then(|| Time::from_micros(micros));
        let counts = [
            input.u32()?,
            input.u32()?,
            input.u32()?,
            input.u32()?,
            input.u32()?,
        ];
        let [text_count, spec_count, shape_count, rows, gap_count] = counts.map(|count| count as usize);
        let all = input.text()?.to_owned();
        let texts =
            Texts::from_parts(all, input.numbers(text_count)?).ok_or(BinaryError::Invalid("texts"))?;
        let mut specs = Vec::new();
        for _ in 0..spec_count {
            specs.push(input.spec(&texts)?);
        }
        let mut shapes = Vec::new();
        for _ in 0..shape_count {
            shapes.push(Shape {
                instance_name: input.below(texts.len())?,
                provider_data: input.below(texts.len())?,
                spec: input.below(specs.len())?,
            });
        }
        let prices = input.floats(rows)?;
        let row_shapes = input.numbers(rows)?;
        let row_locations = input.numbers(rows)?;
        let gaps = input.numbers(gap_count)?;
        let fits = |numbers: &[u32], bound: usize| numbers.iter().all(|number| (*number as usize) < bound);
        if !fits(&row_shapes, shapes.len()) || !fits(&row_locations, texts.len()) || !gaps.is_sorted() {
            return Err(BinaryError::Invalid("rows"));
        }
        let (starts, postings) = postings(&row_shapes, shapes.len());
        let table = Self {
            info: TableInfo {
                provider,
                version,
                origin,
                as_of,
            },
            texts,
            specs: specs.into(),
            shapes: shapes.into(),
            sorted: ascending(&prices),
            prices: prices.into(),
            row_shapes: row_shapes.into(),
            row_locations: row_locations.into(),
            gaps: gaps.into(),
            starts,
            postings,
        };
        Ok((table, input.0))
    }
}

fn put(out: &mut Vec<u8>, number: u32) {
    out.extend_from_slice(&number.to_le_bytes());
}

fn put_all(out: &mut Vec<u8>, numbers: &[u32]) {
    for number in numbers {
        put(out, *number);
    }
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    put(out, text.len() as u32);
    out.extend_from_slice(text.as_bytes());
}

/// Set in a spec's switches when the optional value follows.
mod switch {
    pub(super) const SPOT: u32 = 1;
    pub(super) const ARM: u32 = 2;
    pub(super) const GPU_MEMORY: u32 = 4;
    pub(super) const DISK: u32 = 8;
}

fn put_spec(out: &mut Vec<u8>, spec: &Spec) {
    let on = |condition: bool, bit: u32| if condition { bit } else { 0 };
    put(
        out,
        on(spec.spot, switch::SPOT)
            | on(spec.cpu_arch == CpuArch::Arm, switch::ARM)
            | on(spec.gpu_memory.is_some(), switch::GPU_MEMORY)
            | on(spec.disk_size.is_some(), switch::DISK),
    );
    out.extend_from_slice(&spec.cpu.to_le_bytes());
    out.extend_from_slice(&spec.memory.to_le_bytes());
    out.extend_from_slice(&spec.gpu_count.to_le_bytes());
    put(out, spec.gpu_name.unwrap_or(NONE));
    let vendor = spec
        .gpu_vendor
        .and_then(|vendor| Vendor::ALL.iter().position(|known| *known == vendor));
    put(out, vendor.map_or(NONE, |at| at as u32));
    for value in [spec.gpu_memory, spec.disk_size].into_iter().flatten() {
        out.extend_from_slice(&value.to_le_bytes());
    }
    put(out, spec.flags.len() as u32);
    put_all(out, &spec.flags);
}

struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], BinaryError> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(BinaryError::Truncated)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], BinaryError> {
        self.take(N)?.try_into().map_err(|_| BinaryError::Truncated)
    }

    fn u32(&mut self) -> Result<u32, BinaryError> {
        self.array().map(u32::from_le_bytes)
    }

    fn i64(&mut self) -> Result<i64, BinaryError> {
        self.array().map(i64::from_le_bytes)
    }

    fn f64(&mut self) -> Result<f64, BinaryError> {
        self.array().map(f64::from_le_bytes)
    }

    fn text(&mut self) -> Result<&'a str, BinaryError> {
        let length = self.u32()? as usize;
        std::str::from_utf8(self.take(length)?).map_err(|_| BinaryError::Invalid("not UTF-8"))
    }

    fn numbers(&mut self, count: usize) -> Result<Vec<u32>, BinaryError> {
        let bytes = self.take(count.checked_mul(4).ok_or(BinaryError::Truncated)?)?;
        Ok(bytes
            .as_chunks::<4>()
            .0
            .iter()
            .map(|chunk| u32::from_le_bytes(*chunk))
            .collect())
    }

    fn floats(&mut self, count: usize) -> Result<Vec<f64>, BinaryError> {
        let bytes = self.take(count.checked_mul(8).ok_or(BinaryError::Truncated)?)?;
        Ok(bytes
            .as_chunks::<8>()
            .0
            .iter()
            .map(|chunk| f64::from_le_bytes(*chunk))
            .collect())
    }

    fn below(&mut self, bound: usize) -> Result<u32, BinaryError> {
        let number = self.u32()?;
        if (number as usize) < bound {
            Ok(number)
        } else {
            Err(BinaryError::Invalid("position"))
        }
    }

    fn spec(&mut self, texts: &Texts) -> Result<Spec, BinaryError> {
        let switches = self.u32()?;
        let (cpu, memory, gpu_count) = (self.i64()?, self.f64()?, self.i64()?);
        let gpu_name = match self.u32()? {
            NONE => None,
            id if (id as usize) < texts.len() => Some(id),
            _ => return Err(BinaryError::Invalid("name")),
        };
        let gpu_vendor = match self.u32()? {
            NONE => None,
            at => Some(
                *Vendor::ALL
                    .get(at as usize)
                    .ok_or(BinaryError::Invalid("vendor"))?,
            ),
        };
        let gpu_memory = if switches & switch::GPU_MEMORY != 0 {
            Some(self.f64()?)
        } else {
            None
        };
        let disk_size = if switches & switch::DISK != 0 {
            Some(self.f64()?)
        } else {
            None
        };
        let flag_count = self.u32()?;
        let flags = (0..flag_count)
            .map(|_| self.below(texts.len()))
            .collect::<Result<_, _>>()?;
        Ok(Spec {
            cpu,
            memory,
            gpu_count,
            gpu_name,
            gpu_memory,
            gpu_vendor,
            spot: switches & switch::SPOT != 0,
            disk_size,
            cpu_arch: if switches & switch::ARM != 0 {
                CpuArch::Arm
            } else {
                CpuArch::X86
            },
            flags,
            compute_capability: capability(gpu_vendor, gpu_name.map(|id| texts.get(id))),
        })
    }
}
