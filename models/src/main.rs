//! `shoal-models [BUG...]` writes the traces of the planted bugs into `models/traces`: of those that it names, or of all.

use std::process::ExitCode;

use shoal_models::bugs::Bug;
use shoal_models::check::{find, trace_file};

fn main() -> ExitCode {
    let names: Vec<String> = std::env::args().skip(1).collect();
    let name = |bug: &Bug| format!("{bug:?}");
    if let Some(unknown) = names.iter().find(|word| !Bug::ALL.iter().any(|bug| name(bug) == **word)) {
        eprintln!("error: there is no planted bug {unknown}; models/README.md lists them");
        return ExitCode::from(2);
    }
    let is_wanted = |bug: &Bug| names.is_empty() || names.contains(&name(bug));
    let mut code = ExitCode::SUCCESS;
    for bug in Bug::ALL.into_iter().filter(is_wanted) {
        let written = match find(bug) {
            Some(trace) => std::fs::write(trace_file(bug), trace).map_err(|error| error.to_string()),
            None => Err("its run passes".to_owned()),
        };
        if let Err(error) = written {
            eprintln!("error: {bug:?} has no trace: {error}");
            code = ExitCode::FAILURE;
        }
    }
    code
}
