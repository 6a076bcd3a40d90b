//! Divides the memory of `shoal check` between the cache and the records of a repair. The rest is for the program, the log records that
//! an opening reads, and twelve bytes for each run of blocks.

use crate::arguments::size::Size;
use crate::failure::Usage;
use crate::memory::limit::default_memory;

const MIB: u64 = 1 << 20;
/// Divisor of the memory: one share for the cache, one for each of the two kinds of records of a repair.
const SHARE: u64 = 8;
/// The minimum cache.
const CACHE_MIN: u64 = 16 * MIB;
/// Minimum memory of each kind of records.
const HELD_MIN: u64 = 8 * MIB;
/// Maximum of a part without options.
const USUAL_MAX: u64 = 64 * MIB;
/// The smallest value of `--memory`.
const TOTAL_MIN: u64 = 64 * MIB;

/// The parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CheckMemory {
    pub(crate) cache: Size,
    /// Bytes for the keys and records of a repair, and the same again for the log after damage.
    pub(crate) held: Size,
}

impl CheckMemory {
    /// The parts of `memory` and `cache`; without them, of the memory limit of the program.
    ///
    /// # Errors
    /// [`Usage`]: it is too little.
    pub(crate) fn of(memory: Option<Size>, cache: Option<Size>) -> Result<Self, Usage> {
        Self::divide(memory, cache, default_memory())
    }

    fn divide(memory: Option<Size>, cache: Option<Size>, default: Option<Size>) -> Result<Self, Usage> {
        let share = match (memory, default) {
            (Some(Size(given)), _) if given < TOTAL_MIN => {
                let (given, least) = (Size(given), Size(TOTAL_MIN));
                return Err(Usage(format!("--memory {given} is too little: a check needs {least}")));
            }
            (Some(Size(given)), _) => given / SHARE,
            (None, Some(Size(default))) => (default / SHARE).min(USUAL_MAX),
            (None, None) => USUAL_MAX,
        };
        let wanted = cache.map_or(0, |cache| cache.0);
        if let Some(Size(given)) = memory
            && wanted > given / 2
        {
            let (cache, most) = (Size(wanted), Size(given / 2));
            return Err(Usage(format!("--cache {cache} is more than half of --memory, {most}")));
        }
        Ok(Self {
            cache: cache.unwrap_or(Size(share.max(CACHE_MIN))),
            // A larger cache has always allowed more records.
            held: Size(if memory.is_some() { share } else { share.max(wanted) }.max(HELD_MIN)),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn mib(size: Size) -> u64 {
        size.0 / MIB
    }

    #[test]
    fn container_share_differs_from_machine_default() {
        let of = |default| CheckMemory::divide(None, None, default).unwrap();
        let small = of(Some(Size(128 * MIB)));
        assert_eq!((mib(small.cache), mib(small.held)), (16, 16));
        let machine = of(Some(Size(12 << 30)));
        assert_eq!((mib(machine.cache), mib(machine.held)), (64, 64));
        assert_eq!(of(None), machine);
        let given = CheckMemory::divide(Some(Size(8 << 30)), None, Some(Size(128 * MIB))).unwrap();
        assert_eq!((mib(given.cache), mib(given.held)), (1024, 1024));
        let cached = CheckMemory::divide(None, Some(Size(512 * MIB)), None).unwrap();
        assert_eq!((mib(cached.cache), mib(cached.held)), (512, 512));
        assert!(CheckMemory::divide(Some(Size(32 * MIB)), None, None).is_err());
        assert!(CheckMemory::divide(Some(Size(128 * MIB)), Some(Size(65 * MIB)), None).is_err());
    }

    proptest! {
        /// The cache and both kinds of records leave a part for the program and the log.
        #[test]
        fn the_sum_holds(total in TOTAL_MIN..64 << 30, cache in prop::option::of(0_u64..64 << 30)) {
            let Ok(parts) = CheckMemory::divide(Some(Size(total)), cache.map(Size), None) else { return Ok(()) };
            prop_assert!(parts.cache.0 + 2 * parts.held.0 <= total - total / 4, "{parts:?} of {total}");
        }
    }
}
