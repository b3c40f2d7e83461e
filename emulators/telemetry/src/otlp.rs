//! What an OpenTelemetry collector was sent.

use std::collections::BTreeMap;

use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point;
use prost::Message;

use crate::Received;

/// Names and values, as text.
pub type Attributes = BTreeMap<String, String>;

/// A span, as it was exported.
#[derive(Debug, Clone)]
pub struct Span {
    pub name: String,
    pub attributes: Attributes,
    /// Who sent it.
    pub resource: Attributes,
    /// Name of what made it.
    pub scope: String,
    /// Of its trace, in hexadecimal.
    pub trace: String,
    /// Its own, in hexadecimal.
    pub id: String,
    /// Of the span it is part of; empty: of none.
    pub parent: String,
    /// 2 is a server's (`SPAN_KIND_SERVER`).
    pub kind: i32,
    /// 2 is an error (`STATUS_CODE_ERROR`).
    pub status: i32,
}

/// A line of the log.
#[derive(Debug, Clone)]
pub struct Record {
    /// The message as text.
    pub body: String,
    /// The level as text.
    pub severity: String,
    /// Attributes of the record, as text.
    pub attributes: Attributes,
    /// Who sent it.
    pub resource: Attributes,
    /// The part of the program that said it.
    pub scope: String,
    /// Of the trace in which it was said; empty: in none.
    pub trace: String,
}

/// A number, with its labels.
#[derive(Debug, Clone)]
pub struct Point {
    /// Of the metric.
    pub name: String,
    /// Of the metric.
    pub unit: String,
    /// Labels of the metric's data point.
    pub attributes: Attributes,
    /// Who sent it.
    pub resource: Attributes,
    /// The number; of a histogram, how many were measured.
    pub value: f64,
}

/// Returns all spans in the requests to `/v1/traces`.
pub fn spans(received: &[Received]) -> Vec<Span> {
    let mut spans = Vec::new();
    for request in decoded::<ExportTraceServiceRequest>(received, "/v1/traces") {
        for of_resource in request.resource_spans {
            let resource = attributes(of_resource.resource.unwrap_or_default().attributes);
            for of_scope in of_resource.scope_spans {
                let scope = of_scope.scope.unwrap_or_default().name;
                spans.extend(of_scope.spans.into_iter().map(|span| Span {
                    name: span.name,
                    attributes: attributes(span.attributes),
                    resource: resource.clone(),
                    scope: scope.clone(),
                    trace: hex(&span.trace_id),
                    id: hex(&span.span_id),
                    parent: hex(&span.parent_span_id),
                    kind: span.kind,
                    status: span.status.map_or(0, |status| status.code),
                }));
            }
        }
    }
    spans
}

/// All lines of the log.
pub fn records(received: &[Received]) -> Vec<Record> {
    let mut records = Vec::new();
    for request in decoded::<ExportLogsServiceRequest>(received, "/v1/logs") {
        for of_resource in request.resource_logs {
            let resource = attributes(of_resource.resource.unwrap_or_default().attributes);
            for of_scope in of_resource.scope_logs {
                let scope = of_scope.scope.unwrap_or_default().name;
                records.extend(of_scope.log_records.into_iter().map(|record| Record {
                    body: text(record.body),
                    severity: record.severity_text,
                    attributes: attributes(record.attributes),
                    resource: resource.clone(),
                    scope: scope.clone(),
                    trace: hex(&record.trace_id),
                }));
            }
        }
    }
    records
}

/// Returns all data points in the requests to `/v1/metrics`.
pub fn points(received: &[Received]) -> Vec<Point> {
    let mut points = Vec::new();
    for request in decoded::<ExportMetricsServiceRequest>(received, "/v1/metrics") {
        for of_resource in request.resource_metrics {
            let resource = attributes(of_resource.resource.unwrap_or_default().attributes);
            for metric in of_resource
                .scope_metrics
                .into_iter()
                .flat_map(|scope| scope.metrics)
            {
                points.extend(numbers(metric.data).into_iter().map(|(labels, value)| Point {
                    name: metric.name.clone(),
                    unit: metric.unit.clone(),
                    attributes: attributes(labels),
                    resource: resource.clone(),
                    value,
                }));
            }
        }
    }
    points
}

fn numbers(data: Option<Data>) -> Vec<(Vec<KeyValue>, f64)> {
    let single = match data {
        Some(Data::Sum(sum)) => sum.data_points,
        Some(Data::Gauge(gauge)) => gauge.data_points,
        Some(Data::Histogram(histogram)) => {
            let points = histogram.data_points.into_iter();
            return points
                .map(|point| (point.attributes, count(point.count)))
                .collect();
        }
        _ => Vec::new(),
    };
    let value = |value| match value {
        Some(number_data_point::Value::AsDouble(value)) => value,
        Some(number_data_point::Value::AsInt(value)) => count(value.unsigned_abs()),
        None => f64::NAN,
    };
    single
        .into_iter()
        .map(|point| (point.attributes, value(point.value)))
        .collect()
}

#[allow(clippy::cast_precision_loss)] // small numbers
fn count(count: u64) -> f64 {
    count as f64
}

fn decoded<M: Message + Default>(received: &[Received], path: &str) -> Vec<M> {
    let requests = received.iter().filter(|request| request.path == path);
    requests
        .map(|request| M::decode(request.body.as_slice()).expect("protobuf"))
        .collect()
}

fn attributes(pairs: Vec<KeyValue>) -> Attributes {
    pairs
        .into_iter()
        .map(|pair| (pair.key, text(pair.value)))
        .collect()
}

fn text(value: Option<AnyValue>) -> String {
    match value.and_then(|value| value.value) {
        Some(Value::StringValue(text)) => text,
        Some(Value::IntValue(number)) => number.to_string(),
        Some(Value::DoubleValue(number)) => number.to_string(),
        Some(Value::BoolValue(yes)) => yes.to_string(),
        Some(other) => format!("{other:?}"),
        None => String::new(),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
