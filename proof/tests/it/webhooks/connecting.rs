//! Whom the sink connects to, and whom it trusts.

use std::sync::Arc;

use pgbaton::outcome::{Fault, Outcome};
use pgbaton::sink::{OpenError, Opening, ProbeError, Sink};
use proof::endpoint::{Endpoint, Reply};
use proof::fixture::Fixture;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use tokio_rustls::rustls::{ServerConfig, crypto};

use super::{append, down, grant, laid, settings, sink};

#[tokio::test]
async fn private_addresses_are_refused_unless_allowed() {
    let endpoint = Endpoint::willing().await.unwrap();
    let port = endpoint.port();
    for host in [
        "127.0.0.1",
        "localhost",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "0.0.0.0",
        "10.0.0.1",
        "192.168.0.1",
        "169.254.169.254",
        "[fd00::1]",
        "[fe80::1]",
        "[64:ff9b::169.254.169.254]",
    ] {
        let mut settings = settings(&format!("http://{host}:{port}/"));
        settings.allow_private = false;
        let sink = sink(&settings);
        let probed = sink.probe().await;
        let Err(ProbeError::Unusable(fault)) = probed else { panic!("{host}: {probed:?}") };
        assert!(fault.code().name == "http.private_address" && fault.to_string().contains("allow_private"), "{fault}");
        let opened = sink.open(&grant(), Opening::First).await.err();
        assert_eq!(opened, Some(OpenError::SinkDown(fault)), "{host}");
    }
    assert_eq!(endpoint.connections(), 0);
    assert!(sink(&settings(&endpoint.url("/"))).probe().await.is_ok());
}

#[tokio::test]
async fn a_name_that_is_not_there_is_down() {
    let probed = sink(&settings("http://nowhere.invalid/")).probe().await;
    assert!(
        matches!(&probed, Err(ProbeError::SinkDown(fault)) if fault.code().name == "http.unresolved"),
        "{probed:?}"
    );
}

#[tokio::test]
async fn an_endpoint_that_goes_away_is_down_and_comes_back() {
    let (endpoint, mut lane) = laid(|_| (), |_| async { Reply::Status(200) }).await;
    assert_eq!(append(&mut lane, &["1"]).await, Ok(vec![Outcome::Delivered]));
    let (port, url) = (endpoint.port(), endpoint.url("/hook"));
    drop(endpoint);
    // Over the old connection it may be in doubt whether a message was sent; not over a new one.
    let first = append(&mut lane, &["2"]).await;
    assert!(first.is_err() || words_begin_with_retry(first.as_deref().unwrap_or_default()), "{first:?}");
    assert_eq!(down(&append(&mut lane, &["2"]).await), "http.unreachable");
    assert!(matches!(sink(&settings(&url)).open(&grant(), Opening::Again).await, Err(OpenError::SinkDown(_))));
    let _endpoint = Endpoint::listen(port, None, |_| async { Reply::Status(200) }).await.unwrap();
    assert_eq!(append(&mut lane, &["2"]).await, Ok(vec![Outcome::Delivered]));
}

fn words_begin_with_retry(outcomes: &[Outcome]) -> bool {
    outcomes.iter().all(|outcome| matches!(outcome, Outcome::Retry { .. }))
}

#[tokio::test]
async fn a_certificate_is_trusted_only_if_its_authority_is() {
    let fixture = Fixture::new(15).await.unwrap();
    let (authority, acceptor) = certified(&["127.0.0.1"]);
    let endpoint = Endpoint::listen(0, Some(acceptor), |_| async { Reply::Status(200) }).await.unwrap();
    let (stranger, _) = certified(&["127.0.0.1"]);
    let path = |name: &str, pem: &str| Some(fixture.write(name, pem).unwrap());
    for ca_file in [None, path("stranger.pem", &stranger)] {
        let mut untrusting = settings(&endpoint.url("/"));
        untrusting.ca_file = ca_file;
        let fault = refused(&sink(&untrusting)).await;
        assert!(fault.code().name == "http.tls" && fault.to_string().contains("invalid peer certificate"), "{fault}");
    }
    assert_eq!(endpoint.count(), 0);
    let mut trusting = settings(&endpoint.url("/"));
    trusting.ca_file = path("authority.pem", &authority);
    let trusting = sink(&trusting);
    assert!(trusting.probe().await.is_ok());
    let mut lane = trusting.open(&grant(), Opening::First).await.unwrap();
    assert_eq!(append(&mut lane, &["1", "2"]).await, Ok(vec![Outcome::Delivered; 2]));
    assert_eq!(endpoint.ids(), ["1", "2"]);
}

#[tokio::test]
async fn a_certificate_for_another_name_is_refused() {
    let fixture = Fixture::new(15).await.unwrap();
    let (authority, acceptor) = certified(&["hooks.example.org"]);
    let endpoint = Endpoint::listen(0, Some(acceptor), |_| async { Reply::Status(200) }).await.unwrap();
    let mut settings = settings(&endpoint.url("/"));
    settings.ca_file = Some(fixture.write("authority.pem", &authority).unwrap());
    let fault = refused(&sink(&settings)).await;
    assert!(fault.code().name == "http.tls" && fault.to_string().contains("not valid for name"), "{fault}");
    assert_eq!(endpoint.count(), 0);
}

async fn refused(sink: &dyn Sink) -> Fault {
    match sink.probe().await {
        Err(ProbeError::SinkDown(fault)) => fault,
        other => panic!("{other:?}"),
    }
}

/// An authority's certificate, and a server with one of its own for these names.
fn certified(names: &[&str]) -> (String, TlsAcceptor) {
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let pem = authority.self_signed(&key).unwrap().pem();
    let issuer = Issuer::new(authority, key);
    let key = KeyPair::generate().unwrap();
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let certificate = CertificateParams::new(names).unwrap().signed_by(&key, &issuer).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], PrivateKeyDer::Pkcs8(key.serialize_der().into()))
        .unwrap();
    (pem, TlsAcceptor::from(Arc::new(config)))
}
