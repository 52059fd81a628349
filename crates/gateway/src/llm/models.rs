//! The list of models, each vendor's way.

use hyper::{Response, header};
use serde_json::json;

use super::{Catalogue, Format, select};
use crate::{body, body::Body};

pub(super) fn response(catalogue: &Catalogue, format: Format) -> Response<Body> {
    let names = select::names(catalogue, format);
    let list = match format {
        Format::OpenAi => json!({
            "object": "list",
            "data": names
                .iter()
                .map(|(name, upstream)| json!({"id": name, "object": "model", "created": 0, "owned_by": upstream}))
                .collect::<Vec<_>>(),
        }),
        Format::Anthropic => json!({
            "data": names
                .iter()
                .map(|(name, _)| json!({
                    "type": "model", "id": name, "display_name": name, "created_at": "1970-01-01T00:00:00Z",
                }))
                .collect::<Vec<_>>(),
            "has_more": false,
            "first_id": names.first().map(|(name, _)| name),
            "last_id": names.last().map(|(name, _)| name),
        }),
    };
    let mut response = Response::new(body::full(list.to_string()));
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    response
}
