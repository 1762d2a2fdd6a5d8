//! The library's metrics in the OpenMetrics text format.

use std::fmt::Error;
use std::sync::Arc;
use std::time::Duration;

use pgbaton::clock;
use pgbaton::lane::RelayName;
use pgbaton::metrics::names::{self, Kind, Name};
use pgbaton::metrics::{BUCKETS, Counts, Histogram, Metrics, OutboxReading};
use pgbaton::vitals::Reading;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use crate::http::Answers;

/// What it is.
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// All metrics as they are now.
pub(crate) fn encode(answers: &Answers) -> Result<String, Error> {
    let vitals = answers.vitals.read();
    let relays = vitals.relays.iter().map(|name| {
        let metrics = answers.metrics.relay(name);
        (name.clone(), metrics.counts(), metrics)
    });
    let snapshot = Snapshot {
        relays: relays.collect(),
        outbox: answers.metrics.outbox.read(),
        vitals,
        reload_refused: answers.is_reload_refused(),
    };
    let mut registry = Registry::default();
    registry.register_collector(Box::new(snapshot));
    let mut text = String::new();
    text::encode(&mut text, &registry)?;
    Ok(text)
}

/// Everything at one moment.
#[derive(Debug)]
struct Snapshot {
    relays: Vec<(RelayName, Counts, Arc<Metrics>)>,
    outbox: OutboxReading,
    vitals: Reading,
    reload_refused: bool,
}

/// One value with its labels.
type Sample<'a> = (Vec<(&'static str, &'a str)>, Value<'a>);

enum Value<'a> {
    Count(u64),
    Seconds(Duration),
    Histogram(&'a Histogram),
}

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        for name in names::ALL {
            let unit = name.unit.map(|unit| match unit {
                names::Unit::Seconds => Unit::Seconds,
                names::Unit::Bytes => Unit::Bytes,
            });
            let kind = match name.kind {
                Kind::Counter => MetricType::Counter,
                Kind::Gauge => MetricType::Gauge,
                Kind::Histogram => MetricType::Histogram,
            };
            let mut family = encoder.encode_descriptor(name.stem, name.help, unit.as_ref(), kind)?;
            for (labels, value) in self.samples(&name) {
                let labels = labels.as_slice();
                if labels.is_empty() {
                    write(&mut family, name.kind, &value)?;
                } else {
                    write(&mut family.encode_family(&labels)?, name.kind, &value)?;
                }
            }
        }
        Ok(())
    }
}

fn write(encoder: &mut MetricEncoder<'_>, kind: Kind, value: &Value<'_>) -> Result<(), Error> {
    match value {
        Value::Count(count) if kind == Kind::Counter => encoder.encode_counter::<NoLabelSet, _, u64>(count, None),
        Value::Count(count) => encoder.encode_gauge(count),
        Value::Seconds(seconds) => encoder.encode_gauge(&seconds.as_secs_f64()),
        Value::Histogram(histogram) => {
            let (sum, counts) = histogram.read();
            let bounds = BUCKETS.iter().map(|micros| Duration::from_micros(micros.unsigned_abs()).as_secs_f64());
            let buckets: Vec<(f64, u64)> = bounds.chain([f64::INFINITY]).zip(counts.iter().copied()).collect();
            encoder.encode_histogram::<NoLabelSet>(sum.as_secs_f64(), counts.iter().sum(), &buckets, None)
        }
    }
}

impl Snapshot {
    /// A metric's values: none if it was not measured.
    fn samples(&self, name: &Name) -> Vec<Sample<'_>> {
        if *name == names::UNATTENDED {
            return self.outbox.unattended.iter().map(|relay| (label(relay), Value::Count(1))).collect();
        }
        if name.labels == ["relay"] {
            let values = self.relays.iter().filter_map(|(relay, counts, metrics)| {
                let value = match *name {
                    names::COMMIT_TO_DELIVERY => Some(Value::Histogram(metrics.commit_to_delivery())),
                    _ => of_relay(name, counts),
                };
                Some((label(relay), value?))
            });
            return values.collect();
        }
        self.of_process(name)
    }

    fn of_process(&self, name: &Name) -> Vec<Sample<'_>> {
        let one = |value| vec![(Vec::new(), value)];
        match (*name, self.outbox.segments) {
            (names::LEASE_LEFT, _) => one(Value::Seconds(self.vitals.lease.map(|lease| lease.1).unwrap_or_default())),
            (names::DATABASE_UP, _) => one(Value::Count(self.vitals.answers.into())),
            (names::RELOAD_REFUSED, _) => one(Value::Count(self.reload_refused.into())),
            (names::SEGMENTS, Some(segments)) => {
                [("in_use", segments.in_use), ("kept", segments.kept), ("empty", segments.empty)]
                    .map(|(state, count)| (vec![("state", state)], Value::Count(count)))
                    .into()
            }
            (names::SEGMENT_BYTES, Some(segments)) => one(Value::Count(segments.bytes)),
            _ => Vec::new(),
        }
    }
}

fn label(relay: &RelayName) -> Vec<(&'static str, &str)> {
    vec![("relay", relay.as_str())]
}

fn of_relay<'a>(name: &Name, counts: &Counts) -> Option<Value<'a>> {
    let count = match *name {
        names::DELIVERED => counts.delivered,
        names::REPEATED => counts.repeated,
        names::RETRIED => counts.retried,
        names::REJECTED => counts.rejected,
        names::SET_ASIDE => counts.set_aside,
        names::GIVEN_UP => counts.dead,
        names::PARKED => counts.parked?.0,
        names::DEAD => counts.parked?.1,
        names::SINK_FAILURES => counts.sink_failures,
        names::ACKNOWLEDGEMENTS => counts.acknowledgements,
        names::CHANGED => counts.changed,
        names::GONE => counts.gone,
        names::LANES_OWNED => counts.lanes,
        names::LANES_HELD => counts.held,
        names::LANES_REFUSED => counts.refused,
        names::SINK_TIER => counts.tier?.number().into(),
        names::IDS_BEHIND => counts.behind?,
        names::OLDEST => return counts.oldest.map(Value::Seconds),
        names::SINK_DOWN => {
            let down = counts.sink_down.map(|down| clock::now().since(down.since));
            return Some(Value::Seconds(down.unwrap_or_default()));
        }
        _ => return None,
    };
    Some(Value::Count(count))
}
