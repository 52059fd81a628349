//! The way in: a page of ours on the preview's own host takes the code out of the link's fragment and posts it, once, for a
//! cookie.

use axum::{
    extract::{FromRequest as _, Request},
    http::{HeaderValue, Method, StatusCode, header},
    response::{IntoResponse as _, Response},
};
use serde::Deserialize;

use super::{Page, Place, pass, split};
use crate::{
    App,
    access::PreviewHost,
    extract::BriefJson,
    headers::{PAGE_POLICY, harden_answer},
};

const PAGE: &str = include_str!("../pages/preview.html");
const SCRIPT: &str = include_str!("../pages/preview.js");
const STYLE: &str = include_str!("../pages/style.css");

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Enter {
    code: String,
}

pub(super) async fn serve(app: &App, preview: &PreviewHost, request: Request) -> Result<Response, Page> {
    let reads = matches!(*request.method(), Method::GET | Method::HEAD);
    // The look of pages that say what is wrong, on names that are no previews too.
    if reads && request.uri().path() == "/.sandbar/style.css" {
        let mut style = shown("text/css; charset=utf-8", STYLE);
        harden_answer(&mut style);
        return Ok(style);
    }
    let (named, port) = split(&preview.label).ok_or_else(Page::no_such_name)?;
    let mut response = match request.uri().path() {
        "/.sandbar/enter" if reads => shown("text/html; charset=utf-8", PAGE),
        "/.sandbar/enter.js" if reads => shown("text/javascript; charset=utf-8", SCRIPT),
        "/.sandbar/enter" if request.method() == Method::POST => enter(app, preview, named, port, request).await?,
        _ => return Err(Page::nothing_here()),
    };
    harden_answer(&mut response);
    Ok(response)
}

fn shown(kind: &'static str, text: &'static str) -> Response {
    ([(header::CONTENT_TYPE, kind), (header::CONTENT_SECURITY_POLICY, PAGE_POLICY)], text).into_response()
}

/// Only our own page may post here: another one would sign its visitor in as somebody else.
async fn enter(app: &App, preview: &PreviewHost, named: &str, port: u16, request: Request) -> Result<Response, Page> {
    let origin = request.headers().get(header::ORIGIN);
    if !origin.is_some_and(|origin| app.site.is_preview_origin(origin, preview)) {
        return Err(Page::from_elsewhere());
    }
    let BriefJson(Enter { code }) = match BriefJson::from_request(request, &()).await {
        Ok(read) => read,
        Err(refused) => return Ok(refused.into_response()),
    };
    let place = Place { sandbox: named.parse().map_err(|_| Page::wrong_code())?, port };
    let invited = app.preview_codes.redeem(&code, |invited| invited.place == place).ok_or_else(Page::wrong_code)?;
    let owner = invited.what.owner;
    if !app.engine.is_valid(&owner).await.map_err(|problem| Page::problem(&problem))? {
        return Err(Page::wrong_code());
    }
    let cookie = HeaderValue::from_str(&pass::cookie(app, &place, &owner)).map_err(|_| Page::wrong_code())?;
    Ok((StatusCode::NO_CONTENT, [(header::SET_COOKIE, cookie)]).into_response())
}
