//! The OpenAPI document and the page that shows it, served from the binary: nothing is fetched from elsewhere.

use std::sync::{Arc, LazyLock};

use axum::{
    http::{Uri, header},
    response::{IntoResponse as _, Redirect, Response},
    routing::get,
};
use bytes::Bytes;
use sandbar_api::{Code, Problem};
use utoipa_axum::router::OpenApiRouter;
use utoipa_swagger_ui::Config;

use crate::{
    App,
    headers::DOCS_POLICY,
    openapi::openapi,
    problem::{Result, unknown_route},
};

const DOCUMENT: &str = "/openapi.json";

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::default()
        .route(DOCUMENT, get(document))
        .route("/docs", get(async || Redirect::to("/docs/")))
        .route("/docs/", get(asset))
        .route("/docs/{*file}", get(asset))
}

async fn document() -> Result<Response> {
    static TEXT: LazyLock<std::result::Result<Bytes, String>> =
        LazyLock::new(|| openapi().to_json().map(Bytes::from).map_err(|error| error.to_string()));
    let text = TEXT.clone().map_err(|error| Problem::new(Code::Internal, error, "Report it."))?;
    Ok(([(header::CONTENT_TYPE, "application/json")], text).into_response())
}

async fn asset(uri: Uri) -> Result<Response> {
    static CONFIG: LazyLock<Arc<Config<'static>>> = LazyLock::new(|| {
        // No validator: it would send the document's address to somebody else's server.
        Arc::new(Config::from(DOCUMENT).use_base_layout().try_it_out_enabled(true).validator_url("none"))
    });
    let file = uri.path().strip_prefix("/docs/").unwrap_or_default();
    let found = utoipa_swagger_ui::serve(file, CONFIG.clone())
        .map_err(|error| Problem::new(Code::Internal, format!("The docs page failed: {error}."), "Report it."))?;
    let Some(found) = found else { return Err(unknown_route(uri).await) };
    let mut response = (
        [(header::CONTENT_TYPE, found.content_type.as_str()), (header::CONTENT_SECURITY_POLICY, DOCS_POLICY)],
        if found.content_type.starts_with("text/html") { titled(&found.bytes) } else { found.bytes.into_owned() },
    )
        .into_response();
    if found.gzpipped {
        response.headers_mut().insert(header::CONTENT_ENCODING, header::HeaderValue::from_static("gzip"));
    }
    Ok(response)
}

/// The page is the library's, and is named after it.
fn titled(page: &[u8]) -> Vec<u8> {
    String::from_utf8_lossy(page).replace("<title>Swagger UI</title>", "<title>Sandbar API</title>").into_bytes()
}
