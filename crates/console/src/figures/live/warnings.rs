//! Warnings: states of the store and the server that ask for an action, each with its page of the documentation.

use serde::Serialize;
use shoal_base::BLOCK_BYTES_U64;

use super::reading::Reading;
use super::sample::disk_free_bytes;

const DAY_NS: u64 = 86_400_000_000_000;
/// A backup that is older gets a warning.
const BACKUP_AGE_MAX_NS: u64 = 7 * DAY_NS;
/// A store with less room than this share of its cap is nearly full, in percent.
const ROOM_PERCENT_MIN: u64 = 10;
/// A certificate that is valid for a shorter time gets a warning.
const CERTIFICATE_DAYS_MIN: u64 = 21;
/// An archive that is behind by more seconds gets a warning.
const ARCHIVE_LAG_MAX_S: f64 = 60.0;
/// A smaller step of the wall clock is usual: the system's clock is corrected.
const CLOCK_STEP_MIN_NS: u64 = 1_000_000_000;
/// Applies may pause for this share of the time, in thousandths.
const PAUSED_PERMILLE_MAX: u64 = 30;

/// A warning.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Warning {
    /// Its name, which does not change.
    pub(crate) id: &'static str,
    /// Requests fail because of it.
    pub(crate) severe: bool,
    /// The state.
    pub(crate) text: String,
    /// The action of the operator.
    pub(crate) action: &'static str,
    /// The page of the documentation, and its section.
    pub(crate) docs: &'static str,
}

/// The counters of warnings about rates.
#[derive(Debug)]
pub(super) struct Recent {
    refusals: u64,
    paused_ns: u64,
}

impl Recent {
    pub(super) fn of(reading: &Reading) -> Self {
        Self { refusals: reading.refusals(), paused_ns: reading.stat.paused_ns }
    }
}

/// The warnings of a reading, the worst first. `recent` is the start and the end of the last minute, and the time between them.
pub(super) fn warnings(now: &Reading, recent: Option<(&Recent, &Recent, u64)>) -> Vec<Warning> {
    let mut found = of_writes(now);
    found.extend(of_room(now));
    found.extend(of_damage(now));
    found.extend(of_certificate(now));
    found.extend(of_archive(now));
    found.extend(of_backup(now));
    found.extend(
        recent.map(|(before, after, window_ns)| of_rates(before, after, window_ns)).unwrap_or_default(),
    );
    found.extend(of_state(now));
    found
}

fn of_writes(now: &Reading) -> Vec<Warning> {
    let stat = &now.stat;
    let mut found = Vec::new();
    if let Some(why) = &stat.poisoned {
        found.push(Warning {
            id: "read_only",
            severe: true,
            text: format!("the store is read-only: {why}"),
            action: "look at the device and at the kernel's log, then restart the server",
            docs: "docs/operate/troubles.md",
        });
    }
    if let Some(why) = &stat.no_room {
        found.push(Warning {
            id: "no_room",
            severe: true,
            text: format!("the data file has no room: {why}"),
            action: "make room on the disk; writes that find none are refused until then",
            docs: "docs/operate/troubles.md",
        });
    }
    if let Some(why) = &stat.cannot_grow {
        found.push(Warning {
            id: "cannot_grow",
            severe: false,
            text: format!("the data file cannot grow: {why}"),
            action: "make room on the disk, or raise the quota",
            docs: "docs/operate/sizing.md#disk",
        });
    }
    if let Some(why) = now.not_ready.as_ref().filter(|_| found.is_empty()) {
        found.push(Warning {
            id: "not_ready",
            severe: true,
            text: why.clone(),
            action: "look at the log for the cause",
            docs: "docs/operate/troubles.md",
        });
    }
    found
}

/// The room that writes have: within the cap, and on the disk.
fn of_room(now: &Reading) -> Option<Warning> {
    let stat = &now.stat;
    let (cap, room) = (stat.blocks_max, stat.room_blocks());
    if cap == 0 || room.saturating_mul(100) >= cap.saturating_mul(ROOM_PERCENT_MIN) {
        return None;
    }
    // The cap allows no more than this.
    let within_cap = stat.free_blocks + stat.hole_blocks + cap.saturating_sub(stat.device_blocks);
    let percent = room.saturating_mul(100) / cap;
    if room < within_cap {
        let free_mib = disk_free_bytes(now).unwrap_or(0) >> 20;
        return Some(Warning {
            id: "disk_nearly_full",
            severe: false,
            text: format!(
                "the disk is nearly full: it has {free_mib} MiB left, and the store has room for {percent} % of its cap"
            ),
            action: "make room on the disk, or delete objects",
            docs: "docs/operate/sizing.md#disk",
        });
    }
    let room_mib = room.saturating_mul(BLOCK_BYTES_U64) >> 20;
    Some(Warning {
        id: "nearly_full",
        severe: false,
        text: format!("the store is nearly full: {room_mib} MiB are left, {percent} % of its cap"),
        action: "delete objects, or let the store grow",
        docs: "docs/operate/grow.md",
    })
}

fn of_damage(now: &Reading) -> Vec<Warning> {
    let stat = &now.stat;
    let mut found = Vec::new();
    if stat.damaged_ranges > 0 {
        found.push(Warning {
            id: "damaged_ranges",
            severe: false,
            text: format!("{} of keys cannot be read", counted(stat.damaged_ranges, "damaged range")),
            action: "copy the store, then run `shoal check`",
            docs: "docs/repair.md#the-check",
        });
    }
    if stat.scrub_problems > 0 {
        found.push(Warning {
            id: "scrub_problems",
            severe: false,
            text: format!("scrubs found {} since the start", counted(stat.scrub_problems, "problem")),
            action: "write the damaged objects again, or run `shoal check`; the log names them",
            docs: "docs/repair.md#the-check",
        });
    }
    let losses = stat.losses.lost + stat.losses.reverted + stat.losses.resurrected;
    if losses > 0 {
        found.push(Warning {
            id: "losses",
            severe: false,
            text: format!("a repair lost, reverted or resurrected {}", counted(losses, "object")),
            action: "get them from a backup, then run `shoal check --acknowledge`",
            docs: "docs/repair.md#the-check",
        });
    }
    if stat.device.errors > 0 {
        found.push(Warning {
            id: "device_errors",
            severe: false,
            text: format!("the device failed {} since the start", counted(stat.device.errors, "request")),
            action: "look at the device and at the kernel's log",
            docs: "docs/operate/troubles.md",
        });
    }
    found
}

fn of_certificate(now: &Reading) -> Option<Warning> {
    let end_ns = now.certificate_end_s?.saturating_mul(1_000_000_000);
    let left_ns = end_ns.saturating_sub(now.wall_ns);
    if left_ns > CERTIFICATE_DAYS_MIN * DAY_NS {
        return None;
    }
    let (action, docs) =
        ("replace its files; the server reads them again", "docs/operate/security.md#certificates");
    Some(if left_ns == 0 {
        let days = (now.wall_ns - end_ns) / DAY_NS;
        let text = format!("the TLS certificate has expired {} ago", counted(days, "day"));
        Warning { id: "certificate_expired", severe: true, text, action, docs }
    } else {
        let text = format!("the TLS certificate expires in {}", counted(left_ns / DAY_NS, "day"));
        Warning { id: "certificate_expires", severe: false, text, action, docs }
    })
}

fn of_archive(now: &Reading) -> Option<Warning> {
    let archive = now.archive.as_ref()?;
    let docs = "docs/operate/archive.md#how-it-works";
    let (id, severe, action) = match archive.state {
        "fenced" => (
            "archive_fenced",
            true,
            "`shoal archive status` names the owner; only one server may use a prefix",
        ),
        "refused" => ("archive_refused", true, "use another prefix or another bucket"),
        "gap" => ("archive_gap", false, "wait for the base that is on its way"),
        _ if archive.lag_seconds > ARCHIVE_LAG_MAX_S => {
            ("archive_behind", false, "make the bucket reachable; writes wait in the spool meanwhile")
        }
        _ => return None,
    };
    Some(Warning { id, severe, text: format!("archive: {}", archive.words), action, docs })
}

fn of_backup(now: &Reading) -> Option<Warning> {
    let action = "take a backup";
    let docs = "docs/operate/backup.md#when-was-the-last-one";
    // An archive is more than a backup.
    if now.archive.as_ref().is_some_and(|archive| archive.base_taken_seconds.is_some()) {
        return None;
    }
    let Some(note) = now.stat.last_backup else {
        let has_objects = now.stat.objects_with_log() > 0;
        let text = "there is no backup of this store".to_owned();
        return has_objects.then_some(Warning { id: "no_backup", severe: false, text, action, docs });
    };
    let age_ns = now.wall_ns.saturating_sub(note.taken_ns);
    let text = format!("the last backup is {} days old", age_ns / DAY_NS);
    (age_ns > BACKUP_AGE_MAX_NS).then_some(Warning { id: "old_backup", severe: false, text, action, docs })
}

fn of_rates(before: &Recent, after: &Recent, window_ns: u64) -> Vec<Warning> {
    let mut found = Vec::new();
    let paused_ns = after.paused_ns.saturating_sub(before.paused_ns);
    if paused_ns.saturating_mul(1_000) > window_ns.saturating_mul(PAUSED_PERMILLE_MAX) {
        found.push(Warning {
            id: "late_compactions",
            severe: false,
            text: format!(
                "compactions are late: applies paused for {} % of the last minute",
                paused_ns.saturating_mul(100) / window_ns.max(1)
            ),
            action: "the load is at the limit of the machine: write less, or use more cores or a faster device",
            docs: "docs/operate/troubles.md",
        });
    }
    let refusals = after.refusals.saturating_sub(before.refusals);
    if refusals > 0 {
        found.push(Warning {
            id: "refusals",
            severe: false,
            text: format!("{} or connections were refused in the last minute", counted(refusals, "request")),
            action: "look at the connections here and at the log for the cause",
            docs: "docs/operate/logs.md#refused-callers",
        });
    }
    found
}

fn of_state(now: &Reading) -> Vec<Warning> {
    let stat = &now.stat;
    let mut found = Vec::new();
    let skew_ns = stat.clock_skew_ns;
    if stat.clock_steps > 0 && skew_ns.unsigned_abs() >= CLOCK_STEP_MIN_NS {
        let direction = if skew_ns < 0 { "back" } else { "forward" };
        found.push(Warning {
            id: "clock_steps",
            severe: false,
            text: format!(
                "the wall clock was set {direction} by {} s since the start",
                skew_ns.unsigned_abs() / 1_000_000_000
            ),
            action: "check the machine's time service: deadlines of objects follow the clock",
            docs: "docs/operate/metrics.md#the-store",
        });
    }
    if stat.relocation_paused {
        found.push(Warning {
            id: "relocation_paused",
            severe: false,
            text: "relocation is paused: free space stays in pieces".to_owned(),
            action: "resume it when the reason is over",
            docs: "docs/operate/commands.md",
        });
    }
    found
}

/// A count with its noun.
fn counted(count: u64, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use shoal_engine::{BackupNote, Losses, Lsn, StoreStat};
    use shoal_metrics::{ArchiveFigures, Connections};

    use super::super::reading::FrontendReading;
    use super::*;

    const NOW_NS: u64 = 100 * DAY_NS;

    fn healthy() -> Reading {
        let backup = BackupNote { version: Lsn(5), taken_ns: NOW_NS - BACKUP_AGE_MAX_NS };
        let stat = StoreStat {
            blocks_max: 1_000,
            device_blocks: 500,
            free_blocks: 50,
            growable_blocks: 50,
            objects: 9,
            last_backup: Some(backup),
            ..StoreStat::default()
        };
        Reading { wall_ns: NOW_NS, stat, ..Reading::default() }
    }

    fn archive(state: &'static str, lag_seconds: f64) -> ArchiveFigures {
        ArchiveFigures { state, lag_seconds, ..ArchiveFigures::default() }
    }

    fn recent(refusals: u64, paused_ns: u64) -> Recent {
        Recent { refusals, paused_ns }
    }

    /// A name, and the state that causes its warning.
    type Cause = (&'static str, fn(&mut Reading));

    const CAUSES: &[Cause] = &[
        ("read_only", |it| it.stat.poisoned = Some("EIO".into())),
        ("no_room", |it| it.stat.no_room = Some("ENOSPC".into())),
        ("cannot_grow", |it| it.stat.cannot_grow = Some("EDQUOT".into())),
        ("not_ready", |it| it.not_ready = Some("the store takes no writes".into())),
        ("nearly_full", |it| (it.stat.device_blocks, it.stat.growable_blocks) = (990, 10)),
        ("disk_nearly_full", |it| it.stat.growable_blocks = 49),
        ("damaged_ranges", |it| it.stat.damaged_ranges = 1),
        ("scrub_problems", |it| it.stat.scrub_problems = 2),
        ("losses", |it| it.stat.losses = Losses { reverted: 1, ..Losses::default() }),
        ("device_errors", |it| it.stat.device.errors = 1),
        ("certificate_expires", |it| it.certificate_end_s = Some(121 * 86_400)),
        ("certificate_expired", |it| it.certificate_end_s = Some(100 * 86_400)),
        ("archive_fenced", |it| it.archive = Some(archive("fenced", 0.0))),
        ("archive_refused", |it| it.archive = Some(archive("refused", 0.0))),
        ("archive_gap", |it| it.archive = Some(archive("gap", 0.0))),
        ("archive_behind", |it| it.archive = Some(archive("waiting", 60.5))),
        ("no_backup", |it| (it.stat.last_backup, it.archive) = (None, Some(archive("shipping", 60.0)))),
        ("old_backup", |it| it.wall_ns += 1),
        ("clock_steps", |it| (it.stat.clock_steps, it.stat.clock_skew_ns) = (1, -1_000_000_000)),
        ("relocation_paused", |it| it.stat.relocation_paused = true),
    ];

    #[test]
    fn each_state_has_its_warning_and_a_healthy_store_has_none() {
        let minute = 60_000_000_000;
        let calm = recent(7, 1_000);
        let late = recent(7, 1_000 + 30 * 60_000_000);
        assert_eq!(warnings(&healthy(), Some((&calm, &late, minute))), []);
        for (id, cause) in CAUSES {
            let mut reading = healthy();
            cause(&mut reading);
            let found = warnings(&reading, Some((&calm, &calm, minute)));
            assert_eq!(found.iter().map(|warning| warning.id).collect::<Vec<_>>(), [*id], "{found:?}");
        }
        let ids = |after: &Recent| {
            let found = warnings(&healthy(), Some((&calm, after, minute)));
            found.iter().map(|warning| warning.id).collect::<Vec<_>>()
        };
        assert_eq!(ids(&recent(7, 1_001 + 30 * 60_000_000)), ["late_compactions"]);
        assert_eq!(ids(&recent(8, 1_000)), ["refusals"]);
        let mut empty = healthy();
        (empty.stat.last_backup, empty.stat.objects) = (None, 0);
        assert_eq!(warnings(&empty, None), [], "an empty store needs no backup");
        let mut archived = healthy();
        let base_taken_seconds = Some(1.0);
        archived.archive = Some(ArchiveFigures { base_taken_seconds, ..archive("shipping", 0.0) });
        archived.stat.last_backup = None;
        assert_eq!(warnings(&archived, None), [], "an archive is a backup");
        let connections = Connections { refused: 3, ..Connections::default() };
        let frontend = FrontendReading { refusals: 3, connections, ..FrontendReading::default() };
        let refused = Reading { frontends: vec![frontend], ..healthy() };
        assert_eq!(Recent::of(&refused).refusals, 3);
    }

    #[test]
    fn certificates_are_warned_of_in_time() {
        let said = |end_s: u64| {
            let reading = Reading { certificate_end_s: Some(end_s), ..healthy() };
            let found = warnings(&reading, None).pop();
            found.map(|warning| (warning.text, warning.severe))
        };
        let now_s = NOW_NS / 1_000_000_000;
        let warning = |text: &str, severe| Some((format!("the TLS certificate {text}"), severe));
        assert_eq!(said(now_s + 21 * 86_400 + 1), None);
        assert_eq!(said(now_s + 21 * 86_400), warning("expires in 21 days", false));
        assert_eq!(said(now_s + 86_400), warning("expires in 1 day", false));
        assert_eq!(said(now_s + 1), warning("expires in 0 days", false));
        assert_eq!(said(now_s), warning("has expired 0 days ago", true));
        assert_eq!(said(now_s - 2 * 86_400), warning("has expired 2 days ago", true));
    }

    #[test]
    fn links_lead_to_sections_that_exist() {
        let mut all = Vec::new();
        for (_, cause) in CAUSES {
            let mut reading = healthy();
            cause(&mut reading);
            all.extend(warnings(&reading, Some((&recent(0, 0), &recent(1, u64::MAX), 1))));
        }
        let links: BTreeMap<_, _> = all.iter().map(|warning| (warning.id, warning.docs)).collect();
        assert_eq!(links.len(), CAUSES.len() + 2, "{links:?}");
        for (id, link) in links {
            let (page, section) = link.split_once('#').map_or((link, None), |(page, at)| (page, Some(at)));
            let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
            let text = std::fs::read_to_string(format!("{root}/{page}")).unwrap_or_default();
            assert!(!text.is_empty(), "{id}: there is no {page}");
            let anchors = text.lines().filter(|line| line.starts_with('#')).map(|line| {
                let plain = line.trim_start_matches('#').trim().to_lowercase();
                plain
                    .chars()
                    .filter(|c| c.is_alphanumeric() || *c == ' ')
                    .collect::<String>()
                    .replace(' ', "-")
            });
            let mut anchors: Vec<String> = anchors.collect();
            anchors.retain(|anchor| Some(anchor.as_str()) == section);
            assert_eq!(anchors.len(), usize::from(section.is_some()), "{id}: {link}");
        }
    }
}
