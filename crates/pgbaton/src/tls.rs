//! TLS as a client: rustls with ring, always named, since two providers in one process make rustls panic.
//!
//! A server's certificate is always verified, its name too; no setting switches that off.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

use crate::error::{Error, Kind};

/// The authorities that are trusted: the system's, and those of a PEM file.
///
/// # Errors
/// A file that cannot be read or holds no certificate; a system without any certificate where no file is named.
pub(crate) fn roots(ca_file: Option<&Path>) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    // Some of a system's files may be broken; what is left is what other programs trust as well.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if let Some(path) = ca_file {
        let failed = |what: &str| Error::new(Kind::Config, format!("{} {what}", path.display()));
        let before = roots.len();
        for certificate in CertificateDer::pem_file_iter(path).map_err(|e| failed("cannot be read").because(e))? {
            let certificate = certificate.map_err(|error| failed("is not PEM").because(error))?;
            roots.add(certificate).map_err(|error| failed("holds no usable certificate").because(error))?;
        }
        if roots.len() == before {
            return Err(failed("holds no certificate"));
        }
    }
    if roots.is_empty() {
        return Err(Error::new(Kind::Config, "this system has no certificates of authorities")
            .hint("Install them (`ca-certificates`), or name a PEM file"));
    }
    Ok(roots)
}

/// A client that trusts these authorities and shows no certificate of its own.
pub(crate) fn client(roots: RootCertStore) -> Result<ClientConfig, Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::new(Kind::Internal, "TLS cannot be set up").because(error))?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}
