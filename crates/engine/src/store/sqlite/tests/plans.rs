//! How lookups by name are carried out: by an index, however many sandboxes were deleted. A plan says so without a clock.

use sqlx::{AssertSqlSafe, Row as _};

use super::{
    super::{found, sessions},
    Outcome, directory,
};
use crate::store::suite::Home as _;

/// The steps of a plan; values are bound to nothing, which changes no plan.
async fn plan(statement: &'static str) -> Result<Vec<String>, Box<dyn std::error::Error + Send + Sync>> {
    let home = directory();
    drop(home.open().await?);
    let mut raw = home.raw().await?;
    let explained = AssertSqlSafe(format!("EXPLAIN QUERY PLAN {statement}"));
    let rows = sqlx::query(explained).fetch_all(&mut raw).await?;
    Ok(rows.iter().map(|row| row.try_get("detail")).collect::<Result<_, _>>()?)
}

#[tokio::test]
async fn a_name_that_nothing_has_is_looked_up_by_index() -> Outcome {
    let steps = plan(found::LAST_NAMED).await?;
    let [step] = &steps[..] else { return Err(format!("{steps:?}").into()) };
    assert!(step.starts_with("SEARCH sandboxes USING INDEX sandboxes_named (name=?)"), "{step}");
    Ok(())
}

/// No step may touch what belongs to somebody else: each begins at the agent's session.
#[tokio::test]
async fn a_bounded_lookup_begins_at_the_session() -> Outcome {
    let steps = plan(found::WITHIN).await?;
    assert!(steps.iter().any(|step| step.starts_with("SEARCH sandboxes USING INDEX sandboxes_session (session=?)")));
    assert!(steps.iter().all(|step| !step.contains("sandboxes") || step.contains("(session=?)")), "{steps:?}");
    let steps = plan(sessions::WITHIN).await?;
    let looks: Vec<_> = steps.iter().filter(|step| step.starts_with("SEARCH") || step.starts_with("SCAN")).collect();
    for look in &looks {
        let bounded = ["(id=?)", "(parent=?)", "(session=?)", "SCAN tree"].iter().any(|by| look.contains(by));
        assert!(bounded, "{look} in {steps:?}");
    }
    assert!(looks.len() >= 5, "{steps:?}");
    Ok(())
}
