//! Previews: a server inside, seen by a browser under a host name of its own, so that its pages are never same-origin with
//! the API. The Host decides before anything else: what is called by a preview's name is answered here, and nothing else is.

mod enter;
mod guard;
mod page;
mod pass;

use std::time::Duration;

use axum::{
    extract::{Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header},
    middleware::Next,
    response::Response,
};
use sandbar_api::{Code, SandboxId};
use sandbar_engine::Caller;
use tokio::time::sleep;

use crate::{
    App,
    access::{Channel, PreviewHost},
    proxy::{self, Failed, Inward, Until},
    slots,
};
use page::Page;
pub(crate) use pass::OURS;

/// For the head of an answer: on the first request a development server may compile all it has.
const PATIENCE: Duration = Duration::from_secs(120);
/// Everything below is ours and not passed on.
const OWN: &str = "/.sandbar";

/// What a link to a preview is for: the place, in the name of whoever asked for it.
pub(crate) struct Invitation {
    pub(crate) place: Place,
    pub(crate) owner: String,
}

/// A sandbox and a port of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) sandbox: SandboxId,
    pub(crate) port: u16,
}

impl Place {
    pub(crate) fn label(&self) -> String {
        format!("{}-{}", self.sandbox, self.port)
    }
}

/// On answers that come from here, for those who count them.
#[derive(Clone)]
pub(crate) struct Diverted;

/// In front of everything that is the API's.
pub(crate) async fn divert(State(app): State<App>, request: Request, next: Next) -> Response {
    let preview = match Channel::of(&request) {
        Channel::Tcp => app.site.preview(request.uri(), request.headers()),
        Channel::Socket => None,
    };
    match preview {
        Some(preview) => {
            let mut response = serve(&app, &preview, request).await;
            response.extensions_mut().insert(Diverted);
            response
        }
        None => next.run(request).await,
    }
}

async fn serve(app: &App, preview: &PreviewHost, request: Request) -> Response {
    let asks_html = page::asks_html(request.headers());
    let answered = match request.uri().path() {
        path if path == OWN || path.starts_with("/.sandbar/") => enter::serve(app, preview, request).await,
        _ => pass_on(app, preview, request).await,
    };
    answered.unwrap_or_else(|page| page.show(asks_html))
}

/// The name or id of a sandbox, and a port, as they stand in the host's label.
fn split(label: &str) -> Option<(&str, u16)> {
    let (sandbox, digits) = label.rsplit_once('-')?;
    let port: u16 = digits.parse().ok()?;
    (port != 0 && digits == port.to_string() && !sandbox.is_empty() && !sandbox.contains('.'))
        .then_some((sandbox, port))
}

async fn pass_on(app: &App, preview: &PreviewHost, request: Request) -> Result<Response, Page> {
    let (named, port) = split(&preview.label).ok_or_else(Page::no_such_name)?;
    let headers = request.headers();
    guard::judge(app, preview, request.method(), headers)?;
    let id = named.parse::<SandboxId>().ok();
    // By a name only programs come in, with a token. A name may be another sandbox's tomorrow, and what a page has left with
    // a browser, a service worker for one, would be there still.
    let visitor = match pass::token(headers) {
        Some(secret) => pass::by_token(app, secret).await?,
        None => pass::by_cookie(app, id.clone().map(|sandbox| Place { sandbox, port }), headers).await?,
    };
    slots::claim(request.extensions(), &visitor.caller).map_err(|problem| Page::problem(&problem))?;
    let sandbox = match id {
        Some(id) => id,
        None => found(app, named).await?,
    };

    let mut inward = Inward::new(request).ok_or_else(Page::no_connect)?;
    clean(app, preview, &mut inward.head.headers);
    let path = inward.head.uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
    inward.aim(&path).ok_or_else(Page::no_connect)?;
    let dialled = app.engine.dial(sandbox.as_str(), port).await.map_err(|problem| match problem.code {
        Code::PortClosed => Page::nothing_listens(port),
        Code::UnknownSandbox | Code::SandboxGone => Page::no_such_sandbox(named),
        _ => Page::problem(&problem),
    })?;
    let over = until(app, visitor);
    let exchanged = proxy::exchange(app, dialled, inward, PATIENCE, over).await;
    let response = exchanged.map_err(|failed| match failed {
        Failed::Slow => Page::slow(port),
        Failed::Broken => Page::broken(port),
    })?;
    Ok(confine(response))
}

async fn found(app: &App, named: &str) -> Result<SandboxId, Page> {
    let found = app.engine.get(named).await.map_err(|problem| match problem.code {
        Code::UnknownSandbox | Code::SandboxGone | Code::BadName => Page::no_such_sandbox(named),
        _ => Page::problem(&problem),
    })?;
    Ok(found.id)
}

/// Who was let in, and for how long.
struct Visitor {
    caller: Caller,
    left: Option<Duration>,
}

fn until(app: &App, visitor: Visitor) -> Until {
    let ended = proxy::until(app, Some(visitor.caller));
    Box::pin(async move {
        let expired = async {
            match visitor.left {
                Some(left) => sleep(left).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = ended => {}
            () = expired => {}
        }
    })
}

const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// What lets a visitor in stays outside. The Host stays what it was: from it servers make their links, and compare pages'
/// origins with it.
fn clean(app: &App, preview: &PreviewHost, headers: &mut HeaderMap) {
    proxy::strip_cookies(headers, &OURS);
    let theirs: Vec<_> =
        headers.get_all(header::AUTHORIZATION).iter().filter(|value| !pass::is_ours(value)).cloned().collect();
    headers.remove(header::AUTHORIZATION);
    for value in theirs {
        headers.append(header::AUTHORIZATION, value);
    }
    proxy::strip_prefixed(headers, "x-forwarded-");
    headers.remove(header::FORWARDED);
    if let Ok(host) = HeaderValue::from_str(&app.site.called_as(preview)) {
        headers.insert(header::HOST, host.clone());
        headers.insert(FORWARDED_HOST, host);
    }
    headers.insert(FORWARDED_PROTO, HeaderValue::from_static(app.site.scheme()));
}

/// What comes from inside holds for its own host alone.
fn confine(mut response: Response) -> Response {
    proxy::strip_reach(&mut response);
    let headers = response.headers_mut();
    let cookies: Vec<_> = headers.get_all(header::SET_COOKIE).iter().filter_map(pass::host_only).collect();
    headers.remove(header::SET_COOKIE);
    for cookie in cookies {
        headers.append(header::SET_COOKIE, cookie);
    }
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        let policy = HeaderValue::from_static("same-origin");
        response.headers_mut().entry(header::REFERRER_POLICY).or_insert(policy);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_name_a_sandbox_and_a_port() {
        for (label, want) in [
            ("web-80", Some(("web", 80))),
            ("my-web-8080", Some(("my-web", 8080))),
            ("web-0", None),
            ("web-080", None),
            ("web-+80", None),
            ("web-65536", None),
            ("web", None),
            ("-80", None),
            ("web-", None),
            ("evil.web-80", None),
        ] {
            assert_eq!(split(label), want, "{label}");
        }
    }
}
