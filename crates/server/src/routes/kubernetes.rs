//! Whether the server's cluster can hold sandboxes, tried for real.

use axum::{Json, extract::State};
use sandbar_api::{ClusterCheck, ClusterReport};
use sandbar_engine::Engine;

use crate::{
    extract::Query,
    problem::{Refused, Result},
    registry::{Routes, routes},
};

pub(super) fn routes() -> Routes {
    Routes::default().routes(routes!(kubernetes_check))
}

/// Whether the cluster can hold sandboxes
///
/// Each line green, red or grey, with what was seen and the fix. What looking does not show is tried with four small pods,
/// which are removed before the answer, unless `look_only` says otherwise; that takes up to a few minutes.
#[utoipa::path(
    get, path = "/v1/kubernetes/check", operation_id = "kubernetes_check", tag = "host", params(ClusterCheck),
    responses(
        (status = 200, description = "What was seen.", body = ClusterReport),
        (status = 404, description = "`unknown_provider`: the server has no cluster."),
    )
)]
async fn kubernetes_check(
    State(engine): State<Engine>,
    Query(asked): Query<ClusterCheck>,
) -> Result<Json<ClusterReport>> {
    engine.kubernetes_check(&asked).await.map(Json).map_err(Refused)
}
