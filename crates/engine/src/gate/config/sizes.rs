//! Limits and budgets as configuration files state them, with the same fields as templates have.

use std::str::FromStr;

use sandbar_api::{Limits, SetBudget};

use super::document::{Field, Read};

/// What TOML's integers hold.
const MOST: u64 = i64::MAX as u64;

pub(crate) fn budget(field: &Field<'_>) -> Read<SetBudget> {
    let section = field.section()?;
    section.only(&["tokens", "usd", "per_minute"])?;
    let count = |name: &str| section.field(name).map(|field| field.count(MOST)).transpose();
    let budget = SetBudget {
        tokens: count("tokens")?,
        usd: section.field("usd").map(|field| field.number()).transpose()?,
        per_minute: count("per_minute")?,
    };
    budget.check().map_err(|problem| field.bad(problem.detail.trim_end_matches('.')))?;
    Ok(budget)
}

pub(crate) fn limits(field: &Field<'_>) -> Read<Limits> {
    let section = field.section()?;
    section.only(&["memory", "cpus", "processes", "open_files", "tmpfs", "disk", "output", "wall_time"])?;
    let count = |name: &str| section.field(name).map(|field| field.count(u32::MAX.into())).transpose();
    let narrow = |count: Option<u64>| count.map(|count| u32::try_from(count).unwrap_or(u32::MAX));
    let size = |name: &str| section.field(name).map(|field| parsed(&field)).transpose();
    let limits = Limits {
        memory: size("memory")?,
        cpus: section.field("cpus").map(|field| field.number()).transpose()?,
        processes: narrow(count("processes")?),
        open_files: narrow(count("open_files")?),
        tmpfs: size("tmpfs")?,
        disk: size("disk")?,
        output: size("output")?,
        wall_time: section.field("wall_time").map(|field| parsed(&field)).transpose()?,
    };
    limits.check().map_err(|bad| {
        let at = section.field(bad.field);
        let cause = format!("`{}` {}", bad.field, bad.cause);
        at.map_or_else(|| field.bad(cause.clone()), |at| at.bad(cause.clone()))
    })?;
    Ok(limits)
}

fn parsed<T: FromStr<Err: ToString>>(field: &Field<'_>) -> Read<T> {
    field.text()?.parse().map_err(|bad: T::Err| field.bad(bad.to_string()))
}
