//! Roots of certificates, and the certificates that they sign.

use std::ops::Deref;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::{fs, io};

use rcgen::{
    BasicConstraints, Certificate, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair,
};

/// A certificate and its key.
pub struct Identity {
    /// The certificate.
    pub certificate: Certificate,
    /// Its private key.
    pub key: KeyPair,
}

impl Identity {
    /// A self-signed certificate for `localhost`.
    ///
    /// # Panics
    /// If it cannot be made.
    #[must_use]
    pub fn self_signed() -> Self {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).expect("a certificate");
        Self { certificate: made.cert, key: made.signing_key }
    }

    /// Certificate and key as text.
    #[must_use]
    pub fn pem(&self) -> (String, String) {
        (self.certificate.pem(), self.key.serialize_pem())
    }

    /// Writes `cert.pem` and `key.pem`, which only its owner may read, into `folder`.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn write_to(&self, folder: &Path) -> io::Result<()> {
        let (certificate, key) = self.pem();
        fs::write(folder.join("cert.pem"), certificate)?;
        fs::write(folder.join("key.pem"), key)?;
        fs::set_permissions(folder.join("key.pem"), fs::Permissions::from_mode(0o600))
    }
}

/// A root of certificates.
pub struct RootCertificate(CertifiedIssuer<'static, KeyPair>);

impl Deref for RootCertificate {
    type Target = CertifiedIssuer<'static, KeyPair>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl Default for RootCertificate {
    fn default() -> Self {
        Self::new()
    }
}

impl RootCertificate {
    /// A root that signs itself.
    ///
    /// # Panics
    /// If it cannot be made.
    #[must_use]
    pub fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        Self(CertifiedIssuer::self_signed(params, key).expect("a root"))
    }

    /// A certificate for `localhost`, to be used by servers.
    #[must_use]
    pub fn server(&self) -> Identity {
        self.sign("localhost", |params| params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth))
    }

    /// A certificate for `name`, to be used by clients.
    #[must_use]
    pub fn client(&self, name: &str) -> Identity {
        self.sign(name, |params| params.extended_key_usages.push(ExtendedKeyUsagePurpose::ClientAuth))
    }

    /// A certificate for `name` with the parameters that `change` sets.
    ///
    /// # Panics
    /// If it cannot be made.
    #[must_use]
    pub fn sign(&self, name: &str, change: impl FnOnce(&mut CertificateParams)) -> Identity {
        let mut params = CertificateParams::new(vec![name.to_owned()]).expect("a name");
        change(&mut params);
        let key = KeyPair::generate().expect("a key");
        Identity { certificate: params.signed_by(&key, &self.0).expect("a certificate"), key }
    }
}
