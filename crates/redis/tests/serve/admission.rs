//! Unauthenticated connections: they have little time, and lock out nobody.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use shoal_redis::{RedisLimits, RedisOptions};
use shoal_testkit::resp::encode;
use shoal_testkit::wait::HANGS_AFTER;

use crate::support::{Client, Seen, Served, serve};

fn with(limits: RedisLimits, password: Option<&[u8]>) -> Served {
    serve(RedisOptions { limits, password: password.map(<[u8]>::to_vec), ..RedisOptions::default() })
}

/// A connection that has sent these bytes.
fn said(served: &Served, bytes: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(served.address).unwrap();
    stream.set_read_timeout(Some(HANGS_AFTER)).unwrap();
    stream.write_all(bytes).unwrap();
    stream
}

/// Waits until the server closes it.
fn await_end(stream: &mut TcpStream) {
    let mut bytes = [0; 1000];
    while matches!(stream.read(&mut bytes).map_err(|error| error.kind()), Ok(1..)) {}
    let end = stream.read(&mut bytes).map_err(|error| error.kind());
    assert!(!matches!(end, Err(std::io::ErrorKind::WouldBlock)), "it was not closed");
}

/// A client with the password gets in at once although all places are taken, and admitted clients stay.
#[test]
fn idle_unauthenticated_connections_do_not_block_clients() {
    const PLACES: usize = 40;
    // They would stay forever.
    let limits = RedisLimits {
        connections_max: PLACES,
        unauthenticated_max: Duration::from_secs(36_000),
        ..RedisLimits::default()
    };
    let served = with(limits, Some(b"tide"));
    let mut known = Client::new(&served);
    assert_eq!(known.run("auth tide"), Seen::ok());
    let wrong = encode(&[b"auth", b"wrong"]);
    let mut idle: Vec<TcpStream> = (0..PLACES)
        .map(|number| said(&served, [&b""[..], b"*3\r\n$3\r\n", b"GET k\r\n", &wrong][number % 4]))
        .collect();
    for _ in 0..PLACES {
        let mut late = Client::new(&served);
        assert_eq!(late.run("auth tide"), Seen::ok());
        assert_eq!(late.run("set k v"), Seen::ok());
    }
    idle.extend((0..3 * PLACES).map(|_| said(&served, b"")));
    assert_eq!(
        known.run("get k"),
        Seen::Bulk(b"v".into()),
        "who has shown the password is never closed for another"
    );
    idle.iter_mut().take(PLACES).for_each(await_end);
    let mut late = Client::new(&served);
    assert_eq!(late.run("auth tide"), Seen::ok());
    let Seen::Bulk(info) = late.run("info stats") else { panic!("text") };
    let info = String::from_utf8(info).unwrap();
    assert!(info.contains("rejected_connections:0\r\n"), "{info}");
    let evicted = info.lines().find_map(|line| line.strip_prefix("evicted_connections:")).unwrap();
    assert!(evicted.parse::<usize>().unwrap() >= 2 * PLACES, "{info}");
}

/// If all have authenticated, a further one is refused; without a password, the first command counts.
#[test]
fn an_admitted_client_stays() {
    for password in [Some(&b"tide"[..]), None] {
        let limits =
            RedisLimits { connections_max: 3, unauthenticated_max: HANGS_AFTER, ..RedisLimits::default() };
        let served = with(limits, password);
        let mut clients: Vec<Client> = (0..3).map(|_| Client::new(&served)).collect();
        for client in &mut clients {
            let line = if password.is_some() { "auth tide" } else { "ping" };
            assert!(matches!(client.run(line), Seen::Simple(_)));
        }
        // Its answer leaves before it counts.
        clients.iter_mut().for_each(|client| assert!(matches!(client.run("ping"), Seen::Simple(_))));
        let mut refused = Client::new(&served);
        assert_eq!(refused.next(), Some(Seen::Error("ERR max number of clients reached".into())));
        clients.iter_mut().for_each(|client| assert!(matches!(client.run("ping"), Seen::Simple(_))));
    }
}

#[test]
fn a_connection_that_shows_no_password_in_time_is_closed() {
    let limits = RedisLimits { unauthenticated_max: Duration::from_millis(300), ..RedisLimits::default() };
    let served = with(limits, Some(b"tide"));
    let mut known = Client::new(&served);
    assert!(matches!(known.run("auth tide"), Seen::Simple(_)));
    let mut idle = [&b""[..], b"*3\r\n$3\r\n", b"PING\r\nGET k\r\n"].map(|bytes| said(&served, bytes));
    idle.iter_mut().for_each(await_end);
    assert!(matches!(known.run("ping"), Seen::Simple(_)), "who has shown it may be idle");
}

/// Symptom: a pool's idle connection was closed after 10 s, as it showed no password, although none is configured. Cause: a
/// connection counted as unauthenticated until its first command. Fix: without a password there is no such limit.
#[test]
fn without_a_password_a_connection_may_be_idle() {
    let limits = RedisLimits { unauthenticated_max: Duration::from_millis(300), ..RedisLimits::default() };
    let served = with(limits, None);
    let mut idle = Client::new(&served);
    // Longer than three looks at the limits.
    std::thread::sleep(Duration::from_millis(3_500));
    assert_eq!(idle.run("ping"), Seen::Simple("PONG".into()));
}
