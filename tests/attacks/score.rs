//! What a run prints: a line for each attack, then the score by class and, by name, what was not run.

use std::{collections::BTreeMap, process::ExitCode, time::Duration};

use crate::attack::Class;

pub(crate) enum Line {
    /// How, and what the control got away with, or why there was none.
    Contained {
        how: String,
        control: Result<String, String>,
    },
    Escaped(String),
    Failed(String),
    NotRun(String),
}

impl Line {
    fn on_one_line(self) -> Self {
        let flat = |text: String| text.split_whitespace().collect::<Vec<_>>().join(" ");
        match self {
            Self::Contained { how, control } => {
                Self::Contained { how: flat(how), control: control.map(flat).map_err(flat) }
            }
            Self::Escaped(what) => Self::Escaped(flat(what)),
            Self::Failed(why) => Self::Failed(flat(why)),
            Self::NotRun(why) => Self::NotRun(flat(why)),
        }
    }
}

#[derive(Default)]
struct Row {
    contained: u32,
    escaped: u32,
    failed: u32,
    not_run: u32,
}

#[derive(Default)]
pub(crate) struct Score {
    rows: BTreeMap<Class, Row>,
    /// At the end, by name.
    remarks: Vec<String>,
}

impl Score {
    pub(crate) fn add(&mut self, class: Class, title: &str, line: Line, took: Duration) {
        let line = line.on_one_line();
        let row = self.rows.entry(class).or_default();
        let (outcome, text) = match line {
            Line::Contained { how, control: Ok(what) } => {
                row.contained += 1;
                ("ok", format!("contained by {how} (control {what})"))
            }
            Line::Contained { how, control: Err(why) } => {
                row.contained += 1;
                self.remarks.push(format!("control not run: {title}: {why}"));
                ("ok", format!("contained by {how}"))
            }
            Line::Escaped(what) => {
                row.escaped += 1;
                ("FAILED", format!("ESCAPED: {what}"))
            }
            Line::Failed(why) => {
                row.failed += 1;
                ("FAILED", why)
            }
            Line::NotRun(why) => {
                row.not_run += 1;
                ("not run", why)
            }
        };
        say(&format!("test {title} ... {outcome}: {text} ({:.2} s)", took.as_secs_f64()));
        if outcome != "ok" {
            self.remarks.push(format!("{outcome}: {title}: {text}"));
        }
    }

    pub(crate) fn finish(self) -> ExitCode {
        say("");
        say(&format!("{:<12}{:>10}{:>10}{:>10}{:>10}", "class", "contained", "escaped", "failed", "not run"));
        let mut total = Row::default();
        for class in Class::ALL {
            let Some(row) = self.rows.get(class) else { continue };
            say(&format!(
                "{:<12}{:>10}{:>10}{:>10}{:>10}",
                class.as_str(),
                row.contained,
                row.escaped,
                row.failed,
                row.not_run
            ));
            total.contained += row.contained;
            total.escaped += row.escaped;
            total.failed += row.failed;
            total.not_run += row.not_run;
        }
        say("");
        self.remarks.iter().for_each(|remark| say(remark));
        let failed = total.escaped + total.failed;
        say(&format!("{} passed, {failed} failed, {} skipped", total.contained, total.not_run));
        if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

#[expect(clippy::print_stdout, reason = "a test runner's output")]
pub(crate) fn say(line: &str) {
    println!("{line}");
}
