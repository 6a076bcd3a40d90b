//! The live runs of a device, found by their groups: the part of a store that moving needs.

use shoal_base::Run;

use super::load::Random;

#[derive(Clone, Copy)]
struct Piece {
    run: Run,
    /// Its index in its group's list.
    at: u32,
}

/// Live runs, by number and by the group of their first block.
pub(crate) struct Pieces {
    group_blocks: u64,
    live: Vec<Piece>,
    groups: Vec<Vec<u32>>,
}

impl Pieces {
    pub(crate) fn new(blocks: u64, group_blocks: u32) -> Self {
        let group_blocks = u64::from(group_blocks);
        Self {
            group_blocks,
            live: Vec::new(),
            groups: vec![Vec::new(); blocks.div_ceil(group_blocks) as usize],
        }
    }

    pub(crate) fn add(&mut self, run: Run) {
        let number = self.live.len() as u32;
        let at = self.list(number, run);
        self.live.push(Piece { run, at });
    }

    pub(crate) fn take_random(&mut self, random: &mut Random) -> Option<Run> {
        let number = random.below(self.live.len() as u64) as usize;
        let piece = *self.live.get(number)?;
        self.unlist(piece);
        self.live.swap_remove(number);
        if let Some(moved) = self.live.get(number) {
            let group = (moved.run.block / self.group_blocks) as usize;
            self.groups[group][moved.at as usize] = number as u32;
        }
        Some(piece.run)
    }

    /// The numbers and runs of the pieces with a block in `group`, which is one group.
    pub(crate) fn in_group(&self, group: Run) -> Vec<(u32, Run)> {
        let index = (group.block / self.group_blocks) as usize;
        // A run that starts in the group before may reach into this one.
        let lists = [index.checked_sub(1).map(|before| &self.groups[before]), Some(&self.groups[index])];
        let numbers = lists.into_iter().flatten().flatten();
        let pieces = numbers.map(|&number| (number, self.live[number as usize].run));
        pieces.filter(|(_, run)| run.overlaps(group)).collect()
    }

    pub(crate) fn relocate(&mut self, number: u32, to: Run) {
        self.unlist(self.live[number as usize]);
        let at = self.list(number, to);
        self.live[number as usize] = Piece { run: to, at };
    }

    fn list(&mut self, number: u32, run: Run) -> u32 {
        let list = &mut self.groups[(run.block / self.group_blocks) as usize];
        list.push(number);
        list.len() as u32 - 1
    }

    fn unlist(&mut self, piece: Piece) {
        let list = &mut self.groups[(piece.run.block / self.group_blocks) as usize];
        list.swap_remove(piece.at as usize);
        if let Some(&moved) = list.get(piece.at as usize) {
            self.live[moved as usize].at = piece.at;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_back_is_right_after_everything() {
        let mut random = Random::new(3);
        let mut pieces = Pieces::new(640, 64);
        let mut live: Vec<Run> = Vec::new();
        for step in 0..3000_u64 {
            let run = Run::new(random.below(620), 1 + random.below(20) as u32);
            match random.below(4) {
                0 | 1 => {
                    pieces.add(run);
                    live.push(run);
                }
                2 => {
                    let group = Run::new(random.below(10) * 64, 64);
                    let found = pieces.in_group(group);
                    let mut runs: Vec<Run> = found.iter().map(|&(_, run)| run).collect();
                    let mut expected: Vec<Run> =
                        live.iter().copied().filter(|run| run.overlaps(group)).collect();
                    runs.sort_unstable();
                    expected.sort_unstable();
                    assert_eq!(runs, expected, "step {step}");
                    if let Some(&(number, from)) = found.first() {
                        pieces.relocate(number, run);
                        let at = live.iter().position(|&run| run == from).unwrap();
                        live[at] = run;
                    }
                }
                _ => {
                    if let Some(gone) = pieces.take_random(&mut random) {
                        let at = live.iter().position(|&run| run == gone).unwrap();
                        live.swap_remove(at);
                    }
                }
            }
            assert_eq!(pieces.live.len(), live.len());
        }
    }
}
