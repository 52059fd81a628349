//! Our own pages and what they load, from the binary.

use axum::{
    http::header,
    response::{IntoResponse as _, Response},
};

use crate::headers::PAGE_POLICY;

pub(super) fn html(text: &'static str) -> Response {
    page("text/html; charset=utf-8", text)
}

pub(super) fn javascript(text: &'static str) -> Response {
    page("text/javascript; charset=utf-8", text)
}

pub(super) fn css(text: &'static str) -> Response {
    page("text/css; charset=utf-8", text)
}

fn page(content_type: &'static str, text: &'static str) -> Response {
    ([(header::CONTENT_TYPE, content_type), (header::CONTENT_SECURITY_POLICY, PAGE_POLICY)], text).into_response()
}
