//! Temporary names of files that are not complete.
//!
//! A name has 64 random bits. A process id would not do: in a container each command is process 1, and the name could be that of a file
//! from a killed command. The pattern is fixed, so that an import recognises such files and leaves them out.

use rustix::io::{Errno, Result};
use shoal_base::{Entropy, SystemEntropy};

/// Attempts to find an unused name. The first one practically always succeeds.
const ATTEMPTS_MAX: u32 = 16;

const START: &str = ".shoal-";
const END: &str = ".tmp";
/// In the names of a probe, before the end: one character in composed and in decomposed form.
const COMPOSED: &str = "-\u{e9}";
const DECOMPOSED: &str = "-e\u{301}";

/// Calls `create` with a new name until the name is unused, and returns the name.
///
/// # Errors
/// Those of `create`, except for "it exists".
pub fn create<T>(mut create: impl FnMut(&str) -> Result<T>) -> Result<(String, T)> {
    let mut attempts = 1;
    loop {
        let name = format!("{START}{:016x}{END}", SystemEntropy.next_u64());
        match create(&name) {
            Err(Errno::EXIST) if attempts < ATTEMPTS_MAX => attempts += 1,
            created => return created.map(|created| (name, created)),
        }
    }
}

/// Returns true if `name` is a temporary name of this or of an earlier version (`.shoal-PROCESS-NUMBER.tmp`).
pub(crate) fn is_temporary(name: &[u8]) -> bool {
    let Some(middle) = name.strip_prefix(START.as_bytes()).and_then(|rest| rest.strip_suffix(END.as_bytes()))
    else {
        return false;
    };
    let without = |ending: &str| middle.strip_suffix(ending.as_bytes());
    let number = without(COMPOSED).or_else(|| without(DECOMPOSED)).unwrap_or(middle);
    let is_number = number.len() == 16 && number.iter().all(|byte| b"0123456789abcdef".contains(byte));
    let mut parts = middle.split(|&byte| byte == b'-');
    let is_decimal = |part: Option<&[u8]>| {
        part.is_some_and(|part| !part.is_empty() && part.iter().all(u8::is_ascii_digit))
    };
    let is_earlier = is_decimal(parts.next()) && is_decimal(parts.next()) && parts.next().is_none();
    is_number || is_earlier
}

/// A temporary name for a probe of a file system, and names of the same file on a file system that folds names by case, by Unicode
/// normalisation, or by dropping a final dot.
pub(crate) fn probe_names(name: &str) -> (String, [String; 3]) {
    let stem = name.strip_suffix(END).unwrap_or(name);
    let composed = format!("{stem}{COMPOSED}{END}");
    let others = [composed.to_ascii_uppercase(), format!("{stem}{DECOMPOSED}{END}"), format!("{composed}.")];
    (composed, others)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_existing_name_is_not_used_and_no_name_is_tried_twice() {
        let mut seen = Vec::new();
        let (name, ()) = create(|name| {
            seen.push(name.to_owned());
            if seen.len() < 3 { Err(Errno::EXIST) } else { Ok(()) }
        })
        .unwrap();
        assert_eq!(seen.last(), Some(&name));
        seen.dedup();
        assert_eq!(seen.len(), 3);
        assert_eq!(create(|_| Err::<(), _>(Errno::EXIST)).unwrap_err(), Errno::EXIST, "attempts are bounded");
        assert_eq!(create(|_| Err::<(), _>(Errno::NOSPC)).unwrap_err(), Errno::NOSPC);
    }

    #[test]
    fn temporary_names_are_recognised() {
        let (name, ()) = create(|_| Ok(())).unwrap();
        let (probe, others) = probe_names(&name);
        for name in [&name, &probe, &others[1], ".shoal-1-0.tmp", ".shoal-4711-20.tmp"] {
            assert!(is_temporary(name.as_bytes()), "{name}");
        }
        for name in [
            ".shoal-.tmp",
            ".shoal-1.tmp",
            ".shoal-1-x.tmp",
            ".shoal-1-2-3.tmp",
            "shoal-1-2.tmp",
            ".shoal-1-2.tmp2",
            ".shoal-0123456789ABCDEF.tmp",
        ] {
            assert!(!is_temporary(name.as_bytes()), "{name}");
        }
    }
}
