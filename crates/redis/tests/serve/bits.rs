//! Bits of strings, as Redis 7 has them.

use shoal_redis::RedisOptions;

use crate::support::{Client, Seen, serve};

#[test]
fn bits_are_counted_and_found() {
    let served = serve(RedisOptions::default());
    let mut client = Client::new(&served);
    client.words(&[b"set", b"k", b"\x00\xFF\xF0"]);
    client.script(
        "bitcount k => :12
         bitcount k 1 1 => :8
         bitcount k 0 -2 => :8
         bitcount k 8 11 bit => :4
         bitcount k -4 -1 BIT => :0
         bitcount k 5 1 => :0
         bitcount k 0 => -ERR syntax error
         bitcount k 0 1 nibble => -ERR syntax error
         bitcount nothing => :0
         bitcount nothing a b => -ERR value is not an integer or out of range
         bitpos k 1 => :8
         bitpos k 0 => :0
         bitpos k 0 1 => :20
         bitpos k 0 1 1 => :-1
         bitpos k 1 2 -1 byte => :16
         bitpos k 1 10 12 bit => :10
         bitpos k 0 8 15 bit => :-1
         bitpos k 2 => -ERR The bit argument must be 1 or 0.
         bitpos k x => -ERR value is not an integer or out of range
         bitpos nothing 1 => :-1
         bitpos nothing 0 => :0",
    );
    client.words(&[b"set", b"ones", b"\xFF\xFF"]);
    client.script(
        "bitpos ones 0 => :16
         bitpos ones 0 0 -1 => :-1
         bitpos ones 0 5 => :-1",
    );
}

#[test]
fn bits_of_several_strings_are_combined() {
    let served = serve(RedisOptions::default());
    let mut client = Client::new(&served);
    client.words(&[b"set", b"a", b"\xF0\x0F\xAA"]);
    client.words(&[b"set", b"b", b"\xFF\x00"]);
    let bytes = |bytes: &[u8]| Seen::Bulk(bytes.to_vec());
    for (operation, expected) in
        [("and", &b"\xF0\x00\x00"[..]), ("or", b"\xFF\x0F\xAA"), ("xor", b"\x0F\x0F\xAA")]
    {
        assert_eq!(client.run(&format!("bitop {operation} to a b")), Seen::Integer(3));
        assert_eq!(client.run("get to"), bytes(expected), "{operation}");
    }
    assert_eq!(client.run("bitop not to a"), Seen::Integer(3));
    assert_eq!(client.run("get to"), bytes(b"\x0F\xF0\x55"));
    // The target may be a source; a missing key has no bits.
    assert_eq!(client.run("bitop and a a nothing"), Seen::Integer(3));
    assert_eq!(client.run("get a"), bytes(b"\0\0\0"));
    client.script(
        "set to x EX 100 => +OK
         bitop or to nothing => :0
         exists to => :0
         bitop not to a b => -ERR BITOP NOT must be called with a single source key.
         bitop nand to a b => -ERR syntax error
         set to x EX 100 => +OK
         bitop or to b => :2
         ttl to => :-1
         command getkeys bitop or to a b => [to, a, b]",
    );
}

#[test]
fn integers_of_any_width_are_kept_in_strings() {
    let served = serve(RedisOptions::default());
    let mut client = Client::new(&served);
    client.script(
        "bitfield n set i8 0 -100 set i8 8 101 => [:0, :0]
         bitfield n get i8 0 get i8 8 get u8 0 get u4 100 => [:-100, :101, :156, :0]
         bitfield n incrby u2 100 1 overflow sat incrby u2 102 1 => [:1, :1]
         bitfield n incrby u2 100 1 overflow sat incrby u2 102 1 => [:2, :2]
         bitfield n incrby u2 100 1 overflow sat incrby u2 102 1 => [:3, :3]
         bitfield n incrby u2 100 1 overflow sat incrby u2 102 1 => [:0, :3]
         bitfield n overflow fail incrby u2 102 1 get u2 102 => [(nil), :3]
         bitfield n set u8 #1 -1 get u8 8 => [:101, :255]
         bitfield n overflow fail set u8 0 256 => [(nil)]
         bitfield n overflow wrap set u8 0 257 get u8 0 => [:156, :1]
         bitfield n set i64 0 9223372036854775807 incrby i64 0 1 => [:143833713099145216, :-9223372036854775808]
         strlen n => :13
         bitfield nothing get u8 0 => [:0]
         exists nothing => :0
         bitfield n => []
         bitfield_ro n get u8 0 => [:128]
         bitfield_ro n set u8 0 1 => -ERR BITFIELD_RO only supports the GET subcommand
         bitfield n get u64 0 => -ERR Invalid bitfield type. Use something like i16 u8. Note that u64 is not supported but i64 is.
         bitfield n get u8 -1 => -ERR bit offset is not an integer or out of range
         bitfield n get u8 33554432 => [:0]
         bitfield n overflow often get u8 0 => -ERR Invalid OVERFLOW type specified
         bitfield n set u8 0 => -ERR syntax error
         bitfield n foo => -ERR syntax error",
    );
    client.script("set t 1 EX 100 => +OK\nbitfield t set u8 0 50 => [:49]\nttl t => :100");
}

/// Symptom: a command that Redis answers got an error here, or vice versa. Found by comparison with Redis 7.
#[test]
fn odd_arguments_match_redis() {
    let served = serve(RedisOptions::default());
    let mut client = Client::new(&served);
    client.script(
        "getex none ex bad => (nil)
         getex none ex 0 => (nil)
         getex none bad 1 => -ERR syntax error
         set b x => +OK
         getex b ex bad => -ERR value is not an integer or out of range
         getex b ex 0 => -ERR invalid expire time in 'getex' command
         ttl b => :-1
         bitpos b 1 -2 -100 => :1
         bitpos b 1 -1 -100 => :1
         bitcount b -2 -100 => :0
         bitfield b get I8 0 => -ERR Invalid bitfield type. Use something like i16 u8. Note that u64 is not supported but i64 is.
         getbit b 33554432 => :0
         getbit b 4294967295 => :0
         getbit b 4294967296 => -ERR bit offset is not an integer or out of range
         setbit b 33554432 1 => -ERR bit offset is not an integer or out of range
         bitfield b get u8 33554432 => [:0]
         bitfield b set u8 33554432 1 => -ERR bit offset is not an integer or out of range",
    );
}
