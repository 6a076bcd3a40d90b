//! Guards of commands that change every object of a bucket.
//!
//! An empty prefix is most often an unset shell variable, so commands that delete, move or overwrite need `--all` for it. On a terminal
//! the user confirms the deletion of a whole bucket; a script is not asked.

use std::io::{self, IsTerminal, Write};

use anyhow::{Context, bail};
use shoal_client::ListRequest;
use shoal_transfer::objects::Objects;
use shoal_transfer::text::show_count;

use crate::failure::Usage;

/// Maximum number of counted objects before a question; a larger bucket has "more than" that.
const COUNTED_MAX: u64 = 100_000;

/// The error of an empty prefix without `--all`, with the number of objects if they fit in one page of the listing.
pub(crate) async fn refuse_empty_prefix(objects: &Objects, bucket: &str, verb: &str) -> anyhow::Error {
    let held = match count(objects, bucket, 1).await {
        Ok(count) => format!(" ({count})"),
        // The refusal matters more than the count.
        Err(_) => String::new(),
    };
    let problem = format!(
        "the empty prefix means all of bucket {bucket:?}{held}: nothing was {verb}; --all means it, and --dry-run shows it"
    );
    Usage(problem).into()
}

/// Asks the user to confirm the deletion of all objects of `bucket`, unless `is_confirmed` or there is no terminal.
///
/// # Errors
/// The answer is not yes, or the bucket cannot be listed.
pub(crate) async fn confirm_deletion(
    objects: &Objects,
    bucket: &str,
    is_confirmed: bool,
) -> anyhow::Result<()> {
    // With standard error elsewhere the question would be invisible, and the command would seem to hang.
    if is_confirmed || !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return Ok(());
    }
    let count = count(objects, bucket, COUNTED_MAX).await.context("cannot count the objects")?;
    if count == Count::default() {
        return Ok(());
    }
    let question = format!("Delete {count} of bucket {bucket:?}? [y/N] ");
    let answer = tokio::task::spawn_blocking(move || ask(&question)).await??;
    if !["y", "yes"].contains(&answer.trim().to_ascii_lowercase().as_str()) {
        bail!("nothing was deleted: the answer was not yes (--yes skips the question)");
    }
    Ok(())
}

fn ask(question: &str) -> io::Result<String> {
    let mut stderr = io::stderr();
    stderr.write_all(question.as_bytes())?;
    stderr.flush()?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    Ok(answer)
}

/// The number of objects in the counted pages.
#[derive(Default, PartialEq, Eq)]
struct Count {
    objects: u64,
    /// More may follow, or be hidden by damage.
    has_more: bool,
}

impl std::fmt::Display for Count {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let noun = if self.objects == 1 { "object" } else { "objects" };
        let more = if self.has_more { "more than " } else { "" };
        write!(f, "{more}{} {noun}", show_count(self.objects))
    }
}

/// Counts the objects of `bucket` page by page, up to the first page that reaches `most`.
async fn count(objects: &Objects, bucket: &str, most: u64) -> anyhow::Result<Count> {
    let mut request = ListRequest { bucket: bucket.to_owned(), ..ListRequest::default() };
    let mut count = Count::default();
    loop {
        let page = objects.list(&request).await?;
        count.objects += page.entries.len() as u64;
        count.has_more |= !page.damaged.is_empty();
        match page.next {
            Some(next) if count.objects < most => request.start_after = next,
            Some(_) => return Ok(Count { has_more: true, ..count }),
            None => return Ok(count),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_has_a_noun() {
        let words = |objects, has_more| Count { objects, has_more }.to_string();
        assert_eq!(words(1, false), "1 object");
        assert_eq!(words(1_234, false), "1,234 objects");
        assert_eq!(words(100_000, true), "more than 100,000 objects");
    }
}
