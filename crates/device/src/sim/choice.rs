//! The combinations of versions that a crash may leave at one point in time, all of them or a sample.
//!
//! A state picks one version for every sector of every open block (a block is open while it has more than one legal
//! content), one length of the file, and perhaps one sector that is torn between two bytes. Versions with the same
//! bytes count as one.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::{Arc, LazyLock};

use shoal_base::{BLOCK_BYTES, SeededEntropy};

use super::image::{Block, Image};

/// The unit that a device writes at once; a crash may tear a block between any two.
pub(super) const SECTOR_BYTES: usize = 512;

/// Sectors of a block.
pub(super) const SECTORS: usize = BLOCK_BYTES / SECTOR_BYTES;

/// Extra states with a sector torn between two bytes, at points that show all other states.
const TEARS_EXTRA: usize = 2;

/// Samples drawn for one that is new, before a point counts as exhausted.
const DRAWS_MAX: usize = 8;

static ZEROS: LazyLock<Arc<Block>> = LazyLock::new(|| Arc::new([0; BLOCK_BYTES]));

/// Which states are of interest at a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fresh {
    /// All of them.
    Any,
    /// States in which a part of this write, the latest, is visible.
    Write(usize),
}

/// A version of a block that a crash may leave.
#[derive(Clone)]
pub(super) struct Version {
    pub(super) write: usize,
    pub(super) data: Arc<Block>,
}

/// A block with more than one legal content.
struct OpenBlock {
    block: u64,
    /// The legal contents; the first is there if no write landed.
    contents: Vec<Arc<Block>>,
    /// The write of each content but the first.
    writes: Vec<usize>,
    /// By sector and content: the first content with the same bytes there.
    same: [Vec<u16>; SECTORS],
    /// By sector: the contents that differ there.
    options: [Vec<u16>; SECTORS],
    /// The content of the latest write.
    fresh: Option<u16>,
}

/// A sector that holds the start of one content and the end of another.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Tear {
    open: usize,
    sector: usize,
    cut: usize,
    head: u16,
    tail: u16,
}

/// One state.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Choice {
    /// By open block and sector: the content.
    picks: Vec<[u16; SECTORS]>,
    length: usize,
    tear: Option<Tear>,
}

/// The legal states at one point in time.
pub(super) struct Choices {
    floor: Image,
    open: Vec<OpenBlock>,
    /// Writes that may be missing in part, in the order in which they started.
    writes: Vec<usize>,
    lengths: Vec<u64>,
    fresh: Fresh,
}

fn sector(block: &Block, number: usize) -> &[u8] {
    &block[number * SECTOR_BYTES..][..SECTOR_BYTES]
}

impl OpenBlock {
    /// `None` if all versions are equal.
    fn new(block: u64, floor: &Image, versions: &[Version], fresh: Fresh) -> Option<Self> {
        let mut contents = vec![floor.shared(block).unwrap_or(&ZEROS).clone()];
        contents.extend(versions.iter().map(|version| version.data.clone()));
        let writes: Vec<usize> = versions.iter().map(|version| version.write).collect();
        let same: [Vec<u16>; SECTORS] = std::array::from_fn(|number| {
            let first_like = |content: &Arc<Block>| {
                let like = |other: &Arc<Block>| sector(other, number) == sector(content, number);
                contents.iter().position(like).unwrap_or_default() as u16
            };
            contents.iter().map(first_like).collect()
        });
        let options = std::array::from_fn(|number| {
            let different: BTreeSet<u16> = same[number].iter().copied().collect();
            different.into_iter().collect()
        });
        let options: [Vec<u16>; SECTORS] = options;
        let fresh_place = |write| writes.iter().position(|&other| other == write);
        let fresh = match fresh {
            Fresh::Any => None,
            Fresh::Write(write) => fresh_place(write).map(|place| place as u16 + 1),
        };
        options.iter().any(|options| options.len() > 1).then_some(Self {
            block,
            contents,
            writes,
            same,
            options,
            fresh,
        })
    }

    fn whole(&self, content: u16) -> [u16; SECTORS] {
        std::array::from_fn(|number| self.same[number][content as usize])
    }

    /// The content after exactly the writes that `lands` selects.
    fn landed(&self, lands: &mut dyn FnMut(usize) -> bool) -> [u16; SECTORS] {
        let last = self.writes.iter().rposition(|&write| lands(write));
        self.whole(last.map_or(0, |place| place as u16 + 1))
    }

    /// Sectors in which the latest write can be seen.
    fn fresh_sectors(&self) -> Vec<usize> {
        let Some(fresh) = self.fresh else { return Vec::new() };
        (0..SECTORS).filter(|&number| self.options[number].contains(&fresh)).collect()
    }

    fn bytes(&self, picks: &[u16; SECTORS]) -> Arc<Block> {
        let whole = (0..self.contents.len() as u16).find(|&content| self.whole(content) == *picks);
        if let Some(content) = whole {
            return self.contents[content as usize].clone();
        }
        let mut bytes = *self.contents[0];
        for (number, &pick) in picks.iter().enumerate() {
            let from = sector(&self.contents[pick as usize], number);
            bytes[number * SECTOR_BYTES..][..SECTOR_BYTES].copy_from_slice(from);
        }
        Arc::new(bytes)
    }
}

impl Choices {
    pub(super) fn new(
        floor: &Image,
        open: &BTreeMap<u64, Vec<Version>>,
        lengths: Vec<u64>,
        fresh: Fresh,
    ) -> Self {
        let open: Vec<OpenBlock> = open
            .iter()
            .filter_map(|(&block, versions)| OpenBlock::new(block, floor, versions, fresh))
            .collect();
        let writes: BTreeSet<usize> = open.iter().flat_map(|block| block.writes.iter().copied()).collect();
        Self { floor: floor.clone(), open, writes: writes.into_iter().collect(), lengths, fresh }
    }

    /// Calls `each` with a maker of the image of every state to look at, in an order that depends on the arguments only.
    pub(super) fn for_each(&self, limit: usize, seed: u64, mut each: impl FnMut(&dyn Fn() -> Image)) {
        if self.fresh != Fresh::Any && self.open.iter().all(|block| block.fresh_sectors().is_empty()) {
            return;
        }
        let mut show = |choice: &Choice| each(&|| self.image(choice));
        let random = SeededEntropy::new(seed);
        if self.count() <= limit {
            self.all(&mut show);
            for _ in 0..TEARS_EXTRA {
                let mut choice = self.random(&random);
                self.tear(&mut choice, &random);
                if choice.tear.is_some() {
                    show(&choice);
                }
            }
            return;
        }
        let mut sample = Sample { choices: self, seen: HashSet::new(), limit, show: &mut show };
        self.extremes(&mut sample);
        for _ in 0..limit.saturating_mul(DRAWS_MAX) {
            if sample.is_full() {
                return;
            }
            sample.offer(self.random(&random));
        }
    }

    /// Combinations of sectors and lengths.
    fn count(&self) -> usize {
        let sectors = self.open.iter().flat_map(|block| block.options.iter().map(Vec::len));
        sectors.chain([self.lengths.len()]).fold(1, usize::saturating_mul)
    }

    fn is_fresh(&self, choice: &Choice) -> bool {
        let of_latest = |open: &OpenBlock, pick: u16| open.fresh == Some(pick);
        let torn = |tear: &Tear| {
            let open = &self.open[tear.open];
            of_latest(open, tear.head) || of_latest(open, tear.tail)
        };
        let mut picks = self.open.iter().zip(&choice.picks);
        self.fresh == Fresh::Any
            || picks.any(|(open, picks)| picks.iter().any(|&pick| of_latest(open, pick)))
            || choice.tear.as_ref().is_some_and(torn)
    }

    /// Every combination, by counting.
    fn all(&self, show: &mut dyn FnMut(&Choice)) {
        let digits: Vec<(usize, usize)> =
            (0..self.open.len()).flat_map(|open| (0..SECTORS).map(move |number| (open, number))).collect();
        let mut counter = vec![0_usize; digits.len() + 1];
        loop {
            let mut choice = self.nothing();
            choice.length = counter[digits.len()];
            for (&(open, number), &digit) in digits.iter().zip(&counter) {
                choice.picks[open][number] = self.open[open].options[number][digit];
            }
            if self.is_fresh(&choice) {
                show(&choice);
            }
            let radix = |place: usize| match digits.get(place) {
                Some(&(open, number)) => self.open[open].options[number].len(),
                None => self.lengths.len(),
            };
            let Some(place) = (0..counter.len()).find(|&place| counter[place] + 1 < radix(place)) else {
                return;
            };
            counter[..place].fill(0);
            counter[place] += 1;
        }
    }

    fn nothing(&self) -> Choice {
        self.landing(&mut |_| false)
    }

    /// The state in which exactly the whole writes that `lands` selects landed, in order. The file has its newest length.
    fn landing(&self, lands: &mut dyn FnMut(usize) -> bool) -> Choice {
        let picks = self.open.iter().map(|open| open.landed(lands)).collect();
        Choice { picks, length: self.lengths.len() - 1, tear: None }
    }

    /// The states that protocols break on most often, in at most half of the sample.
    fn extremes(&self, sample: &mut Sample<'_>) {
        let budget = sample.limit.div_ceil(2);
        let (Some(&first), Some(&last)) = (self.writes.first(), self.writes.last()) else { return };
        for length in 0..self.lengths.len() {
            sample.offer(Choice { length, ..self.nothing() });
        }
        sample.offer(self.landing(&mut |_| true));
        sample.offer(self.landing(&mut |write| write == last));
        sample.offer(self.landing(&mut |write| write != first));
        sample.offer(self.landing(&mut |write| write != last));
        let step = (self.writes.len() * 3).div_ceil(budget.max(1)).max(1);
        for &one in self.writes.iter().step_by(step) {
            if sample.seen.len() >= budget {
                return;
            }
            sample.offer(self.landing(&mut |write| write <= one));
            sample.offer(self.landing(&mut |write| write == one));
            sample.offer(self.landing(&mut |write| write != one));
        }
    }

    /// A random state, of interest at this point.
    fn random(&self, random: &SeededEntropy) -> Choice {
        let mut choice = match random.below(4) {
            0 => self.random_writes(random),
            1 => self.random_blocks(random),
            2 => self.random_sectors(random),
            _ => {
                let mut choice = self.random_writes(random);
                self.retear_block(&mut choice, random);
                choice
            }
        };
        choice.length = random.below(self.lengths.len() as u64) as usize;
        if random.below(8) == 0 {
            self.tear(&mut choice, random);
        }
        self.freshen(&mut choice, random);
        choice
    }

    fn random_writes(&self, random: &SeededEntropy) -> Choice {
        let odds = [1, 4, 7][random.below(3) as usize];
        let landed: HashSet<usize> = self.writes.iter().copied().filter(|_| random.below(8) < odds).collect();
        self.landing(&mut |write| landed.contains(&write))
    }

    fn random_blocks(&self, random: &SeededEntropy) -> Choice {
        let mut choice = self.nothing();
        for (open, picks) in self.open.iter().zip(&mut choice.picks) {
            *picks = open.whole(random.below(open.contents.len() as u64) as u16);
        }
        choice
    }

    fn random_sectors(&self, random: &SeededEntropy) -> Choice {
        let mut choice = self.nothing();
        for open in 0..self.open.len() {
            self.mix_block(open, &mut choice, random);
        }
        choice
    }

    fn mix_block(&self, open: usize, choice: &mut Choice, random: &SeededEntropy) {
        for (options, pick) in self.open[open].options.iter().zip(&mut choice.picks[open]) {
            *pick = options[random.below(options.len() as u64) as usize];
        }
    }

    fn retear_block(&self, choice: &mut Choice, random: &SeededEntropy) {
        if !self.open.is_empty() {
            self.mix_block(random.below(self.open.len() as u64) as usize, choice, random);
        }
    }

    /// Tears one sector between two bytes, if there is one with a choice.
    fn tear(&self, choice: &mut Choice, random: &SeededEntropy) {
        if self.open.is_empty() {
            return;
        }
        let open = random.below(self.open.len() as u64) as usize;
        let torn: Vec<usize> =
            (0..SECTORS).filter(|&number| self.open[open].options[number].len() > 1).collect();
        let Some(&number) = torn.get(random.below(torn.len() as u64) as usize) else { return };
        let options = &self.open[open].options[number];
        let head = random.below(options.len() as u64) as usize;
        let tail = (head + 1 + random.below(options.len() as u64 - 1) as usize) % options.len();
        let cut = 1 + random.below(SECTOR_BYTES as u64 - 1) as usize;
        choice.tear = Some(Tear { open, sector: number, cut, head: options[head], tail: options[tail] });
    }

    /// Lets a sector of the latest write land, if the point asks for it and none did.
    fn freshen(&self, choice: &mut Choice, random: &SeededEntropy) {
        if self.is_fresh(choice) {
            return;
        }
        let seen: Vec<usize> =
            (0..self.open.len()).filter(|&open| !self.open[open].fresh_sectors().is_empty()).collect();
        let open = seen[random.below(seen.len() as u64) as usize];
        let (Some(fresh), sectors) = (self.open[open].fresh, self.open[open].fresh_sectors()) else { return };
        if random.below(2) == 0 {
            choice.picks[open] = self.open[open].whole(fresh);
        } else {
            choice.picks[open][sectors[random.below(sectors.len() as u64) as usize]] = fresh;
        }
    }

    fn image(&self, choice: &Choice) -> Image {
        let mut image = self.floor.clone();
        image.resize(self.lengths[choice.length]);
        for (open, picks) in self.open.iter().zip(&choice.picks) {
            if open.block < image.blocks() && *picks != open.whole(0) {
                image.put(open.block, open.bytes(picks));
            }
        }
        if let Some(tear) = &choice.tear {
            self.apply_tear(&mut image, tear);
        }
        image
    }

    fn apply_tear(&self, image: &mut Image, tear: &Tear) {
        let open = &self.open[tear.open];
        if open.block >= image.blocks() {
            return;
        }
        let mut bytes = *image.block(open.block);
        let torn = &mut bytes[tear.sector * SECTOR_BYTES..][..SECTOR_BYTES];
        torn[..tear.cut]
            .copy_from_slice(&sector(&open.contents[tear.head as usize], tear.sector)[..tear.cut]);
        torn[tear.cut..]
            .copy_from_slice(&sector(&open.contents[tear.tail as usize], tear.sector)[tear.cut..]);
        image.write(open.block, &bytes);
    }
}

/// Different states, up to a limit.
struct Sample<'a> {
    choices: &'a Choices,
    seen: HashSet<Choice>,
    limit: usize,
    show: &'a mut dyn FnMut(&Choice),
}

impl Sample<'_> {
    fn is_full(&self) -> bool {
        self.seen.len() >= self.limit
    }

    /// Shows the state if it is of interest and new.
    fn offer(&mut self, choice: Choice) {
        if self.is_full() || !self.choices.is_fresh(&choice) {
            return;
        }
        if self.seen.insert(choice.clone()) {
            (self.show)(&choice);
        }
    }
}
