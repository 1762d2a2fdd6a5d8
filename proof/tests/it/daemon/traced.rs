//! Traces: a span for each delivered message that names its parent, at a collector of the test's own.

use std::convert::Infallible;
use std::net::SocketAddr;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::trace::v1::Span;
use proof::fixture::Fixture;
use prost::Message;
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use super::SOON;
use crate::lines::ids_in;

/// Takes OTLP over HTTP and gives the spans.
async fn collector() -> (SocketAddr, mpsc::UnboundedReceiver<Span>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (found, spans) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let found = found.clone();
            let take = service_fn(move |request| take(request, found.clone()));
            tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), take));
        }
    });
    (address, spans)
}

async fn take(
    request: Request<Incoming>,
    found: mpsc::UnboundedSender<Span>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    assert_eq!(
        (request.uri().path(), &request.headers()["content-type"]),
        ("/v1/traces", &"application/x-protobuf".parse().unwrap())
    );
    let body = request.into_body().collect().await.unwrap().to_bytes();
    let traces = ExportTraceServiceRequest::decode(body).unwrap();
    let scopes = traces.resource_spans.into_iter().flat_map(|resource| resource.scope_spans);
    // Who waits for them may have seen enough.
    scopes.flat_map(|scope| scope.spans).for_each(|span| drop(found.send(span)));
    Ok(Response::new(Full::default()))
}

fn bytes(hexadecimal: &str) -> Vec<u8> {
    (0..hexadecimal.len()).step_by(2).map(|at| u8::from_str_radix(&hexadecimal[at..at + 2], 16).unwrap()).collect()
}

#[tokio::test]
async fn a_span_has_the_messages_parent() {
    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
    const PARENT: &str = "b7ad6b7169203331";
    let (address, mut spans) = collector().await;
    let outbox = Fixture::new(15).await.unwrap();
    let relays =
        format!("[traces]\nendpoint = \"http://{address}/v1/traces\"\n[relays.orders]\nsink = {}", outbox.file_sink());
    let mut replica = outbox.run("r1", &relays).unwrap();
    replica.wait_for_lines("lane opened", 16, SOON).await.unwrap();
    let producer = outbox.producer().await.unwrap();
    for (topic, headers) in [
        ("traced", format!("{{\"traceparent\": \"00-{TRACE}-{PARENT}-01\", \"x\": 1}}")),
        ("without", "{\"x\": \"traceparent\"}".to_owned()),
        ("not sampled", format!("{{\"traceparent\": \"00-{TRACE}-{PARENT}-00\"}}")),
        ("nonsense", "{\"traceparent\": \"00-hunter2-01\"}".to_owned()),
        ("no text", "{\"traceparent\": 5}".to_owned()),
    ] {
        let send = format!("select pgbaton.send('{topic}', '\"swordfish\"'::json, headers => '{headers}')");
        producer.batch_execute(&send).await.unwrap();
    }
    producer.batch_execute("select pgbaton.send('no headers', 'x'::text)").await.unwrap();
    let span = tokio::time::timeout(SOON, spans.recv()).await.unwrap().unwrap();
    assert_eq!((span.trace_id.clone(), span.parent_span_id.clone()), (bytes(TRACE), bytes(PARENT)));
    assert_eq!(span.name, "deliver");
    assert!(span.start_time_unix_nano <= span.end_time_unix_nano && span.start_time_unix_nano > 0);
    let told = format!("{span:?}");
    assert!(told.contains("traced") && told.contains("orders") && !told.contains("swordfish"), "{told}");
    while ids_in(&outbox.file()).len() < 6 {
        tokio::time::sleep(proof::process::POLL).await;
    }
    // What has not been sent yet is sent at the end: nothing more.
    let last =
        format!("select pgbaton.send('last', 'x'::text, headers => '{{\"traceparent\": \"00-{TRACE}-{PARENT}-01\"}}')");
    producer.batch_execute(&last).await.unwrap();
    while ids_in(&outbox.file()).len() < 7 {
        tokio::time::sleep(proof::process::POLL).await;
    }
    replica.terminate().unwrap();
    assert!(replica.wait(SOON).await.unwrap().success());
    let more: Vec<Span> = std::iter::from_fn(|| spans.try_recv().ok()).collect();
    assert!(more.len() == 1 && format!("{more:?}").contains("last"), "{more:?}");
}

/// A collector that is not there holds up nothing, and neither does a TLS that is not there go unnoticed.
#[tokio::test]
async fn delivery_does_not_wait_for_a_collector() {
    let outbox = Fixture::new(15).await.unwrap();
    let sink = outbox.file_sink();
    let relays = |endpoint: &str| format!("[traces]\nendpoint = \"{endpoint}\"\n[relays.orders]\nsink = {sink}");
    let path = outbox.configuration("tls", &relays("https://127.0.0.1:4318")).unwrap();
    let answer = outbox.pgbaton(&["check-config", "--config", path.to_str().unwrap()]).await.unwrap();
    assert_eq!(answer.status.code(), Some(2));
    assert!(String::from_utf8(answer.stderr).unwrap().contains("traces.endpoint"));
    let mut replica = outbox.run("r1", &relays("http://127.0.0.1:1/v1/traces")).unwrap();
    let send = "insert into pgbaton.outbox (topic, headers) select 't',
                '{\"traceparent\": \"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\"}'
                from generate_series(1, 5000)";
    outbox.producer().await.unwrap().batch_execute(send).await.unwrap();
    let deadline = std::time::Instant::now() + SOON;
    while ids_in(&outbox.file()).len() < 5_000 {
        assert!(std::time::Instant::now() < deadline, "{} were delivered", ids_in(&outbox.file()).len());
        tokio::time::sleep(proof::process::POLL).await;
    }
    replica.terminate().unwrap();
    assert!(replica.wait(SOON).await.unwrap().success());
}
