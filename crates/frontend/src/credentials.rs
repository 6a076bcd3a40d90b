//! Credentials: the server's certificate, whose certificates it believes, and the tokens that it knows. All of them can be
//! replaced while the server runs; connections that are open stay.
//!
//! The caller reads the files and gives their content; this module opens none.

use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::version::{TLS12, TLS13};
use rustls::{RootCertStore, ServerConfig};
use tokio::sync::watch;

use crate::rights::Rights;

/// Tokens that a server knows at most: each is compared with on every request.
pub const TOKENS_MAX: usize = 64;

/// The shortest token, in bytes: a shorter one can be guessed.
pub const TOKEN_BYTES_MIN: usize = 16;

/// The longest token, in bytes.
pub const TOKEN_BYTES_MAX: usize = 1024;

/// Why credentials cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadCredentials(String);

/// The files of a TLS server, as PEM.
#[derive(Clone, Default)]
pub struct TlsPem {
    /// The server's certificate, and those between it and a root, in this order.
    pub certificates: Vec<u8>,
    /// Its private key.
    pub key: Vec<u8>,
    /// The roots of client certificates; none where clients are not asked for one.
    pub client_roots: Option<Vec<u8>>,
    /// Whether TLS 1.2 is spoken too.
    pub allow_tls12: bool,
}

/// The tokens that callers may show, each with the rights of its holders.
#[derive(Clone, Default)]
pub struct Tokens(Vec<Token>);

#[derive(Clone)]
struct Token {
    secret: Box<[u8]>,
    rights: Arc<Rights>,
}

impl Tokens {
    /// The tokens of `text`: one a line, and behind it, after a space, what its holders may do ([`Rights::parse`]); without a word
    /// they may do everything. Empty lines, and lines that begin with `#`, do not count. Two at a time are how a token is
    /// replaced without a pause.
    ///
    /// # Errors
    /// [`BadCredentials`] where there is none, there are too many, one is too short, too long or not of visible ASCII, its
    /// rights are not known, or one comes twice with different rights.
    pub fn parse(text: &[u8]) -> Result<Self, BadCredentials> {
        let lines = text.split(|&byte| byte == b'\n').map(<[u8]>::trim_ascii);
        let lines = lines.filter(|line| !line.is_empty() && !line.starts_with(b"#"));
        let mut tokens: Vec<Token> = Vec::new();
        for (line, number) in lines.zip(1..) {
            if number > TOKENS_MAX {
                return Err(BadCredentials(format!("there are more than {TOKENS_MAX} tokens")));
            }
            let token =
                Token::parse(line).map_err(|what| BadCredentials(format!("token {number} {what}")))?;
            if tokens.iter().any(|other| other.secret == token.secret && other.rights != token.rights) {
                let problem = format!("token {number} comes a second time, with other rights");
                return Err(BadCredentials(problem));
            }
            tokens.push(token);
        }
        if tokens.is_empty() { Err(BadCredentials("there is no token".into())) } else { Ok(Self(tokens)) }
    }

    /// Whether there is none: nobody is asked for one.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The buckets that the rights of the tokens name.
    pub fn buckets(&self) -> impl Iterator<Item = &str> {
        self.0.iter().flat_map(|token| token.rights.buckets())
    }

    /// Which of the tokens `given` is, from 1, and what its holders may do. How long that takes depends on the lengths only.
    #[must_use]
    pub fn find(&self, given: &[u8]) -> Option<(usize, &Arc<Rights>)> {
        let mut found = None;
        for (token, number) in self.0.iter().zip(1..) {
            // Every token is looked at, wherever one is found.
            if is_same(&token.secret, given) {
                found = Some((number, &token.rights));
            }
        }
        found
    }
}

impl Token {
    /// The token of a line that is not empty.
    fn parse(line: &[u8]) -> Result<Self, String> {
        let end = line.iter().position(u8::is_ascii_whitespace).unwrap_or(line.len());
        let (secret, words) = line.split_at(end);
        let is_good = (TOKEN_BYTES_MIN..=TOKEN_BYTES_MAX).contains(&secret.len())
            && secret.iter().all(u8::is_ascii_graphic);
        if !is_good {
            return Err(format!("is not {TOKEN_BYTES_MIN} to {TOKEN_BYTES_MAX} visible ASCII characters"));
        }
        let rights = match words.trim_ascii() {
            [] => Rights::default(),
            words => {
                let words = str::from_utf8(words).map_err(|_| "has rights that are not UTF-8".to_owned())?;
                Rights::parse(words).map_err(|what| format!("has rights that are not known: {what}"))?
            }
        };
        Ok(Self { secret: secret.into(), rights: Arc::new(rights) })
    }
}

/// Whether `given` is the secret; the time that this takes does not tell where the two differ.
#[must_use]
pub fn is_same(secret: &[u8], given: &[u8]) -> bool {
    let difference = secret.iter().zip(given).fold(0, |difference, (a, b)| difference | (a ^ b));
    secret.len() == given.len() && std::hint::black_box(difference) == 0
}

/// The credentials that a server asks of callers, and those that it shows.
#[derive(Clone, Default)]
pub struct Credentials {
    tls: Option<Arc<ServerConfig>>,
    /// The same for protocols that are not negotiated in the handshake.
    tls_of_others: Option<Arc<ServerConfig>>,
    asks_certificates: bool,
    tokens: Tokens,
}

impl Credentials {
    /// TLS as `tls` says (none: plain text), and `tokens` (none: nobody is asked for one). Where clients have to show a
    /// certificate, and tokens are known too, one of the two is enough.
    ///
    /// # Errors
    /// [`BadCredentials`] for what is not PEM, does not belong together or has expired roots.
    pub fn new(tls: Option<&TlsPem>, tokens: Tokens) -> Result<Self, BadCredentials> {
        let asks_certificates = tls.is_some_and(|tls| tls.client_roots.is_some());
        let tls = tls.map(|tls| config(tls, !tokens.is_empty()).map(Arc::new)).transpose()?;
        let tls_of_others = tls.as_ref().map(|tls| {
            let mut config = ServerConfig::clone(tls);
            config.alpn_protocols.clear();
            Arc::new(config)
        });
        Ok(Self { tls, tls_of_others, asks_certificates, tokens })
    }

    /// Whether connections are encrypted.
    #[must_use]
    pub fn is_encrypted(&self) -> bool {
        self.tls.is_some()
    }

    /// Whether a caller has to prove who it is.
    #[must_use]
    pub fn asks(&self) -> bool {
        self.asks_certificates || !self.tokens.is_empty()
    }

    /// Whether a client certificate is a proof here.
    #[must_use]
    pub fn asks_certificates(&self) -> bool {
        self.asks_certificates
    }

    /// The tokens that are known.
    #[must_use]
    pub fn tokens(&self) -> &Tokens {
        &self.tokens
    }
}

fn config(pem: &TlsPem, certificate_is_optional: bool) -> Result<ServerConfig, BadCredentials> {
    let provider = Arc::new(ring::default_provider());
    let versions = if pem.allow_tls12 { &[&TLS13, &TLS12][..] } else { &[&TLS13] };
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
    let builder = builder.with_protocol_versions(versions).map_err(bad("the TLS versions"))?;
    let builder = match &pem.client_roots {
        None => builder.with_no_client_auth(),
        Some(roots) => {
            let mut store = RootCertStore::empty();
            for root in certificates(roots, "the roots of client certificates")? {
                store.add(root).map_err(bad("a root of client certificates"))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(store), provider);
            let verifier = if certificate_is_optional { verifier.allow_unauthenticated() } else { verifier };
            builder
                .with_client_cert_verifier(verifier.build().map_err(bad("the roots of client certificates"))?)
        }
    };
    let key = PrivateKeyDer::from_pem_slice(&pem.key).map_err(bad("the private key"))?;
    let chain = certificates(&pem.certificates, "the certificate")?;
    let mut config = builder.with_single_cert(chain, key).map_err(bad("the certificate and its key"))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

fn certificates(pem: &[u8], what: &str) -> Result<Vec<CertificateDer<'static>>, BadCredentials> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let all = all.map_err(bad(what))?;
    if all.is_empty() {
        Err(BadCredentials(format!("{what}: there is none in the PEM file")))
    } else {
        Ok(all)
    }
}

fn bad<E: std::fmt::Display>(what: &str) -> impl Fn(E) -> BadCredentials + '_ {
    move |error| BadCredentials(format!("{what}: {error}"))
}

/// The credentials that are in force. Clones share them.
#[derive(Clone, Default)]
pub struct Security(Arc<InForce>);

#[derive(Default)]
struct InForce {
    credentials: ArcSwap<Credentials>,
    /// Told after others are in force.
    changes: watch::Sender<()>,
}

impl Security {
    /// Begins with `credentials`.
    #[must_use]
    pub fn new(credentials: Credentials) -> Self {
        let credentials = ArcSwap::from_pointee(credentials);
        Self(Arc::new(InForce { credentials, changes: watch::Sender::default() }))
    }

    /// From now on `credentials` are in force: for new connections, and, as far as tokens are concerned, for the next request of
    /// those that are open; a stream whose token is not known any more ends at once. A certificate counts as long as the connection lives in which it was shown, and no longer than it is
    /// valid.
    pub fn replace(&self, credentials: Credentials) {
        self.0.credentials.store(Arc::new(credentials));
        self.0.changes.send_replace(());
    }

    /// Tells of every change from now on.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<()> {
        self.0.changes.subscribe()
    }

    /// Runs `look` on what is in force.
    pub fn with<T>(&self, look: impl FnOnce(&Credentials) -> T) -> T {
        look(&self.0.credentials.load())
    }

    /// Whether connections are encrypted, and whether callers have to prove who they are.
    #[must_use]
    pub fn is_safe(&self) -> bool {
        self.with(|credentials| credentials.is_encrypted() && credentials.asks())
    }

    /// Whether callers have to prove who they are.
    #[must_use]
    pub fn asks(&self) -> bool {
        self.with(Credentials::asks)
    }

    /// Whether connections are encrypted.
    #[must_use]
    pub fn is_encrypted(&self) -> bool {
        self.with(Credentials::is_encrypted)
    }

    /// The TLS of a new connection that speaks HTTP; none where it is plain text.
    #[must_use]
    pub fn tls(&self) -> Option<Arc<ServerConfig>> {
        self.with(|credentials| credentials.tls.clone())
    }

    /// The TLS of a new connection that speaks a protocol that the handshake does not negotiate; none where it is plain text.
    #[must_use]
    pub fn tls_of_others(&self) -> Option<Arc<ServerConfig>> {
        self.with(|credentials| credentials.tls_of_others.clone())
    }
}

impl std::fmt::Debug for Security {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The credentials stay secret.
        f.debug_struct("Security").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: &str = "0123456789abcdef";

    #[test]
    fn tokens_are_lines() {
        let tokens = Tokens::parse(format!("# old\n{LONG}1\r\n\n  {LONG}2  \n").as_bytes()).unwrap();
        let find = |given: &str| tokens.find(given.as_bytes()).map(|(number, _)| number);
        assert_eq!((find(&format!("{LONG}1")), find(&format!("{LONG}2"))), (Some(1), Some(2)));
        for wrong in ["", LONG, &format!("{LONG}3"), &format!("{LONG}11"), "# old"] {
            assert_eq!(find(wrong), None, "{wrong}");
        }
        for wrong in ["", "# only\n", "short", &"x".repeat(TOKEN_BYTES_MAX + 1), &format!("{LONG} {LONG}")] {
            assert!(Tokens::parse(wrong.as_bytes()).is_err(), "{wrong}");
        }
        assert!(Tokens::parse(format!("{LONG}\n").repeat(TOKENS_MAX + 1).as_bytes()).is_err());
    }

    #[test]
    fn rights_stand_behind_the_token() {
        let text = format!("{LONG}1\n{LONG}2 read-only\n{LONG}3\t bucket=films,read-only \r\n");
        let tokens = Tokens::parse(text.as_bytes()).unwrap();
        let rights = |number: &str| tokens.find(format!("{LONG}{number}").as_bytes()).unwrap().1;
        assert!(rights("1").is_everything());
        assert!(rights("2").allow_write("films").is_err() && rights("2").allow_read("maps").is_ok());
        assert!(rights("3").allow_read("films").is_ok() && rights("3").allow_read("maps").is_err());
        assert_eq!(tokens.buckets().collect::<Vec<_>>(), ["films"]);
        // The words are no part of the secret.
        assert!(tokens.find(format!("{LONG}2 read-only").as_bytes()).is_none());
        for wrong in ["readonly", "read-only bucket=films", "\u{e4}", "bucket="] {
            let error = Tokens::parse(format!("{LONG} {wrong}\n").as_bytes()).err().unwrap();
            assert!(error.to_string().contains("rights") && !error.to_string().contains(LONG), "{error}");
        }
        let twice =
            |words: &str| Tokens::parse(format!("{LONG} read-only\n{LONG} {words}\n").as_bytes()).is_ok();
        assert!(twice("read-only") && !twice("") && !twice("bucket=films"));
    }

    #[test]
    fn an_empty_pem_is_refused_in_words() {
        let error = Credentials::new(Some(&TlsPem::default()), Tokens::default()).err().unwrap();
        assert!(error.to_string().contains("the private key"), "{error}");
    }
}
