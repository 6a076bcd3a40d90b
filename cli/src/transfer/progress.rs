//! The progress of an import or export: a bar with rates and the remaining time.

use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use shoal_transfer::report::{Counts, TransferReport};
use shoal_transfer::text::{counted, show_bytes, show_count};

use crate::output::progress::{self, Ticker};
use crate::transfer::{Screen, Shown};

/// The cost of an item besides its bytes, in bytes: it makes the estimate right for small and for large files.
const ITEM_COST_BYTES: u64 = 32 << 10;
/// The time constant of the moving averages.
const RATE_TIME: Duration = Duration::from_secs(3);

/// The bar, if standard error is a terminal and the summary is text.
pub(super) fn bar(as_json: bool) -> Option<ProgressBar> {
    if as_json { None } else { progress::drawn("{spinner} [{bar:20}] {wide_msg}") }
}

/// Shows the progress until the result is dropped; nothing with `--json`.
pub(crate) fn start(shown: &Shown) -> Option<Ticker> {
    let (report, screen) = (shown.report.clone(), shown.screen.clone());
    let mut rate = Rate::new(screen.started);
    (!screen.json).then(|| Ticker::start(screen.bar.is_some(), move || show(&report, &screen, &mut rate)))
}

fn show(report: &TransferReport, screen: &Screen, rate: &mut Rate) {
    let sofar = report.counts();
    rate.update(Instant::now(), sofar);
    let total = report.total();
    let message = message(sofar, total, screen.verb.is_flat, rate);
    let Some(bar) = &screen.bar else {
        return screen.line(&format!("{}: {message}", screen.verb.name));
    };
    if let Some((items, bytes)) = total {
        bar.set_length(cost(items, bytes));
        bar.set_position(cost(sofar.items(), sofar.all_bytes()).min(cost(items, bytes)));
    }
    bar.set_message(message);
    bar.tick();
}

fn cost(items: u64, bytes: u64) -> u64 {
    bytes.saturating_add(items.saturating_mul(ITEM_COST_BYTES))
}

fn message(sofar: Counts, total: Option<(u64, u64)>, is_flat: bool, rate: &Rate) -> String {
    let mut parts = vec![counted(sofar.files, if is_flat { "object" } else { "file" })];
    for (count, one) in [(sofar.folders, "folder"), (sofar.symlinks, "symlink")] {
        if count > 0 {
            parts.push(counted(count, one));
        }
    }
    if sofar.unchanged > 0 {
        parts.push(format!("{} unchanged", show_count(sofar.unchanged)));
    }
    let of = total.map_or(String::new(), |(items, _)| format!(" of {} in all", show_count(items)));
    let mut text = format!(
        "{}{of}, {}, {}/s, {:.1} MB/s",
        parts.join(", "),
        show_bytes(sofar.all_bytes()),
        show_count(rate.items_per_s as u64),
        rate.bytes_per_s / 1e6,
    );
    if sofar.failed > 0 {
        text.push_str(&format!(", {} failed", show_count(sofar.failed)));
    }
    if let Some(left) = total.and_then(|(items, bytes)| rate.left(sofar, items, bytes)) {
        text.push_str(&format!(", {} left", show_duration(left)));
    }
    text
}

/// Rates as moving averages.
struct Rate {
    at: Instant,
    last: Counts,
    items_per_s: f64,
    bytes_per_s: f64,
    /// Without unchanged items: most of the remaining items are not unchanged.
    cost_per_s: f64,
    updated: bool,
}

impl Rate {
    fn new(at: Instant) -> Self {
        Self {
            at,
            last: Counts::default(),
            items_per_s: 0.0,
            bytes_per_s: 0.0,
            cost_per_s: 0.0,
            updated: false,
        }
    }

    fn update(&mut self, now: Instant, sofar: Counts) {
        let seconds = now.duration_since(self.at).as_secs_f64().max(1e-6);
        let weight = if self.updated { 1.0 - (-seconds / RATE_TIME.as_secs_f64()).exp() } else { 1.0 };
        let mix = |old: f64, new: u64| old + weight * (new as f64 / seconds - old);
        let new_cost = |it: Counts| cost(it.items() - it.unchanged, it.bytes);
        self.items_per_s = mix(self.items_per_s, sofar.items().saturating_sub(self.last.items()));
        self.bytes_per_s = mix(self.bytes_per_s, sofar.all_bytes().saturating_sub(self.last.all_bytes()));
        self.cost_per_s = mix(self.cost_per_s, new_cost(sofar).saturating_sub(new_cost(self.last)));
        (self.at, self.last, self.updated) = (now, sofar, true);
    }

    fn left(&self, sofar: Counts, items: u64, bytes: u64) -> Option<Duration> {
        let left = cost(items, bytes).saturating_sub(cost(sofar.items(), sofar.all_bytes()));
        let seconds = left as f64 / self.cost_per_s;
        // More than a year counts as unknown.
        (seconds.is_finite() && seconds < 31e6).then(|| Duration::from_secs_f64(seconds))
    }
}

fn show_duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{}:{:02} min", seconds / 60, seconds % 60),
        _ => format!("{}:{:02} h", seconds / 3600, seconds / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_remaining_time_follows_the_rate() {
        let start = Instant::now();
        let mut rate = Rate::new(start);
        assert_eq!(rate.left(Counts::default(), 10, 0), None, "nothing is known yet");
        for second in 1..=60 {
            let sofar = Counts { files: second * 100, ..Counts::default() };
            rate.update(start + Duration::from_secs(second), sofar);
        }
        assert!((rate.items_per_s - 100.0).abs() < 1.0);
        let left = rate.left(rate.last, 12_000, 0).unwrap();
        assert!((59..=61).contains(&left.as_secs()), "6,000 are left at 100 a second: {left:?}");
        let text = message(rate.last, Some((12_000, 0)), false, &rate);
        assert!(
            text.starts_with("6,000 files of 12,000 in all, 0 B, 100/s") && text.ends_with(" left"),
            "{text}"
        );
    }

    #[test]
    fn files_folders_and_links_have_separate_counts() {
        let rate = Rate::new(Instant::now());
        let sofar = Counts { files: 1, folders: 2, symlinks: 1, unchanged: 5, ..Counts::default() };
        let text = message(sofar, Some((1_000, 0)), false, &rate);
        assert!(text.starts_with("1 file, 2 folders, 1 symlink, 5 unchanged of 1,000 in all, 0 B"), "{text}");
        assert!(message(sofar, None, true, &rate).starts_with("1 object, "));
    }

    #[test]
    fn durations_are_short() {
        for (seconds, text) in [(7, "7 s"), (61, "1:01 min"), (3661, "1:01 h")] {
            assert_eq!(show_duration(Duration::from_secs(seconds)), text);
        }
    }
}
