//! `dstack catalog query`.

use std::time::Duration;

use clap::Args;
use dstack_units::Memory;
use serde::Serialize;
use serde_json::{Map, Value, value::RawValue};

use super::{CliError, Format, Output, SourceArgs, open_current, plain_table};
use crate::write::{fields, write_record};
use crate::{CpuArch, Filter, FilterError, LiveOptions, Offer, Provider, Vendor, collectors};

#[derive(Debug, Args)]
pub(super) struct QueryArgs {
    #[command(flatten)]
    source: SourceArgs,
    /// The whole filter as a JSON object; the options below add to it
    #[arg(long, value_name = "JSON")]
    filter: Option<String>,
    /// Output format
    #[arg(long, value_enum, default_value = "table")]
    format: Format,
    /// Print at most so many offers
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    /// Also ask the providers that are queried live
    #[arg(long)]
    live: bool,
    /// How long to wait for live providers, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 20)]
    timeout: u64,
    #[command(flatten)]
    constraints: Constraints,
}

/// The constraints of a filter, each as an option of the same name. Kept as text: the filter's own rules judge them.
#[derive(Debug, Args, Serialize)]
struct Constraints {
    /// Only this provider (repeatable)
    #[arg(long, value_name = "NAME")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    provider: Vec<String>,
    /// CPU architecture: x86 or arm
    #[arg(long, value_name = "ARCH")]
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu_arch: Option<String>,
    /// At least so many CPUs
    #[arg(long, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    min_cpu: Option<i64>,
    /// At most so many CPUs
    #[arg(long, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    max_cpu: Option<i64>,
    /// At least so much memory
    #[arg(long, value_name = "GIB", value_parser = gigabytes)]
    #[serde(skip_serializing_if = "Option::is_none")]
    min_memory: Option<f64>,
    /// At most so much memory
    #[arg(long, value_name = "GIB", value_parser = gigabytes)]
    #[serde(skip_serializing_if = "Option::is_none")]
    max_memory: Option<f64>,
    /// At least so many accelerators; 0: offers without any, too
    #[arg(long, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    min_gpu_count: Option<i64>,
    /// At most so many accelerators; 0: only offers without any
    #[arg(long, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    max_gpu_count: Option<i64>,
    /// Only accelerators of this vendor: nvidia, amd, google, intel or tenstorrent
    #[arg(long, value_name = "VENDOR")]
    #[serde(skip_serializing_if = "Option::is_none")]
    gpu_vendor: Option<String>,
    /// Only this accelerator, by its whole name (repeatable)
    #[arg(long, value_name = "NAME")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    gpu_name: Vec<String>,
    /// At least so much memory in each accelerator
    #[arg(long, value_name = "GIB", value_parser = gigabytes)]
    #[serde(skip_serializing_if = "Option::is_none")]
    min_gpu_memory: Option<f64>,
    /// At most so much memory in each accelerator
    #[arg(long, value_name = "GIB", value_parser = gigabytes)]
    #[serde(skip_serializing_if = "Option::is_none")]
    max_gpu_memory: Option<f64>,
    /// At least so much memory in all accelerators together
    #[arg(long, value_name = "GIB", value_parser = gigabytes)]
    #[serde(skip_serializing_if = "Option::is_none")]
    min_total_gpu_memory: Option<f64>,
    /// At most so much memory in all accelerators together
    #[arg(long, value_name = "GIB", value_parser = gigabytes)]
    #[serde(skip_serializing_if = "Option::is_none")]
    max_total_gpu_memory: Option<f64>,
    /// At least so large a disk, where it has a fixed size
    #[arg(long, value_name = "GB", value_parser = gigabytes)]
    #[serde(skip_serializing_if = "Option::is_none")]
    min_disk_size: Option<f64>,
    /// At most so large a disk, where it has a fixed size
    #[arg(long, value_name = "GB", value_parser = gigabytes)]
    #[serde(skip_serializing_if = "Option::is_none")]
    max_disk_size: Option<f64>,
    /// At least this price per hour
    #[arg(long, value_name = "USD")]
    #[serde(skip_serializing_if = "Option::is_none")]
    min_price: Option<f64>,
    /// At most this price per hour
    #[arg(long, value_name = "USD")]
    #[serde(skip_serializing_if = "Option::is_none")]
    max_price: Option<f64>,
    /// At least this CUDA compute capability, such as 8.6
    #[arg(long, value_name = "X.Y")]
    #[serde(skip_serializing_if = "Option::is_none")]
    min_compute_capability: Option<String>,
    /// At most this CUDA compute capability, such as 8.6
    #[arg(long, value_name = "X.Y")]
    #[serde(skip_serializing_if = "Option::is_none")]
    max_compute_capability: Option<String>,
    /// `true`: only spot offers; `false`: only on-demand offers
    #[arg(long, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    #[serde(skip_serializing_if = "Option::is_none")]
    spot: Option<bool>,
    /// Allow offers with this flag (repeatable); without any, all are allowed. `--allowed-flags ""`: no flagged offers
    #[arg(long, value_name = "FLAG", value_delimiter = ',')]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    allowed_flags: Vec<String>,
}

impl QueryArgs {
    fn filter(&self) -> Result<Filter, CliError> {
        let mut fields = match &self.filter {
            None => Map::new(),
            Some(text) => match serde_json::from_str(text) {
                Ok(Value::Object(fields)) => fields,
                Ok(other) => return Err(FilterError::NotAnObject(other.to_string()).into()),
                Err(error) => return Err(FilterError::NotAnObject(error.to_string()).into()),
            },
        };
        if let Ok(Value::Object(given)) = serde_json::to_value(&self.constraints) {
            fields.extend(given);
        }
        Ok(Filter::from_json(&Value::Object(fields).to_string())?)
    }
}

pub(super) async fn run(args: QueryArgs, output: &mut Output<'_>) -> Result<u8, CliError> {
    let filter = args.filter()?;
    if args.live {
        return run_live(&args, &filter, output).await;
    }
    let snapshot = args.source.open(output)?;
    let offers = match snapshot.query(&filter) {
        Err(FilterError::NotLoaded(name)) if args.source.dir.is_none() => {
            return Err(CliError::Usage(format!(
                "Provider is not loaded: {name}. It is queried live: add `--live`"
            )));
        }
        other => other?,
    };
    print(offers.take(args.limit.unwrap_or(usize::MAX)), args.format, output)?;
    Ok(0)
}

async fn run_live(args: &QueryArgs, filter: &Filter, output: &mut Output<'_>) -> Result<u8, CliError> {
    let catalog = open_current()?;
    for provider in Provider::online() {
        match collectors::online_from_env(provider) {
            Ok(collector) => catalog.register(collector),
            Err(error) => tracing::debug!(%provider, %error, "Not asked"),
        }
    }
    let options = LiveOptions {
        deadline: Duration::from_secs(args.timeout),
        ..LiveOptions::default()
    };
    let answer = catalog.query_live(filter, options).await?;
    print(
        answer.offers().take(args.limit.unwrap_or(usize::MAX)),
        args.format,
        output,
    )?;
    for problem in &answer.problems {
        let reason = dstack_system::chain(&problem.error);
        writeln!(
            output.err,
            "warning: the offers of {} are missing: {reason}",
            problem.provider
        )?;
    }
    Ok(0)
}

fn print<'a>(
    offers: impl Iterator<Item = Offer<'a>>,
    format: Format,
    output: &mut Output<'_>,
) -> Result<(), CliError> {
    let mut offers = offers.peekable();
    if offers.peek().is_none() {
        writeln!(output.err, "No offers match.")?;
    }
    match format {
        Format::Table => print_table(offers, output),
        Format::Csv => print_csv(offers, output),
        Format::Json => print_json(offers, output),
    }
}

/// A size with or without its unit: `80`, `80GB`, `1.5TB`.
fn gigabytes(text: &str) -> Result<f64, String> {
    let size: Result<Memory, _> = text.parse();
    size.map(Memory::gb)
        .map_err(|_| "write a number of gigabytes, such as 80 or 80GB".to_owned())
}

/// One line of JSON output.
#[derive(Serialize)]
struct Line<'a> {
    r#ref: String,
    provider: Provider,
    instance_name: &'a str,
    location: &'a str,
    price: f64,
    cpu: i64,
    memory: f64,
    gpu_count: i64,
    gpu_name: Option<&'a str>,
    gpu_memory: Option<f64>,
    gpu_vendor: Option<Vendor>,
    spot: bool,
    disk_size: Option<f64>,
    cpu_arch: CpuArch,
    flags: Vec<&'a str>,
    provider_data: Option<&'a RawValue>,
}

fn print_json<'a>(offers: impl Iterator<Item = Offer<'a>>, output: &mut Output<'_>) -> Result<(), CliError> {
    for offer in offers {
        let line = Line {
            r#ref: offer.reference(),
            provider: offer.provider(),
            instance_name: offer.instance_name(),
            location: offer.location(),
            price: offer.price(),
            cpu: offer.cpu(),
            memory: offer.memory(),
            gpu_count: offer.gpu_count(),
            gpu_name: offer.gpu_name(),
            gpu_memory: offer.gpu_memory(),
            gpu_vendor: offer.gpu_vendor(),
            spot: offer.spot(),
            disk_size: offer.disk_size(),
            cpu_arch: offer.cpu_arch(),
            flags: offer.flags().collect(),
            provider_data: serde_json::from_str(offer.provider_data()).ok(),
        };
        let text = serde_json::to_string(&line).map_err(std::io::Error::from)?;
        writeln!(output.out, "{text}")?;
    }
    Ok(())
}

fn print_csv<'a>(offers: impl Iterator<Item = Offer<'a>>, output: &mut Output<'_>) -> Result<(), CliError> {
    let columns = ["ref", "provider"].into_iter().chain(crate::read::COLUMNS);
    write_record(&mut output.out, columns.map(Into::into))?;
    for offer in offers {
        let own = [offer.reference().into(), offer.provider().name().into()];
        write_record(&mut output.out, own.into_iter().chain(fields(&offer)))?;
    }
    Ok(())
}

fn print_table<'a>(offers: impl Iterator<Item = Offer<'a>>, output: &mut Output<'_>) -> Result<(), CliError> {
    let header = [
        "provider", "location", "instance", "cpu", "memory", "disk", "gpu", "spot", "price",
    ];
    let mut table = plain_table(&header);
    for offer in offers {
        let gpu = offer.gpu_name().map_or_else(String::new, |name| {
            let memory = offer
                .gpu_memory()
                .map_or_else(String::new, |gib| format!(":{gib}GB"));
            format!("{name}{memory}:{}", offer.gpu_count())
        });
        table.add_row([
            offer.provider().name().to_owned(),
            offer.location().to_owned(),
            offer.instance_name().to_owned(),
            format!("{} {}", offer.cpu(), offer.cpu_arch()),
            format!("{}GB", offer.memory()),
            offer.disk_size().map_or_else(String::new, |gb| format!("{gb}GB")),
            gpu,
            if offer.spot() { "yes" } else { "no" }.to_owned(),
            format!("${}", offer.price()),
        ]);
    }
    writeln!(output.out, "{table}")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::gigabytes;

    #[test]
    fn sizes_may_have_their_unit() {
        for text in ["80", "80GB", "80 gb"] {
            assert_eq!(gigabytes(text), Ok(80.0), "{text}");
        }
        assert_eq!(gigabytes("1TB"), Ok(1024.0));
        assert_eq!(
            gigabytes("lots"),
            Err("write a number of gigabytes, such as 80 or 80GB".to_owned())
        );
    }
}
