//! Exit codes of commands, and the one line of an error: the failure, its object, and the next step.

use std::io::{self, Write};
use std::process::ExitCode;

/// Everything was done.
pub(crate) const EXIT_OK: u8 = 0;
/// Something was not done; standard error names it.
pub(crate) const EXIT_FAILED: u8 = 1;
/// The command line or the configuration is wrong (clap's code, too).
pub(crate) const EXIT_USAGE: u8 = 2;
/// There is no such object, bucket or prefix.
pub(crate) const EXIT_NOT_FOUND: u8 = 3;
/// A condition of a write does not hold; nothing was written.
pub(crate) const EXIT_CONDITION: u8 = 4;

/// All of it was done, except for the losses that `--lossy` allows.
pub(crate) const EXIT_LOSSY: u8 = 5;

/// The command line or the configuration is wrong.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Usage(pub(crate) String);

/// The object, or the thing, that a command is about does not exist.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct NotFound(pub(crate) String);

/// The command reported its failures itself, which all have this exit code; no message is left.
#[derive(Debug, thiserror::Error)]
#[error("all of it failed for the same reason")]
pub(crate) struct ReportedCode(pub(crate) u8);

/// The command reported its failures itself; no message is left.
#[derive(Debug, thiserror::Error)]
#[error("some of it failed")]
pub(crate) struct Reported;

/// Passes the message of `result` to `warn` if one is left, and returns the exit code.
pub(crate) fn conclude(result: anyhow::Result<()>, warn: impl FnOnce(&str)) -> ExitCode {
    let Err(error) = result else { return ExitCode::from(EXIT_OK) };
    if error.is::<OutputClosed>() {
        // The reader of our output (`shoal ls | head`) has seen enough.
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

/// The error and its causes in one line; a cause that the words before already contain is left out.
pub(crate) fn one_line(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain() {
        let words = cause.to_string().replace('\n', " ");
        if line.contains(&words) {
            continue;
        }
        if !line.is_empty() {
            line.push_str(": ");
        }
        line.push_str(&words);
    }
    line
}

/// Standard output was closed by its reader.
#[derive(Debug, thiserror::Error)]
#[error("standard output was closed")]
pub(crate) struct OutputClosed;

/// Prints the addresses of a server to standard output. A server runs on without it: a full disk, or a reader that has gone, is
/// only logged.
pub(crate) fn announce(lines: &str) {
    let mut stdout = io::stdout();
    if let Err(error) = stdout.write_all(lines.as_bytes()).and_then(|()| stdout.flush()) {
        let lines = lines.trim_end().replace('\n', ", ");
        tracing::warn!("cannot write the addresses to standard output: {error}; the server runs on: {lines}");
    }
}

/// The error of a write to standard output of a whole file: a part of it is of no use, so a reader that has gone is a failure.
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
    fn error_is_one_line_without_repetition() {
        let error =
            anyhow::anyhow!("permission\ndenied").context("cannot open x: permission denied").context("put");
        assert_eq!(one_line(&error), "put: cannot open x: permission denied");
    }

    #[test]
    fn exit_codes_separate_usage_from_failure() {
        let code = |error: anyhow::Error| format!("{:?}", conclude(Err(error), |_| ()));
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
}
