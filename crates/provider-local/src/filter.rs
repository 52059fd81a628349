//! Compiles the fence's filters to BPF. A binary search over runs of system calls with the same verdict, instead of one
//! comparison after the other: the kernel walks a new filter once for every system call there is, which made a linear
//! one the slowest single step of booting a sandbox.

use std::collections::BTreeMap;

use seccompiler::{BpfProgram, sock_filter};
use serde::Deserialize;

use crate::syscalls;

#[derive(Debug, thiserror::Error)]
pub(crate) enum BadFilter {
    #[error("the filters are not understood: {0}")]
    Json(#[from] serde_json::Error),
    #[error("there is no system call `{0}`")]
    Unknown(String),
    #[error("there is no filter `{0}`")]
    Missing(&'static str),
    #[error("argument {0} does not exist")]
    Argument(u32),
    #[error("the rules of one system call are too long")]
    TooLong,
    #[error("`ne` compares 32-bit arguments only")]
    Wide,
    #[error("{0:#x} has bits that are not compared, so the rule would say something else than it seems to")]
    NotCompared(u64),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Filter {
    mismatch_action: Action,
    match_action: Action,
    filter: Vec<Rule>,
}

#[derive(Deserialize, Clone, Copy)]
#[serde(rename_all = "snake_case")]
enum Action {
    Allow,
    Errno(u16),
}

impl Action {
    fn value(self) -> u32 {
        match self {
            Self::Allow => libc::SECCOMP_RET_ALLOW,
            Self::Errno(number) => libc::SECCOMP_RET_ERRNO | u32::from(number),
        }
    }
}

/// Matches when all of its conditions hold; a system call matches when one of its rules does.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    syscall: String,
    #[serde(rename = "comment")]
    _comment: String,
    #[serde(default)]
    args: Vec<Condition>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Condition {
    index: u32,
    #[serde(rename = "type")]
    width: Width,
    op: Op,
    val: u64,
    #[serde(rename = "comment")]
    _comment: String,
}

/// Many arguments are 32 bits wide, and the kernel ignores what is above.
#[derive(Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
enum Width {
    Dword,
    Qword,
}

#[derive(Deserialize, Clone, Copy)]
#[serde(rename_all = "snake_case")]
enum Op {
    Eq,
    /// Of 32-bit arguments only.
    Ne,
    MaskedEq(u64),
}

const LOAD: u16 = 0x20;
const AND: u16 = 0x54;
const EQUAL: u16 = 0x15;
const AT_LEAST: u16 = 0x35;
const JUMP: u16 = 0x05;
const RETURN: u16 = 0x06;

const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const ARGUMENTS: u32 = 16;
/// AUDIT_ARCH_X86_64.
const OURS: u32 = 0xc000_003e;

fn step(code: u16, jt: u8, jf: u8, k: u32) -> sock_filter {
    sock_filter { code, jt, jf, k }
}

/// Compiles the filter of that name.
pub(crate) fn compile(json: &str, name: &'static str) -> Result<BpfProgram, BadFilter> {
    let mut filters: BTreeMap<String, Filter> = serde_json::from_str(json)?;
    let filter = filters.remove(name).ok_or(BadFilter::Missing(name))?;
    let mut rules: BTreeMap<u32, Vec<Rule>> = BTreeMap::new();
    for rule in filter.filter {
        let number = syscalls::number(&rule.syscall).ok_or_else(|| BadFilter::Unknown(rule.syscall.clone()))?;
        rules.entry(number).or_default().push(rule);
    }
    let otherwise = vec![step(RETURN, 0, 0, filter.mismatch_action.value())];
    // Each run reaches up to the next one's start; numbers of foreign ABIs (x32) fall into the last.
    let mut runs: Vec<(u32, BpfProgram)> = vec![(0, otherwise.clone())];
    for (number, rules) in &rules {
        push(&mut runs, *number, block(rules, filter.match_action, filter.mismatch_action)?);
        push(&mut runs, number + 1, otherwise.clone());
    }
    let mut program = vec![
        step(LOAD, 0, 0, ARCHITECTURE),
        step(EQUAL, 1, 0, OURS),
        step(RETURN, 0, 0, libc::SECCOMP_RET_KILL_PROCESS),
        step(LOAD, 0, 0, NUMBER),
    ];
    program.extend(search(&runs));
    Ok(program)
}

/// Adds a run, or lengthens the last one if it says the same.
fn push(runs: &mut Vec<(u32, BpfProgram)>, start: u32, verdict: BpfProgram) {
    if runs.last().is_some_and(|(last, _)| *last == start) {
        runs.pop();
    }
    if runs.last().is_none_or(|(_, last)| *last != verdict) {
        runs.push((start, verdict));
    }
}

fn search(runs: &[(u32, BpfProgram)]) -> BpfProgram {
    if let [(_, verdict)] = runs {
        return verdict.clone();
    }
    let (lower, upper) = runs.split_at(runs.len() / 2);
    let pivot = upper[0].0;
    let lower = search(lower);
    // Conditional jumps reach 255 steps, unconditional ones everywhere.
    let mut program = match u8::try_from(lower.len()) {
        Ok(over) => vec![step(AT_LEAST, over, 0, pivot)],
        Err(_) => vec![step(AT_LEAST, 0, 1, pivot), step(JUMP, 0, 0, lower.len() as u32)],
    };
    program.extend(lower);
    program.extend(search(upper));
    program
}

/// The rules of one system call, one after the other.
fn block(rules: &[Rule], matched: Action, otherwise: Action) -> Result<BpfProgram, BadFilter> {
    let mut program = Vec::new();
    for rule in rules {
        let mut steps = Vec::new();
        for condition in &rule.args {
            steps.extend(tests(condition)?);
        }
        let length = steps.len();
        for (at, (mut step, test)) in steps.into_iter().enumerate() {
            // Past the rest of this rule and its verdict.
            let next = u8::try_from(length - at).map_err(|_| BadFilter::TooLong)?;
            match test {
                Test::None => {}
                Test::MustEqual => step.jf = next,
                Test::MustDiffer => step.jt = next,
            }
            program.push(step);
        }
        program.push(step(RETURN, 0, 0, matched.value()));
        if rule.args.is_empty() {
            return Ok(program);
        }
    }
    program.push(step(RETURN, 0, 0, otherwise.value()));
    Ok(program)
}

enum Test {
    None,
    MustEqual,
    MustDiffer,
}

fn tests(condition: &Condition) -> Result<Vec<(sock_filter, Test)>, BadFilter> {
    let Condition { index, width, op, val, .. } = condition;
    if *index > 5 {
        return Err(BadFilter::Argument(*index));
    }
    let low = ARGUMENTS + 8 * index;
    let (mask, test) = match op {
        Op::Eq => (u64::MAX, Test::MustEqual),
        Op::MaskedEq(mask) => (*mask, Test::MustEqual),
        Op::Ne if *width == Width::Dword => (u64::MAX, Test::MustDiffer),
        Op::Ne => return Err(BadFilter::Wide),
    };
    let seen = if *width == Width::Dword { u64::from(u32::MAX) } else { u64::MAX };
    if val & !(mask & seen) != 0 {
        return Err(BadFilter::NotCompared(*val));
    }
    let word = |offset: u32, mask: u32, value: u32, test: Test| {
        vec![
            (step(LOAD, 0, 0, offset), Test::None),
            (step(AND, 0, 0, mask), Test::None),
            (step(EQUAL, 0, 0, value), test),
        ]
    };
    let mut steps = word(low, mask as u32, *val as u32, test);
    if *width == Width::Qword {
        steps.extend(word(low + 4, (mask >> 32) as u32, (val >> 32) as u32, Test::MustEqual));
    }
    Ok(steps)
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests;
