//! Archives with oddities. The same number makes the same archive.

use std::collections::BTreeSet;

use shoal_base::SeededEntropy;

/// Bytes of a block.
const BLOCK_BYTES: usize = 512;

/// Oddities without entries: they change the bytes of the whole archive.
const DAMAGES: [&str; 7] = [
    "bad checksum",
    "bad first checksum",
    "truncated",
    "no end mark",
    "lone zero block",
    "concatenated",
    "bytes after the end",
];

/// Oddities, and the entries that make an archive so.
type Oddities = Vec<(&'static str, Vec<Member>)>;

/// The names of all oddities. The numbers of archives choose them in this order.
pub(super) fn oddities() -> Vec<&'static str> {
    Making::new(0, &SeededEntropy::new(0)).all().into_iter().map(|(name, _)| name).collect()
}

/// An archive, and the oddities in it.
pub(super) struct Archive {
    pub(super) bytes: Vec<u8>,
    pub(super) oddities: BTreeSet<&'static str>,
}

/// A header without its checksum, and the content.
#[derive(Clone)]
struct Member {
    name: Vec<u8>,
    letter: u8,
    target: Vec<u8>,
    mode: Vec<u8>,
    size: Vec<u8>,
    mtime: Vec<u8>,
    magic: &'static [u8],
    prefix: Vec<u8>,
    is_signed: bool,
    content: Vec<u8>,
}

impl Member {
    fn new(name: &[u8], letter: u8, content: &[u8]) -> Self {
        Self {
            name: name.to_vec(),
            letter,
            target: Vec::new(),
            mode: b"0000640\0".to_vec(),
            size: octal(content.len() as u64),
            mtime: octal(1_700_000_000),
            magic: b"ustar\x0000",
            prefix: Vec::new(),
            is_signed: false,
            content: content.to_vec(),
        }
    }

    fn link(name: &[u8], letter: u8, target: &[u8]) -> Self {
        Self { target: target.to_vec(), ..Self::new(name, letter, b"") }
    }

    /// An extended header of type `letter`.
    fn extended(letter: u8, records: &[(&str, &[u8])]) -> Self {
        let body: Vec<_> = records.iter().flat_map(|(key, value)| record(key, value)).collect();
        Self::new(b"extended", letter, &body)
    }

    fn bytes(&self) -> Vec<u8> {
        let mut block = vec![0; BLOCK_BYTES];
        let mut set = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
        set(0, &self.name[..self.name.len().min(100)]);
        set(100, &self.mode);
        set(108, b"0000000\x000000000\0");
        set(124, &self.size);
        set(136, &self.mtime);
        set(148, b"        ");
        set(156, &[self.letter]);
        set(157, &self.target[..self.target.len().min(100)]);
        set(257, self.magic);
        set(345, &self.prefix);
        let sum: i64 = match self.is_signed {
            true => block.iter().map(|&byte| i64::from(byte.cast_signed())).sum(),
            false => block.iter().map(|&byte| i64::from(byte)).sum(),
        };
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        block.extend_from_slice(&self.content);
        block.resize(block.len().next_multiple_of(BLOCK_BYTES), 0);
        block
    }
}

/// `LENGTH KEY=VALUE\n`. The length includes itself.
fn record(key: &str, value: &[u8]) -> Vec<u8> {
    let rest = key.len() + value.len() + 3;
    let length = (rest..).find(|length| length.to_string().len() + rest == *length).unwrap();
    [format!("{length} {key}=").as_bytes(), value, b"\n"].concat()
}

fn octal(number: u64) -> Vec<u8> {
    format!("{number:011o}\0").into_bytes()
}

fn base_256(number: i128) -> Vec<u8> {
    let mut bytes = number.to_be_bytes()[4..].to_vec();
    bytes[0] |= 0x80;
    bytes
}

/// The archive with this number.
pub(super) fn archive(number: u64) -> Archive {
    let dice = SeededEntropy::new(number);
    let inner = vec![b'i'; dice.below(1500) as usize];
    // A group stays together: an extended header describes the next entry.
    let mut groups = vec![
        vec![Member::new(b"plain", b'0', b"plain value")],
        vec![Member { mode: b"0000750\0".to_vec(), ..Member::new(b"folder/", b'5', b"") }],
        vec![Member::new(b"folder/inner", b'0', &inner)],
        vec![Member::link(b"link", b'2', b"folder/inner")],
    ];
    let all = oddities();
    let count = all.len() as u64;
    let mut oddities = BTreeSet::from([all[(number % count) as usize]]);
    // Every other archive has a second oddity.
    if (number / count) % 2 == 1 {
        oddities.insert(all[dice.below(count) as usize]);
    }
    for (index, oddity) in oddities.iter().enumerate() {
        let odd = Making::new(index, &dice).members(oddity);
        groups.insert(dice.below(groups.len() as u64 + 1) as usize, odd);
    }
    // A reader that skips too many bytes misses an entry without content.
    groups.push(vec![Member::new(b"empty", b'0', b""), Member::new(b"last", b'0', b"the last value")]);
    let blocks: Vec<Vec<u8>> = groups.concat().iter().map(Member::bytes).collect();
    let mut bytes = blocks.concat();
    damage(&oddities, &blocks, &mut bytes, &dice);
    Archive { bytes, oddities }
}

/// Makes the entries of one oddity. Their names start with its index, so two oddities share no names.
struct Making {
    index: usize,
    value: Vec<u8>,
    long: Vec<u8>,
    odd_time: &'static [u8],
    /// An entry of a type without content.
    bare: Member,
    bare_bytes: u64,
}

impl Making {
    fn new(index: usize, dice: &SeededEntropy) -> Self {
        let long =
            [format!("{index}long/").into_bytes(), vec![b'l'; 120 + dice.below(100) as usize]].concat();
        let odd_time = [&b"1e30"[..], b"soon", b"1.2.3", b"0x10"][dice.below(4) as usize];
        let letter = [b'2', b'3', b'4', b'5', b'6'][dice.below(5) as usize];
        let bare = Member::link(format!("{index}bare").as_bytes(), letter, b"plain");
        let value = vec![b'v'; 1 + dice.below(1200) as usize];
        Self { index, value, long, odd_time, bare, bare_bytes: 1 + dice.below(1500) }
    }

    fn name(&self, own: &str) -> Vec<u8> {
        format!("{}{own}", self.index).into_bytes()
    }

    fn file(&self, own: &str) -> Member {
        Member::new(&self.name(own), b'0', &self.value)
    }

    fn all(&self) -> Oddities {
        let damages = DAMAGES.map(|name| (name, Vec::new())).to_vec();
        [self.extended_headers(), self.fields(), self.names(), self.types(), damages].concat()
    }

    /// The entries of the oddity.
    fn members(&self, oddity: &str) -> Vec<Member> {
        self.all().into_iter().find(|(name, _)| *name == oddity).unwrap().1
    }

    fn extended_headers(&self) -> Oddities {
        let name = |own: &str| self.name(own);
        let file = |own: &str| self.file(own);
        let (long, odd_time, size) = (&self.long, self.odd_time, self.value.len().to_string().into_bytes());
        let pax = |records: &[(&str, &[u8])]| Member::extended(b'x', records);
        let bare = self.bare.clone();
        vec![
            ("pax size without content", vec![pax(&[("size", &size)]), bare]),
            ("pax size", vec![pax(&[("size", &size)]), Member { size: octal(0), ..file("a") }]),
            ("pax path", vec![pax(&[("path", long)]), file("a")]),
            ("pax linkpath", vec![pax(&[("linkpath", long)]), Member::link(&name("l"), b'2', b"x")]),
            ("pax empty path", vec![pax(&[("path", b"")]), file("a")]),
            ("pax empty linkpath", vec![pax(&[("linkpath", b"")]), Member::link(&name("l"), b'2', b"x")]),
            ("pax empty size", vec![pax(&[("size", b"")]), file("a")]),
            ("pax empty mtime", vec![pax(&[("mtime", b"")]), file("a")]),
            ("pax odd mtime", vec![pax(&[("mtime", odd_time)]), file("a")]),
            ("pax short mtime", vec![pax(&[("mtime", b".5")]), file("a")]),
            ("pax mtime", vec![pax(&[("mtime", b"-1234.75")]), file("a")]),
            ("pax repeated key", vec![pax(&[("path", b"other"), ("path", &name("b"))]), file("a")]),
            ("pax damaged record", vec![Member::new(b"x", b'x', b"99 path=a\n"), file("a")]),
            ("pax path with NUL", vec![pax(&[("path", &[&name("n")[..], b"\0x"].concat())]), file("a")]),
            ("pax twice", vec![pax(&[("mtime", b"5")]), pax(&[("path", &name("b"))]), file("a")]),
            (
                "pax before long name",
                vec![pax(&[("path", &name("b"))]), Member::new(b"L", b'L', &name("c")), file("a")],
            ),
            (
                "long name before pax",
                vec![Member::new(b"L", b'L', &name("c")), pax(&[("path", &name("b"))]), file("a")],
            ),
            ("long name", vec![Member::new(b"L", b'L', &[&long[..], b"\0"].concat()), file("a")]),
            (
                "long target",
                vec![
                    Member::new(b"K", b'K', &[&long[..], b"\0"].concat()),
                    Member::link(&name("l"), b'2', b"x"),
                ],
            ),
            ("solaris pax", vec![Member::extended(b'X', &[("path", &name("b"))]), file("a")]),
            ("global mtime", vec![Member::extended(b'g', &[("mtime", b"77")]), file("a"), file("b")]),
            ("global path", vec![Member::extended(b'g', &[("path", &name("g"))]), file("a")]),
            (
                "global size",
                vec![Member::extended(b'g', &[("size", b"3")]), Member::new(&name("a"), b'0', b"abc")],
            ),
            (
                "global empty mtime",
                vec![
                    Member::extended(b'g', &[("mtime", b"77")]),
                    Member::extended(b'g', &[("mtime", b"")]),
                    file("a"),
                ],
            ),
        ]
    }

    fn fields(&self) -> Oddities {
        let name = |own: &str| self.name(own);
        let file = |own: &str| self.file(own);
        let (value, bare) = (&self.value, self.bare.clone());
        vec![
            ("size without content", vec![Member { size: octal(self.bare_bytes), ..bare }]),
            ("odd mtime", vec![Member { mtime: b"yesterday\0\0\0".to_vec(), ..file("a") }]),
            ("odd mode", vec![Member { mode: b"rw-r--r-".to_vec(), ..file("a") }]),
            ("odd size", vec![Member { size: b"a lot\0\0\0\0\0\0\0".to_vec(), ..file("a") }]),
            ("base-256 size", vec![Member { size: base_256(value.len() as i128), ..file("a") }]),
            ("base-256 mtime", vec![Member { mtime: base_256(-5), ..file("a") }]),
            ("base-256 mode", vec![Member { mode: b"\x80\0\0\0\0\0\x01\x80".to_vec(), ..file("a") }]),
            ("size beyond 64 bits", vec![Member { size: base_256(1 << 64), ..file("a") }]),
            ("negative size", vec![Member { size: base_256(-512), ..file("a") }]),
            ("blanks in numbers", vec![Member { mode: b"  644 \0x".to_vec(), ..file("a") }]),
            (
                "signed checksum",
                vec![Member {
                    is_signed: true,
                    ..Member::new(&[&name("s")[..], b"\xe4\xff"].concat(), b'0', value)
                }],
            ),
        ]
    }

    fn names(&self) -> Oddities {
        let name = |own: &str| self.name(own);
        let file = |own: &str| self.file(own);
        vec![
            ("absolute name", vec![Member { name: [b"/", &name("a")[..]].concat(), ..file("a") }]),
            ("name with ..", vec![Member { name: [b"../", &name("a")[..]].concat(), ..file("a") }]),
            ("name with ./", vec![Member { name: [b".//./", &name("a")[..]].concat(), ..file("a") }]),
            ("name with slashes", vec![Member::new(&name("d///"), b'5', b""), file("d//a")]),
            ("empty name", vec![Member { name: Vec::new(), ..file("a") }]),
            ("full name field", vec![Member { name: [&name("f")[..], &[b'f'; 98]].concat(), ..file("a") }]),
            ("bytes after the name", vec![Member { name: name("a\0garbage"), ..file("a") }]),
            ("ustar prefix", vec![Member { prefix: name("prefix/p"), ..file("a") }]),
            (
                "gnu header with prefix bytes",
                vec![Member { magic: b"ustar  \0", prefix: octal(1_600_000_000), ..file("a") }],
            ),
            ("repeated name", vec![file("a"), Member::new(&name("a"), b'0', b"newer"), file("b")]),
            ("file and folder", vec![file("a"), Member::new(&name("a"), b'5', b"")]),
        ]
    }

    fn types(&self) -> Oddities {
        let name = |own: &str| self.name(own);
        let file = |own: &str| self.file(own);
        let (value, fifo) = (&self.value, Member::new(&name("fifo"), b'6', b""));
        let pax = |records: &[(&str, &[u8])]| Member::extended(b'x', records);
        vec![
            ("hard link", vec![file("a"), Member::link(&name("h"), b'1', &name("a"))]),
            (
                "hard link to a hard link",
                vec![
                    file("a"),
                    Member::link(&name("h"), b'1', &name("a")),
                    Member::link(&name("i"), b'1', &name("h")),
                ],
            ),
            (
                "hard link to a symlink",
                vec![Member::link(&name("l"), b'2', b"plain"), Member::link(&name("h"), b'1', &name("l"))],
            ),
            (
                "hard link to a folder",
                vec![Member::new(&name("d"), b'5', b""), Member::link(&name("h"), b'1', &name("d"))],
            ),
            ("hard link to itself", vec![Member::link(&name("h"), b'1', &name("h"))]),
            ("hard link before its target", vec![Member::link(&name("h"), b'1', &name("a")), file("a")]),
            ("hard link to nothing", vec![Member::link(&name("h"), b'1', &name("none"))]),
            ("hard link to a fifo", vec![fifo, Member::link(&name("h"), b'1', &name("fifo"))]),
            (
                "hard link to a sparse file",
                vec![old_sparse(&name("s"), value), Member::link(&name("h"), b'1', &name("s"))],
            ),
            (
                "hard link with content",
                vec![file("a"), Member { size: octal(9), ..Member::link(&name("h"), b'1', &name("a")) }],
            ),
            ("old folder", vec![Member { magic: b"", ..Member::new(&name("d/"), 0, b"") }]),
            ("file with a slash", vec![file("a/")]),
            ("contiguous file", vec![Member { letter: b'7', ..file("a") }]),
            ("unknown type", vec![Member { letter: b'Q', ..file("a") }]),
            ("label", vec![Member::new(&name("label"), b'V', b"")]),
            ("dumpdir", vec![Member::new(&name("d/"), b'D', b"Ya\0\0")]),
            ("old sparse file", vec![old_sparse(&name("s"), value)]),
            (
                "pax sparse file",
                vec![
                    pax(&[
                        ("GNU.sparse.size", b"9000"),
                        ("GNU.sparse.map", format!("0,{}", value.len()).as_bytes()),
                    ]),
                    file("s"),
                ],
            ),
        ]
    }
}

/// A sparse file of GNU tar: `value`, and a hole up to 9,000 bytes.
fn old_sparse(name: &[u8], value: &[u8]) -> Member {
    // From byte 345: two times, offset, long names, unused; four pairs of offset and length; more; the whole size.
    let mut fields = vec![0; 41];
    fields.extend([octal(0), octal(value.len() as u64), octal(9000), octal(0)].concat());
    fields.resize(138, 0);
    fields.extend(octal(9000));
    Member { magic: b"ustar  \0", prefix: fields, ..Member::new(name, b'S', value) }
}

/// Appends the end of the archive, and damages it.
fn damage(oddities: &BTreeSet<&str>, blocks: &[Vec<u8>], bytes: &mut Vec<u8>, dice: &SeededEntropy) {
    let entries = bytes.len();
    if oddities.contains("lone zero block") {
        let at: usize = blocks.iter().take(2).map(Vec::len).sum();
        bytes.splice(at..at, [0; BLOCK_BYTES]);
    }
    if oddities.contains("bad checksum") {
        let at: usize = blocks.iter().take(blocks.len() - 2).map(Vec::len).sum();
        bytes[at + 110] ^= 1;
    }
    if oddities.contains("bad first checksum") {
        bytes[110] ^= 1;
    }
    if !oddities.contains("no end mark") {
        bytes.resize(bytes.len() + 2 * BLOCK_BYTES, 0);
    }
    if oddities.contains("concatenated") {
        bytes.extend_from_within(..);
    }
    if oddities.contains("bytes after the end") {
        bytes.extend_from_slice(b"more");
    }
    if oddities.contains("truncated") {
        bytes.truncate(dice.below(entries as u64) as usize);
    }
}
