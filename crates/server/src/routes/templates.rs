//! Templates, read only: they are files in the home's `templates/`.

use axum::{Json, extract::State};
use sandbar_api::{Template, TemplateList};
use sandbar_engine::Engine;
use serde::Deserialize;
use utoipa::IntoParams;

use crate::{
    extract::Path,
    problem::Result,
    registry::{Routes, routes},
};

pub(super) fn routes() -> Routes {
    Routes::default().routes(routes!(list)).routes(routes!(get))
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
struct TemplatePath {
    /// The template's name.
    name: String,
}

/// List templates
#[utoipa::path(
    get, path = "/v1/templates", operation_id = "list_templates", tag = "templates",
    responses(
        (status = 200, description = "The templates.", body = TemplateList),
        (status = 400, description = "`bad_template`"),
    )
)]
async fn list(State(engine): State<Engine>) -> Result<Json<TemplateList>> {
    Ok(Json(TemplateList { templates: engine.templates().await? }))
}

/// Get a template
#[utoipa::path(
    get, path = "/v1/templates/{name}", operation_id = "get_template", tag = "templates", params(TemplatePath),
    responses(
        (status = 200, description = "The template.", body = Template),
        (status = 400, description = "`bad_template`"),
        (status = 404, description = "`unknown_template`"),
    )
)]
async fn get(State(engine): State<Engine>, Path(path): Path<TemplatePath>) -> Result<Json<Template>> {
    Ok(Json(engine.template(&path.name).await?))
}
