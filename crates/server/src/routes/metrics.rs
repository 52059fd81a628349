//! Metrics, computed when they are scraped.

use axum::{
    extract::State,
    http::header,
    response::{IntoResponse as _, Response},
};
use sandbar_api::{Code, Problem};

use crate::{
    App,
    problem::Result,
    registry::{Routes, routes},
};

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

pub(super) fn routes() -> Routes {
    Routes::default().routes(routes!(metrics))
}

/// Metrics
///
/// In the OpenMetrics text format.
#[utoipa::path(
    get, path = "/metrics", operation_id = "metrics", tag = "health",
    responses((status = 200, description = "The metrics.", body = String, content_type = "application/openmetrics-text"))
)]
async fn metrics(State(app): State<App>) -> Result<Response> {
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &app.meters.registry).map_err(|error| {
        Problem::new(Code::Internal, format!("The metrics could not be written: {error}."), "Report it.")
    })?;
    Ok(([(header::CONTENT_TYPE, OPENMETRICS)], text).into_response())
}
