//! A server inside, reached from outside: an HTTP connection that becomes one to a port of the sandbox.

use std::time::Duration;

use axum::{
    body::Body,
    extract::{Request, State},
    http::{HeaderValue, Method, StatusCode, header},
    response::Response,
};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use sandbar_engine::Dialled;
use serde::Deserialize;
use tokio::time::timeout;
use utoipa::IntoParams;

use crate::{
    App,
    access::Calling,
    extract::Path,
    problem::{Refused, Result, bad_request},
    proxy,
    registry::{Routes, routes},
};

const PROTOCOL: &str = "tcp";
/// For the answer to reach whoever asked, after which the connection is theirs.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes on their way in each direction.
const BUFFER: usize = 16 * 1024;

pub(super) fn routes() -> Routes {
    Routes::default().routes(routes!(dial))
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
struct PortPath {
    /// The sandbox's id or name.
    sandbox: String,
    /// The port inside.
    #[param(value_type = u16, minimum = 1, maximum = 65535)]
    port: String,
}

/// Connect to a port inside
///
/// With `Connection: Upgrade` and `Upgrade: tcp`, over HTTP/1.1. After the 101 the connection is one to a TCP server on the
/// sandbox's loopback, 127.0.0.1 or else [::1]: bytes go both ways, and the end of one side is passed on while the other
/// goes on. At most 256 at once to one sandbox. They end with the sandbox, the server or the token; what ends so is cut off.
#[utoipa::path(
    get, path = "/v1/sandboxes/{sandbox}/ports/{port}", operation_id = "dial_port",
    tag = "ports", params(PortPath),
    responses(
        (status = 101, description = "Connected: from here on the connection carries the bytes of the port's"),
        (status = 400, description = "`bad_request`: no such port, the sandbox's own way out, or not `Upgrade: tcp`"),
        (status = 403, description = "`forbidden`: a viewer's or an agent's token"),
        (status = 404, description = "`unknown_sandbox`"),
        (status = 409, description = "`wrong_state`"),
        (status = 410, description = "`sandbox_gone`"),
        (status = 429, description = "`too_many`: connections to one sandbox"),
        (status = 502, description = "`port_closed`: nothing listens there; `guest_unreachable`"),
    )
)]
async fn dial(
    State(app): State<App>,
    Path(path): Path<PortPath>,
    Calling(caller): Calling,
    request: Request,
) -> Result<Response> {
    let port = path.port.parse::<u16>().ok().filter(|port| *port != 0).ok_or_else(|| {
        Refused(bad_request(format!("`{}` is no port.", path.port.escape_debug()), "Give a port from 1 to 65535."))
    })?;
    let upgrade = upgrade(request).ok_or_else(|| {
        let detail = "The request does not ask to become a connection to a port.";
        Refused(bad_request(detail, "Send a GET with `Connection: Upgrade` and `Upgrade: tcp`, over HTTP/1.1."))
    })?;
    let dialled = app.engine.dial(&path.sandbox, port).await?;
    let (closing, counted, engine) = (app.closing.clone(), app.sockets.token(), app.engine.clone());
    tokio::spawn(async move {
        tokio::select! {
            () = closing.cancelled() => {}
            // A token that cannot be looked up any more holds nothing open either.
            _ = engine.turned_away(&caller) => {}
            () = carry(upgrade, dialled) => {}
        }
        drop(counted);
    });
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    response.headers_mut().insert(header::UPGRADE, HeaderValue::from_static(PROTOCOL));
    Ok(response)
}

async fn carry(upgrade: OnUpgrade, mut dialled: Dialled) {
    let Ok(Ok(outside)) = timeout(PATIENCE, upgrade).await else { return };
    let mut outside = TokioIo::new(outside);
    let ended = tokio::io::copy_bidirectional_with_sizes(&mut outside, &mut dialled, BUFFER, BUFFER).await;
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection to a port broke");
    }
}

/// What the connection becomes, if that was asked for.
fn upgrade(request: Request) -> Option<OnUpgrade> {
    let (mut parts, _) = request.into_parts();
    let asked = parts.method == Method::GET && proxy::asks_for(&parts.headers, PROTOCOL);
    if !asked {
        return None;
    }
    parts.extensions.remove::<OnUpgrade>()
}
