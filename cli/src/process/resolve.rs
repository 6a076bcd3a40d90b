//! The addresses that a server listens on.

use std::fmt::Display;
use std::net::SocketAddr;

use crate::failure::Usage;

/// The first address of `given` (`HOST:PORT`), and the others, each once. `example` is an example of `given` for the error.
///
/// # Errors
/// [`Usage`]: it has no address.
pub(crate) async fn resolve(given: &str, example: &str) -> Result<(SocketAddr, Vec<SocketAddr>), Usage> {
    let wrong = |why: &dyn Display| {
        Usage(format!("cannot listen on {given:?}: {why}; write HOST:PORT, as {example}"))
    };
    let mut addresses = Vec::new();
    for address in tokio::net::lookup_host(given).await.map_err(|error| wrong(&error))? {
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    if addresses.is_empty() {
        return Err(wrong(&"the host has no address"));
    }
    Ok((addresses.remove(0), addresses))
}

/// The addresses in one line.
pub(crate) fn in_words(addresses: &[SocketAddr]) -> String {
    addresses.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(", ")
}
