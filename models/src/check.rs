//! Explorations, and the shortest traces of the planted bugs.

use std::path::PathBuf;
use std::time::Instant;

use stateright::{Checker, Expectation, HasDiscoveries, Model};

use crate::action::Action;
use crate::bugs::Bug;
use crate::model::{Checks, Protocol};

/// The outcome of a complete exploration.
#[derive(Debug)]
pub struct Explored {
    pub states: usize,
    /// Steps of the longest way that the breadth-first search took.
    pub depth: usize,
    /// The properties that do not hold, each with a trace; *sometimes* properties without a state have none.
    pub failures: Vec<String>,
}

/// Explores all states of `protocol`, or the states up to a violation.
pub fn explore(protocol: Protocol) -> Explored {
    let start = Instant::now();
    let checker = protocol.checker().finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let mut failures = Vec::new();
    for property in protocol.properties() {
        let discovery = checker.discovery(property.name);
        if (property.expectation == Expectation::Sometimes) != discovery.is_some() {
            let steps = discovery.map_or(String::new(), |path| lines(&path.into_actions()));
            failures.push(format!("{}\n{steps}", property.name));
        }
    }
    let (states, depth) = (checker.unique_state_count(), checker.max_depth() - 1);
    let seconds = start.elapsed().as_secs_f64();
    println!("{:<10} {states:>9} states, depth {depth}, {seconds:.0} s", protocol.run.name);
    Explored { states, depth, failures }
}

/// Looks for the violation that `bug` leads to; returns its shortest trace, or `None` if there is none.
pub fn find(bug: Bug) -> Option<String> {
    let start = Instant::now();
    let (about, run, violated) = bug.about();
    let protocol = Protocol { run, bug: Some(bug), checks: Checks::Only(violated) };
    let mut found: Option<Vec<Action>> = None;
    let mut states = 0;
    // The checker looks at the outcome after each 1,500 states, and a later state replaces an earlier one: so again, below its depth.
    loop {
        let checker = protocol.checker().finish_when(HasDiscoveries::Any);
        let checker = match &found {
            Some(steps) => checker.target_max_depth(steps.len() + 1),
            None => checker,
        };
        let checker = checker.spawn_bfs().join();
        states += checker.unique_state_count();
        match checker.discovery(violated) {
            Some(path) => found = Some(path.into_actions()),
            None => break,
        }
    }
    let steps = found?;
    let (name, seconds) = (format!("{bug:?}"), start.elapsed().as_secs_f64());
    println!(
        "{name:<4} {:>2} steps, {states:>8} states, {seconds:>3.0} s, {} ({about})",
        steps.len(),
        run.name
    );
    Some(format!("# {name}: {about}.\n# Run: {}. Violated: {violated}.\n{}", run.name, lines(&steps)))
}

/// The file of a bug's trace.
pub fn trace_file(bug: Bug) -> PathBuf {
    let name = format!("{bug:?}");
    let (kind, number) = name.split_at(1);
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("traces/{kind}{number:0>2}.txt"))
}

fn lines(steps: &[Action]) -> String {
    steps.iter().map(|step| format!("{step}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::properties::T5;
    use crate::runs::{CLAIMANTS, COLLECTION, HAND_OVER, REJOIN, RESTART, Run, SWEEP};

    #[track_caller]
    fn passes(run: Run, states_min: usize) {
        let explored = explore(Protocol { run, bug: None, checks: Checks::All });
        assert!(explored.failures.is_empty(), "{}: {}", run.name, explored.failures.join("\n"));
        assert!(
            explored.states >= states_min,
            "{} states: the run lost some of its accidents",
            explored.states
        );
    }

    #[test]
    fn collection_passes() {
        passes(COLLECTION, 1_000_000);
    }

    #[test]
    fn claimants_pass() {
        passes(CLAIMANTS, 1_000_000);
    }

    #[test]
    fn restart_passes() {
        passes(RESTART, 1_000_000);
    }

    #[test]
    fn rejoin_passes() {
        passes(REJOIN, 1_000_000);
    }

    #[test]
    fn hand_over_passes() {
        passes(HAND_OVER, 1_000_000);
    }

    #[test]
    fn sweep_passes() {
        passes(SWEEP, 50_000);
    }

    /// R-d is for restores: with slot 0 of the own log as a second fence, T1, T4 and T7 hold without it. T2 and the named keys, which are
    /// checked by the ends in the record, have nothing to check then.
    #[test]
    fn without_confirmation_the_rest_holds() {
        let run = Run { reaches: &[], ..CLAIMANTS };
        let explored = explore(Protocol { run, bug: Some(Bug::P4), checks: Checks::Without(T5) });
        assert!(explored.failures.is_empty(), "{}", explored.failures.join("\n"));
    }

    #[test]
    fn planted_bugs_have_their_traces() {
        for bug in Bug::ALL {
            let trace = find(bug).unwrap_or_else(|| panic!("{bug:?} passes its run"));
            let file = trace_file(bug);
            let stored = std::fs::read_to_string(&file).unwrap_or_default();
            assert_eq!(stored, trace, "{} is old: `cargo x models --write`", file.display());
        }
    }
}
