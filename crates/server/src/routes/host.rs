//! What this host can enforce, as the providers found by trying.

use axum::{Json, extract::State};
use sandbar_engine::Engine;
use serde::Serialize;
use utoipa::ToSchema;

use crate::registry::{Routes, routes};

pub(super) fn routes() -> Routes {
    Routes::default().routes(routes!(host))
}

#[derive(Serialize, ToSchema)]
struct HostReports {
    reports: Vec<HostReport>,
}

#[derive(Serialize, ToSchema)]
struct HostReport {
    provider: String,
    findings: Vec<Finding>,
}

#[derive(Serialize, ToSchema)]
struct Finding {
    /// The layer, for example `user namespaces`.
    layer: String,
    works: bool,
    /// Whether sandboxes are refused without it.
    required: bool,
    /// What was seen.
    evidence: String,
    /// What to do when it does not work.
    #[serde(skip_serializing_if = "Option::is_none")]
    fix: Option<String>,
}

/// What this host can enforce
///
/// Each provider's layers, tried for real, with the fix for what does not work. A sandbox is made for that and removed, so
/// it is for operators.
#[utoipa::path(
    get, path = "/v1/host", operation_id = "host", tag = "host",
    responses(
        (status = 200, description = "A report for each provider.", body = HostReports),
        (status = 403, description = "`forbidden`: a viewer's or an agent's token"),
    )
)]
async fn host(State(engine): State<Engine>) -> Json<HostReports> {
    let reports = engine.host().await.into_iter().map(|report| {
        let findings = report.findings.into_iter().map(|finding| Finding {
            layer: finding.layer,
            works: finding.works,
            required: finding.required,
            evidence: finding.evidence,
            fix: finding.fix,
        });
        HostReport { provider: report.provider, findings: findings.collect() }
    });
    Json(HostReports { reports: reports.collect() })
}
