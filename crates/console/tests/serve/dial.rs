//! Connections to a console, in plain text or over TLS.

use std::net::SocketAddr;
use std::sync::Arc;

use shoal_testkit::certificates::{Identity, RootCertificate};
use tokio::io::{AsyncRead, AsyncWrite, BufReader};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// A connection of either kind.
pub(crate) trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

pub(crate) type Stream = BufReader<Box<dyn Duplex>>;

/// Opens connections to a console.
#[derive(Clone)]
pub(crate) struct Dialer {
    pub(crate) address: SocketAddr,
    tls: Option<TlsConnector>,
}

impl Dialer {
    pub(crate) fn plain(address: SocketAddr) -> Self {
        Self { address, tls: None }
    }

    /// Over TLS: trusts `root`, and shows `identity`.
    pub(crate) fn tls(address: SocketAddr, root: &RootCertificate, identity: Option<&Identity>) -> Self {
        let mut roots = RootCertStore::empty();
        roots.add(root.der().clone()).unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let config = match identity {
            None => config.with_no_client_auth(),
            Some(Identity { certificate, key }) => {
                let key = key.serialize_der().try_into().unwrap();
                config.with_client_auth_cert(vec![certificate.der().clone()], key).unwrap()
            }
        };
        Self { address, tls: Some(Arc::new(config).into()) }
    }

    pub(crate) async fn dial(&self) -> Stream {
        let stream = TcpStream::connect(self.address).await.unwrap();
        let stream: Box<dyn Duplex> = match &self.tls {
            None => Box::new(stream),
            Some(tls) => {
                let name = ServerName::try_from("localhost").unwrap();
                Box::new(tls.connect(name, stream).await.unwrap())
            }
        };
        BufReader::new(stream)
    }
}
