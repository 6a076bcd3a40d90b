//! The figures of a store in a few lines for people, for `shoal stat` and `shoal top`.

use std::time::Duration;

use shoal_client::{Durations, FrontendFigures, Stat};
use shoal_transfer::text::show_count;

use crate::arguments::size::Size;
use crate::output::show_time;

/// The figures of one moment, and optionally of an earlier one for rates.
pub(crate) struct Summary<'a> {
    now: &'a Stat,
    before: Option<(&'a Stat, Duration)>,
    /// The figures were asked for over one connection, one call for each of the two moments: neither is counted.
    is_without_own: bool,
}

/// The frontend, the operation and the result of the call that asks for figures.
const OWN_CALL: (&str, &str, &str) = ("grpc", "other", "ok");

/// Requests of one operation of one frontend.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct RequestRow {
    pub(crate) frontend: String,
    pub(crate) operation: String,
    /// Requests a second.
    pub(crate) rate: f64,
    /// Failed requests a second; a get of an absent object is no failure.
    pub(crate) failed_rate: f64,
    pub(crate) durations: Durations,
}

impl<'a> Summary<'a> {
    /// A summary of one moment. Rates are means since the start of the server.
    pub(crate) fn new(now: &'a Stat) -> Self {
        Self { now, before: None, is_without_own: false }
    }

    /// A summary of the time between two moments.
    pub(crate) fn between(before: &'a Stat, now: &'a Stat, apart: Duration) -> Self {
        // After a restart of the server the earlier figures do not compare.
        let is_same_run = now.uptime_ns >= before.uptime_ns && !apart.is_zero();
        Self { now, before: is_same_run.then_some((before, apart)), is_without_own: false }
    }

    /// Without the connection and the call of the command that shows it: an idle server has no clients.
    pub(crate) fn without_own(self) -> Self {
        Self { is_without_own: true, ..self }
    }

    /// The own calls among those of this kind between the two moments: the first moment's ended after its figures were taken.
    fn own_calls(&self, frontend: &str, operation: &str, result: &str) -> u64 {
        let is_own = self.is_without_own && (frontend, operation, result) == OWN_CALL;
        u64::from(is_own && self.before.is_some())
    }

    fn seconds(&self) -> f64 {
        self.before.map_or(self.now.uptime_ns as f64 / 1e9, |(_, apart)| apart.as_secs_f64())
    }

    /// The growth of a figure.
    pub(crate) fn growth(&self, name: &str) -> u64 {
        let before = self.before.map_or(0, |(before, _)| before.figure(name));
        self.now.figure(name).saturating_sub(before)
    }

    /// The growth of a figure a second.
    pub(crate) fn rate(&self, name: &str) -> f64 {
        if self.seconds() > 0.0 { self.growth(name) as f64 / self.seconds() } else { 0.0 }
    }

    fn bytes(&self, blocks: u64) -> u64 {
        blocks.saturating_mul(self.now.block_bytes.into())
    }

    /// Requests of the frontends by operation, in the server's order.
    pub(crate) fn requests(&self) -> Vec<RequestRow> {
        let mut rows: Vec<RequestRow> = Vec::new();
        for FrontendFigures { name, requests } in &self.now.frontends {
            for request in requests {
                let earlier = self.before.and_then(|(before, _)| {
                    let frontend = before.frontends.iter().find(|frontend| frontend.name == *name)?;
                    frontend
                        .requests
                        .iter()
                        .find(|it| it.operation == request.operation && it.result == request.result)
                });
                let fresh =
                    request.durations.since(&earlier.map(|it| it.durations.clone()).unwrap_or_default());
                let own = self.own_calls(name, &request.operation, &request.result);
                let count = fresh.count().saturating_sub(own);
                let rate = if self.seconds() > 0.0 { count as f64 / self.seconds() } else { 0.0 };
                let is_row = |row: &RequestRow| row.frontend == *name && row.operation == request.operation;
                let at = rows.iter().position(is_row).unwrap_or_else(|| {
                    let (frontend, operation) = (name.clone(), request.operation.clone());
                    rows.push(RequestRow { frontend, operation, ..RequestRow::default() });
                    rows.len() - 1
                });
                if let Some(row) = rows.get_mut(at) {
                    row.rate += rate;
                    row.durations.merge(&fresh);
                    if !matches!(request.result.as_str(), "ok" | "not_found") {
                        row.failed_rate += rate;
                    }
                }
            }
        }
        rows
    }

    /// Lines, each with a name and a text.
    pub(crate) fn lines(&self) -> Vec<(&'static str, String)> {
        let mut lines = vec![
            ("objects", self.objects()),
            ("bytes", self.stored_bytes()),
            ("room", self.room()),
            ("log", self.log()),
            ("commits", self.commits()),
            ("cache", self.cache()),
        ];
        if !self.now.frontends.is_empty() {
            lines.push(("requests", self.all_requests()));
            lines.push(("connections", self.connections()));
        }
        lines.extend(self.memory().map(|memory| ("memory", memory)));
        lines.push(("health", self.health()));
        lines.push(("damage", self.damage()));
        lines.push(("last backup", self.last_backup()));
        if self.now.uptime_ns > 0 {
            let up = Duration::from_secs(self.now.uptime_ns / 1_000_000_000);
            let up = humantime::format_duration(up);
            lines.push(("server", format!("{}, up {up}", self.now.server_version)));
        }
        lines
    }

    /// Processor time and memory of the server.
    pub(crate) fn process(&self) -> String {
        let cores = self.rate("process.cpu_us") / 1e6;
        let memory = Size(self.now.figure("process.resident"));
        format!("{cores:.2} cores, {memory} of memory, {} threads", self.now.figure("process.threads"))
    }

    /// The division of the server's memory, if there is one.
    fn memory(&self) -> Option<String> {
        let limit = Size(self.known("memory.limit")?);
        let parts = self.now.figures.iter().filter_map(|figure| {
            let part = figure.name.strip_prefix("memory.").filter(|part| *part != "limit")?;
            Some(format!("{} {}", part.replace('_', " "), Size(figure.value)))
        });
        let resident = Size(self.now.figure("process.resident"));
        Some(format!("{resident} in use of {limit}: at most {}", parts.collect::<Vec<_>>().join(", ")))
    }

    /// The size of the data file, and the room of its file system.
    pub(crate) fn disk(&self) -> String {
        let file = self.bytes(self.now.blocks);
        match self.now.figure("file_system.room") {
            0 => format!("{} in use or usable", Size(file)),
            most => format!(
                "{} in the file; {} free on its file system",
                Size(file),
                Size(most.saturating_sub(file))
            ),
        }
    }

    fn objects(&self) -> String {
        let unapplied = self.now.figure("overlay.puts") + self.now.figure("overlay.deletes");
        let about = if unapplied > 0 { "about " } else { "" };
        let figure = |name: &str| self.now.figures.iter().find(|figure| figure.name == name);
        // A server of an earlier version counts only values in the trees.
        let values = figure("objects.value_bytes").or_else(|| figure("space.live_values"));
        let values = Size(values.map_or(0, |figure| figure.value));
        let mut text = format!("{about}{}, {values} of values", show_count(self.now.objects));
        for (name, what) in [
            ("objects.estimated", "of them count by estimate until a compaction"),
            ("objects.expiring", "with a time to live count until they are deleted"),
            ("results", "stored results of writes besides"),
        ] {
            let count = self.now.figure(name);
            if count > 0 {
                text += &format!("; {} {what}", show_count(count));
            }
        }
        text
    }

    /// The same figures as in the metrics and in INFO.
    fn stored_bytes(&self) -> String {
        let [objects, used, disk, log] = ["bytes.objects", "bytes.used", "bytes.disk", "bytes.log"]
            .map(|name| Size(self.now.figure(name)));
        format!("{objects} of objects, {used} used in the file, {disk} of the disk ({log} for the log)")
    }

    /// The remaining room: within the cap, and within the file system.
    fn room(&self) -> String {
        let cap = self.bytes(self.now.figure("space.device_max"));
        let grown = self.bytes(self.now.blocks);
        let free = self.now.free_blocks + self.now.figure("space.holes");
        let within_cap = self.bytes(free) + cap.saturating_sub(grown);
        let left = self.known("space.room").map_or(within_cap, |blocks| self.bytes(blocks)).min(within_cap);
        if left < within_cap {
            // The part of the cap without room in the file system is neither used nor available.
            let most = cap - (within_cap - left);
            let used = most.saturating_sub(left);
            return format!(
                "{} left, as its file system has no room for more of the cap of {}, {} % used",
                Size(left),
                Size(cap),
                percent(used, most)
            );
        }
        let used = cap.saturating_sub(left);
        format!("{} left of a cap of {}, {} % used", Size(left), Size(cap), percent(used, cap))
    }

    /// A figure, if the server has it.
    fn known(&self, name: &str) -> Option<u64> {
        self.now.figures.iter().find(|figure| figure.name == name).map(|figure| figure.value)
    }

    fn log(&self) -> String {
        let (used, ring) = (self.now.figure("log.used"), self.now.figure("log.ring"));
        let records = self.now.figure("overlay.records");
        format!(
            "{} % of {} in use; {} writes wait for a checkpoint",
            percent(used, ring),
            Size(self.bytes(ring)),
            show_count(records),
        )
    }

    /// The times of commits since the store was opened.
    fn commits(&self) -> String {
        let time = |name: &str| show_ns(Some(self.now.figure(name) * 1_000));
        match self.now.figure("log.batches") {
            0 => "none yet".into(),
            batches => format!(
                "{}, half of them in up to {}, 99 % in up to {}",
                show_count(batches),
                time("log.commit_us_p50"),
                time("log.commit_us_p99")
            ),
        }
    }

    fn cache(&self) -> String {
        let hits = self.growth("pool.hits") + self.growth("pool.queue_hits");
        let misses = self.growth("pool.misses") + self.growth("pool.coalesced");
        let (used, all) = (self.now.figure("pool.frames_used"), self.now.figure("pool.frames"));
        let found = match hits + misses {
            0 => "nothing asked for".to_owned(),
            all => format!("{} % of {} look-ups found it", percent(hits, all), show_count(all)),
        };
        format!("{} of {} in use; {found}", Size(self.bytes(used)), Size(self.bytes(all)))
    }

    fn all_requests(&self) -> String {
        let rows = self.requests();
        let of = |name: &String| {
            let rows = rows.iter().filter(|row| row.frontend == *name);
            let (rate, failed) =
                rows.fold((0.0, 0.0), |(rate, failed), row| (rate + row.rate, failed + row.failed_rate));
            let failed =
                if failed > 0.0 { format!(" ({} not done)", show_rate(failed)) } else { String::new() };
            format!("{name} {} a second{failed}", show_rate(rate))
        };
        let all: Vec<_> = self.now.frontends.iter().map(|frontend| of(&frontend.name)).collect();
        let since = if self.before.is_some() { "" } else { ", since the start" };
        format!("{}{since}", all.join(", "))
    }

    fn connections(&self) -> String {
        let names = self.now.frontends.iter().map(|frontend| &frontend.name);
        let all = names.map(|name| {
            let own = u64::from(self.is_without_own && *name == OWN_CALL.0);
            let open = self.now.figure(&format!("{name}.connections")).saturating_sub(own);
            let prefix = format!("{name}.refused_");
            let causes = self.now.figures.iter().filter(|figure| figure.name.starts_with(&prefix));
            let refused: u64 = causes.map(|figure| figure.value).sum();
            let refused =
                if refused > 0 { format!(" ({} refusals)", show_count(refused)) } else { String::new() };
            let bucket = self.now.bucket_of(name).map(|bucket| format!(" on bucket {bucket:?}"));
            format!("{name} {}{}{refused}", show_count(open), bucket.unwrap_or_default())
        });
        all.collect::<Vec<_>>().join(", ")
    }

    fn health(&self) -> String {
        if let Some(reason) = &self.now.read_only {
            return format!("READ-ONLY: {reason}");
        }
        if self.now.figure("space.no_room") > 0 {
            return "NO ROOM in the data file (its file system is full, or a quota or limit is reached): writes that find none are refused \
                    until there is; the log has the cause"
                .into();
        }
        let takes = match self.now.figure("space.cannot_grow") {
            0 => "takes writes",
            _ => {
                "the data file CANNOT GROW (no room in its file system, or a quota or limit): writes that find no room in it are refused"
            }
        };
        let mut words = vec![takes.to_owned()];
        if self.now.figure("relocation.paused") > 0 {
            words.push("relocation is paused (`shoal relocation resume`)".into());
        } else if self.now.figure("relocation.bytes_left") > 0 {
            let left = Size(self.now.figure("relocation.bytes_left"));
            words.push(format!("relocation has {left} to move"));
        }
        let errors = self.now.figure("device.errors");
        if errors > 0 {
            words.push(format!("the device failed {} requests", show_count(errors)));
        }
        words.join("; ")
    }

    fn last_backup(&self) -> String {
        match self.now.figure("backup.taken") {
            0 => "none".into(),
            taken_s => {
                let version = show_count(self.now.figure("backup.version"));
                format!("{}, of version {version}", show_time(taken_s * 1_000_000_000))
            }
        }
    }

    fn damage(&self) -> String {
        let mut words = Vec::new();
        let count = |name: &str| self.now.figure(name);
        let losses = count("losses.lost") + count("losses.reverted") + count("losses.resurrected");
        if losses > 0 {
            words.push(format!("{} LOSSES of a repair, not acknowledged", show_count(losses)));
        }
        if count("damage.ranges") > 0 {
            words.push(format!(
                "{} DAMAGED ranges of keys (`shoal check` names them)",
                show_count(count("damage.ranges"))
            ));
        }
        if count("scrub.problems") > 0 {
            words.push(format!("scrubs found {} PROBLEMS", show_count(count("scrub.problems"))));
        }
        if words.is_empty() {
            words.push("none met".into());
        }
        words.push(match count("scrub.ended") {
            0 => "no scrub has ended since the start".into(),
            ended_s => format!("the last scrub ended {}", show_time(ended_s * 1_000_000_000)),
        });
        words.join("; ")
    }
}

/// A share in percent, at most 100.
pub(crate) fn percent(part: u64, all: u64) -> String {
    if all == 0 {
        return "0".into();
    }
    let percent = (part as f64 / all as f64 * 100.0).min(100.0);
    // Only the whole is 100 %.
    let shown = if part < all { percent.min(99.9) } else { percent };
    if shown < 10.0 || shown > 99.0 && shown < 100.0 { format!("{shown:.1}") } else { format!("{shown:.0}") }
}

/// A rate with one decimal if it is small.
pub(crate) fn show_rate(rate: f64) -> String {
    if rate > 0.0 && rate < 10.0 { format!("{rate:.1}") } else { show_count(rate.round().max(0.0) as u64) }
}

/// A duration in the largest unit that fits; a dash if there is none.
pub(crate) fn show_ns(ns: Option<u64>) -> String {
    match ns {
        None | Some(0) => "-".into(),
        Some(ns) if ns < 1_000_000 => format!("{} us", short(ns as f64 / 1e3)),
        Some(ns) if ns < 1_000_000_000 => format!("{} ms", short(ns as f64 / 1e6)),
        Some(ns) => format!("{} s", short(ns as f64 / 1e9)),
    }
}

fn short(number: f64) -> String {
    if number < 10.0 && number.fract() > 0.05 { format!("{number:.1}") } else { format!("{number:.0}") }
}

#[cfg(test)]
mod tests {
    use shoal_client::{Figure, RequestFigures};

    use super::*;

    fn stat(figures: &[(&str, u64)], uptime_s: u64, gets: u64) -> Stat {
        let mut durations = Durations::default();
        durations.buckets[0] = gets;
        let request = |result: &str, durations| RequestFigures {
            operation: "get".into(),
            result: result.into(),
            durations,
        };
        let figure = |&(name, value): &(&str, u64)| Figure { name: name.into(), unit: String::new(), value };
        Stat {
            block_bytes: 4096,
            objects: 5,
            blocks: 100,
            free_blocks: 20,
            uptime_ns: uptime_s * 1_000_000_000,
            figures: figures.iter().map(figure).collect(),
            frontends: vec![FrontendFigures {
                name: "redis".into(),
                requests: vec![request("ok", durations), request("failed", Durations::of(&[gets / 10], 0))],
            }],
            ..Stat::default()
        }
    }

    #[test]
    fn rates_are_computed_between_samples() {
        let (before, now) = (stat(&[("pool.hits", 5)], 10, 100), stat(&[("pool.hits", 9)], 12, 300));
        let summary = Summary::between(&before, &now, Duration::from_secs(2));
        assert_eq!((summary.growth("pool.hits"), summary.rate("pool.hits")), (4, 2.0));
        let rows = summary.requests();
        assert_eq!(rows.len(), 1);
        assert_eq!((rows[0].rate, rows[0].failed_rate, rows[0].durations.count()), (110.0, 10.0, 220));
        // After a restart of the server everything is new.
        let summary = Summary::between(&now, &before, Duration::from_secs(2));
        assert_eq!(summary.requests()[0].rate, 11.0);
        assert_eq!(Summary::new(&now).all_requests(), "redis 28 a second (2.5 not done), since the start");
    }

    #[test]
    fn the_command_that_shows_the_figures_is_no_client() {
        let asked = |calls| {
            let mut stat = stat(&[("grpc.connections", 1)], 10 + calls, 0);
            let durations = Durations::of(&[calls], 0);
            let (operation, result) = ("other".into(), "ok".into());
            let requests = vec![RequestFigures { operation, result, durations }];
            stat.frontends = vec![FrontendFigures { name: "grpc".into(), requests }];
            stat
        };
        let (before, now) = (asked(5), asked(6));
        let both = |summary: Summary<'_>| (summary.all_requests(), summary.connections());
        let between = || Summary::between(&before, &now, Duration::from_secs(1));
        assert_eq!(both(between()), ("grpc 1.0 a second".into(), "grpc 1".into()));
        assert_eq!(both(between().without_own()), ("grpc 0 a second".into(), "grpc 0".into()));
    }

    #[test]
    fn summary_lines_report_problems() {
        let healthy = stat(&[("space.device_max", 400)], 1, 0);
        let line = |stat: &Stat, name: &str| {
            Summary::new(stat).lines().into_iter().find(|(its, _)| *its == name).unwrap().1
        };
        assert_eq!(line(&healthy, "room"), "1.2 MiB left of a cap of 1.6 MiB, 20 % used");
        assert_eq!(line(&healthy, "health"), "takes writes");
        assert!(line(&healthy, "damage").starts_with("none met; "));
        assert!(!line(&healthy, "objects").contains("about"));
        let figures =
            [("damage.ranges", 2), ("losses.lost", 1), ("scrub.ended", 1_700_000_000), ("overlay.puts", 1)];
        let ill = Stat { read_only: Some("EIO".into()), ..stat(&figures, 1, 0) };
        assert_eq!(line(&ill, "health"), "READ-ONLY: EIO");
        let damage = line(&ill, "damage");
        assert!(
            damage.contains("1 LOSSES") && damage.contains("2 DAMAGED") && damage.contains("2023-11-14"),
            "{damage}"
        );
        assert!(line(&ill, "objects").starts_with("about 5"));
        let figures = [("space.live_values", 99), ("objects.value_bytes", 70), ("results", 2)];
        assert_eq!(
            line(&stat(&figures, 1, 0), "objects"),
            "5, 70 B of values; 2 stored results of writes besides"
        );
        assert_eq!(line(&ill, "last backup"), "none");
        let kept = stat(&[("backup.taken", 1_700_000_000), ("backup.version", 1_234)], 1, 0);
        assert_eq!(line(&kept, "last backup"), "2023-11-14T22:13:20Z, of version 1,234");
        // A closed store has no server, and no requests.
        let closed = Stat { frontends: Vec::new(), uptime_ns: 0, ..healthy };
        assert!(Summary::new(&closed).lines().iter().all(|(name, _)| !["server", "requests"].contains(name)));
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!(
            [percent(0, 0), percent(1, 3), percent(999, 1000), percent(5, 5)],
            ["0", "33", "99.9", "100"]
        );
        assert_eq!([show_rate(0.0), show_rate(0.25), show_rate(1234.4)], ["0", "0.2", "1,234"]);
        let times = [None, Some(800), Some(1_250), Some(12_500), Some(2_000_000), Some(3_150_000_000)];
        assert_eq!(times.map(show_ns), ["-", "0.8 us", "1.2 us", "12 us", "2 ms", "3.1 s"]);
    }
}
