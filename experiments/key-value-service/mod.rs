//! `key-value-service`: the seed's client and its loads, against the seed's servers and Shoal's, in one run.
//!
//! Four servers of the seed's service: `global-lock` and `per-key` pretend to work as the seed's did before and after (10 ms a
//! retrieve, 50 ms a write); `memory` is a plain in-memory tonic server; `bare` is the same, but writes and flushes the received
//! bytes before it answers, which is the minimum of a durable put; `durable` is Shoal's, on a data file. Each is a separate process.
//! `memory` and `durable` (and etcd, if its program is named) take turns in short rounds, as the machine changes under them. The
//! loads are those of `shoal bench grpc`.
//!
//! `multi-100b` is the same 100 bytes, reads and writes in turn, counted in operations: on `memory` as unary calls, on
//! `durable` over the stream of operations.

mod charts;
mod etcd;
mod group_commit;
mod memory;

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use shoal_bench::grpc::{
    Bench, CASES, Contender, GrpcOptions, SMALL, SMALL_OBJECTS, ServeOptions, Servers, Work, serve_durable,
    serve_until_input_ends,
};
use shoal_bench::select;
use shoal_device::IoMode;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use self::etcd::EtcdPuts;
use self::group_commit::GroupCommit;
use self::memory::{Memory, Work as Pretence};
use crate::args::{io_mode, seconds};

/// All servers, and the variants of Shoal's.
const VARIANTS: [&str; 11] = [
    "global-lock",
    "per-key",
    "memory",
    "bare",
    "durable",
    "etcd",
    "stream-get",
    "stream-put",
    "stream-futures",
    "multi-get",
    "multi-put",
];

/// The cases to measure, and the way to.
#[derive(Args, Clone, Debug)]
pub(crate) struct ServiceOptions {
    /// End within a minute: half a second a variant, fewer objects.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Only this case, or with a final `*` all that start with NAME; repeatable.
    #[arg(long = "case", value_name = "NAME")]
    pub(crate) cases: Vec<String>,
    /// Only this variant: global-lock, per-key, memory, bare, durable, etcd, or a variant of multi-100b; repeatable.
    #[arg(long = "variant", value_name = "NAME")]
    pub(crate) variants: Vec<String>,
    /// Print one JSON object a line.
    #[arg(long)]
    pub(crate) json: bool,
    /// Seconds that each variant of a case is measured [default: 8, with --quick 0.5].
    #[arg(long = "seconds", value_name = "N", value_parser = seconds)]
    pub(crate) time: Option<Duration>,
    /// Calls in flight.
    #[arg(long, value_name = "N", default_value = "100")]
    pub(crate) in_flight: usize,
    /// Objects of 64 KiB [default: 1000, with --quick 100]; of 100 bytes there are 20 times as many.
    #[arg(long, value_name = "N")]
    pub(crate) objects: Option<usize>,
    /// The data file of the durable server: it must not exist, and is removed at the end [default: a temporary file in this
    /// folder].
    #[arg(long, value_name = "FILE")]
    pub(crate) data: Option<PathBuf>,
    /// How to drive its device.
    #[arg(long, value_name = "HOW", default_value = "auto", value_parser = io_mode)]
    pub(crate) io: IoMode,
    /// Write charts of the figures to this folder, as SVG files.
    #[arg(long, value_name = "DIR")]
    pub(crate) plot: Option<PathBuf>,
    /// The program of etcd: measure it too, with its data beside the data file.
    #[arg(long, value_name = "PROGRAM")]
    pub(crate) etcd: Option<PathBuf>,
}

/// Which server to be.
#[derive(Args, Clone, Debug)]
pub(crate) struct ServerOptions {
    /// global-lock, per-key, memory, bare or durable.
    #[arg(long, value_name = "NAME")]
    variant: String,
    /// The data file of durable: it must not exist.
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,
    /// How to drive its device.
    #[arg(long, value_name = "HOW", default_value = "auto", value_parser = io_mode)]
    io: IoMode,
}

/// Serves until the end of standard input; prints the address first.
///
/// # Errors
/// An unknown variant; as the store, the server or the output.
pub(crate) fn serve(options: &ServerOptions, out: &mut dyn Write) -> Result<()> {
    let ServerOptions { variant, data, io } = options.clone();
    serve_until_input_ends(serve_variant, &ServeOptions { variant, data, io }, out)
}

fn serve_variant(
    options: &ServeOptions,
    stopped: oneshot::Receiver<()>,
    announce: &mut dyn FnMut(SocketAddr) -> Result<()>,
) -> Result<()> {
    let pretence = match options.variant.as_str() {
        "global-lock" => Pretence::GlobalLock,
        "per-key" => Pretence::PerKey,
        "memory" | "bare" => Pretence::None,
        _ => return serve_durable(options, stopped, announce),
    };
    let log = if options.variant == "bare" { Some(GroupCommit::new(Path::new("."))?) } else { None };
    // As many threads as this process has cores.
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        announce(listener.local_addr()?)?;
        tokio::select! {
            served = Arc::new(Memory::new(pretence, log)).serve(listener) => served,
            _ = stopped => Ok(()),
        }
    })
}

/// Measures and prints. Must not run on a runtime's thread.
///
/// # Errors
/// A name that selects nothing; a server, a call or the output failed; an answer was wrong.
pub(crate) fn run(options: &ServiceOptions, out: &mut dyn Write) -> Result<()> {
    let program = std::env::current_exe().context("cannot find the path of this program")?;
    run_with(options, Servers::Processes(program, &["key-value-server"]), out)
}

fn run_with(options: &ServiceOptions, servers: Servers, out: &mut dyn Write) -> Result<()> {
    let cases = select("case", &CASES, &options.cases)?;
    let mut variants = select("variant", &VARIANTS, &options.variants)?;
    variants.retain(|variant| *variant != "etcd" || options.etcd.is_some());
    let seconds = if options.quick { 0.5 } else { 8.0 };
    let grpc = GrpcOptions {
        version: crate::VERSION.into(),
        json: options.json,
        cases: Vec::new(),
        variants: Vec::new(),
        time: options.time.unwrap_or(Duration::from_secs_f64(seconds)),
        in_flight: options.in_flight,
        objects: options.objects.unwrap_or(if options.quick { 100 } else { 1000 }),
        data: options.data.clone(),
        io: options.io,
        servers,
        soak: None,
    };
    let what = "grpc: the seed's client, and one server at a time of four, each in a process of its own";
    let mut bench = Bench::new(out, what, &grpc, variants, true)?;
    if cases.contains(&"crud-64k") {
        for variant in ["global-lock", "per-key"] {
            pretending(&mut bench, &grpc, variant)?;
        }
    }
    let memory = if bench.wants("memory") { Some(bench.start("memory")?) } else { None };
    let writes = cases.iter().any(|case| case.starts_with("write-"));
    let bare = if bench.wants("bare") && writes { Some(bench.start("bare")?) } else { None };
    let durable = if bench.wants_shoal(&cases) { Some(bench.start("durable")?) } else { None };
    let etcd = match &options.etcd {
        Some(program) if bench.wants("etcd") && cases.contains(&"write-100b") => {
            Some(bench.connect(etcd::start(program, &bench.data(), bench.cores())?)?)
        }
        _ => None,
    };
    for case in cases {
        let mut contenders = Vec::new();
        if let Some(bed) = &memory {
            contenders.push(Contender { variant: "memory", bed, work: bench.seed_load(bed, case)? });
        }
        if let Some(bed) = bare.as_ref().filter(|_| case.starts_with("write-")) {
            contenders.push(Contender { variant: "bare", bed, work: bench.seed_load(bed, case)? });
        }
        if let Some(bed) = &durable {
            contenders.extend(bench.of_shoal(bed, case)?);
        }
        if let Some(bed) = etcd.as_ref().filter(|_| case == "write-100b") {
            let puts =
                EtcdPuts::new(bench.source(), bed.calls().clone(), grpc.objects * SMALL_OBJECTS, SMALL);
            let work = Work::Calls(Box::new(puts), grpc.in_flight);
            contenders.push(Contender { variant: "etcd", bed, work });
        }
        bench.take_turns(case, &contenders)?;
    }
    for bed in [memory, bare, durable, etcd].into_iter().flatten() {
        bench.stop(bed)?;
    }
    let (mut report, rows) = bench.end()?;
    if let Some(folder) = &options.plot {
        for path in charts::write(&rows, folder)? {
            report.fact("chart", &path.display().to_string())?;
        }
    }
    Ok(())
}

/// The seed's load on a server that pretends to work; it has the machine for itself.
fn pretending(bench: &mut Bench<'_>, options: &GrpcOptions, variant: &'static str) -> Result<()> {
    if !bench.wants(variant) {
        return Ok(());
    }
    let bed = bench.start(variant)?;
    let work = bench.seed_load(&bed, "crud-64k")?;
    let tally = bench.measure(&bed, &work, options.time)?;
    let at_a_time = if variant == "global-lock" { 1.0 } else { options.in_flight as f64 };
    // By the work of the calls that were drawn: a few hundred of them are not just the mean.
    let ceiling = at_a_time * tally.operations as f64 / tally.work.as_secs_f64().max(f64::MIN_POSITIVE);
    let of_ceiling = tally.per_s() / ceiling;
    bench.row("crud-64k", variant, &tally, None, Some(of_ceiling))?;
    drop(work);
    bench.stop(bed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::parsed;

    #[test]
    fn every_case_gives_figures_of_every_variant() {
        let folder = tempfile::tempdir().unwrap();
        let (data, plot) = (folder.path().join("data"), folder.path().join("charts"));
        let words = ["--json", "--seconds", "0", "--in-flight", "20", "--objects", "20"];
        let options = ServiceOptions { data: Some(data.clone()), plot: Some(plot.clone()), ..parsed(&words) };
        let mut out = Vec::new();
        run_with(&options, Servers::Threads(serve_variant), &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        for case in CASES {
            for variant in ["memory", "durable"] {
                let start = format!("\"case\":\"{case}\",\"metric\":\"calls_per_s\"");
                let is_row = |line: &&str| line.contains(&start) && line.contains(&format!("\"{variant}\""));
                assert!(text.lines().any(|line| is_row(&line)), "{case} {variant}: {text}");
            }
        }
        for variant in VARIANTS.into_iter().filter(|&variant| variant != "etcd") {
            assert!(text.contains(&format!("\"variant\":\"{variant}\"")), "{variant}: {text}");
        }
        assert!(!data.exists());
        assert!(std::fs::read_to_string(plot.join("grpc-calls.svg")).unwrap().contains("durable"));
    }
}
