//! The page behind the printed link, and the exchange of its one-time code for a cookie.

use std::time::Duration;

use axum::{
    extract::State,
    http::{HeaderName, StatusCode, header},
    response::AppendHeaders,
    routing::get,
};
use sandbar_api::{CreateToken, HumanDuration, Role};
use serde::Deserialize;
use utoipa::ToSchema;

use super::page::{css, html, javascript};
use crate::{
    App, access,
    extract::BriefJson,
    problem::Result,
    registry::{Routes, routes},
};

/// How long a browser stays signed in.
const SIGNED_IN: Duration = Duration::from_secs(7 * 24 * 60 * 60);

pub(super) fn routes() -> Routes {
    Routes::default()
        .routes(routes!(login))
        .route("/", get(async || html(include_str!("../pages/index.html"))))
        .route("/static/sign-in.js", get(async || javascript(include_str!("../pages/sign-in.js"))))
        .route("/static/style.css", get(async || css(include_str!("../pages/style.css"))))
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Login {
    /// The one-time code of the link that `sandbar up` prints.
    code: String,
}

/// Exchange the one-time code for a cookie
///
/// The cookie is an admin's token that works for seven days and is listed with the others.
#[utoipa::path(
    post, path = "/v1/login", operation_id = "login", tag = "sign-in", request_body = Login, security(()),
    responses(
        (status = 204, description = "Signed in.", headers(("Set-Cookie" = String, description = "The cookie."))),
        (status = 400, description = "`bad_json`"),
        (status = 401, description = "`unauthenticated`: the code is wrong, used or expired."),
        (status = 413, description = "`too_large`"),
        (status = 429, description = "`too_many` wrong codes in the last minute."),
    )
)]
async fn login(
    State(app): State<App>,
    BriefJson(login): BriefJson<Login>,
) -> Result<(StatusCode, AppendHeaders<[(HeaderName, String); 1]>)> {
    let redeemed = app.sign_in.redeem(&login.code)?;
    let request = CreateToken {
        name: "browser sign-in".to_owned(),
        role: Role::Admin,
        session: None,
        ttl: Some(HumanDuration(SIGNED_IN)),
    };
    match app.engine.create_token(request).await {
        Ok(token) => {
            let secure = if app.site.is_https() { "; Secure" } else { "" };
            let cookie = format!(
                "{}={}; Path=/; Max-Age={}; HttpOnly; SameSite=Strict{secure}",
                access::COOKIE,
                token.secret,
                SIGNED_IN.as_secs()
            );
            Ok((StatusCode::NO_CONTENT, AppendHeaders([(header::SET_COOKIE, cookie)])))
        }
        Err(problem) => {
            app.sign_in.restore(redeemed);
            Err(problem.into())
        }
    }
}
