//! Transactions of redis-rs: `shoal-redis-transactions HOST:PORT`.

use redis::{Client, Commands, Connection, RedisResult, pipe, transaction};

/// Counts up by WATCH.
fn count_up(connection: &mut Connection) -> RedisResult<()> {
    let key = "rust:count";
    transaction(connection, &[key], |connection, pipe| {
        let before: Option<i64> = connection.get(key)?;
        pipe.set(key, before.unwrap_or(0) + 1).ignore().query(connection)
    })
}

fn main() -> RedisResult<()> {
    let address = std::env::args().nth(1).expect("HOST:PORT");
    let client = Client::open(format!("redis://{address}/"))?;
    let mut connection = client.get_connection()?;
    let (count, value): (i64, String) =
        pipe().atomic().set("rust:a", 1).ignore().incr("rust:a", 1).get("rust:a").query(&mut connection)?;
    assert_eq!((count, value.as_str()), (2, "2"));
    let refused: RedisResult<()> =
        pipe().atomic().set("rust:a", 5).cmd("GET").ignore().query(&mut connection);
    assert!(refused.is_err());
    assert_eq!(connection.get::<_, i64>("rust:a")?, 2, "nothing of what was refused was done");
    let _: () = connection.del("rust:count")?;
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut connection = client.get_connection().expect("a connection");
                (0..20).for_each(|_| count_up(&mut connection).expect("a transaction"));
            });
        }
    });
    assert_eq!(connection.get::<_, i64>("rust:count")?, 160);
    println!("redis-rs: transactions are well");
    Ok(())
}
