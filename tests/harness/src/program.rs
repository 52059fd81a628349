//! A test program's `main`: one test in this process (`--exact`), or several, each in a process of its own.

use std::{
    io::Write as _,
    panic::{AssertUnwindSafe, catch_unwind},
    process::{Command, ExitCode, Stdio},
    sync::Mutex,
};

/// Why a test failed.
pub type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

/// One test, run on the main thread of a process that runs nothing else.
pub struct Test {
    name: String,
    run: Box<dyn FnOnce() -> Outcome>,
}

impl Test {
    pub fn new(name: impl Into<String>, run: impl FnOnce() -> Outcome + 'static) -> Self {
        Self { name: name.into(), run: Box::new(run) }
    }
}

/// Understands what the built-in harness understands: `--list`, `--exact`, and parts of names.
pub fn main(tests: Vec<Test>) -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
    let words: Vec<&String> = arguments.iter().filter(|argument| !argument.starts_with('-')).collect();
    let exact = has("--exact");
    let is_chosen = |test: &Test| {
        words.is_empty()
            || words.iter().any(|word| if exact { test.name == **word } else { test.name.contains(word.as_str()) })
    };
    let mut chosen: Vec<Test> = tests.into_iter().filter(is_chosen).collect();
    if has("--list") {
        chosen.iter().for_each(|test| say(&format!("{}: test", test.name)));
        return ExitCode::SUCCESS;
    }
    match chosen.pop() {
        Some(only) if exact && chosen.is_empty() => alone(only),
        Some(last) => {
            chosen.push(last);
            each_in_its_own_process(chosen.into_iter().map(|test| test.name).collect())
        }
        None => {
            say("0 passed, 0 failed, 0 skipped");
            ExitCode::SUCCESS
        }
    }
}

fn alone(test: Test) -> ExitCode {
    let Test { name, run } = test;
    let outcome = catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| Err("it panicked".into()));
    match outcome {
        Ok(()) => {
            say(&format!("test {name} ... ok"));
            ExitCode::SUCCESS
        }
        Err(why) => {
            say(&format!("test {name} ... FAILED: {why}"));
            ExitCode::FAILURE
        }
    }
}

#[derive(Default)]
struct Count {
    passed: u32,
    failed: u32,
    not_run: u32,
}

/// As many at once as the built-in harness runs.
fn each_in_its_own_process(names: Vec<String>) -> ExitCode {
    let names = Mutex::new(names.into_iter());
    let count = Mutex::new(Count::default());
    let next = || names.lock().ok()?.next();
    let asked = std::env::var("RUST_TEST_THREADS").ok().and_then(|text| text.parse().ok());
    let workers = asked.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let Some(name) = next() {
                    let (passed, output) = in_its_own_process(&name);
                    let Ok(mut count) = count.lock() else { return };
                    let missing = output.lines().find(|line| line.starts_with("not run: "));
                    match (passed, missing) {
                        (false, _) => {
                            count.failed += 1;
                            say(&output);
                        }
                        (true, Some(why)) => {
                            count.not_run += 1;
                            say(why);
                        }
                        (true, None) => {
                            count.passed += 1;
                            say(&format!("test {name} ... ok"));
                        }
                    }
                }
            });
        }
    });
    let Count { passed, failed, not_run } = count.into_inner().unwrap_or_default();
    say(&format!("{passed} passed, {failed} failed, {not_run} skipped"));
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn in_its_own_process(name: &str) -> (bool, String) {
    let started = std::env::current_exe()
        .and_then(|program| Command::new(program).args(["--exact", name]).stdin(Stdio::null()).output());
    match started {
        Ok(ended) => {
            let text = [ended.stdout, ended.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
            (ended.status.success(), text)
        }
        Err(error) => (false, format!("test {name} ... FAILED: {error}")),
    }
}

fn say(line: &str) {
    let _printed = writeln!(std::io::stdout(), "{line}");
}
