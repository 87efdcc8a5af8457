//! `GET /metrics`: the figures of the server as Prometheus reads them (OpenMetrics text), all clients together.
//!
//! Its labels are names of tools, words of outcomes and phases: nothing that a caller wrote.

use std::fmt;
use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use crate::memory::OwnMemory;
use crate::respond::Refusal;
use crate::scopes::Scopes;
use config::policy::hooks::ReaderMetric;
use service::audit::{CallCounts, DURATION_BOUNDS};
use service::executor::ServerFigures;

/// Form of the answer.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Answers with the figures of now.
pub(crate) async fn metrics(State(scopes): State<Arc<Scopes>>) -> Result<Response, Refusal> {
    let mut registry = Registry::with_prefix("cofferdam");
    registry.register_collector(Box::new(Sample::new(&scopes)));
    let mut text = String::new();
    encode(&mut text, &registry).map_err(|_| {
        let message = "the figures cannot be written";
        Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message)
    })?;
    let kind = (header::CONTENT_TYPE, HeaderValue::from_static(OPEN_METRICS));
    Ok((StatusCode::OK, [kind], text).into_response())
}

/// Figures of one moment.
#[derive(Debug)]
struct Sample {
    figures: ServerFigures,
    resident: Option<u64>,
}

/// Labels of one value.
type Labels<'a> = Vec<(&'static str, &'a str)>;

impl Sample {
    fn new(scopes: &Scopes) -> Self {
        let resident = scopes.memory.as_ref().and_then(OwnMemory::resident);
        Self { figures: scopes.executor.figures(), resident }
    }

    fn calls(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let calls = || self.figures.calls.iter().map(|(tool, counts)| (tool.as_str(), counts));
        let ended = calls().flat_map(|(tool, counts)| {
            let labels = move |outcome: &&'static str| vec![("tool", tool), ("outcome", *outcome)];
            counts.outcomes.iter().map(move |(outcome, count)| (labels(outcome), *count))
        });
        counter(encoder, "calls", "Granted calls that have ended.", ended)?;
        let mut durations = encoder.encode_descriptor(
            "call_duration_seconds",
            "Time from the grant of a call to its end, waiting included.",
            None,
            MetricType::Histogram,
        )?;
        for (tool, counts) in calls() {
            let bounds = DURATION_BOUNDS.into_iter().chain([f64::MAX]);
            let classes: Vec<_> = bounds.zip(counts.durations).collect();
            let count = counts.durations.iter().sum();
            durations.encode_family(&[("tool", tool)])?.encode_histogram::<NoLabelSet>(
                counts.seconds,
                count,
                &classes,
                None,
            )?;
        }
        type Field = fn(&CallCounts) -> u64;
        let fields: [(&str, &str, Field); 7] = [
            ("denied_calls", "Calls that policy refused.", |it| it.denied),
            ("invalid_calls", "Calls whose arguments were not taken.", |it| it.invalid),
            ("denied_system_calls", "System calls refused to programs.", |it| {
                it.denied_system_calls
            }),
            ("egress_connections", "Connections of cells to outside.", |it| it.connections),
            ("egress_sent_bytes", "Bytes of payload that cells sent.", |it| it.bytes_sent),
            ("egress_received_bytes", "Bytes of payload that cells received.", |it| {
                it.bytes_received
            }),
            ("egress_denied", "Attempts to reach what no rule allows.", |it| {
                it.denied_destinations
            }),
        ];
        for (name, help, field) in fields {
            let values = calls().map(|(tool, counts)| (vec![("tool", tool)], field(counts)));
            counter(encoder, name, help, values)?;
        }
        let peaks = calls().map(|(tool, counts)| (vec![("tool", tool)], counts.peak_memory));
        gauge(encoder, "cell_peak_memory_bytes", "Most memory that a cell used.", peaks)
    }

    fn tools(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let tools = || self.figures.tools.iter();
        let health = tools().map(|(name, tool)| {
            let labels = vec![("tool", name.as_str()), ("health", tool.health.name())];
            (labels, 1)
        });
        gauge(encoder, "tool_health", "Health of a command-line tool, by its word.", health)?;
        let pending = tools().map(|(name, tool)| {
            let pending = u64::try_from(tool.pending).unwrap_or(u64::MAX);
            (vec![("tool", name.as_str())], pending)
        });
        gauge(encoder, "tool_pending", "Calls of a command-line tool that run or wait.", pending)?;
        let errors = tools().flat_map(|(name, tool)| {
            let labels = move |kind: &'static str| vec![("tool", name.as_str()), ("error", kind)];
            tool.errors.iter().map(move |(kind, count)| (labels(kind.name()), *count))
        });
        counter(encoder, "tool_errors", "Calls of command-line tools with an error.", errors)?;
        self.readings(encoder)
    }

    /// Adds the numbers that an operator's readers found in the outputs of tools.
    fn readings(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let found = |metric| {
            let tools = self.figures.tools.iter();
            tools.flat_map(move |(tool, figures)| {
                let readings = figures.readings.iter();
                let readings = readings.filter(move |(_, reading)| reading.metric == metric);
                readings.map(move |(name, reading)| {
                    ([("tool", tool.as_str()), ("reader", name.as_str())], reading.value)
                })
            })
        };
        let mut counters = found(ReaderMetric::Counter).peekable();
        if counters.peek().is_some() {
            let help = "Sum of the numbers that a reader found in outputs of a command-line tool.";
            let kind = MetricType::Counter;
            let mut family = encoder.encode_descriptor("tool_readings", help, None, kind)?;
            for (labels, value) in counters {
                let mut one = family.encode_family(&labels)?;
                one.encode_counter::<NoLabelSet, _, u64>(&value, None)?;
            }
        }
        let mut gauges = found(ReaderMetric::Gauge).peekable();
        if gauges.peek().is_some() {
            let help = "Last number that a reader found in an output of a command-line tool.";
            let kind = MetricType::Gauge;
            let mut family = encoder.encode_descriptor("tool_reading", help, None, kind)?;
            for (labels, value) in gauges {
                family.encode_family(&labels)?.encode_gauge(&value)?;
            }
        }
        Ok(())
    }

    fn server(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let ServerFigures { cells, pending, places, unrecorded, .. } = &self.figures;
        let size = |count: &usize| u64::try_from(*count).unwrap_or(u64::MAX);
        let fates = [
            ("warm", cells.cells.warm),
            ("ahead", cells.cells.ahead),
            ("cold", cells.cells.cold),
            ("unwanted", cells.cells.unwanted),
            ("evicted", cells.cells.evicted),
            ("failed", cells.cells.failed),
            ("died", cells.cells.died),
        ];
        let fates = fates.into_iter().map(|(fate, count)| (vec![("fate", fate)], count));
        counter(encoder, "cells", "Cells by their fate, as of the last call that ended.", fates)?;
        let phases = cells.timings_us.iter();
        let phases = phases.map(|(phase, micros)| (vec![("phase", *phase)], *micros));
        counter(encoder, "phase_microseconds", "Time of all calls by phase.", phases)?;
        let alone = |value: u64| std::iter::once((Vec::new(), value));
        gauge(encoder, "running", "Calls that the supervisor has.", alone(cells.running))?;
        gauge(encoder, "pending", "Calls that run or wait in the queue.", alone(size(pending)))?;
        gauge(encoder, "places", "Calls that may run or wait.", alone(size(places)))?;
        let lost = "Lines of the audit log that could not be written lately.";
        gauge(encoder, "unrecorded_lines", lost, alone(*unrecorded))?;
        match self.resident {
            None => Ok(()),
            Some(bytes) => {
                let help = "Memory of the front end.";
                gauge(encoder, "resident_memory_bytes", help, alone(bytes))
            }
        }
    }
}

impl Collector for Sample {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.calls(&mut encoder)?;
        self.tools(&mut encoder)?;
        self.server(&mut encoder)
    }
}

fn counter<'a>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    values: impl Iterator<Item = (Labels<'a>, u64)>,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for (labels, value) in values {
        family.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&value, None)?;
    }
    Ok(())
}

fn gauge<'a>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    values: impl Iterator<Item = (Labels<'a>, u64)>,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for (labels, value) in values {
        match labels.is_empty() {
            true => family.encode_gauge(&value)?,
            false => family.encode_family(&labels)?.encode_gauge(&value)?,
        }
    }
    Ok(())
}
