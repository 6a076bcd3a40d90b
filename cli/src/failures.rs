//! Several failures of one command, which continues after each.

use crate::failure::{EXIT_FAILED, ReportedCode, exit_code, one_line};
use crate::output::warn;

/// The failures of a command that continues after one: each is a line on standard error at once.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    count: u64,
    /// The exit code that all of them share, if they do.
    code: Option<u8>,
}

impl Failures {
    /// Reports `error`.
    pub(crate) fn add(&mut self, error: &anyhow::Error) {
        warn(&format!("shoal: {}", one_line(error)));
        let code = exit_code(error);
        self.code = if self.count == 0 { Some(code) } else { self.code.filter(|&its| its == code) };
        self.count += 1;
    }

    /// The number of failures.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// # Errors
    /// The exit code of all failures, or [`EXIT_FAILED`] if their codes differ; every failure is already reported.
    pub(crate) fn conclude(&self) -> anyhow::Result<()> {
        match self.count {
            0 => Ok(()),
            _ => Err(ReportedCode(self.code.unwrap_or(EXIT_FAILED)).into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::{EXIT_NOT_FOUND, NotFound};

    #[test]
    fn several_failures_have_the_code_of_all_of_them() {
        let absent = || anyhow::Error::new(NotFound("no".into()));
        let mut failures = Failures::default();
        assert!(failures.conclude().is_ok());
        for _ in 0..2 {
            failures.add(&absent());
            assert_eq!(exit_code(&failures.conclude().unwrap_err()), EXIT_NOT_FOUND);
        }
        failures.add(&anyhow::anyhow!("else"));
        failures.add(&absent());
        assert_eq!((failures.count(), exit_code(&failures.conclude().unwrap_err())), (4, EXIT_FAILED));
    }
}
