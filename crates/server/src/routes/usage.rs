//! What sessions have used: in our shape, by model, session or day; and in the shape kagenti's tools read.

use axum::extract::State;
use chrono::{DateTime, Days, NaiveDate, NaiveTime, Utc};
use sandbar_api::{Problem, SessionUsage, UsageBy, UsageReport};
use sandbar_engine::{Engine, UsageAsked};
use serde::Deserialize;
use utoipa::IntoParams;

use super::SessionPath;
use crate::{
    access::Calling,
    extract::{Path, Query},
    problem::{Result, bad_request},
    registry::{Routes, routes},
};

pub(super) fn routes() -> Routes {
    Routes::default().routes(routes!(usage)).routes(routes!(session))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct UsageParameters {
    /// Only of this: a session's id, or a sandbox's id or name.
    of: Option<String>,
    /// `model` when absent.
    by: Option<UsageBy>,
    /// Only calls of this model.
    model: Option<String>,
    /// The first moment, or with a date alone that day's first (UTC); 30 days ago when absent.
    #[param(example = "2026-11-01")]
    from: Option<String>,
    /// The moment after the last, or with a date alone that day's end (UTC); now when absent.
    #[param(example = "2026-11-15T12:00:00Z")]
    to: Option<String>,
}

/// Get usage
///
/// Calls, tokens and dollars, summed up. An agent's token sees its own session's.
#[utoipa::path(
    get, path = "/v1/usage", operation_id = "get_usage", tag = "budgets", params(UsageParameters),
    responses(
        (status = 200, description = "The sums.", body = UsageReport),
        (status = 400, description = "`bad_request`"),
        (status = 404, description = "`unknown_session`, `unknown_sandbox`"),
    )
)]
async fn usage(
    State(engine): State<Engine>,
    Calling(caller): Calling,
    Query(query): Query<UsageParameters>,
) -> Result<axum::Json<UsageReport>> {
    let asked = UsageAsked {
        by: query.by.unwrap_or_default(),
        of: query.of,
        model: query.model,
        from: query.from.map(|text| moment(&text, Edge::First)).transpose()?,
        to: query.to.map(|text| moment(&text, Edge::Last)).transpose()?,
    };
    Ok(axum::Json(engine.usage(&caller, asked).await?))
}

/// Get the usage of a session, for kagenti's tools
#[utoipa::path(
    get, path = "/internal/usage/{session}", operation_id = "get_session_usage", tag = "budgets", params(SessionPath),
    responses(
        (status = 200, description = "The sums, the model with most tokens first.", body = SessionUsage),
        (status = 404, description = "`unknown_session`, `unknown_sandbox`"),
    )
)]
async fn session(
    State(engine): State<Engine>,
    Calling(caller): Calling,
    Path(path): Path<SessionPath>,
) -> Result<axum::Json<SessionUsage>> {
    Ok(axum::Json(engine.session_usage(&caller, &path.session).await?))
}

/// Which end of a range a date stands for.
#[derive(Clone, Copy)]
enum Edge {
    First,
    /// The day belongs to the range.
    Last,
}

fn moment(text: &str, edge: Edge) -> std::result::Result<DateTime<Utc>, Problem> {
    let midnight = |date: NaiveDate| date.and_time(NaiveTime::MIN).and_utc();
    let date = text.parse::<NaiveDate>().ok();
    let moment = match (date, edge) {
        (Some(date), Edge::First) => Some(midnight(date)),
        (Some(date), Edge::Last) => date.checked_add_days(Days::new(1)).map(midnight),
        (None, _) => DateTime::parse_from_rfc3339(text).ok().map(|at| at.to_utc()),
    };
    moment.ok_or_else(|| {
        let detail = format!("`{}` is neither a date nor a moment.", text.escape_debug());
        bad_request(detail, "Write 2026-11-15 or 2026-11-15T12:00:00Z.")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_hold_their_whole_day() {
        for (text, edge, want) in [
            ("2026-11-15", Edge::First, "2026-11-15T00:00:00+00:00"),
            ("2026-11-15", Edge::Last, "2026-11-16T00:00:00+00:00"),
            ("2026-11-15T12:00:00Z", Edge::Last, "2026-11-15T12:00:00+00:00"),
            ("2026-11-15T12:00:00+02:00", Edge::First, "2026-11-15T10:00:00+00:00"),
        ] {
            assert_eq!(moment(text, edge).map(|at| at.to_rfc3339()), Ok(want.to_owned()));
        }
        for bad in ["", "yesterday", "2026-02-30", "2026-11-15T12:00:00", "+262142-12-31"] {
            assert!(moment(bad, Edge::Last).is_err(), "{bad}");
        }
    }
}
