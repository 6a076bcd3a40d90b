//! Values of the command line that several studies take.

use std::time::Duration;

use shoal_device::IoMode;

/// Parses a number of seconds.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let number: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    Duration::try_from_secs_f64(number).map_err(|error| error.to_string())
}

/// Parses the name of a way to drive a device.
pub(crate) fn io_mode(text: &str) -> Result<IoMode, String> {
    match text {
        "auto" => Ok(IoMode::Auto),
        "uring" => Ok(IoMode::Uring),
        "threads" => Ok(IoMode::Threads),
        _ => Err("it is auto, uring or threads".into()),
    }
}

/// The options of a study from `words`.
#[cfg(test)]
pub(crate) fn parsed<T: clap::Args>(words: &[&str]) -> T {
    let command = T::augment_args(clap::Command::new("study").no_binary_name(true));
    T::from_arg_matches(&command.get_matches_from(words)).unwrap()
}
