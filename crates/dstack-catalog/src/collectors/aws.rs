//! EC2: on-demand prices from the public price list, a CSV file of gigabytes.
//!
//! What only account holders are told is not collected here: GPU models come from the catalogue at hand, spot prices
//! are left to the AWS backend.

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use dstack_system::task;
use memchr::memmem::Finder;

use crate::collect::sort_by_price;
use crate::http::Http;
use crate::records::split_fields;
use crate::{CollectContext, CollectError, Item, OfflineProvider, Provider, Snapshot, Vendor, download};

/// Where the price list is.
pub const PRICE_LIST_URL: &str =
    "https://pricing.us-east-1.amazonaws.com/offers/v1.0/aws/AmazonEC2/current/index.csv";

/// Lines of legal text before the header.
const DISCLAIMER: usize = 5;

/// Families that are retired or unlisted.
const RETIRED: [&str; 19] = [
    "a1.", "c1.", "c3.", "c4.", "g2.", "g3.", "g3s.", "g4ad.", "p3.", "i2.", "m1.", "m2.", "m3.", "p2.",
    "r3.", "r4.", "t1.", "cr1.", "hs1.",
];

/// Families that are published.
const PUBLISHED: [&str; 21] = [
    "m7i.", "c7i.", "r7i.", "t3.", "t2.small", "c5.", "m5.", "p6-b300.", "p6-b200.", "p5.", "p5e.", "p5en.",
    "p4d.", "p4de.", "g7.", "g7e.", "g6.", "g6e.", "gr6.", "g5.", "g4dn.",
];

/// What a row must say: column and value.
const KEPT: [(&str, &str); 7] = [
    ("TermType", "OnDemand"),
    ("Tenancy", "Shared"),
    ("Operating System", "Linux"),
    ("CapacityStatus", "Used"),
    ("Unit", "Hrs"),
    ("Currency", "USD"),
    ("MarketOption", "OnDemand"),
];

/// Collects EC2's on-demand offers.
#[derive(Debug)]
pub struct AwsCollector {
    /// Where the price list is.
    pub url: String,
    /// A price list downloaded earlier, used as it is; or where to put it.
    pub cache: Option<PathBuf>,
    /// Where to put it otherwise; none: a temporary directory.
    pub downloads: Option<PathBuf>,
    /// A catalogue that knows the GPUs of instance types.
    pub known: Arc<Snapshot>,
    /// For the download.
    pub http: Arc<Http>,
}

#[async_trait]
impl OfflineProvider for AwsCollector {
    fn provider(&self) -> Provider {
        Provider::Aws
    }

    async fn collect(&self, context: &CollectContext) -> Result<Vec<Item>, CollectError> {
        let temporary =
            tempfile::tempdir().map_err(|source| file_error(Path::new("temporary directory"), source))?;
        let path = match (&self.cache, &self.downloads) {
            (Some(path), _) => path.clone(),
            (None, Some(dir)) => dir.join("ec2-prices.csv"),
            (None, None) => temporary.path().join("ec2-prices.csv"),
        };
        if !path.exists() {
            context.progress.step("aws: downloading the EC2 price list");
            download(&self.http, &self.url, &path, context.progress.as_ref())
                .await
                .map_err(|source| CollectError::Download {
                    provider: Provider::Aws,
                    source,
                })?;
        }
        context.progress.step("aws: reading the EC2 price list");
        let gpus = self.known_gpus();
        let read = task::blocking("catalog.aws", move || read_price_list(&path, &gpus));
        let (mut items, unknown) = read.await.map_err(|_| CollectError::Panicked(Provider::Aws))??;
        for instance in unknown {
            context.progress.warn(&format!(
                "aws: the GPU of {instance} is not known: it is left out"
            ));
        }
        context
            .progress
            .warn("aws: spot prices need an account and are not collected");
        sort_by_price(&mut items);
        Ok(items)
    }

    fn publishes(&self, item: &Item) -> bool {
        PUBLISHED
            .iter()
            .any(|family| item.instance_name.starts_with(family))
    }
}

/// GPU model and GiB by instance type.
type Gpus = HashMap<String, (String, f64)>;

impl AwsCollector {
    fn known_gpus(&self) -> Gpus {
        let mut gpus = Gpus::from([("p4de.24xlarge".to_owned(), ("A100".to_owned(), 80.0))]);
        for offer in self
            .known
            .table(Provider::Aws)
            .into_iter()
            .flat_map(|table| table.offers())
        {
            if let (Some(name), Some(memory)) = (offer.gpu_name(), offer.gpu_memory()) {
                gpus.entry(offer.instance_name().to_owned())
                    .or_insert_with(|| (name.to_owned(), memory));
            }
        }
        gpus
    }
}

fn file_error(path: &Path, source: std::io::Error) -> CollectError {
    CollectError::File {
        path: path.to_owned(),
        source,
    }
}

/// Reads the price list; also returns GPU instance types whose GPU is not known.
fn read_price_list(path: &Path, gpus: &Gpus) -> Result<(Vec<Item>, Vec<String>), CollectError> {
    let failed = |source| file_error(path, source);
    let mut lines = Lines {
        source: BufReader::with_capacity(1 << 20, fs_err::File::open(path).map_err(failed)?),
        line: Vec::new(),
    };
    for _ in 0..DISCLAIMER {
        lines.next().map_err(failed)?;
    }
    let header = lines
        .next()
        .map_err(failed)?
        .map(Columns::read)
        .unwrap_or_default();
    let columns =
        header.ok_or_else(|| CollectError::unexpected(Provider::Aws, "the price list lacks columns"))?;
    // Looking for the quoted values costs little, and all but a few rows in a thousand end here.
    let finders: Vec<Finder<'static>> = KEPT
        .iter()
        .map(|(_, value)| Finder::new(&format!("\"{value}\"")).into_owned())
        .collect();
    let mut items = Vec::new();
    let mut unknown = Vec::new();
    let mut row = Row::default();
    while let Some(line) = lines.next().map_err(failed)? {
        if !finders.iter().all(|finder| finder.find(line).is_some()) {
            continue;
        }
        row.read(line);
        if let Some(mut item) = columns.offer(&row)? {
            if item.gpu_count > 0 {
                match gpus.get(&item.instance_name) {
                    Some((name, memory)) => {
                        item.gpu_name = Some(name.clone());
                        item.gpu_memory = Some(*memory);
                    }
                    None => {
                        unknown.push(item.instance_name);
                        continue;
                    }
                }
            }
            items.push(item);
        }
    }
    unknown.sort_unstable();
    unknown.dedup();
    Ok((items, unknown))
}

struct Lines<R> {
    source: R,
    line: Vec<u8>,
}

impl<R: BufRead> Lines<R> {
    fn next(&mut self) -> std::io::Result<Option<&[u8]>> {
        self.line.clear();
        if self.source.read_until(b'\n', &mut self.line)? == 0 {
            return Ok(None);
        }
        Ok(Some(self.line.trim_ascii_end()))
    }
}

/// The fields of a line.
#[derive(Default)]
struct Row {
    text: Vec<u8>,
    ends: Vec<usize>,
}

impl Row {
    fn read(&mut self, line: &[u8]) {
        split_fields(line, &mut self.text, &mut self.ends);
    }

    fn get(&self, at: usize) -> &str {
        let start = at
            .checked_sub(1)
            .and_then(|before| self.ends.get(before))
            .copied()
            .unwrap_or(0);
        let end = self.ends.get(at).copied().unwrap_or(start);
        self.text
            .get(start..end)
            .and_then(|bytes| std::str::from_utf8(bytes).ok())
            .unwrap_or_default()
    }
}

/// Where the columns stand.
struct Columns {
    kept: [usize; KEPT.len()],
    software: usize,
    instance: usize,
    region: usize,
    price: usize,
    cpus: usize,
    memory: usize,
    gpu: usize,
}

impl Columns {
    fn read(header: &[u8]) -> Option<Self> {
        let mut row = Row::default();
        row.read(header);
        let position = |name: &str| (0..row.ends.len()).find(|at| row.get(*at) == name);
        let mut kept = [0; KEPT.len()];
        for (slot, (name, _)) in kept.iter_mut().zip(KEPT) {
            *slot = position(name)?;
        }
        Some(Self {
            kept,
            software: position("Pre Installed S/W")?,
            instance: position("Instance Type")?,
            region: position("Region Code")?,
            price: position("PricePerUnit")?,
            cpus: position("vCPU")?,
            memory: position("Memory")?,
            gpu: position("GPU")?,
        })
    }

    /// The on-demand offer of a row; `None` when the row is about something else.
    fn offer(&self, row: &Row) -> Result<Option<Item>, CollectError> {
        let wanted = self
            .kept
            .iter()
            .zip(KEPT)
            .all(|(at, (_, value))| row.get(*at) == value)
            && ["", "NA"].contains(&row.get(self.software));
        let instance = row.get(self.instance);
        if !wanted || RETIRED.iter().any(|family| instance.starts_with(family)) {
            return Ok(None);
        }
        let wrong = |what: &str, text: &str| {
            CollectError::unexpected(Provider::Aws, format!("{what} of {instance} is {text:?}"))
        };
        let gpus = match row.get(self.gpu) {
            "" => 0.0,
            text => text.parse::<f64>().map_err(|_| wrong("GPU", text))?,
        };
        if gpus > 0.0 && gpus < 1.0 || row.get(self.gpu) == "0" {
            return Ok(None); // a part of a GPU
        }
        let memory = row.get(self.memory);
        Ok(Some(Item {
            price: row
                .get(self.price)
                .parse()
                .map_err(|_| wrong("price", row.get(self.price)))?,
            cpu: row
                .get(self.cpus)
                .parse()
                .map_err(|_| wrong("vCPU", row.get(self.cpus)))?,
            memory: memory
                .strip_suffix(" GiB")
                .and_then(|gib| gib.parse().ok())
                .ok_or_else(|| wrong("memory", memory))?,
            gpu_count: gpus as i64,
            gpu_vendor: (gpus >= 1.0).then_some(Vendor::Nvidia),
            ..Item::new(Provider::Aws, instance, row.get(self.region))
        }))
    }
}
