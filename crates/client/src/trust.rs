//! The trusted servers if the options have roots: a server whose certificate leads to one of them, or is one of them.
//!
//! The latter is the result of `openssl req -x509`: one certificate that signs itself and calls itself an authority (CA:TRUE).
//! TLS libraries do not accept an authority's certificate as a server's own, but a client that names exactly this certificate
//! means exactly this server. Its name and its validity are checked as for others.

use std::sync::Arc;

use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::client::verify_server_name;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::ParsedCertificate;
use tokio_rustls::rustls::{CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

/// The message about a server with an authority's certificate that is not among the roots.
const AUTHORITY: &str = "the server shows the certificate of an authority (CA:TRUE); it is trusted only if this very \
                         certificate is given as a root (--ca-file)";

/// The roots of the options.
#[derive(Debug)]
pub(crate) struct Trust {
    roots: Arc<WebPkiServerVerifier>,
    given: Vec<CertificateDer<'static>>,
}

impl Trust {
    /// # Errors
    /// A text, if `pem` has no certificate that can be a root.
    pub(crate) fn new(pem: &[u8]) -> Result<Self, String> {
        let given: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
        let given = given.map_err(|error| format!("the roots are no PEM file: {error}"))?;
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(given.iter().cloned());
        let provider = Arc::new(ring::default_provider());
        let roots = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build();
        Ok(Self { roots: roots.map_err(|error| format!("the roots: {error}"))?, given })
    }
}

impl ServerCertVerifier for Trust {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verified =
            self.roots.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        match verified {
            // Reported after the check of the validity, and before the check of the name.
            Err(error) if is_of_authority(&error) => {
                if !self.given.contains(end_entity) {
                    return Err(Error::General(AUTHORITY.into()));
                }
                verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
                Ok(ServerCertVerified::assertion())
            }
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.roots.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.roots.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.roots.supported_verify_schemes()
    }
}

/// The transport's text about a connection, or a clearer one if the system's roots reject the certificate of an authority.
pub(crate) fn explained(reason: String) -> String {
    if reason.contains("CaUsedAsEndEntity") { AUTHORITY.into() } else { reason }
}

/// Returns true if the only error is that an authority's certificate is a server's.
fn is_of_authority(error: &Error) -> bool {
    let Error::InvalidCertificate(CertificateError::Other(other)) = error else { return false };
    other.0.downcast_ref::<webpki::Error>() == Some(&webpki::Error::CaUsedAsEndEntity)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair, date_time_ymd};

    use super::*;

    /// A self-signed certificate for `localhost` and the years 2000 to 2100: as `openssl req -x509` makes it, or not of an
    /// authority.
    fn certificate(is_ca: bool) -> (CertificateDer<'static>, String) {
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.is_ca = if is_ca { IsCa::Ca(BasicConstraints::Unconstrained) } else { IsCa::ExplicitNoCa };
        params.not_before = date_time_ymd(2000, 1, 1);
        params.not_after = date_time_ymd(2100, 1, 1);
        let made = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        (made.der().clone(), made.pem())
    }

    fn year(years: u64) -> UnixTime {
        UnixTime::since_unix_epoch(Duration::from_secs((years - 1970) * 31_557_600))
    }

    #[test]
    fn self_signed_certificate_is_trusted_by_name_and_validity() {
        let (own, pem) = certificate(true);
        let trust = Trust::new(pem.as_bytes()).unwrap();
        let verify = |trust: &Trust, shown: &CertificateDer<'_>, name: &'static str, now| {
            trust.verify_server_cert(shown, &[], &ServerName::try_from(name).unwrap(), &[], now)
        };
        assert!(verify(&trust, &own, "localhost", year(2026)).is_ok());
        for (shown, name, now, why) in [
            (&own, "other.example", year(2026), "not valid for name"),
            (&own, "localhost", year(1999), "not valid yet"),
            (&own, "localhost", year(2101), "expired"),
            // Equally valid, but a different one.
            (&certificate(true).0, "localhost", year(2026), "--ca-file"),
        ] {
            let error = verify(&trust, shown, name, now).unwrap_err().to_string();
            assert!(error.contains(why), "{why}: {error}");
        }
        // The certificate of a server that signs itself is also a root.
        let (own, pem) = certificate(false);
        assert!(verify(&Trust::new(pem.as_bytes()).unwrap(), &own, "localhost", year(2026)).is_ok());
    }

    #[test]
    fn pem_without_roots_is_rejected_with_message() {
        for pem in ["", "nonsense", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
            assert!(Trust::new(pem.as_bytes()).unwrap_err().contains("the roots"), "{pem}");
        }
    }
}
