//! Traces: one span for each delivered message whose headers name a parent, sent to a collector by OTLP over HTTP.
//!
//! The exporter batches on a thread of its own, keeps a bounded number of spans, and drops what does not fit: delivery never
//! waits for a collector. `OTEL_BSP_*` set its bounds, as the specification says.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::{Span, SpanKind, TraceContextExt, Tracer, TracerProvider};
use opentelemetry::{Context, KeyValue};
use opentelemetry_http::hyper::HyperClient;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use pgbaton::config;
use pgbaton::message::Message;
use pgbaton::observe::{Answered, Observe};
use serde::Deserialize;
use tokio::runtime::Handle;

use crate::Failure;

/// How long the collector may take for an answer, and the process for the last spans.
const PATIENCE: Duration = Duration::from_secs(5);

/// What sends them.
pub(crate) struct Traces(SdkTracerProvider);

impl Traces {
    /// `None` if none are configured.
    pub(crate) fn start(traces: &config::Traces) -> Result<Option<Self>, Failure> {
        let Some(endpoint) = &traces.endpoint else { return Ok(None) };
        let client = OnRuntime(HyperClient::with_default_connector(PATIENCE, None), Handle::current());
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(client)
            .with_endpoint(endpoint)
            .with_timeout(PATIENCE)
            .build()
            .map_err(|error| Failure::Usage(format!("traces.endpoint: {error}")))?;
        let resource = Resource::builder().with_service_name("pgbaton").build();
        Ok(Some(Self(SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build())))
    }

    /// What makes spans of what a sink answers.
    pub(crate) fn observer(&self) -> Arc<dyn Observe> {
        Arc::new(Spans { tracer: self.0.tracer("pgbaton"), parents: TraceContextPropagator::new() })
    }

    /// Sends what is left.
    pub(crate) async fn end(self) {
        // It waits for the exporter's thread, which waits for this runtime.
        let ended = tokio::task::spawn_blocking(move || self.0.shutdown_with_timeout(PATIENCE)).await;
        if !matches!(ended, Ok(Ok(()))) {
            tracing::warn!("the last traces could not be sent");
        }
    }
}

/// Whether these traces can be sent.
#[allow(clippy::unnecessary_wraps, reason = "without the feature they cannot")]
pub(crate) fn check(_traces: &config::Traces) -> Result<(), Failure> {
    Ok(())
}

#[derive(Debug)]
struct Spans {
    tracer: SdkTracer,
    parents: TraceContextPropagator,
}

impl Observe for Spans {
    fn answered(&self, answered: &Answered<'_>) {
        let ended = SystemTime::now();
        for (message, outcome) in answered.part.messages().zip(answered.outcomes) {
            let Some(parent) = outcome.is_done().then(|| self.parent(&message)).flatten() else { continue };
            let lane = &answered.grant.lane;
            let mut span = self
                .tracer
                .span_builder("deliver")
                .with_kind(SpanKind::Producer)
                .with_start_time(answered.began)
                .with_attributes([
                    KeyValue::new("messaging.system", "pgbaton"),
                    KeyValue::new("messaging.destination.name", message.topic.to_owned()),
                    KeyValue::new("messaging.message.id", message.id.to_owned()),
                    KeyValue::new("pgbaton.relay", lane.relay.to_string()),
                    KeyValue::new("pgbaton.lane", i64::from(lane.number)),
                ])
                .start_with_context(&self.tracer, &parent);
            span.end_with_timestamp(ended);
        }
    }
}

impl Spans {
    /// The span that the producer was in, if the message's headers name one.
    fn parent(&self, message: &Message<'_>) -> Option<Context> {
        let headers = message.headers.filter(|headers| headers.contains("traceparent"))?;
        let headers: Parents = serde_json::from_str(headers).ok()?;
        let context = self.parents.extract_with_context(&Context::new(), &headers);
        context.span().span_context().is_valid().then_some(context)
    }
}

/// What of a message's headers is read.
#[derive(Deserialize)]
struct Parents {
    traceparent: String,
    #[serde(default)]
    tracestate: Option<String>,
}

impl Extractor for Parents {
    fn get(&self, key: &str) -> Option<&str> {
        match key {
            "traceparent" => Some(&self.traceparent),
            "tracestate" => self.tracestate.as_deref(),
            _ => None,
        }
    }

    fn keys(&self) -> Vec<&str> {
        vec!["traceparent", "tracestate"]
    }
}

/// The exporter's thread has no runtime, which the client needs: it is run on ours.
#[derive(Debug)]
struct OnRuntime(HyperClient, Handle);

#[async_trait]
impl HttpClient for OnRuntime {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let client = self.0.clone();
        self.1.spawn(async move { client.send_bytes(request).await }).await?
    }
}
