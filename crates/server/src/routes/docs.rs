//! The OpenAPI document and the page that shows it, served from the binary: nothing is fetched from elsewhere.

use axum::{http::header, response::Redirect, routing::get};

use super::page::{css, html, javascript};
use crate::registry::Routes;

/// As it is checked in; a test compares it with what the routes say of themselves.
pub(crate) const DOCUMENT: &str = include_str!("../../../../openapi.json");

pub(super) fn routes() -> Routes {
    Routes::default()
        .route("/openapi.json", get(async || ([(header::CONTENT_TYPE, "application/json")], DOCUMENT)))
        .route("/docs", get(async || Redirect::to("/docs/")))
        .route("/docs/", get(async || html(include_str!("../pages/docs.html"))))
        .route("/static/docs.js", get(async || javascript(include_str!("../pages/docs.js"))))
        .route("/static/docs.css", get(async || css(include_str!("../pages/docs.css"))))
}
