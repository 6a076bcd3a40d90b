//! How commands end: exit codes, and one line that says what happened, to what, and what to do.

use std::io;
use std::process::ExitCode;

/// Everything was done.
pub(crate) const EXIT_OK: u8 = 0;
/// Something was not done; standard error says what.
pub(crate) const EXIT_FAILED: u8 = 1;
/// The command line or the configuration is wrong (clap's code, too).
pub(crate) const EXIT_USAGE: u8 = 2;

/// The command line or the configuration is wrong.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Usage(pub(crate) String);

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
    if error.is::<Reported>() {
        return ExitCode::from(EXIT_FAILED);
    }
    warn(&format!("shoal: {}", one_line(&error)));
    ExitCode::from(if error.is::<Usage>() { EXIT_USAGE } else { EXIT_FAILED })
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
    fn an_error_is_one_line_without_repetition() {
        let error =
            anyhow::anyhow!("permission\ndenied").context("cannot open x: permission denied").context("put");
        assert_eq!(one_line(&error), "put: cannot open x: permission denied");
    }

    #[test]
    fn exit_codes_tell_usage_from_failure() {
        let code = |error: anyhow::Error| format!("{:?}", conclude(Err(error), |_| ()));
        assert_eq!(code(Usage("no".into()).into()), format!("{:?}", ExitCode::from(2)));
        assert_eq!(code(anyhow::anyhow!("no")), format!("{:?}", ExitCode::from(1)));
        assert_eq!(code(Reported.into()), format!("{:?}", ExitCode::from(1)));
        assert_eq!(code(OutputClosed.into()), format!("{:?}", ExitCode::from(0)));
    }
}
