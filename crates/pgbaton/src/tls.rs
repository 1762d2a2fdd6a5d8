//! TLS: what is trusted, how far a server is verified, and who this client says it is.
//!
//! One library and one provider of cryptography for the whole program: rustls with ring. The two verifiers below do less
//! than the library's own, because libpq's `sslmode` asks for less; both still check that the server holds the key of
//! the certificate it shows, which is what channel binding rests on.

use std::error::Error as StdError;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_cert_signed_by_trust_anchor};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    AlertDescription, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme, SupportedProtocolVersion,
};

use crate::error::{Error, Kind};
use crate::plain_file;

/// libpq's `sslmode`, without `allow`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Disable,
    Prefer,
    Require,
    VerifyCa,
    VerifyFull,
}

/// Whose certificates are trusted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Root {
    System,
    File(PathBuf),
}

/// What a DSN says about TLS.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) mode: Mode,
    /// Where there is one, the server's certificate must descend from it, whatever the mode.
    pub(crate) root: Option<Root>,
    /// The client's certificates and key.
    pub(crate) client: Option<(PathBuf, PathBuf)>,
    /// Whether the server is told by which name it is looked for.
    pub(crate) sni: bool,
    /// Whether TLS begins at once, without asking for it in PostgreSQL's own protocol.
    pub(crate) direct: bool,
    pub(crate) versions: &'static [&'static SupportedProtocolVersion],
}

impl Options {
    /// Whether somebody between may pass for the server.
    pub(crate) fn unverified(&self) -> bool {
        match self.mode {
            // Somebody between answers that there is no TLS.
            Mode::Prefer => true,
            Mode::Require => self.root.is_none(),
            // Without TLS because the DSN says so.
            Mode::Disable | Mode::VerifyCa | Mode::VerifyFull => false,
        }
    }

    /// A client of these options. Reads all the files they name.
    pub(crate) fn client_config(&self) -> Result<ClientConfig, Error> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(self.versions)
            .map_err(|error| Error::new(Kind::Config, "TLS cannot be set up").because(error))?;
        let builder = builder.dangerous().with_custom_certificate_verifier(self.verifier(provider)?);
        let mut config = match &self.client {
            Some((certificates, key)) if self.mode != Mode::Disable => {
                let (chain, key) = (certificates_of("sslcert", certificates)?, key_of(key)?);
                builder.with_client_auth_cert(chain, key).map_err(|error| {
                    Error::new(Kind::Config, "`sslcert` and `sslkey` cannot be used together").because(error)
                })?
            }
            _ => builder.with_no_client_auth(),
        };
        config.enable_sni = self.sni;
        if self.direct {
            // PostgreSQL takes a connection that begins with TLS only under this name.
            config.alpn_protocols = vec![b"postgresql".to_vec()];
        }
        Ok(config)
    }

    fn verifier(&self, provider: Arc<CryptoProvider>) -> Result<Arc<dyn ServerCertVerifier>, Error> {
        let roots = match (&self.root, self.mode) {
            (None, Mode::VerifyCa | Mode::VerifyFull) => {
                return Err(Error::new(
                    Kind::Config,
                    "`sslmode` asks for a verified server, and nothing says whom to trust: add `sslrootcert=…`, a file \
                     with certificates or `system`",
                ));
            }
            (None, _) | (_, Mode::Disable) => return Ok(Arc::new(Unverified { provider })),
            (Some(Root::System), _) => roots(None)?,
            (Some(Root::File(path)), _) => {
                let mut roots = RootCertStore::empty();
                add(&mut roots, "sslrootcert", path)?;
                roots
            }
        };
        if self.mode != Mode::VerifyFull {
            return Ok(Arc::new(AnyName { roots, unverified: Unverified { provider } }));
        }
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build();
        Ok(verifier.map_err(|error| Error::new(Kind::Config, "`sslrootcert` cannot be used").because(error))?)
    }
}

/// Everybody whom the system trusts, and whom the file names besides.
pub(crate) fn roots(ca_file: Option<&Path>) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    // Some systems list certificates that this library does not take; the others still count.
    roots.add_parsable_certificates(found.certs);
    if let Some(path) = ca_file {
        add(&mut roots, "the file of certificates", path)?;
    }
    if roots.is_empty() {
        let error = Error::new(Kind::Config, "the system has no certificates of authorities");
        return Err(error.hint("Install the package ca-certificates, or name a file with certificates"));
    }
    Ok(roots)
}

/// A client that trusts these authorities, verifies names, and shows no certificate of its own.
#[cfg(feature = "http")]
pub(crate) fn client(roots: RootCertStore) -> Result<ClientConfig, Error> {
    let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::new(Kind::Internal, "TLS cannot be set up").because(error))?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

/// Adds a file's certificates to those that are trusted.
fn add(roots: &mut RootCertStore, what: &str, path: &Path) -> Result<(), Error> {
    for certificate in certificates_of(what, path)? {
        roots.add(certificate).map_err(|error| {
            Error::new(Kind::Config, format!("{what}: a certificate in {} cannot be used", path.display()))
                .because(error)
        })?;
    }
    Ok(())
}

fn certificates_of(what: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let problem = |text: &str| Error::new(Kind::Config, format!("{what}: {} {text}", path.display()));
    let (_, bytes) = plain_file::read(path).map_err(|error| problem("cannot be read").because(error))?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    let found = found.map_err(|_| problem("is no PEM file of certificates"))?;
    if found.is_empty() { Err(problem("holds no certificate in PEM form")) } else { Ok(found) }
}

/// A private key, if nobody else may read it: 0600, or 0640 where root owns it, as in libpq.
fn key_of(path: &Path) -> Result<PrivateKeyDer<'static>, Error> {
    let problem = |text: &str| Error::new(Kind::Config, format!("sslkey: {} {text}", path.display()));
    let (metadata, bytes) = plain_file::read(path).map_err(|error| problem("cannot be read").because(error))?;
    let shared = if metadata.uid() == 0 { 0o037 } else { 0o077 };
    if metadata.mode() & shared != 0 {
        return Err(problem("may be used by others; make its permissions 0600, or 0640 if root owns it"));
    }
    if bytes.windows(9).any(|window| window == b"ENCRYPTED") {
        return Err(problem("is encrypted, which is not supported: give a key without a password"));
    }
    PrivateKeyDer::from_pem_slice(&bytes).map_err(|_| problem("holds no private key in PEM form"))
}

/// `prefer` and `require` without a root: any certificate will do. Whoever shows it must hold its key, else somebody
/// between could show the real server's, and channel binding would take him for it.
#[derive(Debug)]
struct Unverified {
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Unverified {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// `verify-ca`, and `prefer` and `require` with a root: the certificate must descend from a root and be in date; which
/// name it is for is not looked at.
#[derive(Debug)]
struct AnyName {
    roots: RootCertStore,
    unverified: Unverified,
}

impl ServerCertVerifier for AnyName {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let algorithms = self.unverified.provider.signature_verification_algorithms.all;
        let end_entity = ParsedCertificate::try_from(end_entity)?;
        verify_server_cert_signed_by_trust_anchor(&end_entity, &self.roots, intermediates, now, algorithms)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.unverified.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.unverified.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.unverified.supported_verify_schemes()
    }
}

/// Whether an error comes from certificates, versions or names that the two sides do not accept of each other: that
/// does not mend itself.
pub(crate) fn is_disagreement(error: &(dyn StdError + 'static)) -> bool {
    use AlertDescription as Alert;
    match library_error(error) {
        Some(rustls::Error::InvalidCertificate(_) | rustls::Error::PeerIncompatible(_)) => true,
        Some(rustls::Error::AlertReceived(alert)) => matches!(
            alert,
            Alert::HandshakeFailure
                | Alert::BadCertificate
                | Alert::UnsupportedCertificate
                | Alert::CertificateRevoked
                | Alert::CertificateExpired
                | Alert::CertificateUnknown
                | Alert::UnknownCA
                | Alert::AccessDenied
                | Alert::ProtocolVersion
                | Alert::InsufficientSecurity
                | Alert::UnrecognisedName
                | Alert::CertificateRequired
                | Alert::NoApplicationProtocol
        ),
        _ => false,
    }
}

/// The TLS library's own error among an error's causes.
fn library_error<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a rustls::Error> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref::<rustls::Error>() {
            return Some(found);
        }
        // An I/O error's source is that of the error inside, not the one inside.
        next = match error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref) {
            Some(inner) => Some(inner as &(dyn StdError + 'static)),
            None => error.source(),
        };
    }
    None
}
