//! The runtime contracts of agent-sandbox, which the guest serves on the sandbox's loopback: asked for whenever a sandbox is
//! opened, so that one whose template names them is never ready without them.

use sandbar_api::{Code, HumanDuration, Legacy, Problem, Sandboxd};
use sandbar_guest::protocol::{self as wire, DrainRequest, HelloRequest, HoldReply, HoldRequest, ServeRequest};
use sandbar_provider::Guest;
use tokio::time;
use tonic::Streaming;

use crate::{Inner, create, gate, handle::Handle, owner::HELLO, problem};

/// `gate` is the port of the sandbox's way out, if it has one. Repeating it is harmless.
pub(crate) async fn serve(inner: &Inner, handle: &Handle, mut guest: Guest, gate: Option<u16>) -> Result<(), Problem> {
    if handle.template.runtimes.is_empty() {
        return Ok(());
    }
    let served = time::timeout(HELLO, guest.serve(request(inner, handle, gate))).await;
    let served =
        served.unwrap_or_else(|_| Err(tonic::Status::deadline_exceeded("the runtimes were not served in time")));
    served.map(drop).map_err(|status| match problem::guest_code(&status) {
        Some(code @ Code::WrongState) => {
            let fix = "Give the runtimes of the template ports that no program inside takes; then stop and start it.";
            Problem::new(code, status.message(), fix)
        }
        _ => problem::from_status(&status),
    })
}

/// The environment is that of every process: the template's and the sandbox's over what the gate tells.
fn request(inner: &Inner, handle: &Handle, gate: Option<u16>) -> ServeRequest {
    let mut env = gate::environment_at(inner, handle, gate);
    env.extend(create::merge([&handle.template.env, &handle.record.borrow().env]));
    let (runtimes, limits) = (&handle.template.runtimes, &handle.template.limits);
    ServeRequest {
        sandboxd: runtimes.sandboxd.clone().map(|Sandboxd { grpc_port, rest_port, root, token }| wire::Sandboxd {
            grpc_port: grpc_port.into(),
            rest_port: rest_port.into(),
            root,
            token: token.unwrap_or_default(),
        }),
        legacy: runtimes.legacy.clone().map(|Legacy { port, root, timeout }| wire::Legacy {
            port: port.into(),
            root,
            timeout_ms: millis(timeout),
        }),
        env: env.into_iter().collect(),
        timeout_ms: limits.wall_time.map_or(0, millis),
        max_output: limits.output.map_or(0, |output| output.0),
    }
}

/// Zero means none to the guest, so what is stated is never less than one.
fn millis(time: HumanDuration) -> u64 {
    u64::try_from(time.0.as_millis()).unwrap_or(u64::MAX).max(1)
}

/// As long as this is kept, nothing is changed in files through them.
pub(crate) type Held = Option<Streaming<HoldReply>>;

/// Returns when nothing is being changed; whoever waits for it says how long.
pub(crate) async fn hold(handle: &Handle) -> Result<Held, Problem> {
    match handle.guest() {
        Some(mut guest) if !handle.template.runtimes.is_empty() => {
            let held = guest.hold(HoldRequest {}).await.map_err(|status| problem::from_status(&status))?;
            Ok(Some(held.into_inner()))
        }
        _ => Ok(None),
    }
}

/// Whether somebody waits for a command that was started through them.
pub(crate) async fn are_awaited(handle: &Handle) -> bool {
    match handle.guest() {
        Some(mut guest) if !handle.template.runtimes.is_empty() => {
            let told = time::timeout(HELLO, guest.hello(HelloRequest {})).await;
            matches!(told, Ok(Ok(told)) if told.get_ref().awaited > 0)
        }
        _ => false,
    }
}

/// Lets what was started through them end by itself; whoever waits for it says how long.
pub(crate) async fn drain(handle: &Handle, mut guest: Guest) {
    if handle.template.runtimes.is_empty() {
        return;
    }
    if let Err(status) = guest.drain(DrainRequest {}).await {
        tracing::debug!(sandbox = %handle.id, message = status.message(), "runtimes could not be asked to end");
    }
}
