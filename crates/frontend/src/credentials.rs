//! Credentials: the server's certificate, the roots of client certificates, and the known tokens. All of them can be replaced
//! while the server runs; open connections stay.
//!
//! The caller reads the files and passes their content; this module opens none.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::version::{TLS12, TLS13};
use rustls::{RootCertStore, ServerConfig};
use tokio::sync::watch;

use crate::access::{GrantSet, Keys, Known, NoKey, Principal, PrincipalId, grants_of_rights};
use crate::certificate::end_s;

/// Maximum number of known tokens: every request is compared with each.
pub const TOKENS_MAX: usize = 64;

/// The shortest token, in bytes: a shorter one can be guessed.
pub const TOKEN_BYTES_MIN: usize = 16;

/// The longest token, in bytes.
pub const TOKEN_BYTES_MAX: usize = 1024;

/// The reason why credentials cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadCredentials(String);

/// The files of a TLS server, as PEM.
#[derive(Clone, Default)]
pub struct TlsPem {
    /// The server's certificate, and the intermediate ones up to a root, in this order.
    pub certificates: Vec<u8>,
    /// Its private key.
    pub key: Vec<u8>,
    /// The roots of client certificates; `None` if clients need none.
    pub client_roots: Option<Vec<u8>>,
    /// True if TLS 1.2 is also accepted.
    pub allow_tls12: bool,
}

/// The tokens that callers may show, each with the grants of its holders.
#[derive(Clone, Default)]
pub struct Tokens(Vec<Token>);

#[derive(Clone)]
struct Token {
    secret: Box<[u8]>,
    grants: GrantSet,
}

impl Tokens {
    /// Parses the tokens of `text`: one a line, followed by a space and the rights of its holders ([`grants_of_rights`]); without
    /// rights, they may do everything. Empty lines, and lines that start with `#`, are ignored. With two tokens at a time, a
    /// token is replaced without an interruption.
    ///
    /// # Errors
    /// [`BadCredentials`] if there is no token, there are too many, one is too short, too long or not of visible ASCII, its
    /// rights are unknown, or one comes twice with different rights.
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
            if tokens.iter().any(|other| other.secret == token.secret && other.grants != token.grants) {
                let problem = format!("token {number} is repeated with other rights");
                return Err(BadCredentials(problem));
            }
            tokens.push(token);
        }
        if tokens.is_empty() { Err(BadCredentials("there is no token".into())) } else { Ok(Self(tokens)) }
    }

    /// Returns true if there are no tokens: callers need none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The buckets that the rights of the tokens name.
    pub fn buckets(&self) -> impl Iterator<Item = &str> {
        self.0.iter().flat_map(|token| token.grants.buckets())
    }

    /// The holder of the token `given`. The time of the search depends only on the lengths.
    #[must_use]
    pub fn find(&self, given: &[u8]) -> Option<Principal> {
        let mut found = None;
        for (token, number) in self.0.iter().zip(1..) {
            // All tokens are compared, even after a match.
            if is_same(&token.secret, given) {
                found = Some((number, &token.grants));
            }
        }
        found.map(|(number, grants)| Principal::new(PrincipalId::Token(number), grants))
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
        let grants = match words.trim_ascii() {
            [] => GrantSet::EVERYTHING,
            words => {
                let words = str::from_utf8(words).map_err(|_| "has rights that are not UTF-8".to_owned())?;
                grants_of_rights(words).map_err(|what| format!("has unknown rights: {what}"))?
            }
        };
        Ok(Self { secret: secret.into(), grants })
    }
}

/// Returns true if `given` is the secret; the time of the comparison does not depend on the position of a difference.
#[must_use]
pub fn is_same(secret: &[u8], given: &[u8]) -> bool {
    let difference = secret.iter().zip(given).fold(0, |difference, (a, b)| difference | (a ^ b));
    secret.len() == given.len() && std::hint::black_box(difference) == 0
}

/// The credentials that a server requires of callers, and its own.
#[derive(Clone, Default)]
pub struct Credentials {
    tls: Option<Arc<ServerConfig>>,
    /// The same for protocols that are not negotiated in the handshake.
    tls_of_others: Option<Arc<ServerConfig>>,
    /// The second of the Unix epoch up to which the server's certificates are valid.
    certificate_end_s: Option<u64>,
    asks_certificates: bool,
    tokens: Tokens,
    /// None: there is no file of keys.
    keys: Option<Keys>,
}

impl Credentials {
    /// TLS by `tls` (`None`: plain text), and `tokens` (empty: callers need none). If clients must show a certificate, and
    /// there are also tokens, one of the two is enough.
    ///
    /// # Errors
    /// [`BadCredentials`] for text that is not PEM, keys that do not match, or expired roots.
    pub fn new(tls: Option<&TlsPem>, tokens: Tokens) -> Result<Self, BadCredentials> {
        Self::with_keys(tls, tokens, None)
    }

    /// The same, and callers may show one of `keys`. With a file of keys that has none, nobody is let in by a key.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn with_keys(
        tls: Option<&TlsPem>,
        tokens: Tokens,
        keys: Option<Keys>,
    ) -> Result<Self, BadCredentials> {
        let asks_certificates = tls.is_some_and(|tls| tls.client_roots.is_some());
        let certificate_is_optional = !tokens.is_empty() || keys.is_some();
        let configured = tls.map(|tls| config(tls, certificate_is_optional)).transpose()?;
        let (tls, certificate_end_s) =
            configured.map_or((None, None), |(tls, end_s)| (Some(Arc::new(tls)), end_s));
        let tls_of_others = tls.as_ref().map(|tls| {
            let mut config = ServerConfig::clone(tls);
            config.alpn_protocols.clear();
            Arc::new(config)
        });
        Ok(Self { tls, tls_of_others, certificate_end_s, asks_certificates, tokens, keys })
    }

    /// Returns true if connections are encrypted.
    #[must_use]
    pub fn is_encrypted(&self) -> bool {
        self.tls.is_some()
    }

    /// Returns true if callers must authenticate.
    #[must_use]
    pub fn asks(&self) -> bool {
        self.asks_certificates || self.asks_bearer()
    }

    /// Returns true if a token or key is accepted as proof.
    #[must_use]
    pub fn asks_bearer(&self) -> bool {
        !self.tokens.is_empty() || self.keys.is_some()
    }

    /// Returns true if a client certificate is accepted as proof.
    #[must_use]
    pub fn asks_certificates(&self) -> bool {
        self.asks_certificates
    }

    /// The known tokens.
    #[must_use]
    pub fn tokens(&self) -> &Tokens {
        &self.tokens
    }

    /// The known keys; `None` if there is no file of keys.
    #[must_use]
    pub fn keys(&self) -> Option<&Keys> {
        self.keys.as_ref()
    }

    /// The holder of a bearer credential: a token, or `ID.SECRET` of a key. `now_s` returns the second of the Unix epoch.
    ///
    /// # Errors
    /// [`NoKey`].
    pub fn find_bearer(&self, shown: &[u8], now_s: impl FnOnce() -> u64) -> Result<Known, NoKey> {
        let of_key = self.keys.as_ref().map_or(Err(NoKey::Unknown), |keys| keys.find_joined(shown, now_s));
        match of_key {
            Err(NoKey::Unknown) => self.tokens.find(shown).map(Known::from).ok_or(NoKey::Unknown),
            known => known,
        }
    }

    /// The holder of a certificate that TLS has verified. With a file of keys it has the grants of the key that names it, otherwise it may
    /// do everything.
    ///
    /// # Errors
    /// [`NoKey::Unnamed`] if no key names it, [`NoKey::Expired`] if that key has expired.
    pub fn find_certificate(&self, name: &Arc<str>, now_s: impl FnOnce() -> u64) -> Result<Known, NoKey> {
        match &self.keys {
            None => Ok(Principal::unrestricted(PrincipalId::Certificate(Arc::clone(name))).into()),
            Some(keys) => keys.find_certificate(name, now_s).unwrap_or(Err(NoKey::Unnamed)),
        }
    }
}

/// The configuration, and the end of the certificates.
fn config(
    pem: &TlsPem,
    certificate_is_optional: bool,
) -> Result<(ServerConfig, Option<u64>), BadCredentials> {
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
    let certificate_end_s = end_s(&chain);
    let mut config = builder.with_single_cert(chain, key).map_err(bad("the certificate and its key"))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok((config, certificate_end_s))
}

fn certificates(pem: &[u8], what: &str) -> Result<Vec<CertificateDer<'static>>, BadCredentials> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let all = all.map_err(bad(what))?;
    if all.is_empty() { Err(BadCredentials(format!("{what}: the PEM file has none"))) } else { Ok(all) }
}

fn bad<E: std::fmt::Display>(what: &str) -> impl Fn(E) -> BadCredentials + '_ {
    move |error| BadCredentials(format!("{what}: {error}"))
}

/// The current credentials. Clones share them.
#[derive(Clone, Default)]
pub struct Security(Arc<InForce>);

#[derive(Default)]
struct InForce {
    credentials: ArcSwap<Credentials>,
    /// The number of replacements. A reader that sees the count of one also sees its credentials.
    replacements: AtomicU64,
    /// Notified after a replacement.
    changes: watch::Sender<()>,
}

impl Security {
    /// Starts with `credentials`.
    #[must_use]
    pub fn new(credentials: Credentials) -> Self {
        let credentials = ArcSwap::from_pointee(credentials);
        Self(Arc::new(InForce { credentials, ..InForce::default() }))
    }

    /// Replaces the credentials: for new connections, and, for tokens and keys, for the next request of open ones; a stream whose
    /// token or key is no longer known is closed at once. A certificate counts while its connection is open, and not after the end of its
    /// validity.
    pub fn replace(&self, credentials: Credentials) {
        self.0.credentials.store(Arc::new(credentials));
        // Pairs with `replacements`.
        self.0.replacements.fetch_add(1, Ordering::Release);
        self.0.changes.send_replace(());
    }

    /// The number of replacements so far: while it does not change, the credentials are the same.
    #[must_use]
    pub fn replacements(&self) -> u64 {
        // Pairs with `replace`.
        self.0.replacements.load(Ordering::Acquire)
    }

    /// Notifies of every change from now on.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<()> {
        self.0.changes.subscribe()
    }

    /// Calls `look` with the current credentials.
    pub fn with<T>(&self, look: impl FnOnce(&Credentials) -> T) -> T {
        look(&self.0.credentials.load())
    }

    /// Returns true if connections are encrypted and callers must authenticate.
    #[must_use]
    pub fn is_safe(&self) -> bool {
        self.with(|credentials| credentials.is_encrypted() && credentials.asks())
    }

    /// Returns true if callers must authenticate.
    #[must_use]
    pub fn asks(&self) -> bool {
        self.with(Credentials::asks)
    }

    /// Returns true if connections are encrypted.
    #[must_use]
    pub fn is_encrypted(&self) -> bool {
        self.with(Credentials::is_encrypted)
    }

    /// The second of the Unix epoch up to which the certificates are valid that new connections get: the first of the chain that expires counts.
    /// `None` without TLS, or if no certificate has an end in a known format.
    #[must_use]
    pub fn certificate_end_s(&self) -> Option<u64> {
        self.with(|credentials| credentials.certificate_end_s)
    }

    /// The TLS of a new HTTP connection; `None` for plain text.
    #[must_use]
    pub fn tls(&self) -> Option<Arc<ServerConfig>> {
        self.with(|credentials| credentials.tls.clone())
    }

    /// The TLS of a new connection whose protocol is not negotiated in the handshake; `None` for plain text.
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
    use crate::access::{Action, KeyFile, may};

    const LONG: &str = "0123456789abcdef";

    #[test]
    fn tokens_are_lines() {
        let tokens = Tokens::parse(format!("# old\n{LONG}1\r\n\n  {LONG}2  \n").as_bytes()).unwrap();
        let find = |given: &str| tokens.find(given.as_bytes()).map(|holder| holder.identity().clone());
        let of_token = |number| Some(PrincipalId::Token(number));
        assert_eq!((find(&format!("{LONG}1")), find(&format!("{LONG}2"))), (of_token(1), of_token(2)));
        for wrong in ["", LONG, &format!("{LONG}3"), &format!("{LONG}11"), "# old"] {
            assert_eq!(find(wrong), None, "{wrong}");
        }
        for wrong in ["", "# only\n", "short", &"x".repeat(TOKEN_BYTES_MAX + 1), &format!("{LONG} {LONG}")] {
            assert!(Tokens::parse(wrong.as_bytes()).is_err(), "{wrong}");
        }
        assert!(Tokens::parse(format!("{LONG}\n").repeat(TOKENS_MAX + 1).as_bytes()).is_err());
    }

    #[test]
    fn token_line_lists_rights() {
        let text = format!("{LONG}1\n{LONG}2 read-only\n{LONG}3\t bucket=films,read-only \r\n");
        let tokens = Tokens::parse(text.as_bytes()).unwrap();
        let holder = |number: &str| tokens.find(format!("{LONG}{number}").as_bytes()).unwrap();
        let allowed = |number, action, bucket| may(&holder(number), action, bucket, b"k").is_ok();
        assert!(holder("1").is_unrestricted());
        assert!(!allowed("2", Action::Write, "films") && allowed("2", Action::Read, "maps"));
        assert!(allowed("3", Action::Read, "films") && !allowed("3", Action::Read, "maps"));
        assert_eq!(tokens.buckets().collect::<Vec<_>>(), ["films"]);
        // The rights are not part of the secret.
        assert!(tokens.find(format!("{LONG}2 read-only").as_bytes()).is_none());
        for wrong in ["readonly", "read-only bucket=films", "\u{e4}", "bucket="] {
            let error = Tokens::parse(format!("{LONG} {wrong}\n").as_bytes()).err().unwrap();
            assert!(error.to_string().contains("rights") && !error.to_string().contains(LONG), "{error}");
        }
        let twice =
            |words: &str| Tokens::parse(format!("{LONG} read-only\n{LONG} {words}\n").as_bytes()).is_ok();
        assert!(twice("read-only") && !twice("") && !twice("bucket=films"));
    }

    /// A file of keys without keys lets nobody in, and no file asks for nothing.
    #[test]
    fn an_empty_file_of_keys_asks() {
        let none = Credentials::default();
        assert!(!none.asks() && none.find_bearer(b"a.b", || 0).is_err());
        let empty = Credentials::with_keys(None, Tokens::default(), Some(Keys::default())).unwrap();
        assert!(empty.asks() && empty.find_bearer(b"a.b", || 0) == Err(NoKey::Unknown));
        let certificate = "host.example".into();
        assert_eq!(empty.find_certificate(&certificate, || 0), Err(NoKey::Unnamed));
        assert!(none.find_certificate(&certificate, || 0).unwrap().principal.is_unrestricted());
    }

    #[test]
    fn a_key_and_a_token_are_bearer_credentials() {
        let mut file = KeyFile::default();
        let entry = file.create(None, vec!["read b".into()], 0, None).unwrap();
        let shown = format!("{}.{}", entry.id, entry.secret.clone().unwrap());
        let id = PrincipalId::Key(entry.id.as_str().into());
        let tokens = Tokens::parse(format!("{LONG}.1\n").as_bytes()).unwrap();
        let credentials = Credentials::with_keys(None, tokens, Some(file.keys().unwrap())).unwrap();
        let find = |shown: &str| {
            credentials.find_bearer(shown.as_bytes(), || 0).map(|known| known.principal.identity().clone())
        };
        assert_eq!((find(&shown), find(&format!("{LONG}.1"))), (Ok(id), Ok(PrincipalId::Token(1))));
        assert_eq!(find(&shown[1..]), Err(NoKey::Unknown));
    }

    #[test]
    fn empty_pem_is_rejected_with_message() {
        let error = Credentials::new(Some(&TlsPem::default()), Tokens::default()).err().unwrap();
        assert!(error.to_string().contains("the private key"), "{error}");
    }
}
