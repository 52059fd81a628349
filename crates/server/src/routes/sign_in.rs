//! Signing browsers in and out: the links, the page behind them, and the exchange of a one-time code for a cookie.

use std::time::Duration;

use axum::{
    Extension,
    extract::State,
    http::{HeaderName, StatusCode, header},
    response::AppendHeaders,
    routing::get,
};
use chrono::Utc;
use sandbar_api::{Code, Problem, SignInLink};
use serde::Deserialize;
use utoipa::ToSchema;

use super::page::{css, html, javascript};
use crate::{
    App,
    access::{self, ByBrowser, Calling, OverSocket, SignInOrigin},
    codes,
    extract::BriefJson,
    problem::{Refused, Result, bad_request},
    registry::{Routes, routes},
};

/// How long a browser stays signed in.
const SIGNED_IN: Duration = Duration::from_secs(7 * 24 * 60 * 60);

pub(super) fn open() -> Routes {
    Routes::default()
        .routes(routes!(login))
        .route("/", get(async || html(include_str!("../pages/index.html"))))
        .route("/static/sign-in.js", get(async || javascript(include_str!("../pages/sign-in.js"))))
        .route("/static/style.css", get(async || css(include_str!("../pages/style.css"))))
}

pub(super) fn guarded() -> Routes {
    Routes::default().routes(routes!(logout)).routes(routes!(link))
}

type Cookie = AppendHeaders<[(HeaderName, String); 1]>;

/// For this host alone: no `Domain`. Other sites' pages never send it.
fn cookie(app: &App, value: &str, lasts: Duration) -> Cookie {
    let name = access::cookie_name(&app.site);
    let secure = if app.site.is_https() { "; Secure" } else { "" };
    let lasts = lasts.as_secs();
    let text = format!("{name}={value}; Path=/; Max-Age={lasts}; HttpOnly; SameSite=Strict{secure}");
    AppendHeaders([(header::SET_COOKIE, text)])
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Login {
    /// The one-time code of a link that `sandbar up` or `sandbar open` printed.
    code: String,
}

/// Exchange a one-time code for a cookie
///
/// The cookie is good for seven days under the host name that was called, and there alone; it is no token. It is listed with
/// the tokens, as `browser sign-in`, and can be revoked like one. Under a name of loopback that other servers have too, such
/// as 127.0.0.1 and localhost, nobody is signed in: `sandbar.localhost` is the server's own.
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
    SignInOrigin(origin): SignInOrigin,
    BriefJson(login): BriefJson<Login>,
) -> Result<(StatusCode, Cookie)> {
    let redeemed = app.sign_in.redeem(&login.code)?;
    match app.engine.sign_browser_in(&origin, SIGNED_IN).await {
        Ok(browser) => Ok((StatusCode::NO_CONTENT, cookie(&app, &browser.secret, SIGNED_IN))),
        Err(problem) => {
            app.sign_in.restore(redeemed);
            Err(problem.into())
        }
    }
}

/// Sign this browser out
///
/// Its cookie stops working at once, also where somebody has a copy of it.
#[utoipa::path(
    post, path = "/v1/logout", operation_id = "logout", tag = "sign-in",
    responses(
        (status = 204, description = "Signed out.", headers(("Set-Cookie" = String, description = "Removes the cookie."))),
        (status = 400, description = "`bad_request`: no browser's cookie; a token is revoked instead"),
    )
)]
async fn logout(
    State(app): State<App>,
    Calling(caller): Calling,
    browser: Option<Extension<ByBrowser>>,
) -> Result<(StatusCode, Cookie)> {
    if browser.is_none() {
        let fix = "Revoke a token with `sandbar token revoke`.";
        return Err(bad_request("Only a browser that is signed in can be signed out.", fix).into());
    }
    match app.engine.sign_browser_out(&caller).await {
        // Another request of the same browser was first.
        Err(problem) if problem.code == Code::UnknownToken => {}
        ended => ended?,
    }
    Ok((StatusCode::NO_CONTENT, cookie(&app, "", Duration::ZERO)))
}

/// Make a link that signs a browser in
///
/// It makes one browser an admin, once, within ten minutes. Over the Unix socket alone: only the server's owner may have it.
#[utoipa::path(
    post, path = "/v1/sign-in-links", operation_id = "create_sign_in_link", tag = "sign-in",
    responses(
        (status = 201, description = "The link.", body = SignInLink),
        (status = 400, description = "`bad_request`: the server does not listen on TCP"),
    )
)]
async fn link(State(app): State<App>, OverSocket: OverSocket) -> Result<(StatusCode, axum::Json<SignInLink>)> {
    let expires_at = Utc::now() + codes::LIFETIME;
    let url = app.sign_in_link().map_err(|_| {
        let fix = "Check that /dev/urandom and getrandom(2) work.";
        Refused(Problem::new(Code::Internal, "The system gives no random numbers.", fix))
    })?;
    let url = url.ok_or_else(|| {
        let detail = "This server does not listen on TCP, where browsers could reach it.";
        Refused(bad_request(detail, "Use a server that was started with `sandbar up`."))
    })?;
    Ok((StatusCode::CREATED, axum::Json(SignInLink { url, expires_at })))
}
