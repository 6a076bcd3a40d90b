//! Failures of commands: exit codes, and one line on standard error with the failure, its object and the next step.

use std::io::{self, Write};
use std::process::ExitCode;

use shoal_transfer::text::one_line;

use crate::output::warn;

/// Everything was done.
pub(crate) const EXIT_OK: u8 = 0;
/// Something failed; standard error names it.
pub(crate) const EXIT_FAILED: u8 = 1;
/// The command line or the configuration is wrong (clap's code, too).
pub(crate) const EXIT_USAGE: u8 = 2;
/// There is no such object, bucket or prefix.
pub(crate) const EXIT_NOT_FOUND: u8 = 3;
/// A condition of a write does not hold; nothing was written.
pub(crate) const EXIT_CONDITION: u8 = 4;

/// Everything was done, except for the losses that `--lossy` allows.
pub(crate) const EXIT_LOSSY: u8 = 5;

/// The command line or the configuration is wrong.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Usage(pub(crate) String);

/// The object or thing of a command does not exist.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct NotFound(pub(crate) String);

/// The command has reported its failures, which all have this exit code.
#[derive(Debug, thiserror::Error)]
#[error("all of it failed for the same reason")]
pub(crate) struct ReportedCode(pub(crate) u8);

/// The command has reported its failures.
#[derive(Debug, thiserror::Error)]
#[error("some of it failed")]
pub(crate) struct Reported;

/// Prints the error of `result`, unless the command has reported it, and returns the exit code.
pub(crate) fn conclude(result: anyhow::Result<()>) -> ExitCode {
    let Err(error) = result else { return ExitCode::from(EXIT_OK) };
    if error.is::<OutputClosed>() {
        // The reader of the output (`shoal ls | head`) has exited.
        return ExitCode::from(EXIT_OK);
    }
    if !error.is::<Reported>() && !error.is::<ReportedCode>() {
        warn(&format!("shoal: {}", one_line(&error)));
    }
    ExitCode::from(exit_code(&error))
}

/// The exit code of a command that fails with `error`.
pub(crate) fn exit_code(error: &anyhow::Error) -> u8 {
    if let Some(ReportedCode(code)) = error.downcast_ref() {
        return *code;
    }
    if error.is::<Usage>() {
        return EXIT_USAGE;
    }
    match error.downcast_ref() {
        Some(shoal_client::Error::ConditionFailed { .. }) => EXIT_CONDITION,
        Some(shoal_client::Error::NotFound) => EXIT_NOT_FOUND,
        _ if error.is::<NotFound>() => EXIT_NOT_FOUND,
        _ => EXIT_FAILED,
    }
}

/// The failures of a command that continues after each. Each is a line on standard error at once.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    count: u64,
    /// The exit code of all failures, if it is the same.
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
    /// The exit code of all failures, or [`EXIT_FAILED`] if their codes differ.
    pub(crate) fn conclude(&self) -> anyhow::Result<()> {
        match self.count {
            0 => Ok(()),
            _ => Err(ReportedCode(self.code.unwrap_or(EXIT_FAILED)).into()),
        }
    }
}

/// Standard output was closed by its reader.
#[derive(Debug, thiserror::Error)]
#[error("standard output was closed")]
pub(crate) struct OutputClosed;

/// Prints the addresses of a server to standard output. The server continues after an error: a full disk, or a reader that has exited,
/// is only logged.
pub(crate) fn announce(lines: &str) {
    let mut stdout = io::stdout();
    if let Err(error) = stdout.write_all(lines.as_bytes()).and_then(|()| stdout.flush()) {
        let lines = lines.trim_end().replace('\n', ", ");
        tracing::warn!("cannot write the addresses to standard output: {error}; the server runs on: {lines}");
    }
}

/// The error of a write to standard output of a whole file. A part of it is of no use, so a reader that has exited is a failure.
pub(crate) fn whole_output_error(error: io::Error) -> anyhow::Error {
    anyhow::Error::new(error).context("cannot write to standard output; the output is not complete")
}

/// The error of a write to standard output.
pub(crate) fn output_error(error: io::Error) -> anyhow::Error {
    if error.kind() == io::ErrorKind::BrokenPipe {
        OutputClosed.into()
    } else {
        anyhow::Error::new(error).context("cannot write to standard output")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_separate_usage_from_failure() {
        let code = |error: anyhow::Error| format!("{:?}", conclude(Err(error)));
        assert_eq!(code(Usage("no".into()).into()), format!("{:?}", ExitCode::from(2)));
        assert_eq!(code(anyhow::anyhow!("no")), format!("{:?}", ExitCode::from(1)));
        assert_eq!(code(Reported.into()), format!("{:?}", ExitCode::from(1)));
        assert_eq!(code(OutputClosed.into()), format!("{:?}", ExitCode::from(0)));
        let condition = || shoal_client::Error::ConditionFailed { rule: None, current: None };
        let in_context = anyhow::Error::new(condition()).context("cannot put").context("a").context("b");
        assert_eq!(code(in_context), format!("{:?}", ExitCode::from(4)));
        let absent = anyhow::Error::new(NotFound("no".into())).context("cannot get");
        assert_eq!(code(absent), format!("{:?}", ExitCode::from(3)));
        assert_eq!(code(shoal_client::Error::NotFound.into()), format!("{:?}", ExitCode::from(3)));
    }

    #[test]
    fn several_failures_have_their_common_code() {
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
