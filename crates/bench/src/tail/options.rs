//! The options of `bench tail`, and their limits.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use shoal_base::limits::VALUE_BYTES_SINGLE_MAX;
use shoal_device::IoMode;

use super::Arrivals;
use crate::data_file::temporary;
use crate::disk;

/// Connections: each pass of the generator looks at all of them.
const CONNECTIONS_MAX: usize = 1_024;
/// Commands in flight over a connection: their bytes are in memory until they are sent.
const IN_FLIGHT_MAX: usize = 1_024;
/// Operations a second; one core sends some hundred thousand.
const RATE_MAX: f64 = 10e6;
/// The longest run: a second keeps some dozens of bytes until the chart is drawn.
const TIME_MAX: Duration = Duration::from_secs(24 * 3600);
/// Shares of the maximum beyond this one only measure how fast a queue grows.
const SHARE_MAX: f64 = 2.0;
/// Runs of a command.
const RATES_MAX: usize = 16;
/// Bytes that an object may take besides key and value, and space that waits to be reusable, in the check for room.
const SPARE_SHARE: u64 = 2;

/// The rates of the runs.
#[derive(Clone, Debug, PartialEq)]
pub enum Rates {
    /// Shares of the closed-loop maximum.
    Shares(Vec<f64>),
    /// Operations a second.
    PerSecond(Vec<f64>),
}

impl Rates {
    pub(super) fn needs_closed(&self) -> bool {
        matches!(self, Self::Shares(_))
    }

    /// The names and rates of the runs, with the closed-loop maximum of operations a second.
    pub(super) fn plans(&self, closed: Option<f64>) -> Vec<(String, f64)> {
        let closed = closed.unwrap_or_default();
        match self {
            Self::Shares(shares) => {
                shares.iter().map(|share| (format!("share-{share}"), share * closed)).collect()
            }
            Self::PerSecond(rates) => rates.iter().map(|rate| (format!("rate-{rate}"), *rate)).collect(),
        }
    }
}

impl fmt::Display for Rates {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (list, unit) = match self {
            Self::Shares(list) => (list, "of the closed-loop maximum"),
            Self::PerSecond(list) => (list, "a second"),
        };
        let list: Vec<String> = list.iter().map(ToString::to_string).collect();
        write!(out, "{} {unit}", list.join(", "))
    }
}

/// The store of a server in this process.
#[derive(Clone, Debug)]
pub struct OwnStore {
    /// The data file; none: a temporary one in the current folder. It must not exist, unless it is filled.
    pub data: Option<PathBuf>,
    /// The file stays at the end. One that was filled before always stays.
    pub keep: bool,
    /// Bytes of cache.
    pub cache: u64,
    /// Bytes of memtables; none: in proportion to the cache.
    pub memtable: Option<u64>,
    /// Bytes that a new file may grow to.
    pub size: u64,
    /// How the device is driven.
    pub io: IoMode,
}

/// The server that is measured.
#[derive(Clone, Debug)]
pub enum TailServer {
    /// One in this process.
    Own(OwnStore),
    /// A running one.
    Address(SocketAddr),
    /// One in this process that stores nothing: for the generator's own figures.
    Echo,
}

/// The parameters of `bench tail`.
#[derive(Clone, Debug)]
pub struct TailOptions {
    /// Version of the program, for the header.
    pub version: String,
    /// JSON lines instead of a table.
    pub json: bool,
    /// The server.
    pub server: TailServer,
    /// Objects.
    pub objects: u64,
    /// Bytes of a value.
    pub value_bytes: u32,
    /// The objects exist already.
    pub filled: bool,
    /// Connections.
    pub connections: usize,
    /// Commands in flight over each connection.
    pub in_flight: usize,
    /// The share of GETs.
    pub get_share: f64,
    /// The gaps between intended times.
    pub arrivals: Arrivals,
    /// The rates of the runs.
    pub rates: Rates,
    /// Time of the closed-loop measurement.
    pub measure: Duration,
    /// Time of a run.
    pub time: Duration,
    /// Time before it, at the same rate, that is not recorded.
    pub warm_up: Duration,
    /// Time without load before each measurement.
    pub pause: Duration,
    /// A new file for the device's own writes, on the file system of the store; none: beside the data file of an own store.
    pub device_file: Option<PathBuf>,
    /// Time of the device's own writes, and of its reads.
    pub device_time: Duration,
    /// The path of the chart.
    pub plot: Option<PathBuf>,
}

impl TailOptions {
    /// Checks that a run is possible with these options.
    ///
    /// # Errors
    /// The error of the options, as a text for the user.
    pub fn check(&self) -> Result<(), String> {
        let value_max = VALUE_BYTES_SINGLE_MAX;
        within("--value-bytes", self.value_bytes.into(), value_max)?;
        within("--objects", self.objects, u64::from(u32::MAX))?;
        within("--connections", self.connections as u64, CONNECTIONS_MAX as u64)?;
        within("--in-flight", self.in_flight as u64, IN_FLIGHT_MAX as u64)?;
        if !(0.0..=1.0).contains(&self.get_share) {
            return Err("--get-share is between 0 and 1".into());
        }
        self.check_rates()?;
        if self.time.is_zero() || self.time + self.warm_up > TIME_MAX || self.measure.is_zero() {
            return Err("the time of a run is above 0 and at most 24 hours".into());
        }
        if let Some(path) = &self.plot {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            if path.is_dir() || folder.is_some_and(|folder| !folder.is_dir()) {
                return Err(format!("--plot {}: there is no folder for such a file", path.display()));
            }
        }
        if let Some(path) = self.device_file.as_ref().filter(|path| path.exists()) {
            return Err(format!("--device-file {} exists: it is left alone", path.display()));
        }
        match &self.server {
            TailServer::Own(own) => self.check_own(own),
            TailServer::Address(_) | TailServer::Echo => Ok(()),
        }
    }

    fn check_rates(&self) -> Result<(), String> {
        let (name, list, max) = match &self.rates {
            Rates::Shares(list) => ("--share", list, SHARE_MAX),
            Rates::PerSecond(list) => ("--rate", list, RATE_MAX),
        };
        if list.is_empty() || list.len() > RATES_MAX {
            return Err(format!("{name} has 1 to {RATES_MAX} numbers"));
        }
        // Written so that a NaN is refused, too.
        if list.iter().any(|&rate| !(rate > 0.0 && rate <= max)) {
            return Err(format!("{name} is above 0 and at most {max}"));
        }
        Ok(())
    }

    fn check_own(&self, own: &OwnStore) -> Result<(), String> {
        if self.filled {
            return match &own.data {
                Some(path) if path.exists() => Ok(()),
                _ => Err("--filled needs --data with a file that was filled and kept".into()),
            };
        }
        if own.keep && own.data.is_none() {
            return Err("--keep needs --data".into());
        }
        let bytes = self.objects.saturating_mul(u64::from(self.value_bytes));
        let needed = bytes.saturating_add(bytes / SPARE_SHARE);
        if own.size < needed {
            return Err(format!(
                "--size of {} MiB has no room for these objects: they may take {} MiB",
                own.size >> 20,
                needed.div_ceil(1 << 20)
            ));
        }
        let folder = folder_of(own.data.as_deref());
        let free = disk::free_bytes(&folder).map_err(|error| format!("--data: {error:#}"))?;
        if free < needed {
            let (free, needed) = (free >> 20, needed.div_ceil(1 << 20));
            return Err(format!("the disk has {free} MiB free, and these objects may take {needed} MiB"));
        }
        Ok(())
    }

    /// The facts of a run, by name.
    pub(super) fn facts(&self) -> [(&'static str, String); 7] {
        [
            ("objects", format!("{} of {} bytes", self.objects, self.value_bytes)),
            ("connections", format!("{}, in flight over each {}", self.connections, self.in_flight)),
            ("share of GETs", self.get_share.to_string()),
            ("arrivals", self.arrivals.to_string()),
            ("rates", self.rates.to_string()),
            ("store", self.describe_store()),
            (
                "seconds",
                format!(
                    "{} a run after {} of warm-up, {} for the maximum",
                    self.time.as_secs_f64(),
                    self.warm_up.as_secs_f64(),
                    self.measure.as_secs_f64()
                ),
            ),
        ]
    }

    fn describe_store(&self) -> String {
        let TailServer::Own(own) = &self.server else { return "unknown".into() };
        let memtable = own.memtable.map_or("in proportion".into(), |bytes| format!("{} MiB", bytes >> 20));
        format!("cache {} MiB, memtables {memtable}", own.cache >> 20)
    }

    /// The file of the device's own writes, for the data file of an own store.
    pub(super) fn device_file(&self, data: Option<&Path>) -> Option<PathBuf> {
        let beside = |data: &Path| folder_of(Some(data)).join(temporary("tail-device"));
        self.device_file.clone().or_else(|| data.map(beside))
    }
}

/// The folder of a data file; the current one for a temporary file.
fn folder_of(data: Option<&Path>) -> PathBuf {
    let parent = data.and_then(Path::parent).filter(|folder| !folder.as_os_str().is_empty());
    parent.map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}

fn within(name: &str, number: u64, max: u64) -> Result<(), String> {
    if (1..=max).contains(&number) { Ok(()) } else { Err(format!("{name} is between 1 and {max}")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tail::tests::options;

    /// The error of an option that `change` sets.
    fn error(change: impl FnOnce(&mut TailOptions)) -> String {
        let mut options = options(TailServer::Echo);
        change(&mut options);
        options.check().unwrap_err()
    }

    #[test]
    fn wrong_options_are_named() {
        options(TailServer::Echo).check().unwrap();
        assert!(error(|options| options.value_bytes = 0).contains("--value-bytes"));
        assert!(error(|options| options.objects = 0).contains("--objects"));
        assert!(error(|options| options.connections = 5_000).contains("--connections"));
        assert!(error(|options| options.in_flight = 0).contains("--in-flight"));
        assert!(error(|options| options.get_share = 1.1).contains("--get-share"));
        assert!(error(|options| options.rates = Rates::Shares(vec![])).contains("--share"));
        assert!(error(|options| options.rates = Rates::Shares(vec![0.3, 3.0])).contains("--share"));
        assert!(error(|options| options.rates = Rates::PerSecond(vec![f64::NAN])).contains("--rate"));
        assert!(error(|options| options.time = Duration::ZERO).contains("time"));
        assert!(error(|options| options.plot = Some("no/such/folder/x.svg".into())).contains("--plot"));
        assert!(error(|options| options.device_file = Some("/".into())).contains("--device-file"));
    }

    #[test]
    fn an_own_store_needs_room_and_a_filled_one_its_file() {
        let own = OwnStore {
            data: None,
            keep: false,
            cache: 1 << 24,
            memtable: None,
            size: 1 << 30,
            io: IoMode::Auto,
        };
        let check = |own: OwnStore, objects, filled| {
            TailOptions { objects, filled, ..options(TailServer::Own(own)) }.check()
        };
        check(own.clone(), 1000, false).unwrap();
        assert!(check(own.clone(), 1 << 30, false).unwrap_err().contains("--size"));
        assert!(
            check(OwnStore { size: u64::MAX, ..own.clone() }, 1 << 31, false).unwrap_err().contains("free")
        );
        assert!(check(own.clone(), 1000, true).unwrap_err().contains("--filled"));
        assert!(check(OwnStore { keep: true, ..own }, 1000, false).unwrap_err().contains("--keep"));
    }

    #[test]
    fn runs_have_names_and_rates() {
        let shares = Rates::Shares(vec![0.3, 0.6]);
        assert_eq!(shares.plans(Some(1000.0)), [("share-0.3".into(), 300.0), ("share-0.6".into(), 600.0)]);
        assert_eq!(Rates::PerSecond(vec![50.0]).plans(None), [("rate-50".into(), 50.0)]);
        assert_eq!(shares.to_string(), "0.3, 0.6 of the closed-loop maximum");
    }

    #[test]
    fn the_device_is_measured_beside_the_data_unless_named() {
        let options = options(TailServer::Echo);
        assert_eq!(options.device_file(None), None);
        let beside = options.device_file(Some(Path::new("a/b.data"))).unwrap();
        assert_eq!(beside.parent(), Some(Path::new("a")));
        let named = TailOptions { device_file: Some("x".into()), ..options };
        assert_eq!(named.device_file(Some(Path::new("a/b"))), Some("x".into()));
    }
}
