//! `usage`: what LLM calls used, by model, session or day.

use chrono::{DateTime, Days, NaiveDate, NaiveTime, Utc};
use clap::ValueEnum;
use sandbar_api::{UsageBy, UsageReport, UsageRow};
use sandbar_client::UsageQuery;

use crate::{
    amount::{count, dollars, sparkline},
    context::Context,
    exit::{self, Failure},
    spinner, table,
};

/// As many as fit beside two dates on a usual line.
const DAYS_SHOWN: usize = 56;

/// Show what LLM calls used
///
/// The last 30 days by default. Calls whose vendor reported no usage are counted with what they had reserved, under
/// ESTIMATED.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sandbar usage
  sandbar usage agent --by day
  sandbar usage --by session --from 2026-11-01 --to 2026-11-15")]
pub(crate) struct Usage {
    /// Only of this: a session's id, or a sandbox's id or name
    #[arg(value_name = "SESSION|SANDBOX")]
    of: Option<String>,

    /// What to sum up by
    #[arg(long, value_enum, default_value_t = By::Model)]
    by: By,

    /// The first day (UTC)
    #[arg(long, value_name = "DATE")]
    from: Option<NaiveDate>,

    /// The last day (UTC)
    #[arg(long, value_name = "DATE")]
    to: Option<NaiveDate>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum By {
    Model,
    Session,
    Day,
}

impl From<By> for UsageBy {
    fn from(by: By) -> Self {
        match by {
            By::Model => Self::Model,
            By::Session => Self::Session,
            By::Day => Self::Day,
        }
    }
}

fn midnight(date: NaiveDate) -> DateTime<Utc> {
    date.and_time(NaiveTime::MIN).and_utc()
}

pub(crate) async fn usage(args: Usage, context: &Context) -> Result<u8, Failure> {
    let last = |date: NaiveDate| date.checked_add_days(Days::new(1)).map(midnight);
    let query = UsageQuery {
        by: args.by.into(),
        of: args.of,
        model: None,
        from: args.from.map(midnight),
        to: args.to.and_then(last),
    };
    let report = spinner::during("summing up", context.client()?.usage(&query)).await?;
    if context.print.json {
        return context.print.json(&report).map(|()| exit::OK);
    }
    context.print.line(shown(&report))?;
    Ok(exit::OK)
}

fn shown(report: &UsageReport) -> String {
    let title = match report.by {
        UsageBy::Model => "MODEL",
        UsageBy::Session => "SESSION",
        UsageBy::Day => "DAY",
    };
    let row = |name: String, row: &UsageRow| {
        [
            name,
            count(row.calls),
            count(row.input_tokens),
            count(row.cached_input_tokens),
            count(row.output_tokens),
            count(row.total_tokens),
            dollars(row.usd),
            count(row.estimated),
        ]
    };
    let rows = report.rows.iter().map(|sums| row(named(sums, report.by), sums));
    let rows = rows.chain([row("total".into(), &report.total)]);
    let table = table::render([title, "CALLS", "INPUT", "CACHED", "OUTPUT", "TOKENS", "DOLLARS", "ESTIMATED"], rows);
    match report.by {
        UsageBy::Day if !report.rows.is_empty() => format!("{table}\n\n{}", line_of_days(report)),
        _ => table,
    }
}

fn named(row: &UsageRow, by: UsageBy) -> String {
    let name = match by {
        UsageBy::Model => row.model.clone(),
        UsageBy::Session => row.session.clone(),
        UsageBy::Day => row.day.map(|day| day.to_string()),
    };
    name.unwrap_or_else(|| "-".into())
}

/// Tokens of each day of the range, those without calls too; of a long range the last days.
fn line_of_days(report: &UsageReport) -> String {
    // The end is not part of the range.
    let last = (report.to - chrono::Duration::nanoseconds(1)).date_naive();
    let mut days: Vec<NaiveDate> = std::iter::successors(Some(last), NaiveDate::pred_opt)
        .take_while(|day| *day >= report.from.date_naive())
        .take(DAYS_SHOWN)
        .collect();
    days.reverse();
    let of = |day: &NaiveDate| {
        report.rows.iter().filter(|row| row.day == Some(*day)).map(|row| row.total_tokens).sum::<u64>()
    };
    let values: Vec<u64> = days.iter().map(of).collect();
    let first = days.first().map(ToString::to_string).unwrap_or_default();
    format!("tokens: {first} {} {last}", sparkline(&values))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(by: UsageBy, rows: Vec<UsageRow>) -> Result<UsageReport, chrono::ParseError> {
        let total = UsageRow { calls: 3, total_tokens: 1234, usd: 0.5, ..UsageRow::default() };
        Ok(UsageReport { by, from: "2026-11-12T08:00:00Z".parse()?, to: "2026-11-16T00:00:00Z".parse()?, rows, total })
    }

    #[test]
    fn days_without_calls_are_days_too() -> Result<(), chrono::ParseError> {
        let day = |text: &str, total_tokens| {
            Ok::<_, chrono::ParseError>(UsageRow { day: Some(text.parse()?), total_tokens, ..UsageRow::default() })
        };
        let text = shown(&report(UsageBy::Day, vec![day("2026-11-13", 500)?, day("2026-11-15", 1000)?])?);
        assert!(text.ends_with("\n\ntokens: 2026-11-12 ▁▅▁█ 2026-11-15"), "{text}");
        Ok(())
    }

    #[test]
    fn the_total_comes_last() -> Result<(), chrono::ParseError> {
        let row = UsageRow { model: Some("m\u{1b}".into()), calls: 3, ..UsageRow::default() };
        let text = shown(&report(UsageBy::Model, vec![row])?);
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[0].starts_with("MODEL") && lines[1].starts_with("m\\x1b"), "{text}");
        assert!(lines[2].starts_with("total") && lines[2].contains("1,234") && lines.len() == 3, "{text}");
        Ok(())
    }
}
